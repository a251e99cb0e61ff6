"""The roles a client can have. Each is a loop over its seeded intents; an outcome that is not known is written as such."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import sparklog
from sparklog.client.consumed import ConsumedBatch
from sparklog.client.futures import RecordFuture
from sparklog.errors import SparklogError
from tests.checker import generate
from tests.checker.history import UNKNOWN_OFFSET, Kind, Outcome
from tests.torture.client import Life, partition_of

GROUPS: dict[str, str] = {}
"""The group of a role's members."""

CALLS_IN_FLIGHT = 8
ACKNOWLEDGED_S = 60.0
POLL_MS = 200


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


def polls_of(batches: Iterable[ConsumedBatch]) -> list[tuple[str, list[int], list[int]]]:
    """(partition, offsets, values) of what a poll has returned; a batch may be without rows."""
    return [
        (str(b.tp), b.offsets().tolist(), [int(v) for v in b.data.column("value").to_pylist()])
        for b in batches
        if b.num_rows
    ]


def assigned(life: Life) -> None:
    """Reads all partitions, and now and then again from the beginning."""
    told = life.told
    partitions = [*told.inputs, *told.outputs]
    with sparklog.Consumer(told.bootstrap_servers, auto_offset_reset="earliest", **told.settings) as client:
        client.assign([partition_of(p) for p in partitions])
        _note_assignment(life, dict.fromkeys(partitions, 0))
        for intent in life.while_wanted(generate.polls(told.seed, told.number)):
            if intent.seek:
                client.seek_to_beginning()
                _note_assignment(life, dict.fromkeys(partitions, 0))
            _note_poll(life, polls_of(client.poll_batches(POLL_MS)))


def _note_assignment(life: Life, offsets: dict[str, int]) -> None:
    life.history.end(life.history.begin(Kind.ASSIGN, offsets=offsets), Outcome.OK)


def _note_poll(life: Life, polls: Sequence[Any]) -> None:
    if polls:
        operation = life.history.begin(Kind.POLL)
        life.history.polls(operation, polls)
        life.history.end(operation, Outcome.OK)


def last(life: Life) -> None:
    """When all is healed: reads everything up to the offsets it is told."""
    told = life.told
    assert told.until is not None
    with sparklog.Consumer(told.bootstrap_servers, auto_offset_reset="earliest", **told.settings) as client:
        client.assign([partition_of(p) for p in told.until])
        _note_assignment(life, dict.fromkeys(told.until, 0))
        while any(client.position(partition_of(p)) < end for p, end in told.until.items()):
            if life.stopping:
                return
            _note_poll(life, polls_of(client.poll_batches(POLL_MS)))
    life.history.end(life.history.begin(Kind.FINAL, offsets=told.until), Outcome.OK)
