"""The comparison of leader epochs (KIP-320) for consumers that name none in FETCH.

A topic can be deleted and created again under a consumer. A client without leader epochs would continue at its offset
and skip the first records of the new topic. So the gateway remembers, for such a session, the leader epoch of the last
batch of each partition. If the next batch is of a later epoch, the gateway asks the leader for the end of the
remembered epoch. An end below the requested offset shows that the records before the offset are gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from sparklog.errors import CorruptBatchError, OffsetOutOfRangeError
from sparklog.format.batch import decode_header
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import (
    EpochPartition,
    FetchPartition,
    FetchResult,
    OffsetsForLeaderEpochRequest,
    OffsetsForLeaderEpochResponse,
)

PARTITIONS_MAX = 10_000
"""Number of partitions whose epochs a session keeps; the least recently read are forgotten."""
_UNKNOWN = -1
_Partition = tuple[str, int]


class ReadEpochs:
    """The leader epochs of the batches that one session has sent to its client."""

    def __init__(self) -> None:
        self._epochs: OrderedDict[_Partition, int] = OrderedDict()

    async def refuse_gone(
        self,
        connection: BrokerConnection,
        requested: Iterable[FetchPartition],
        results: Mapping[_Partition, FetchResult],
        payloads: dict[_Partition, memoryview],
    ) -> None:
        """Give a partition the result OFFSET_OUT_OF_RANGE, without batches, if records before its requested offset are
        gone. Raises the broker's errors."""
        suspects: dict[_Partition, FetchPartition] = {}
        for p in requested:
            key = p.topic, p.partition
            if p.leader_epoch != _UNKNOWN or not payloads.get(key):
                continue
            first, last = _first_and_last(payloads[key])
            if first > self._epochs.get(key, first):
                suspects[key] = p
            else:
                self._remember(key, last)
        if not suspects:
            return
        partitions = [EpochPartition(*key, _UNKNOWN, self._epochs.pop(key)) for key in suspects]
        answer = await connection.ask(
            Api.OFFSETS_FOR_LEADER_EPOCH, OffsetsForLeaderEpochRequest(partitions), OffsetsForLeaderEpochResponse
        )
        for end in answer.results:
            key = end.topic, end.partition
            if not end.error_code and 0 <= end.end_offset < suspects[key].fetch_offset:
                results[key].error_code = OffsetOutOfRangeError.code
                payloads[key] = payloads[key][:0]
            else:
                self._remember(key, _first_and_last(payloads[key])[1])

    def _remember(self, key: _Partition, epoch: int) -> None:
        self._epochs[key] = epoch
        self._epochs.move_to_end(key)
        if len(self._epochs) > PARTITIONS_MAX:
            self._epochs.popitem(last=False)


def _first_and_last(payload: memoryview) -> tuple[int, int]:
    """Return the leader epochs of the first and the last batch; the conversion reports damaged batches."""
    epochs = list(_leader_epochs(payload))
    return (epochs[0], epochs[-1]) if epochs else (_UNKNOWN, _UNKNOWN)


def _leader_epochs(payload: memoryview) -> Iterator[int]:
    position = 0
    try:
        while position < len(payload):
            header = decode_header(payload, position)
            yield header.leader_epoch
            position += header.size_bytes
    except CorruptBatchError:
        return
