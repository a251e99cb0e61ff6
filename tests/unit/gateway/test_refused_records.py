"""Records that do not fit a typed topic with kafka.refused.records=topic: the others are stored, and these are rows of
the refused topic at the offsets behind them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.row_keys import partitions_of_rows
from sparklog.errors import InvalidConfigError, LeaderNotAvailableError, MessageTooLargeError
from sparklog.format.batch import decode_batch, decode_header
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.gateway.handlers.refused_topics import RefusedPart, store_refused
from sparklog.gateway.records import refused as refused_module
from sparklog.gateway.records import typed as typed_module
from sparklog.gateway.records.refused import (
    RECORD_BYTES_MAX,
    ConvertedBatch,
    RefusedPlace,
    refused_records,
    refused_topic_batches,
)
from sparklog.gateway.records.small import write_small
from sparklog.gateway.records.typed import typed_batch
from sparklog.gateway.refusals import Refusals
from sparklog.kafka.records import batch_v2
from sparklog.kafka.records.compression import GZIP, NONE, compress
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX, InvalidRecordError
from sparklog.metadata.refused_topics import REFUSED_SCHEMA, check_refused_records
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProduceResult
from sparklog.protocol.refused_messages import StoreRefusedRequest, StoreRefusedResponse
from tests.support.clients import info
from tests.unit.gateway.registry_schemas import FixedSchemas

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
PLAIN = info(SCHEMA, 1, (), kafka_refused_records="topic")
KEYED = info(SCHEMA, 3, ("id",), kafka_key_format="json", kafka_refused_records="topic")
PLACE = RefusedPlace(3, 100, "loader", 9, False, 1_700_000_000_000)
Record = tuple[bytes | None, bytes | None]


def converted(
    records: Sequence[Record],
    topic: TopicInfo = PLAIN,
    partition: int = 0,
    codec: int = NONE,
    rows_bytes_max: int = 1 << 24,
    **fields: Any,
) -> ConvertedBatch:
    keys, values = zip(*records, strict=True)
    data: Any = write_small(list(keys), list(values), list(range(len(records))))
    if codec:
        data = compress(codec, [data])
    head = batch_v2.BatchV2(0, 0, 0, 2, 0, codec, len(keys) - 1, 0, 77, -1, -1, -1, len(keys))._replace(**fields)
    return typed_batch(head, memoryview(data), topic, rows_bytes_max, partition, FixedSchemas())


def rows_of(batch: ConvertedBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = decode_batch(batch.payload, SCHEMA).to_pylist()
    return rows


def refused_rows(batch: ConvertedBatch, place: RefusedPlace = PLACE) -> list[dict[str, Any]]:
    assert batch.refused is not None
    rows: list[dict[str, Any]] = []
    for data in refused_topic_batches(batch.refused, place):
        rows += decode_batch(data, REFUSED_SCHEMA).to_pylist()
    return rows


def test_rows_come_first_and_refused_records_take_the_offsets_behind_them() -> None:
    records: list[Record] = [
        (None, b'{"id":1,"name":"a"}'),
        (b"k", b'{"id":"x"}'),
        (None, b'{"id":2}'),
        (None, b"no JSON"),
        (None, None),
    ]
    batch = converted(records, producer_id=5, producer_epoch=1, base_sequence=40)
    header = decode_header(batch.payload)
    assert (header.record_count, header.last_offset_delta, header.base_sequence) == (2, 4, 40) and batch.offsets == 5
    assert rows_of(batch) == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    rows = refused_rows(batch)
    assert [(row["partition"], row["offset"]) for row in rows] == [(3, 102), (3, 103), (3, 104)]
    assert [(row["key"], row["value"]) for row in rows] == [records[1], records[3], records[4]]
    assert [row["timestamp"].microsecond // 1000 for row in rows] == [1, 3, 4]
    assert {row["client_id"] for row in rows} == {"loader"} and {row["number"] for row in rows} == {None}
    assert "id" in rows[0]["reason"] and not any(row["reason"].startswith("record ") for row in rows)


def test_a_batch_of_refused_records_alone_is_a_gap() -> None:
    batch = converted([(None, b"[]"), (None, b"{")], producer_id=5, producer_epoch=1, base_sequence=0)
    header = decode_header(batch.payload)
    assert (header.record_count, header.last_offset_delta, header.max_timestamp_ms) == (0, 1, 77)
    assert [row["offset"] for row in refused_rows(batch)] == [100, 101]


def test_batches_that_fit_and_other_topics_are_as_before() -> None:
    batch = converted([(None, b'{"id":1}')])
    assert batch.refused is None and decode_header(batch.payload).is_dense
    with pytest.raises(InvalidRecordError, match="record 1"):
        converted([(None, b'{"id":1}'), (None, b"{")], info(SCHEMA, 1, ()))


def test_a_record_in_a_wrong_partition_and_one_that_contradicts_its_key_are_refused() -> None:
    keys = [b'{"id":%d}' % i for i in range(6)]
    chosen = partitions_of_rows([pa.array(range(6), pa.int64())], KEYED).tolist()
    at = chosen[0]
    records: list[Record] = [*((key, b'{"name":"x"}') for key in keys), (keys[0], b'{"id":9}')]
    batch = converted(records, KEYED, at)
    assert [row["id"] for row in rows_of(batch)] == [i for i in range(6) if chosen[i] == at]
    reasons = [row["reason"] for row in refused_rows(batch)]
    assert len(reasons) == 7 - chosen.count(at) and "belongs to partition" in reasons[0]
    assert "in its key" in reasons[-1]


@given(st.sampled_from([NONE, GZIP]), st.lists(st.booleans(), min_size=1, max_size=40))
def test_each_record_is_a_row_or_refused(codec: int, fits: list[bool]) -> None:
    records: list[Record] = [(None, json.dumps({"id": i if fit else "x"}).encode()) for i, fit in enumerate(fits)]
    batch = converted(records, codec=codec)
    assert [row["id"] for row in rows_of(batch)] == [i for i, fit in enumerate(fits) if fit]
    values = [] if batch.refused is None else [row["value"] for row in refused_rows(batch)]
    assert values == [value for (_, value), fit in zip(records, fits, strict=True) if not fit]
    assert decode_header(batch.payload).last_offset_delta == len(fits) - 1


def envelope(*values: bytes | None) -> pa.RecordBatch:
    rows = [{"key": None, "value": v, "headers": [{"key": "h", "value": v}], "timestamp": 0} for v in values]
    return pa.RecordBatch.from_pylist(rows, schema=ENVELOPE_SCHEMA)


def test_refused_records_are_stored_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_module, "PIECE_BYTES", 1_000)
    refused = refused_records("t", envelope(*(bytes(300) for _ in range(7)), None), dict.fromkeys(range(8), "reason"))
    pieces = [decode_batch(data, REFUSED_SCHEMA) for data in refused_topic_batches(refused, PLACE)]
    assert sum(piece.num_rows for piece in pieces) == 8 and len(pieces) > 2
    assert [o for piece in pieces for o in piece["offset"].to_pylist()] == list(range(100, 108))


def test_a_batch_with_few_refused_records_is_converted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def rows_of_values(keys: Any, values: Any, *more: Any) -> pa.RecordBatch:
        sizes.append(len(values))
        return whole(keys, values, *more)

    whole = typed_module._rows_of_values
    monkeypatch.setattr(typed_module, "_rows_of_values", rows_of_values)
    batch = converted([(None, b'{"id":%d}' % i if i % 4 else b"bad") for i in range(20)])
    assert sizes == [20, 15]
    assert [row["value"] for row in refused_rows(batch)] == [b"bad"] * 5


def test_more_refused_records_than_an_error_names_are_each_refused_once() -> None:
    count = 3 * RECORDS_NAMED_MAX
    batch = converted([(None, b'{"id":%d}' % i if i % 2 else b"bad %d" % i) for i in range(2 * count)])
    assert [row["id"] for row in rows_of(batch)] == list(range(1, 2 * count, 2))
    assert batch.refused is not None and len(batch.refused.reasons) == count
    assert [row["value"] for row in refused_rows(batch)] == [b"bad %d" % i for i in range(0, 2 * count, 2)]


def test_too_many_refused_records_refuse_the_batch() -> None:
    records: list[Record] = [(None, b"x")] * 20_000
    with pytest.raises(MessageTooLargeError, match=r"of 20000 records, and the reasons of \d+ refused ones"):
        converted(records, rows_bytes_max=1 << 20)


def test_a_record_too_large_for_a_refused_topic_refuses_the_batch() -> None:
    with pytest.raises(MessageTooLargeError, match=r"record 1 does not fit the topic 't' \(why\), and has \d+ bytes"):
        refused_records("t", envelope(b"a", bytes(RECORD_BYTES_MAX // 2 + 1)), {0: "no", 1: "why"})


def test_only_typed_topics_with_shorter_names_have_refused_topics() -> None:
    check_refused_records("t", {"kafka.refused.records": "refuse"}, is_typed=False)
    check_refused_records("t" * 241, {"kafka.refused.records": "topic"}, is_typed=True)
    for name, is_typed, reason in (("t", False, "takes each record"), ("t" * 242, True, "more than 249 characters")):
        with pytest.raises(InvalidConfigError, match=reason):
            check_refused_records(name, {"kafka.refused.records": "topic"}, is_typed=is_typed)


def test_refused_records_of_several_partitions_are_stored_at_once() -> None:
    lines = Refusals(lambda: 0.0)
    session: Any = SimpleNamespace(client_id="c", peer_host="h", gateway=SimpleNamespace(refusals=lines))
    refused = refused_records("t", envelope(b"a", b"b"), {0: "no", 1: "no"})
    form = StoreRefusedResponse(1)
    parts = [RefusedPart("t", partition, form, [(2, refused)]) for partition in range(3)]
    results = {("t", partition): ProduceResult("t", partition, 0, 100) for partition in range(3)}

    async def go() -> dict[tuple[str, int], ProduceResult]:
        begun: list[int] = []
        have_all_begun = asyncio.Event()

        async def ask(api: Api, request: StoreRefusedRequest, response: type) -> StoreRefusedResponse:
            begun.append(request.partition)
            if len(begun) == 3:
                have_all_begun.set()
            await have_all_begun.wait()
            if request.partition == 1:
                raise InvalidConfigError("other columns")
            return form

        broker: Any = SimpleNamespace(ask=ask)
        return await asyncio.wait_for(store_refused(session, broker, parts, results), 60)

    outcomes = asyncio.run(go())
    assert [outcomes["t", partition].error_code for partition in range(3)] == [0, LeaderNotAvailableError.code, 0]
    assert "'t.refused': other columns" in outcomes["t", 1].message and lines.records == 4
