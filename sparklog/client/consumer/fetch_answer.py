"""A fetch request under way, and its answer cut into the partitions' parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from sparklog.client.consumer.position import Position
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.connection import Connection
from sparklog.client.reading.consumed import ConsumedBatch, decode_batches
from sparklog.client.reading.isolation import AbortedOffsets
from sparklog.errors import CorruptBatchError, InvalidRequestError
from sparklog.format.batch import BatchHeader, iterate_batches
from sparklog.protocol.messages import FetchPartition, FetchResponse, FetchResult
from sparklog.protocol.topic_messages import BrokerEndpoint


class InFlightFetch(NamedTuple):
    """A fetch request without an answer: its connection and its content. `epochs` are the leader epochs of the records
    before the requested offsets."""

    broker: Endpoint
    connection: Connection
    requested: list[tuple[Position, FetchPartition]]
    epochs: list[int]

    @property
    def positions(self) -> list[Position]:
        return [position for position, _ in self.requested]

    def is_for(self, positions: list[Position]) -> bool:
        """True if the request is for exactly these positions, apart from those that are now read from files."""
        return {id(p) for p in positions} == {id(p) for p in self.positions if not p.from_files}

    def receive(self) -> tuple[list[Part], int]:
        """Wait for the answer. Returns its parts in the order of the request, and the bytes of all parts together.
        Raises as `Connection.receive`."""
        response, payload = self.connection.receive(FetchResponse)
        results = response.results
        if len(results) != len(self.requested) or sum(r.length_bytes for r in results) != payload.size:
            self.connection.close()
            raise InvalidRequestError("the answer to a fetch does not have the announced parts")
        parts, start = [], 0
        for (position, fetch), epoch, result in zip(self.requested, self.epochs, results, strict=True):
            data = payload.slice(start, result.length_bytes)
            parts.append(Part(position, fetch.fetch_offset, epoch, result, data, response.brokers, *headers_of(data)))
            start += result.length_bytes
        return parts, payload.size


@dataclass(slots=True)
class Part:
    """One partition's part of an answer.

    Batches below `offset` were not requested or have been delivered. `epoch` is the leader epoch of the record before
    `offset`. `headers` has the place in `data` and the header of each batch before the `damage`, if there is any.
    `brokers` are the addresses of the brokers that the answer names.
    """

    position: Position
    offset: int
    epoch: int
    result: FetchResult
    data: pa.Buffer
    brokers: list[BrokerEndpoint]
    headers: list[tuple[int, BatchHeader]]
    damage: CorruptBatchError | None

    @property
    def end_offset(self) -> int:
        """The offset after the last intact batch; never before `offset`, whatever a faulty broker sends."""
        return max((self.offset, *(header.next_offset for _, header in self.headers)))

    @property
    def end_epoch(self) -> int:
        """The leader epoch of the last intact batch."""
        return self.headers[-1][1].leader_epoch if self.headers else self.epoch

    @property
    def next_offset(self) -> int | None:
        """The offset at which reading goes on; None: not known before all batches are checked."""
        return self.end_offset if self.damage is None else None

    def decode(self, *, check_crcs: bool) -> Iterator[ConsumedBatch]:
        """Yield the requested batches that are not aborted. Raises as `decode_batches`, and the damage after the
        batches before it."""
        yield from decode_batches(
            self.data,
            self.headers,
            self.position.tp,
            self.position.projection,
            self.offset,
            check_crcs=check_crcs,
            aborted=AbortedOffsets(self.result.aborted),
        )
        if self.damage is not None:
            raise self.damage


def headers_of(data: pa.Buffer) -> tuple[list[tuple[int, BatchHeader]], CorruptBatchError | None]:
    """Return the places and headers of the intact batches in `data`, and the damage after them, or None."""
    headers: list[tuple[int, BatchHeader]] = []
    try:
        headers.extend(iterate_batches(memoryview(data), verify=False))
    except CorruptBatchError as e:
        return headers, e
    return headers, None
