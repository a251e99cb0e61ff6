"""Who and what there is in `transactions_world`: partitions, clients, drivers and their tasks, messages."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from sparklog.errors import InvalidProducerEpochError, SparklogError
from sparklog.format.batch import ATTRIBUTE_COMMIT, ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, BatchHeader
from sparklog.log.producers import Guard, ProducerStates
from sparklog.replication.transactions import EndShared, Identity, Marker, Request
from sparklog.types import TopicPartition

_HEADER = BatchHeader(0, 0, 0, 0, 0, 1, 1, 0, 0, 0, -1, -1, -1, 0, 0, 0)


class Violation(AssertionError):  # noqa: N818  it is what a test looks for
    """Something that must never happen."""


def check(condition: object, what: str) -> None:
    if not condition:
        raise Violation(what)


@dataclass
class Partition:
    """A log of (header, value); markers have no value."""

    rules: ProducerStates = field(default_factory=ProducerStates)
    entries: list[tuple[BatchHeader, Hashable]] = field(default_factory=list)

    def write(self, producer: Identity, sequence: int, value: Hashable, guard: Guard | None) -> None:
        """Raises the log's errors."""
        header = self._header(producer, sequence, ATTRIBUTE_TRANSACTIONAL)
        (original,) = self.rules.admit([header], len(self.entries), guard)
        if original is None:
            self._append(header, value)

    def mark(self, marker: Marker) -> None:
        try:
            if self.rules.admit_marker(marker.producer_id, marker.producer_epoch, 0) is None:
                flags = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL | (ATTRIBUTE_COMMIT if marker.commit else 0)
                self._append(self._header(Identity(*marker[1:3]), 0, flags), None)
        except InvalidProducerEpochError:
            pass  # has been ended there

    def _header(self, producer: Identity, sequence: int, attributes: int) -> BatchHeader:
        return _HEADER._replace(
            base_offset=len(self.entries),
            attributes=attributes,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
        )

    def _append(self, header: BatchHeader, value: Hashable) -> None:
        self.entries.append((header, value))
        self.rules.apply(header)

    def open_producers(self) -> list[int]:
        return [s.producer_id for s in self.rules if s.transaction_first_offset >= 0]

    def decided(self) -> list[tuple[BatchHeader, Hashable, bool]]:
        """(header, value, committed) of all values whose transaction has ended."""
        found, waiting = [], {}
        for header, value in self.entries:
            if not header.attributes & ATTRIBUTE_CONTROL:
                waiting.setdefault(header.producer_id, []).append((header, value))
            else:
                committed = bool(header.attributes & ATTRIBUTE_COMMIT)
                found += [(h, v, committed) for h, v in waiting.pop(header.producer_id, [])]
        return found


@dataclass
class Client:
    """What plain clients and tasks have in common: an identity, and what it has written."""

    name: str
    transactional_id: str
    identity: Identity | None = None
    waiting: Hashable = None
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    writes_pending: int = 0
    acked: list[tuple[TopicPartition, Hashable]] = field(default_factory=list)
    is_dead: bool = False


@dataclass
class Plain(Client):
    """An instance of a transactional producer. `number` counts its transactions."""

    number: int = 0
    request: Request | None = None
    history: list[tuple[Identity, dict[TopicPartition, int]]] = field(default_factory=list)


@dataclass
class Task(Client):
    """A participant."""

    driver: Driver | None = None


@dataclass
class Driver:
    """One batch of one run of an application."""

    app: str
    version: int
    run: str
    ticket: int
    tasks: list[Task] = field(default_factory=list)
    ended: EndShared | None = None
    waiting: Hashable = None
    result: bool | None = None


@dataclass
class Sent:
    """A request in the network. `on_answer(result)`, `on_refusal(error)` are called at most once."""

    request: Request
    on_answer: Callable[[Any], None]
    on_refusal: Callable[[SparklogError], None]
