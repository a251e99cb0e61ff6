"""An idempotent producer over a simulated connection: several requests in flight, retried by the product's rules
(`sparklog.client.producer.sequences`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import pyarrow as pa

from sparklog.client.producer.delivery_errors import NOT_STORED
from sparklog.client.producer.sequences import AfterFailure, PartitionSequences, Progress, Refusal, SequencedBatch
from sparklog.errors import (
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    OutOfOrderSequenceError,
    SparklogError,
    error_from_code,
)
from sparklog.format.batch import assign_producer, encode_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.metadata.store import ENVELOPE_SCHEMA_ID
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse
from sparklog.protocol.transaction_messages import InitProducerIdRequest, InitProducerIdResponse
from sparklog.testing._sim_client import BACKOFF_S, BACKOFF_S_MAX, SimClient
from sparklog.types import ProducerIdAndEpoch, TopicPartition
from tests.simulation.notes import Notes

PRODUCE_TIMEOUT_MS = 5_000


def encode_values(values: Sequence[int], now_ms: int, keys: Sequence[bytes] = ()) -> bytearray:
    """Encode the values as one batch of an envelope topic, without a producer. Without `keys` the values are the
    keys."""
    texts = [str(v).encode() for v in values]
    rows = pa.record_batch(
        [
            pa.array(keys or texts, pa.binary()),
            pa.array(texts, pa.binary()),
            pa.nulls(len(values), ENVELOPE_SCHEMA.field("headers").type),
            pa.array([now_ms * 1000] * len(values), ENVELOPE_SCHEMA.field("timestamp").type),
        ],
        schema=ENVELOPE_SCHEMA,
    )
    encoded = encode_batch(
        rows, schema_id=ENVELOPE_SCHEMA_ID, min_timestamp_ms=now_ms, max_timestamp_ms=now_ms, checksum=False
    )
    return bytearray(encoded)


class Batch(SequencedBatch):
    """A batch. `done(base_offset)` is called once: with -1 if it has failed, or its outcome is unknown."""

    __slots__ = ("alone", "done", "expires_s", "payload")

    def __init__(self, payload: bytearray, records: int, done: Callable[[int], None]) -> None:
        super().__init__(records)
        self.payload = payload
        self.done = done
        self.alone = False
        self.expires_s = math.inf


class _Partition:
    def __init__(self, tp: TopicPartition, identity: ProducerIdAndEpoch) -> None:
        self.tp = tp
        self.sequences = PartitionSequences(identity)
        self.queue: deque[Batch] = deque()
        self.under_way: dict[int, Batch] = {}
        self.retry_at_s = 0.0
        self.backoff_s = BACKOFF_S

    @property
    def waiting(self) -> list[Batch]:
        """The batches that have to be sent again, in order."""
        return [b for b in self.sequences.in_flight if b.progress is Progress.WAITING]  # type: ignore[misc]


class SimProducer:
    """An idempotent producer, made by `begin`."""

    def __init__(self, client: SimClient, identity: ProducerIdAndEpoch, notes: Notes, delivery_s: float) -> None:
        self._client = client
        self._identity = identity
        self._notes = notes
        self._delivery_s = delivery_s
        self._partitions: dict[TopicPartition, _Partition] = {}

    @classmethod
    async def begin(cls, client: SimClient, notes: Notes, *, delivery_s: float) -> SimProducer:
        """Request an identity and return the producer. `delivery_s`: delivery timeout of a batch."""
        answer = await client.ask_until(Api.INIT_PRODUCER_ID, InitProducerIdRequest(), InitProducerIdResponse)
        return cls(client, ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch), notes, delivery_s)

    def send(self, tp: TopicPartition, batch: Batch) -> None:
        partition = self._partitions.setdefault(tp, _Partition(tp, self._identity))
        batch.expires_s = self._client.loop.time() + self._delivery_s
        partition.queue.append(batch)
        self._drain(partition)

    def _drain(self, partition: _Partition) -> None:
        """Send all batches that may be sent."""
        loop = self._client.loop
        self._expire(partition)
        while True:
            waiting = partition.waiting
            if waiting and loop.time() < partition.retry_at_s:
                return
            first = waiting[0] if waiting else partition.queue[0] if partition.queue else None
            if first is None:
                return
            room = partition.sequences.room(first, loop.time())
            if room <= 0:
                return
            taken = waiting[:room] if waiting else []
            while not waiting and partition.queue and len(taken) < min(room, 2):
                taken.append(partition.queue.popleft())
            if taken[0].alone:
                if not waiting:
                    partition.queue.extendleft(reversed(taken[1:]))
                del taken[1:]
            self._send(partition, taken)

    def _expire(self, partition: _Partition) -> None:
        """Fail the batches beyond their delivery timeout that are not in flight."""
        now = self._client.loop.time()
        late = [b for b in partition.waiting if b.expires_s <= now]
        for batch in late:
            partition.sequences.expired(batch)
            self._notes.gave_up(partition.tp, batch.identity)
            batch.done(-1)
        if late:
            self._reset(partition)

    def _send(self, partition: _Partition, batches: list[Batch]) -> None:
        partition.sequences.take(batches)
        for batch in batches:
            if batch.attempts == 1:
                assert batch.identity is not None
                assign_producer(
                    memoryview(batch.payload),
                    producer_id=batch.identity.producer_id,
                    producer_epoch=batch.identity.producer_epoch,
                    base_sequence=batch.base_sequence,
                )
        payload = b"".join(bytes(b.payload) for b in batches)
        request = ProduceRequest(-1, PRODUCE_TIMEOUT_MS, [ProducePartition(*partition.tp, len(payload))])
        self._client.loop.create_task(self._deliver(partition, batches, request, payload))

    async def _deliver(
        self, partition: _Partition, batches: list[Batch], request: ProduceRequest, payload: bytes
    ) -> None:
        try:
            answer, _ = await self._client.ask(Api.PRODUCE, request, ProduceResponse, payload)
        except SparklogError as e:
            self._failed(partition, batches, e, definite=False)
            return
        (result,) = answer.results
        if result.error_code:
            error = error_from_code(result.error_code, result.message)
            self._failed(partition, batches, error, definite=isinstance(error, NOT_STORED))
            return
        partition.sequences.stored(batches, self._client.loop.time())
        partition.backoff_s = BACKOFF_S
        offset = result.base_offset
        for i, batch in enumerate(batches):
            if len(result.base_offsets) == len(batches):
                offset = result.base_offsets[i]
            batch.done(offset)
            offset += batch.record_count
        self._continue(partition)

    def _failed(self, partition: _Partition, batches: list[Batch], error: SparklogError, *, definite: bool) -> None:
        refusal = Refusal.RETRIABLE if error.retriable else Refusal.FATAL
        if isinstance(error, OutOfOrderSequenceError):
            refusal = Refusal.OUT_OF_ORDER
        elif isinstance(error, InvalidProducerEpochError | InvalidProducerIdMappingError):
            refusal = Refusal.NO_IDENTITY
        first = partition.sequences.in_flight[0]
        if refusal is not Refusal.RETRIABLE and batches == [first] and not partition.sequences.has_gap:
            self._notes.refused(first.identity.producer_id if first.identity else -1, error)
        then = partition.sequences.refused(batches, refusal, definite=definite)
        loop = self._client.loop
        if then is AfterFailure.RETRY:
            if partition.retry_at_s <= loop.time():  # otherwise another request has failed
                partition.retry_at_s = loop.time() + partition.backoff_s
                loop.call_later(partition.backoff_s, self._drain, partition)
                partition.backoff_s = min(2 * partition.backoff_s, BACKOFF_S_MAX)
        elif then is AfterFailure.SPLIT:
            for batch in batches:
                batch.alone = True
        elif then in (AfterFailure.FAIL, AfterFailure.FAIL_UNKNOWN):
            for batch in batches:
                self._notes.gave_up(partition.tp, batch.identity)
                batch.done(-1)
        self._continue(partition)

    def _continue(self, partition: _Partition) -> None:
        self._reset(partition)
        self._drain(partition)

    @staticmethod
    def _reset(partition: _Partition) -> None:
        if partition.sequences.may_reset:
            again = partition.sequences.reset()
            partition.queue.extendleft(reversed(again))  # type: ignore[arg-type]
