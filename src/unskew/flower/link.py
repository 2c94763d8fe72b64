"""The nodes of a federation as its server sees them: who is where, what is sent and what comes back."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from unskew.data.remote import Ints, RemoteClient
from unskew.errors import UserError
from unskew.flower.form import dataset_of_form
from unskew.flower.messages import MISSING, PROBLEM, Order
from unskew.flower.records import from_record
from unskew.notation import in_order
from unskew.record import FaultKind
from unskew.types import Tensors

TYPES = {"fit": MessageType.TRAIN, "evaluate": MessageType.EVALUATE}
"""The types of messages, by their action; all others are queries."""
LOST = (3, 4, 5, 8)
"""Flower's codes of errors that say that a message, its answer, a node or its process is gone."""
MOST_PAUSE = 1.0
"""Seconds between two looks whether something has arrived, at most."""
DESCRIBE, AGAIN, LATER = 60.0, 3.0, 300.0
"""Seconds: that a node may take to say what it has, and after which one that could not is asked again, before
the run and in it."""
MOST_SAMPLES = 10**9
"""The most samples of one client; what claims more is a mistake."""


@dataclass(frozen=True)
class Trouble:
    """Why a node has not answered as it should."""

    kind: FaultKind
    reason: str


@dataclass(frozen=True, eq=False)
class Description:
    """What a node tells of itself."""

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    of: int
    samples: tuple[int, ...]
    form: str
    counts: Mapping[str, Ints]
    """Each client's samples by class, [k, C]: those for training, or those that test or validate."""


class Link:
    """The nodes of a federation, and which clients are on which."""

    def __init__(
        self,
        grid: Grid,
        *,
        share: Iterable[str] = (),
        timeout: float = 3600.0,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`share` is what clients are to tell of their data beside how many samples they have; `timeout` how
        many seconds a node may take to answer."""
        self.grid, self.timeout, self.say = grid, timeout, say
        self.run = "0" * 32
        self._share = tuple(share)
        self._nodes: dict[int, Description] = {}
        """What every node has said of itself."""
        self._troubled: dict[int, tuple[float, str]] = {}
        """The nodes that could not say what they have: when they were asked, and why."""
        self.names: list[str] = []
        """The clients, by their numbers."""
        self.numbered = False
        """Whether the nodes know their clients' numbers, as parts of one dataset do."""
        self._home: dict[str, tuple[int, int]] = {}
        """The node of each client when the run began, and its place there."""
        self._where: dict[str, tuple[int, int]] = {}
        """The node of each client now, and its place there."""

    # Who is there

    def gather(self, nodes: int, wait: float) -> tuple[str, list[RemoteClient]]:
        """Wait until so many nodes are there, or all that the nodes themselves know of, and number their
        clients: by the numbers that they have, or in the order of their names. Return the form of their data
        and the clients."""
        end = time.monotonic() + wait
        while True:
            self._describe(
                self._unknown(self._there(), AGAIN), min(DESCRIBE, max(1.0, end - time.monotonic()))
            )
            known = list(self._nodes.values())
            held = {number for description in known for number in description.numbers}
            wanted = max((description.of for description in known), default=0)
            there = len(held) >= wanted if wanted else len(known) >= max(nodes, 1)
            if known and there and len(known) >= nodes:
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
        return self._number()

    def _number(self) -> tuple[str, list[RemoteClient]]:
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

    def _unknown(self, there: set[int], again: float) -> set[int]:
        """The nodes to ask who they are: new ones, and after so many seconds those that could not say it."""
        now = time.monotonic()
        waiting = {node for node, (asked, _) in self._troubled.items() if now - asked < again}
        return there - self._nodes.keys() - waiting

    def _describe(self, nodes: set[int], timeout: float) -> None:
        """Ask nodes who they are."""
        order = Order(action="describe", run=self.run, share=self._share)
        for node, answer in self._exchange(dict.fromkeys(nodes, order), timeout).items():
            reason = answer.reason if isinstance(answer, Trouble) else ""
            if not isinstance(answer, Trouble):
                try:
                    self._nodes[node] = _description(answer, self._share)
                    self._troubled.pop(node, None)
                    continue
                except (KeyError, TypeError, ValueError, UserError) as error:
                    reason = f"its answer cannot be read ({error})"
            if self._troubled.get(node, (0.0, ""))[1] != reason:
                self.say(f"node {node} did not say what it has, because {reason}")
            self._troubled[node] = time.monotonic(), reason

    def _there(self) -> set[int]:
        with _heard():
            return set(self.grid.get_node_ids())

    def refresh(self) -> set[int]:
        """The nodes that are there. One that has come back under another number takes its clients' places."""
        there = self._there()
        for name, home in self._home.items():
            if home[0] in there:  # whoever took its place meanwhile
                self._where[name] = home
        new = self._unknown(there, LATER)
        self._describe(new, DESCRIBE)
        for node in new & self._nodes.keys():
            self._rejoin(node, self._nodes[node], there)
        return there

    def _rejoin(self, node: int, description: Description, there: set[int]) -> None:
        for place, name in enumerate(description.names):
            if name not in self._where:
                self.say(f"'{name}' has come after the run began: it takes no part in it")
                continue
            before, old_place = self._where[name]
            had = self._nodes[before]
            if before in there:
                self.say(f"another node calls a client '{name}', whose own node is there: it is left alone")
            elif had.samples[old_place] != description.samples[place]:
                self.say(f"'{name}' has come back with another number of samples: it is left alone")
            else:
                self._where[name] = node, place
                self.say(f"'{name}' has come back")

    def place(self, client: int) -> tuple[int, int]:
        """The node of a client, and its place there."""
        return self._where[self.names[client]]

    # What is sent

    def send(
        self, orders: Mapping[int, Order], there: set[int], result: Callable[[str], Tensors | None]
    ) -> dict[int, RecordDict | Trouble]:
        """Send an order to each of some nodes, of those that are `there`, and wait for what they answer. A
        node that lacks the result of an earlier stage is sent it with the order once more."""
        gone = Trouble("lost", "its node is not there")
        answers: dict[int, RecordDict | Trouble] = {node: gone for node in orders if node not in there}
        left = {node: order for node, order in orders.items() if node in there}
        while left:
            again: dict[int, Order] = {}
            for node, answer in self._exchange(left).items():
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
        there = self.refresh()
        order = Order(action="forget", run=self.run)
        self._exchange({node: order for node, _ in self._where.values() if node in there}, DESCRIBE)

    def _exchange(
        self, orders: Mapping[int, Order], timeout: float | None = None
    ) -> dict[int, RecordDict | Trouble]:
        """Send orders to nodes, and wait for the answers."""
        timeout = timeout or self.timeout
        if not orders:
            return {}
        messages = [
            Message(
                order.content(),
                node,
                TYPES.get(order.action, MessageType.QUERY),
                group_id=str(order.round + 1),
            )
            for node, order in orders.items()
        ]
        answers: dict[int, RecordDict | Trouble] = {}
        with _heard():
            pushed = zip(orders, self.grid.push_messages(messages), strict=False)
        waiting: dict[str, int] = {name: node for node, name in pushed if name}
        end, pause = time.monotonic() + timeout, 0.05
        while waiting and time.monotonic() < end:
            with _heard():
                arrived = list(self.grid.pull_messages(list(waiting)))
            for reply in arrived:
                name = reply.metadata.reply_to_message_id
                if name in waiting:
                    answers[waiting.pop(name)] = _content(reply)
            pause = 0.05 if arrived else min(1.5 * pause, MOST_PAUSE)
            if waiting:
                time.sleep(pause)
        for node in orders.keys() - answers.keys():
            sent = node in waiting.values()
            reason = f"it did not answer within {timeout:g} s" if sent else "it could not be reached"
            answers[node] = Trouble("lost", reason)
        return answers


@contextmanager
def _heard() -> Iterator[None]:
    """Ask something of the SuperLink, which does not listen to a run that was stopped."""
    httpx: Any = importlib.import_module("httpx")
    try:
        yield
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in (401, 403):
            raise
        raise UserError(
            "the SuperLink does not listen to this run any more, as after flwr stop: start the app again; "
            "where federation.out names the same folder, it resumes."
        ) from None


def _content(reply: Message) -> RecordDict | Trouble:
    if reply.has_error():
        error = reply.error
        reason = " ".join((error.reason or "an error").split()).removesuffix(".")
        return Trouble("lost" if error.code in LOST else "error", reason)
    content = reply.content
    if PROBLEM in content.config_records:
        sentence = str(content.config_records[PROBLEM].get("sentence", "an error"))
        return Trouble("error", " ".join(sentence.split())[:500].removesuffix("."))
    return content


def _missing(content: RecordDict) -> str | None:
    """The stage whose result a node lacks."""
    missing = content.config_records.get(MISSING)
    return None if missing is None else str(missing.get("stage", ""))


def _description(content: RecordDict, share: Sequence[str]) -> Description:
    site = content.config_records["site"]
    names, numbers, samples = (tuple(site[name]) for name in ("names", "numbers", "samples"))
    if not names or len(names) != len(samples) or (numbers and len(numbers) != len(names)):
        raise ValueError("its clients have not one name and one number each")
    if not all(type(each) is int and 0 <= each <= MOST_SAMPLES for each in (*samples, *numbers)):
        raise ValueError("its numbers are none")
    form, of = site["form"], site["of"]
    if not isinstance(form, str) or type(of) is not int:
        raise ValueError("its data have no form")
    records = content.array_records
    counts = (
        {name: value.numpy() for name, value in from_record(records["counts"]).items()}
        if "counts" in records
        else {}
    )
    if counts.keys() != set(share):
        raise ValueError("its counts are not those that were asked for")
    expected = len(names), len(dataset_of_form(form, "").classes)
    for table in counts.values():
        if table.shape != expected or table.dtype.kind != "i":
            raise ValueError("its counts are none")
        if (table < 0).any() or table.max(initial=0) > MOST_SAMPLES or table.sum() > MOST_SAMPLES:
            raise ValueError("its counts are none")
    return Description(tuple(map(str, names)), numbers, of, samples, form, counts)
