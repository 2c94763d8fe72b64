"""A federation in one process. Of Flower it uses only the serialisation of messages."""

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity


def carried(message):
    """Return a message as it arrives on another machine. Each part is hashed once, as Flower does it."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        contents = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        arrived = inflate_object_from_contents(message.object_id, contents)
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived


class InProcessGrid:
    """A grid whose nodes all run one ClientApp in this process. `change` may change their replies."""

    def __init__(self, app, node_configs, run_config=None):
        self.app, self.run_config = app, run_config or {}
        self.nodes = {100 + number: config for number, config in enumerate(node_configs)}
        self.sent, self.replies, self.change = [], {}, lambda message, reply: reply
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        names = []
        for message in messages:
            arrived = carried(message)
            self.sent.append(arrived)
            node = arrived.metadata.dst_node_id
            context = Context(
                run_id=1,
                node_id=node,
                node_config=self.nodes[node],
                state=RecordDict(),
                run_config=self.run_config,
                series_id=1,
            )
            try:
                reply = self.change(arrived, carried(self.app(arrived, context)))
            except Exception as error:
                reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=arrived)
            self.replies[message.metadata.message_id] = reply
            names.append(message.metadata.message_id)
        return names

    def pull_messages(self, names):
        return [self.replies.pop(name) for name in names if name in self.replies]
