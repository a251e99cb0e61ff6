"""Batches that are compressed beside the caller: their order, the owner of their memory, and errors."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.client.producer.encoding import BatchEncoder, EncodedBatch
from sparklog.client.producer.parallel_encoding import PARALLEL_BYTES_MIN, ParallelEncoder, parallel_encoder
from sparklog.client.producer.producer import Producer
from sparklog.client.producer.record_sizes import estimated_bytes
from sparklog.client.producer.rows import rows_of
from sparklog.errors import ClosedError, SparklogError
from sparklog.format.batch import decode_header
from sparklog.format.schema import ENVELOPE_SCHEMA
from tests.support.clients import info
from tests.unit.client.fake_broker import FakeBroker

BATCH_BYTES = 4 * PARALLEL_BYTES_MIN


@pytest.fixture(autouse=True)
def _several_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})


def values(first: int, count: int) -> list[bytes]:
    return [b"%08d" % i + bytes(92) for i in range(first, first + count)]


def stored(fake: FakeBroker) -> list[list[Any]]:
    """The values of each batch, in the order of the log."""
    found = []
    for batch in fake.logs["events", 0]:
        with pa.ipc.open_stream(ENVELOPE_SCHEMA.serialize().to_pybytes() + bytes(batch)) as reader:
            found.append(reader.read_next_batch().column("value").to_pylist())
    return found


class Slow(BatchEncoder):
    """The first batch is done when the second one is."""

    def __init__(self) -> None:
        super().__init__("lz4", checksum=False)
        self.done = threading.Event()

    def encode_whole(self, batch: pa.RecordBatch, topic: Any) -> EncodedBatch:
        encoded = super().encode_whole(batch, topic)
        if batch.column("value")[0].as_py().startswith(b"00000000"):
            assert self.done.wait(60)
        else:
            self.done.set()
        return encoded


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_calls_keep_their_order(fake: FakeBroker, compression: str) -> None:
    sizes = [3000, 1, 5000, 700, 3000, 2, 6000]  # small ones are encoded by the caller
    expected: list[Any] = []
    futures: list[Any] = []
    with Producer(fake.address, compression=compression, batch_size_bytes=BATCH_BYTES) as producer:
        for size in sizes:
            futures.append(producer.send_batch("events", {"value": values(len(expected), size)}))
            expected += values(len(expected), size)
        producer.flush()
        assert producer._accumulator.used_bytes == 0
    assert [v for batch in stored(fake) for v in batch] == expected
    results = [m for f in futures for m in f.result()]
    assert [m.offset for m in results] == list(np.cumsum([0, *(m.record_count for m in results[:-1])]))
    headers = [decode_header(b) for b in fake.logs["events", 0]]
    assert [m.timestamp_ms for m in results] == [h.max_timestamp_ms for h in headers]
    assert sum(h.size_bytes for h in headers) < len(expected) * 60


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_incompressible_batches_are_stored_as_well(fake: FakeBroker, compression: str) -> None:
    given = [random.Random(i).randbytes(2000) for i in range(500)]
    with Producer(fake.address, compression=compression, batch_size_bytes=BATCH_BYTES) as producer:
        producer.send_batch("events", {"value": given})
        producer.flush()
    assert [v for batch in stored(fake) for v in batch] == given


def test_a_batch_that_is_done_sooner_waits_for_those_before_it(fake: FakeBroker) -> None:
    with Producer(fake.address, compression="lz4", batch_size_bytes=BATCH_BYTES) as producer:
        assert producer._tables._parallel is not None
        producer._tables._parallel._encoder = Slow()
        for first in (0, 2000):
            producer.send_batch("events", {"value": values(first, 2000)})
        producer.flush()
    assert [v for batch in stored(fake) for v in batch] == values(0, 4000)


def test_memory_of_the_caller_is_his_again_when_the_call_returns(fake: FakeBroker) -> None:
    offsets = np.arange(0, 100 * 20_001, 100, dtype=np.int32)
    data = np.full(100 * 20_000, ord("a"), np.uint8)
    column = pa.Array.from_buffers(pa.binary(), 20_000, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    with Producer(fake.address, compression="lz4", batch_size_bytes=BATCH_BYTES) as producer:
        producer.send_batch("events", pa.table({"value": column}))
        data[:] = ord("b")
        producer.flush()
    assert len(stored(fake)) > 1
    assert {v for batch in stored(fake) for v in batch} == {b"a" * 100}


@pytest.mark.parametrize(
    ("data", "copied"),
    [
        ({"value": [b"a"], "key": (b"k",)}, True),
        ([{"value": b"a"}], True),
        ({"value": [b"a"], "partition": np.zeros(1, np.int64)}, False),
        ({"value": pa.array([b"a"])}, False),
        (pa.table({"value": [b"a"]}), False),
    ],
)
def test_whose_memory_it_is(data: Any, copied: bool) -> None:
    assert rows_of(data, info(), None).is_copy is copied


def test_batches_that_grow_beyond_the_limit_are_not_compressed() -> None:
    data = random.Random(1).randbytes(200_000)
    rows = pa.RecordBatch.from_arrays(
        [pa.nulls(1, pa.binary()), pa.array([data]), pa.nulls(1, ENVELOPE_SCHEMA.types[2]),
         pa.array([0], pa.int64()).cast(ENVELOPE_SCHEMA.types[3])],
        schema=ENVELOPE_SCHEMA,
    )  # fmt: skip
    encoder = BatchEncoder("lz4")
    compressed = len(encoder.encode(rows, info()).payload)
    encoded = encoder.encode_whole(rows, info(max_message_bytes=compressed - 1))
    assert len(encoded.payload) <= min(compressed - 1, estimated_bytes(rows))
    assert len(encoder.encode_whole(rows, info(max_message_bytes=compressed)).payload) == compressed


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_failure_is_the_batches_alone(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch, idempotent: bool) -> None:
    def encode(self: Any, batch: pa.RecordBatch, topic: Any) -> EncodedBatch:
        if batch.column("value")[0].as_py().startswith(b"00000000"):
            raise pa.ArrowInvalid("too odd")
        return self.encode(batch, topic)

    monkeypatch.setattr(BatchEncoder, "encode_whole", encode)
    settings: dict[str, Any] = {"batch_size_bytes": BATCH_BYTES, "enable_idempotence": idempotent}
    with Producer(fake.address, compression="lz4", **settings) as producer:
        lost = producer.send_batch("events", {"value": values(0, 2000)})
        producer.send_batch("events", {"value": values(2000, 2000)})
        with pytest.raises(SparklogError, match="2000 records could not be encoded: too odd"):
            lost.result()
        producer.flush()
        assert producer._accumulator.used_bytes == 0
    assert [v for batch in stored(fake) for v in batch] == values(2000, 2000)


def test_abandoned_batches_raise() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Held(BatchEncoder):
        def encode_whole(self, batch: pa.RecordBatch, topic: Any) -> EncodedBatch:
            begun.set()
            assert go_on.wait(60)
            return super().encode_whole(batch, topic)

    rows = pa.RecordBatch.from_arrays(
        [pa.nulls(2000, t) if i != 1 else pa.array(values(0, 2000)) for i, t in enumerate(ENVELOPE_SCHEMA.types)],
        schema=ENVELOPE_SCHEMA,
    )
    parallel = ParallelEncoder(Held("lz4"), 1)
    first, second = (parallel.encoding_of(rows, info()) for _ in range(2))
    assert first is not None
    assert second is not None
    first.start()
    second.start()
    assert begun.wait(60)
    parallel.close()
    go_on.set()
    assert first.result().record_count == 2000
    with pytest.raises(ClosedError):
        second.result()
    second.wait()


def test_no_encoder_threads_without_a_benefit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parallel_encoder(BatchEncoder("none")) is None
    assert parallel_encoder(BatchEncoder("lz4")) is not None
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert parallel_encoder(BatchEncoder("lz4")) is None
