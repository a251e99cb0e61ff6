"""The roles a client can have. Each is a loop over its seeded intents; an outcome that is not known is written as
such."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sparklog
from sparklog.client.producer.futures import RecordFuture
from sparklog.client.reading.consumed import ConsumedBatch
from sparklog.errors import SparklogError
from sparklog.types import TopicPartition
from tests.campaigns.checker import generate
from tests.campaigns.checker.history import UNKNOWN_OFFSET, Kind, Outcome
from tests.campaigns.torture.client import Life, partition_of
from tests.campaigns.torture.shared import shared

__all__ = [
    "GROUPS",
    "assigned",
    "drain",
    "last",
    "member",
    "pipeline",
    "producer",
    "shared",
    "transactional",
    "uncommitted",
]

GROUPS = {"pipeline": "pipeline", "drain": "pipeline", "member": "group"}
"""The group of a role's members."""

PRODUCER_SETTINGS = ("transaction_timeout_ms", "request_timeout_ms")
"""Of a pipeline's, which are its producer's."""
CALLS_IN_FLIGHT = 8
ACKNOWLEDGED_S = 150.0
"""Longer than delivery.timeout.ms: the client itself always ends the wait."""
POLL_MS = 200
READ_AGAIN_RECORDS_MAX = 500_000
"""A reader begins again until it has read this number: a long campaign's history would outgrow the checker."""


def producer(life: Life) -> None:
    """Sends without transactions, several calls under way."""
    told, history = life.told, life.history
    values = generate.unique_values(told.number)
    waiting: deque[tuple[int, list[RecordFuture]]] = deque()
    with sparklog.Producer(told.bootstrap_servers, acks="all", **told.settings) as client:
        for intent in life.while_wanted(generate.sends(told.seed, told.number, told.inputs)):
            mine = [next(values) for _ in range(intent.records)]
            operation = history.begin(Kind.SEND, [(intent.partition, mine)])
            waiting.append((operation, send_all(client, intent.partition, mine)))
            while len(waiting) > CALLS_IN_FLIGHT or (waiting and waiting[0][1][-1].done()):
                _settle(life, *waiting.popleft())
        while waiting:
            _settle(life, *waiting.popleft())


def send_all(client: Any, partition: str, values: Iterable[int]) -> list[RecordFuture]:
    tp = partition_of(partition)
    return [client.send(tp.topic, str(value).encode(), partition=tp.partition) for value in values]


def offsets_of(futures: Sequence[RecordFuture]) -> tuple[list[int], SparklogError | None]:
    """The acknowledged offsets (-1 where there is none), and the last error."""
    offsets: list[int] = []
    error: SparklogError | None = None
    for future in futures:
        try:
            offsets.append(future.result(ACKNOWLEDGED_S).offset)
        except SparklogError as e:
            offsets.append(UNKNOWN_OFFSET)
            error = e
    return offsets, error


def _settle(life: Life, operation: int, futures: Sequence[RecordFuture]) -> None:
    offsets, error = offsets_of(futures)
    life.history.end(operation, Outcome.OK if error is None else Outcome.UNKNOWN, [offsets])


def transactional(life: Life) -> None:
    """Sends in transactions, a part of which it aborts. The next life has the same transactional id and fences this
    one."""
    told, history = life.told, life.history
    values = generate.unique_values(told.number)
    identity = f"transactional-{told.slot}"
    with sparklog.Producer(told.bootstrap_servers, transactional_id=identity, **told.settings) as client:
        client.init_transactions()
        for intent in life.while_wanted(generate.transactions(told.seed, told.number, told.inputs)):
            operation = history.begin(Kind.TRANSACTION)
            client.begin_transaction()
            futures = []
            for send in intent.sends:
                mine = [next(values) for _ in range(send.records)]
                history.sends(operation, [(send.partition, mine)])
                futures.append(send_all(client, send.partition, mine))
            _end_transaction(life, client, operation, futures, commit=intent.commit)


def _end_transaction(
    life: Life, client: Any, operation: int, calls: Sequence[Sequence[RecordFuture]], *, commit: bool
) -> bool:
    """End a transaction; returns True if it is committed. An error of the commit is followed by an abort; an error of
    that ends this life."""
    history = life.history
    history.ending(operation, commit=commit)
    while commit:
        try:
            client.commit_transaction()
        except SparklogError as e:
            life.note(f"a commit failed: {e!r}")
            commit = e.retriable  # nobody knows: only another attempt can tell
        else:
            history.end(operation, Outcome.OK, [offsets_of(futures)[0] for futures in calls])
            return True
    client.abort_transaction()
    history.end(operation, Outcome.FAILED)
    return False


def pipeline(life: Life) -> None:
    """Consume, transform, produce: one output for each input, with the offsets in one transaction."""
    told, history = life.told, life.history
    values = generate.unique_values(told.number)
    with _Member(life) as member, _pipeline_producer(life) as client:
        client.init_transactions()
        for intent in life.while_wanted(generate.pipelines(told.seed, told.number, told.outputs)):
            polls = member.poll(intent.records_max) if told.until is None else member.poll_all()
            if not polls:
                if told.until is not None and member.has_reached(told.until):
                    return
                continue
            sources = [value for _, _, polled in polls for value in polled]
            mine = [next(values) for _ in sources]
            positions = {partition: offsets[-1] + 1 for partition, offsets, _ in polls}
            operation = history.begin(Kind.TRANSACTION)
            history.polls(operation, polls)
            history.sends(operation, [(intent.partition, mine, sources)])
            history.offsets(operation, positions)
            client.begin_transaction()
            futures = send_all(client, intent.partition, mine)
            commit = intent.commit or told.until is not None
            try:
                offsets = {partition_of(p): o for p, o in positions.items()}
                client.send_offsets_to_transaction(offsets, member.client.group_metadata())
            except SparklogError as e:
                life.note(f"offsets were refused: {e!r}")
                commit = False
            if not _end_transaction(life, client, operation, [futures], commit=commit):
                member.go_back({p: offsets[0] for p, offsets, _ in polls})


drain = pipeline
"""A pipeline that commits everything and ends when it has reached the offsets it is told."""


def _pipeline_producer(life: Life) -> Any:
    settings = {k: v for k, v in life.told.settings.items() if k in PRODUCER_SETTINGS}
    identity = f"pipeline-{life.told.slot}"
    return sparklog.Producer(life.told.bootstrap_servers, transactional_id=identity, **settings)


def member(life: Life) -> None:
    """A member of a group that commits the records that it has read."""
    told, history = life.told, life.history
    with _Member(life) as member:
        for intent in life.while_wanted(generate.polls(told.seed, told.number)):
            if intent.seek:
                member.note_committed()
            polls = member.poll(intent.records_max)
            _note_poll(life, polls)
            if polls:
                positions = {partition: offsets[-1] + 1 for partition, offsets, _ in polls}
                operation = history.begin(Kind.COMMIT, offsets=positions)
                try:
                    member.client.commit({partition_of(p): o for p, o in positions.items()})
                except SparklogError as e:
                    life.note(f"a commit was refused: {e!r}")
                    history.end(operation, Outcome.UNKNOWN)
                else:
                    history.end(operation, Outcome.OK)


class _Member:
    """A consumer in a group, of the inputs, that writes down its assignments."""

    def __init__(self, life: Life) -> None:
        told = life.told
        settings = {k: v for k, v in told.settings.items() if k not in PRODUCER_SETTINGS}
        self._life = life
        self.client = sparklog.Consumer(
            told.bootstrap_servers,
            group_id=GROUPS[told.role],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            **settings,
        )
        topics = sorted({partition_of(p).topic for p in told.inputs})
        self.client.subscribe(topics, on_assign=self._assigned)

    def __enter__(self) -> _Member:
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.close()

    def _assigned(self, partitions: Iterable[TopicPartition]) -> None:
        _note_assignment(self._life, {str(tp): -1 for tp in partitions})

    def poll(self, records_max: int) -> list[tuple[str, list[int], list[int]]]:
        """(partition, offsets, values) of the next records, partition by partition."""
        found: dict[str, tuple[str, list[int], list[int]]] = {}
        for record in self.client.poll(POLL_MS, max_records=records_max):
            partition = str(TopicPartition(record.topic, record.partition))
            _, offsets, values = found.setdefault(partition, (partition, [], []))
            offsets.append(record.offset)
            values.append(int(record.value))
        return list(found.values())

    def poll_all(self) -> list[tuple[str, list[int], list[int]]]:
        """The same of all that is there, of several partitions."""
        found: dict[str, tuple[str, list[int], list[int]]] = {}
        for partition, offsets, values in polls_of(self.client.poll_batches(POLL_MS)):
            _, all_offsets, all_values = found.setdefault(partition, (partition, [], []))
            all_offsets += offsets
            all_values += values
        return list(found.values())

    def go_back(self, offsets: Mapping[str, int]) -> None:
        """Seek to the first record that an aborted transaction had read, in partitions that are still assigned."""
        mine = {str(tp) for tp in self.client.assignment()} & offsets.keys()
        for partition in mine:
            self.client.seek(partition_of(partition), offsets[partition])
        _note_assignment(self._life, {p: offsets[p] for p in mine})

    def note_committed(self) -> None:
        operation = self._life.history.begin(Kind.FETCH_COMMITTED)
        found = self.client.committed(self.client.assignment())
        told = {str(tp): at.offset for tp, at in found.items() if at is not None}
        self._life.history.end(operation, Outcome.OK, offsets=told)

    def has_reached(self, until: Mapping[str, int]) -> bool:
        mine = set(self.client.assignment())
        return all(partition_of(p) in mine and self.client.position(partition_of(p)) >= o for p, o in until.items())


def polls_of(batches: Iterable[ConsumedBatch]) -> list[tuple[str, list[int], list[int]]]:
    """Return (partition, offsets, values) of a poll's result; a batch may be without rows."""
    return [
        (str(b.tp), b.offsets().tolist(), [int(v) for v in b.data.column("value").to_pylist()])
        for b in batches
        if b.num_rows
    ]


def reader(life: Life, isolation_level: str = "read_committed") -> sparklog.Consumer:
    return sparklog.Consumer(
        life.told.bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level=isolation_level,
        **life.told.settings,
    )


def uncommitted(life: Life) -> None:
    """Read everything, including records of transactions that will be aborted."""
    assigned(life, "read_uncommitted")


def assigned(life: Life, isolation_level: str = "read_committed") -> None:
    """Reads all partitions, and now and then again from the beginning."""
    told = life.told
    partitions = [*told.inputs, *told.outputs]
    with reader(life, isolation_level) as client:
        client.assign([partition_of(p) for p in partitions])
        _note_assignment(life, dict.fromkeys(partitions, 0))
        records = 0
        for intent in life.while_wanted(generate.polls(told.seed, told.number)):
            if intent.seek and records < READ_AGAIN_RECORDS_MAX:
                client.seek_to_beginning()
                _note_assignment(life, dict.fromkeys(partitions, 0))
            polls = polls_of(client.poll_batches(POLL_MS))
            records += sum(len(offsets) for _, offsets, _ in polls)
            _note_poll(life, polls)


def _note_assignment(life: Life, offsets: Mapping[str, int]) -> None:
    life.history.end(life.history.begin(Kind.ASSIGN, offsets=offsets), Outcome.OK)


def _note_poll(life: Life, polls: Sequence[Any]) -> None:
    if polls:
        operation = life.history.begin(Kind.POLL)
        life.history.polls(operation, polls)
        life.history.end(operation, Outcome.OK)


def last(life: Life) -> None:
    """After all is healed: read everything up to the given offsets."""
    told = life.told
    assert told.until is not None
    with reader(life) as client:
        client.assign([partition_of(p) for p in told.until])
        _note_assignment(life, dict.fromkeys(told.until, 0))
        while any(client.position(partition_of(p)) < end for p, end in told.until.items()):
            if life.stopping:
                return
            _note_poll(life, polls_of(client.poll_batches(POLL_MS)))
    life.history.end(life.history.begin(Kind.FINAL, offsets=told.until), Outcome.OK)
