"""The conversion of a source's records into batches at given offsets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from sparklog.errors import (
    CorruptBatchError,
    InvalidTimestampError,
    MessageTooLargeError,
    SparklogError,
    UnsupportedVersionError,
)
from sparklog.format.batch import decode_header, iterate_batches
from sparklog.format.offset_column import decode_rows
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.kafka.records.batch_v2 import LOG_APPEND_TIME, TRANSACTIONAL
from sparklog.mirror.batches import ENVELOPE_WRITER, SPAN_MAX
from sparklog.mirror.placing import AbortedTransaction, Placed, place
from sparklog.mirror.rules import GAP_MAX
from tests.support.cases import for_each
from tests.support.kafka_batches import ABORT, COMMIT, kafka_batch, marker

LIMIT = 1 << 20
STABLE = 2**63 - 1


def converted(
    *batches: bytes,
    position: int = 0,
    stable: int = STABLE,
    aborted: Sequence[tuple[int, int]] = (),
    limit: int = LIMIT,
) -> Placed:
    entries = [AbortedTransaction(*entry) for entry in aborted]
    return place(memoryview(b"".join(batches)), position, stable, entries, limit, 77)


def spans_and_rows(placed: Placed) -> list[tuple[int, int, list[int]]]:
    """(first offset, last offset, offsets of rows) of each batch; checks that the batches follow each other."""
    result = []
    for data in placed.batches:
        ((_, header),) = iterate_batches(data)
        rows, offsets = decode_rows(data, ENVELOPE_SCHEMA, header)
        assert offsets is not None
        assert rows.column("value").to_pylist() == [b"v%d" % o for o in offsets]
        result.append((header.base_offset, header.last_offset, offsets.tolist()))
    assert all(a[1] + 1 == b[0] for a, b in pairwise(result))
    return result


def test_offsets_without_records_become_gaps_of_the_next_batch() -> None:
    placed = converted(kafka_batch([3, 4]), kafka_batch([8, 11], base=7, last=14), position=1)
    assert spans_and_rows(placed) == [(1, 4, [3, 4]), (5, 14, [8, 11])]
    assert (placed.next_offset, placed.epoch, placed.records, placed.gap) == (15, 5, 4, 10)


def test_the_end_moves_over_markers() -> None:
    placed = converted(
        kafka_batch([0, 1], attributes=TRANSACTIONAL, producer_id=9),
        marker(2, 9, COMMIT),
        kafka_batch([3]),
        marker(4, 8, ABORT),
    )
    assert spans_and_rows(placed) == [(0, 1, [0, 1]), (2, 3, [3]), (4, 4, [])]
    assert placed.next_offset == 5


def test_aborted_transactions_are_dropped_by_the_answers_list() -> None:
    placed = converted(
        kafka_batch([0], attributes=TRANSACTIONAL, producer_id=9),
        kafka_batch([1], attributes=TRANSACTIONAL, producer_id=8),
        kafka_batch([2]),
        marker(3, 9, ABORT),
        kafka_batch([4], attributes=TRANSACTIONAL, producer_id=9),  # its next transaction, which is committed
        marker(5, 8, COMMIT),
        marker(6, 9, COMMIT),
        aborted=[(9, 0)],
    )
    assert [offset for _, _, rows in spans_and_rows(placed) for offset in rows] == [1, 2, 4]
    assert placed.next_offset == 7


def test_a_batch_before_the_position_gives_its_later_records_only() -> None:
    assert spans_and_rows(converted(kafka_batch([0, 1, 2, 3]), position=2)) == [(2, 3, [2, 3])]
    assert converted(kafka_batch([0, 1]), position=2).batches == ()


def test_the_last_batch_of_an_answer_can_be_cut() -> None:
    whole, cut = kafka_batch([0]), kafka_batch([1])
    for size in range(len(cut)):
        assert converted(whole, cut[:size]).next_offset == 1


def test_records_from_the_last_stable_offset_on_wait() -> None:
    assert converted(kafka_batch([0]), kafka_batch([1]), stable=1).next_offset == 1


@for_each("codec", [0, 1, 2, 3, 4])
def test_codecs(codec: int) -> None:
    placed = converted(kafka_batch(list(range(0, 900, 3)), codec=codec))
    assert spans_and_rows(placed) == [(0, 897, list(range(0, 900, 3)))]


def test_append_times_of_the_source_stay() -> None:
    placed = converted(kafka_batch([0, 1], attributes=LOG_APPEND_TIME, max_timestamp_ms=1_234))
    ((_, header),) = iterate_batches(placed.batches[0])
    rows, _ = decode_rows(placed.batches[0], ENVELOPE_SCHEMA, header)
    assert [t.timestamp() for t in rows.column("timestamp").to_pylist()] == [1.234, 1.234]
    assert (header.min_timestamp_ms, header.max_timestamp_ms, header.base_sequence) == (1_234, 1_234, 5)
    (data,) = converted(kafka_batch([0], attributes=LOG_APPEND_TIME, max_timestamp_ms=-1)).batches
    assert decode_rows(data, ENVELOPE_SCHEMA, decode_header(data))[0].column("timestamp").to_pylist() == [None]


def test_long_gaps_are_split() -> None:
    far = 3 * SPAN_MAX
    spans = spans_and_rows(converted(kafka_batch([far])))
    assert (spans[0][0], spans[-1]) == (0, (far, far, [far])) and len(spans) == 4
    with pytest.raises(CorruptBatchError, match="at most"):
        ENVELOPE_WRITER.gap(0, GAP_MAX + 1, 0)


def damaged(position: int, value: int) -> bytes:
    data = bytearray(kafka_batch([0, 1]))
    data[position] = value
    return bytes(data)


@for_each(
    "data, error",
    [
        (damaged(16, 1), UnsupportedVersionError),
        (damaged(70, 255), CorruptBatchError),
        (kafka_batch([5, 4], base=4, last=5), CorruptBatchError),
        (kafka_batch([4, 9], base=4, last=5), CorruptBatchError),
        (kafka_batch([4, 5, 6], base=4, last=5), CorruptBatchError),
        (kafka_batch([4, 4], base=4, last=5), CorruptBatchError),
        (kafka_batch([5]) + kafka_batch([4]), CorruptBatchError),
        (kafka_batch([GAP_MAX + 2]), CorruptBatchError),
        (kafka_batch([2**62], last=2**62), CorruptBatchError),
        (kafka_batch([2**62 + 1]), CorruptBatchError),
        (kafka_batch([0], base=-1), CorruptBatchError),
        (kafka_batch([0], attributes=LOG_APPEND_TIME, max_timestamp_ms=2**63 - 1), InvalidTimestampError),
        (kafka_batch([0], attributes=LOG_APPEND_TIME, max_timestamp_ms=-2), InvalidTimestampError),
        (kafka_batch([0], attributes=7), CorruptBatchError),
        (kafka_batch([0])[:40], MessageTooLargeError),
        (b"\0" * 20, MessageTooLargeError),
        (kafka_batch([0])[:8] + b"\xff\xff\xff\xff" + kafka_batch([0])[12:], SparklogError),
        (kafka_batch(list(range(3_000)), codec=4), MessageTooLargeError),
    ],
)
def test_a_lying_answer_is_an_error(data: bytes, error: type[SparklogError]) -> None:
    with pytest.raises(error):
        converted(data, limit=10_000)
