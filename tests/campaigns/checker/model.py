"""A log that makes no mistake, and clients of it: good histories for testing the checker.

Clients are generators; between two steps of one any other may run or be killed. What a killed one leaves open is
decided later, as a coordinator's timeout would. Transactions' markers take an offset, as in a real log.
"""

from __future__ import annotations

import io
import random
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from tests.campaigns.checker import generate
from tests.campaigns.checker.history import UNKNOWN_OFFSET, Kind, Operation, Outcome, Recorder, parse_history

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
Client = Generator[None, None, None]


@dataclass
class Transaction:
    """A transaction. `abandoned`: its client is dead; offsets are of one group."""

    group: str
    state: str = OPEN
    abandoned: bool = False
    partitions: set[str] = field(default_factory=set)
    offsets: dict[str, int] = field(default_factory=dict)


class Log:
    """Partitions of (value or None for a marker, transaction or None), and the groups' offsets."""

    def __init__(self) -> None:
        self.records: dict[str, list[tuple[int | None, Transaction | None]]] = {}
        self.committed: dict[tuple[str, str], int] = {}
        self.transactions: list[Transaction] = []

    def append(self, partition: str, value: int, transaction: Transaction | None = None) -> int:
        log = self.records.setdefault(partition, [])
        log.append((value, transaction))
        if transaction is not None:
            transaction.partitions.add(partition)
        return len(log) - 1

    def begin(self, group: str = "") -> Transaction:
        self.transactions.append(Transaction(group))
        return self.transactions[-1]

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        transaction.state = COMMITTED if commit else ABORTED
        for partition in transaction.partitions:
            self.records[partition].append((None, None))
        if commit:
            self.committed |= {(transaction.group, p): o for p, o in transaction.offsets.items()}

    def read(
        self, partition: str, position: int, records_max: int, committed: bool
    ) -> tuple[int, list[int], list[int]]:
        """The next position, offsets and values; up to the last stable offset for a reader of committed records."""
        offsets: list[int] = []
        values: list[int] = []
        log = self.records.get(partition, [])
        while position < len(log) and len(values) < records_max:
            value, transaction = log[position]
            if committed and transaction is not None and transaction.state == OPEN:
                break
            position += 1
            if value is not None and not (committed and transaction is not None and transaction.state == ABORTED):
                offsets.append(position - 1)
                values.append(value)
        return position, offsets, values


class World:
    """All clients, their histories, and a scheduler with a random order and a clock that counts steps."""

    def __init__(self, seed: int, partitions: int = 2) -> None:
        self.seed = seed
        self.rng = random.Random(f"{seed}/schedule")
        self.log = Log()
        self.inputs = [f"in-{i}" for i in range(partitions)]
        self.outputs = [f"out-{i}" for i in range(partitions)]
        self.files: dict[str, io.BytesIO] = {}
        self.lives = 0
        self.now_ns = 0
        self.owners: dict[str, str] = {}
        self.members: list[str] = []

    # -- clients

    def recorder(self, stem: str, **more: Any) -> tuple[int, str, Recorder]:
        client, self.lives = self.lives, self.lives + 1
        name = f"{stem}{client}"
        self.files[name] = io.BytesIO()
        return client, name, Recorder(self.files[name], name, clock=self._clock, **more)

    def _clock(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def producer(self) -> Client:
        client, _, history = self.recorder("producer")
        values = generate.unique_values(client)
        for intent in generate.sends(self.seed, client, self.inputs):
            mine = [next(values) for _ in range(intent.records)]
            operation = history.begin(Kind.SEND, [(intent.partition, mine)])
            yield
            if self.rng.random() < 0.1:
                history.end(operation, Outcome.FAILED)
                continue
            offsets = []
            for value in mine:
                offsets.append(self.log.append(intent.partition, value))
                yield
            history.end(operation, Outcome.OK, [offsets])
            yield

    def transactional(self) -> Client:
        client, _, history = self.recorder("transactional")
        values = generate.unique_values(client)
        for intent in generate.transactions(self.seed, client, self.inputs):
            operation = history.begin(Kind.TRANSACTION)
            transaction = self.log.begin()
            acked: list[list[int]] = []
            try:
                for send in intent.sends:
                    mine = [next(values) for _ in range(send.records)]
                    history.sends(operation, [(send.partition, mine)])
                    yield
                    acked.append([])
                    for value in mine:
                        acked[-1].append(self.log.append(send.partition, value, transaction))
                        yield
                yield from self._end(history, operation, transaction, acked, commit=intent.commit)
            finally:
                transaction.abandoned = True

    def _end(
        self, history: Recorder, operation: int, transaction: Transaction, acked: list[list[int]], *, commit: bool
    ) -> Client:
        history.ending(operation, commit=commit)
        yield
        self.log.end(transaction, commit=commit)
        yield
        outcome = Outcome.OK if commit else Outcome.FAILED
        offsets = acked if self.rng.random() < 0.7 else [[UNKNOWN_OFFSET] * len(o) for o in acked]
        history.end(operation, outcome, offsets)
        yield

    def pipeline(self) -> Client:
        """One at a time: it reads all inputs, from the group's offsets on."""
        client, _, history = self.recorder("pipeline", group="pipeline")
        values = generate.unique_values(client)
        positions = {p: self.log.committed.get(("pipeline", p), 0) for p in self.inputs}
        history.end(history.begin(Kind.ASSIGN, offsets=positions), Outcome.OK)
        for intent in generate.pipelines(self.seed, client, self.outputs):
            operation = history.begin(Kind.TRANSACTION)
            transaction = self.log.begin("pipeline")
            acked: list[list[int]] = []
            try:
                partition = self.rng.choice(self.inputs)
                position, offsets, taken = self.log.read(partition, positions[partition], intent.records_max, True)
                history.polls(operation, [(partition, offsets, taken)])
                yield
                if taken:
                    mine = [next(values) for _ in taken]
                    history.sends(operation, [(intent.partition, mine, taken)])
                    yield
                    acked.append([self.log.append(intent.partition, value, transaction) for value in mine])
                    yield
                history.offsets(operation, {partition: position})
                transaction.offsets[partition] = position
                yield from self._end(history, operation, transaction, acked, commit=intent.commit)
                if intent.commit:
                    positions[partition] = position
                else:
                    history.end(history.begin(Kind.ASSIGN, offsets=positions), Outcome.OK)
            finally:
                transaction.abandoned = True

    def assigned(self, *, committed: bool = True) -> Client:
        client, _, history = self.recorder("assigned", reads_committed=committed)
        positions = dict.fromkeys(self.inputs + self.outputs, 0)
        history.end(history.begin(Kind.ASSIGN, offsets=positions), Outcome.OK)
        for intent in generate.polls(self.seed, client):
            if intent.seek:
                positions = dict.fromkeys(positions, 0)
                history.end(history.begin(Kind.ASSIGN, offsets=positions), Outcome.OK)
            operation = history.begin(Kind.POLL)
            yield
            polled = []
            for partition in self.rng.sample(sorted(positions), 2):
                positions[partition], *read = self.log.read(
                    partition, positions[partition], intent.records_max, committed
                )
                polled.append((partition, *read))
            history.polls(operation, polled)
            history.end(operation, Outcome.OK)
            yield

    def member(self) -> Client:
        """Takes partitions from others at any time; they find out when they poll or commit."""
        client, name, history = self.recorder("member", group="group")
        positions: dict[str, int] = {}
        for intent in generate.polls(self.seed, client):
            positions = {p: o for p, o in positions.items() if self.owners.get(p) == name}
            if intent.seek or not positions:
                operation = history.begin(Kind.FETCH_COMMITTED)
                gained = [p for p in self.inputs if p not in positions and self.rng.random() < 0.7]
                self.owners |= dict.fromkeys(gained, name)
                told = {p: self.log.committed.get(("group", p), 0) for p in gained}
                history.end(operation, Outcome.OK, offsets=told)
                history.end(history.begin(Kind.ASSIGN, offsets=told), Outcome.OK)
                positions |= told
                yield
                continue
            operation = history.begin(Kind.POLL)
            partition = self.rng.choice(sorted(positions))
            positions[partition], *read = self.log.read(partition, positions[partition], intent.records_max, True)
            history.polls(operation, [(partition, *read)])
            history.end(operation, Outcome.OK)
            yield
            operation = history.begin(Kind.COMMIT, offsets={partition: positions[partition]})
            if self.owners[partition] == name:
                self.log.committed["group", partition] = positions[partition]
                yield
                history.end(operation, Outcome.OK)
            else:
                history.end(operation, Outcome.FAILED)
            yield

    # -- running

    def run(self, steps: int) -> list[Operation]:
        """The history of so many steps, and of a reading of everything at the end."""
        makers = [self.producer, self.transactional, self.pipeline, self.assigned, self.member, self.member]
        makers.append(lambda: self.assigned(committed=False))
        clients = [make() for make in makers]
        for _ in range(steps):
            i = self.rng.randrange(len(clients))
            if self.rng.random() < 0.004:
                clients[i].close()
                if makers[i] == self.pipeline:
                    self._decide("pipeline")  # a successor fences what its predecessor left open
                clients[i] = makers[i]()
            else:
                next(clients[i])
            if self.rng.random() < 0.02:
                self._decide()
        for client in clients:
            client.close()
        self._decide(everything=True)
        self._read_all()
        return [o for name, file in self.files.items() for o in parse_history(file.getvalue(), name)]

    def _decide(self, group: str | None = None, *, everything: bool = False) -> None:
        """Aborts transactions whose writers are dead: some, all, or a group's."""
        for transaction in self.log.transactions:
            dead = transaction.state == OPEN and transaction.abandoned
            if dead and (everything or transaction.group == group or self.rng.random() < 0.5):
                self.log.end(transaction, commit=False)

    def _read_all(self) -> None:
        _, _, history = self.recorder("last")
        ends = {p: len(self.log.records.get(p, [])) for p in self.inputs + self.outputs}
        history.end(history.begin(Kind.ASSIGN, offsets=dict.fromkeys(ends, 0)), Outcome.OK)
        operation = history.begin(Kind.POLL)
        history.polls(operation, [(p, *self.log.read(p, 0, end + 1, True)[1:]) for p, end in ends.items()])
        history.end(operation, Outcome.OK)
        history.end(history.begin(Kind.FINAL, offsets=ends), Outcome.OK)


def good_history(seed: int, steps: int = 1000) -> list[Operation]:
    """A history without an anomaly."""
    return World(seed).run(steps)
