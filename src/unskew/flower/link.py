"""The server's connection to the nodes of a federation."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from flwr.app import RecordDict
from flwr.serverapp import Grid

from unskew.data.remote import RemoteClient
from unskew.errors import UserError
from unskew.flower.description import Description, read_description
from unskew.flower.exchange import MOST_PAUSE, Trouble, exchange, node_ids
from unskew.flower.messages import MISSING, Order
from unskew.notation import in_order
from unskew.types import Tensors

DESCRIBE = 60.0
"""Seconds that a node may take to describe itself."""
AGAIN, LATER = 3.0, 300.0
"""Seconds after which a node that could not describe itself is asked again: before the run, and during it."""

Place = tuple[int, int]
"""The node of a client, and the client's index there."""


class Link:
    """Knows which nodes are connected and which clients each of them has, and sends orders to them."""

    def __init__(
        self,
        grid: Grid,
        *,
        share: Iterable[str] = (),
        timeout: float = 3600.0,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`share` names the class counts that nodes are asked for: "counts" of the training samples, "test"
        or "validation". `timeout` is how many seconds a node may take to answer an order, and `say` receives
        sentences for the log."""
        self.grid, self.timeout, self.say = grid, timeout, say
        self.run = "0" * 32
        self._share = tuple(share)
        self._nodes: dict[int, Description] = {}
        """The descriptions of nodes, by node."""
        self._troubled: dict[int, tuple[float, str]] = {}
        """The nodes that could not describe themselves: when they were asked, and why they could not."""
        self.names: list[str] = []
        """The names of the clients, in the order of their numbers."""
        self.numbered = False
        """Whether the nodes know their clients' numbers, as parts of one dataset do."""
        self._home: dict[str, Place] = {}
        """The place of each client when the run began."""
        self._where: dict[str, Place] = {}
        """The place of each client now."""

    def gather(self, nodes: int, wait: float) -> tuple[str, list[RemoteClient]]:
        """Wait at most `wait` seconds for `nodes` nodes, and for all clients that these know of. Number the
        clients: by the numbers that nodes report, else in the order of their names. Return the form of the
        data and the clients."""
        end = time.monotonic() + wait
        while True:
            timeout = min(DESCRIBE, max(1.0, end - time.monotonic()))
            self._describe(self._to_ask(node_ids(self.grid), AGAIN), timeout)
            known = list(self._nodes.values())
            held = {number for description in known for number in description.numbers}
            wanted = max((description.of for description in known), default=0)
            complete = len(held) >= wanted if wanted else len(known) >= max(nodes, 1)
            if known and complete and len(known) >= nodes:
                break
            if time.monotonic() > end:
                need = f"{wanted} clients" if wanted else f"{nodes} nodes"
                have = len(held) if wanted else len(known)
                lower = "skew.clients" if wanted else "federation.nodes"
                why = "".join(f" (one node: {reason})" for _, reason in [*self._troubled.values()][:1])
                raise UserError(
                    f"the run needs {need} and {have} are there after {wait:g} s{why}: start the others, or "
                    f"lower {lower}."
                )
            time.sleep(MOST_PAUSE)
        return self._number_clients()

    def _number_clients(self) -> tuple[str, list[RemoteClient]]:
        """Give the clients of all nodes their numbers, and return the form of their data and the clients."""
        known = self._nodes
        places = [
            (name, node, place)
            for node, description in known.items()
            for place, name in enumerate(description.names)
        ]
        for name, times in Counter(name for name, _, _ in places).items():
            if times > 1:
                raise UserError(
                    f"{times} nodes call a client '{name}': give each a name of its own in its node's "
                    "config, site=NAME."
                )
        number = {
            name: description.numbers[place]
            for description in known.values()
            for place, name in enumerate(description.names)
            if description.numbers
        }
        names = [name for name, _, _ in places]
        if sorted(number.values()) == list(range(len(names))):
            names.sort(key=number.__getitem__)
        elif number:
            raise UserError(
                f"the nodes' clients have the numbers {', '.join(map(str, sorted(number.values())))}, not "
                f"0..{len(names) - 1}: give each its own partition-id."
            )
        else:
            names = in_order(names)
        self.names, self.numbered = names, bool(number)
        self._home = {name: (node, place) for name, node, place in places}
        self._where = dict(self._home)
        forms = Counter(description.form for description in known.values())
        form = forms.most_common(1)[0][0]
        if len(forms) > 1:
            odd = next(description.names[0] for description in known.values() if description.form != form)
            raise UserError(
                f"the data of '{odd}' have other classes or inputs than those of others: give all sites data "
                "of one form."
            )
        return form, [self._client(name) for name in names]

    def _client(self, name: str) -> RemoteClient:
        node, place = self._where[name]
        description = self._nodes[node]
        tables = {kind: table[place] for kind, table in description.counts.items()}
        return RemoteClient(
            name,
            description.samples[place],
            test=tables.get("test"),
            counts=tables.get("counts"),
            validation=tables.get("validation"),
        )

    def _to_ask(self, connected: set[int], again: float) -> set[int]:
        """Return the nodes that are to describe themselves: new ones, and those that could not when they were
        asked `again` seconds ago or earlier."""
        now = time.monotonic()
        waiting = {node for node, (asked, _) in self._troubled.items() if now - asked < again}
        return connected - self._nodes.keys() - waiting

    def _describe(self, nodes: set[int], timeout: float) -> None:
        """Ask nodes to describe themselves, and keep their descriptions."""
        order = Order(action="describe", run=self.run, share=self._share)
        for node, answer in exchange(self.grid, dict.fromkeys(nodes, order), timeout).items():
            said = self._troubled.get(node, (0.0, ""))[1]
            if isinstance(answer, Trouble):
                # A node that has said why it cannot, and is only slow now, still cannot for that reason.
                reason = said if said and answer.kind == "lost" else answer.reason
            else:
                try:
                    self._nodes[node] = read_description(answer, self._share)
                    self._troubled.pop(node, None)
                    continue
                except (KeyError, TypeError, ValueError, UserError) as error:
                    reason = f"its answer cannot be read ({error})"
            if said != reason:
                self.say(f"node {node} did not say what it has, because {reason}")
            self._troubled[node] = time.monotonic(), reason

    def refresh(self) -> set[int]:
        """Return the nodes that are connected. The clients of a node that has come back under another number
        are found there from now on."""
        connected = node_ids(self.grid)
        for name, home in self._home.items():
            if home[0] in connected:  # the first node of a client comes before any that took its place
                self._where[name] = home
        new = self._to_ask(connected, LATER)
        self._describe(new, DESCRIBE)
        for node in new & self._nodes.keys():
            self._rejoin(node, self._nodes[node], connected)
        return connected

    def _rejoin(self, node: int, description: Description, connected: set[int]) -> None:
        """Move clients of nodes that have gone to a new node that has clients of the same names and sizes."""
        for place, name in enumerate(description.names):
            if name not in self._where:
                self.say(f"'{name}' has come after the run began: it takes no part in it")
                continue
            before, old_place = self._where[name]
            had = self._nodes[before]
            if before in connected:
                self.say(f"another node calls a client '{name}', whose own node is there: it is left alone")
            elif had.samples[old_place] != description.samples[place]:
                self.say(f"'{name}' has come back with another number of samples: it is left alone")
            else:
                self._where[name] = node, place
                self.say(f"'{name}' has come back")

    def place(self, client: int) -> Place:
        """Return the node of a client, and the client's index there."""
        return self._where[self.names[client]]

    def send(
        self, orders: Mapping[int, Order], connected: set[int], result: Callable[[str], Tensors | None]
    ) -> dict[int, RecordDict | Trouble]:
        """Send orders, given by node, and return the answers by node. Nodes that are not in `connected` count
        as lost. A node that lacks the result of an earlier stage receives the order again, with what `result`
        returns for that stage."""
        gone = Trouble("lost", "its node is not there")
        answers: dict[int, RecordDict | Trouble] = {node: gone for node in orders if node not in connected}
        left = {node: order for node, order in orders.items() if node in connected}
        while left:
            again: dict[int, Order] = {}
            for node, answer in exchange(self.grid, left, self.timeout).items():
                stage = None if isinstance(answer, Trouble) else _missing(answer)
                found = None if stage is None else result(stage)
                if stage is None:
                    answers[node] = answer
                elif found is None or stage in left[node].results:
                    answers[node] = Trouble("error", f"it asks for '{stage}', which is not there or was sent")
                else:
                    again[node] = replace(left[node], results={**left[node].results, stage: found})
            left = again
        return answers

    def end(self) -> None:
        """Tell all nodes that the run has ended."""
        connected = self.refresh()
        order = Order(action="forget", run=self.run)
        orders = {node: order for node, _ in self._where.values() if node in connected}
        exchange(self.grid, orders, DESCRIBE)


def _missing(content: RecordDict) -> str | None:
    """Return the stage whose result a node asks for, or None if it asks for none."""
    missing = content.config_records.get(MISSING)
    return None if missing is None else str(missing.get("stage", ""))
