"""The records that a topic does not take are named, each with its place in the batch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.net.topic_info import TopicInfo
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.gateway.records.small import write_small
from sparklog.gateway.records.to_broker import broker_batch
from sparklog.kafka.records import batch_v2
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX, InvalidRecordError
from sparklog.kafka.values.json_records import parse_rows


def topic(kind: str, schema: pa.Schema, **configs: str) -> TopicInfo:
    return TopicInfo("t", "id", kind, 1, 5, {5: schema}, (), None, dict(configs), 0, ())


COMPACTED = topic("envelope", ENVELOPE_SCHEMA, **{"cleanup.policy": "compact"})
NUMBERS = topic("typed", pa.schema([("n", pa.int8())]))


def converted(keys: list[bytes | None]) -> memoryview:
    data = write_small(keys, [b"v"] * len(keys), [0] * len(keys))
    head = batch_v2.BatchV2(0, 0, 0, 2, 0, 0, len(keys) - 1, 0, 0, -1, -1, -1, len(keys))
    return broker_batch(head, memoryview(data), COMPACTED, 1 << 20)


@given(st.lists(st.sampled_from([b"k", None]), min_size=1, max_size=40))
def test_all_records_without_a_key_are_named(keys: list[bytes | None]) -> None:
    keyless = [i for i, key in enumerate(keys) if key is None]
    if not keyless:
        converted(keys)
        return
    with pytest.raises(InvalidRecordError) as refused:
        converted(keys)
    assert list(refused.value.records) == keyless
    assert all(f"record {i} has no key" in message for i, message in refused.value.records.items())


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ([b'{"n":1}', None, b"{", b'{"n":"x"}', b'{"n":2}'], [1, 2, 3]),
        ([b'{"n":1}', b'{"n":200}', b'{"n":2}', b'{"n":-200}'], [1, 3]),
        ([None] * (2 * RECORDS_NAMED_MAX), list(range(RECORDS_NAMED_MAX))),
        ([b'{"n":200}'] * (2 * RECORDS_NAMED_MAX), list(range(RECORDS_NAMED_MAX))),
    ],
)
def test_all_records_that_do_not_fit_are_named(values: list[Any], refused: list[int]) -> None:
    with pytest.raises(InvalidRecordError, match=f"record {refused[0]} ") as error:
        parse_rows(pa.array(values, pa.binary()), NUMBERS.schema, "t")
    assert list(error.value.records) == refused
