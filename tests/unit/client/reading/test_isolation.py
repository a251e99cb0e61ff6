"""read_committed in the client: the skipped records, and positions behind them."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.consumer.consumer import Consumer
from sparklog.client.net.cluster import cluster
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.consumed import decode_batches
from sparklog.client.reading.isolation import AbortedOffsets, isolation_of
from sparklog.client.reading.projection import Projection
from sparklog.client.reading.range_reader import Fetching, read_range
from sparklog.errors import InvalidConfigError, RequestTimedOutError
from sparklog.format.batch import (
    ATTRIBUTE_COMMIT,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    decode_header,
    encode_batch,
    iterate_batches,
)
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.protocol.messages import AbortedRange
from sparklog.types import TopicPartition
from tests.unit.client.fake_broker import FakeBroker

TP0 = TopicPartition("events", 0)
KEY = ("events", 0)


def batch(offset: int, rows: int, producer_id: int = -1) -> bytearray:
    """`rows` rows whose values are their offsets; in a transaction of `producer_id` unless that is -1."""
    values = pa.array([b"%d" % (offset + i) for i in range(rows)])
    columns = [pa.nulls(rows, pa.binary()), values, *(pa.nulls(rows, t) for t in ENVELOPE_SCHEMA.types[2:])]
    return bytearray(
        encode_batch(
            pa.record_batch(columns, schema=ENVELOPE_SCHEMA),
            schema_id=1,
            min_timestamp_ms=0,
            max_timestamp_ms=0,
            attributes=ATTRIBUTE_TRANSACTIONAL if producer_id >= 0 else 0,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            base_offset=offset,
        )
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytearray:
    return bytearray(
        encode_batch(
            pa.RecordBatch.from_pylist([], schema=ENVELOPE_SCHEMA),
            schema_id=1,
            min_timestamp_ms=0,
            max_timestamp_ms=0,
            attributes=ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL | (ATTRIBUTE_COMMIT if commit else 0),
            producer_id=producer_id,
            producer_epoch=1,
            base_sequence=0,
            base_offset=offset,
            last_offset_delta=0,
        )
    )


class Written(NamedTuple):
    """A log of decided transactions, with the records that a naive reader with full knowledge would show."""

    batches: list[bytearray]
    aborted: list[AbortedRange]
    visible: list[int]


@st.composite
def logs(draw: st.DrawFn) -> Written:
    """Interleaved transactions of three producers and batches of none; all of them end."""
    batches: list[bytearray] = []
    aborted: list[AbortedRange] = []
    pending: dict[int, list[int]] = {}
    visible: list[int] = []
    end = 0

    def finish(producer: int) -> None:
        nonlocal end
        commit = draw(st.booleans())
        batches.append(marker(end, producer, commit=commit))
        offsets = pending.pop(producer)
        if commit:
            visible.extend(offsets)
        elif offsets:
            aborted.append(AbortedRange(producer, offsets[0], end))
        end += 1

    for _ in range(draw(st.integers(0, 12))):
        producer = draw(st.integers(-1, 2))
        if producer in pending and draw(st.booleans()):
            finish(producer)
            continue
        rows = draw(st.integers(1, 4))
        batches.append(batch(end, rows, producer))
        offsets = list(range(end, end + rows))
        if producer < 0:
            visible.extend(offsets)
        else:
            pending.setdefault(producer, []).extend(offsets)
        end += rows
    for producer in sorted(pending):
        finish(producer)
    return Written(batches, aborted, sorted(visible))


INFO = TopicInfo("events", "id", "envelope", 1, 1, {1: ENVELOPE_SCHEMA}, (), None, {}, 0, ())


@given(logs(), st.data())
def test_any_piece_of_a_log_shows_its_committed_records(log: Written, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(log.batches)))
    last = data.draw(st.integers(first, len(log.batches)))
    headers = [decode_header(b) for b in log.batches[first:last]]
    low = headers[0].base_offset if headers else 0
    end = headers[-1].next_offset if headers else 0
    start = data.draw(st.integers(low, end))  # in the middle of a batch as well, as a split range begins
    touching = [a for a in log.aborted if a.last_offset >= low and a.first_offset < end]
    payload = pa.py_buffer(b"".join(log.batches[first:last]))
    found = list(
        decode_batches(
            payload,
            iterate_batches(payload, verify=False),
            TP0,
            Projection(INFO, ["value"]),
            start,
            aborted=AbortedOffsets(touching),
        )
    )
    offsets = [o for b in found for o in b.offsets().tolist()]
    assert offsets == [o for o in log.visible if start <= o < end]
    assert [int(v) for b in found for v in b.data.column("value").to_pylist()] == offsets


def fill(fake: FakeBroker) -> None:
    """0-9 plain, 10-19 aborted with its marker at 20, 21-30 committed with its marker at 31, 32-41 open."""
    for data in (
        batch(0, 10),
        batch(0, 10, 7),
        marker(0, 7, commit=False),
        batch(0, 10, 8),
        marker(0, 8, commit=True),
        batch(0, 10, 9),
    ):
        fake.append(data)
    fake.aborted[KEY] = [AbortedRange(7, 10, 20)]
    fake.stable[KEY] = 32


COMMITTED = [*range(10), *range(21, 31)]


@pytest.mark.usefixtures("local_read")
@pytest.mark.parametrize("fetch_bytes", [1024, 8 << 20])
def test_a_consumer_sees_committed_records_and_its_position_passes_over_the_rest(
    fake: FakeBroker, fetch_bytes: int
) -> None:
    fill(fake)
    with Consumer(fake.address, isolation_level="read_committed", max_partition_fetch_bytes=fetch_bytes) as consumer:
        consumer.assign([TP0])
        offsets: list[int] = []
        while len(offsets) < 20:
            offsets += [r.offset for r in consumer.poll(5000)]
        assert offsets == COMMITTED
        while consumer.position(TP0) < 32:  # the marker behind the last record has no row and comes by itself
            assert consumer.poll(10) == []
        assert consumer.position(TP0) == 32
        consumer.seek_to_end()
        assert consumer.position(TP0) == 32, "the end is where the open transaction begins"
        fake.append(marker(0, 9, commit=True))
        fake.stable.clear()
        assert consumer.poll(5000)[0].offset == 32


@pytest.mark.usefixtures("local_read")
def test_read_uncommitted_gives_everything_but_markers(fake: FakeBroker) -> None:
    fill(fake)
    with Consumer(fake.address) as consumer:
        consumer.assign([TP0])
        offsets: list[int] = []
        while len(offsets) < 40:
            offsets += [r.offset for r in consumer.poll(5000)]
        assert offsets == [*range(20), *range(21, 31), *range(32, 42)]
        assert consumer.position(TP0) == 42


@pytest.mark.parametrize("fetch_bytes", [1, 4 << 20])
@pytest.mark.parametrize(("start", "end"), [(0, 32), (15, 32), (10, 21), (5, 25), (20, 21), (31, 32)])
def test_a_range_leaves_out_aborted_records(fake: FakeBroker, start: int, end: int, fetch_bytes: int) -> None:
    fill(fake)
    how = Fetching(max_bytes=fetch_bytes)
    found = read_range(cluster(fake.address), TP0, start, end, local="off", isolation=1, fetching=how)
    assert [o for b in found for o in b.offsets().tolist()] == [o for o in COMMITTED if start <= o < end]


def test_a_range_waits_for_an_open_transaction_and_then_names_it(fake: FakeBroker) -> None:
    fill(fake)
    found = read_range(cluster(fake.address), TP0, 21, 42, local="off", isolation=1, retry_timeout_ms=0)
    assert next(found).base_offset == 21
    with pytest.raises(RequestTimedOutError, match=r"began at offset 32 .*offsets 32 to 41 cannot be read"):
        next(found)


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="read_committed"):
        isolation_of("serializable")
