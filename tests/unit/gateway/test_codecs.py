"""Compression: Kafka's consumers get the codec of the producer, or that of the topic's `compression.type`."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import MessageTooLargeError
from sparklog.format.batch import encode_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.gateway.records.small import write_small
from sparklog.gateway.records.to_broker import broker_batch
from sparklog.gateway.records.to_client import as_they_are, client_batches
from sparklog.gateway.records.typed import TypedRows, typed_batch
from sparklog.kafka.records.batch_v2 import iterate_batches
from sparklog.kafka.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, codec_of_topic, compress, decompress
from sparklog.kafka.records.decode import decode_records
from sparklog.kafka.records.errors import UnsupportedCodecError
from tests.support.cases import for_each
from tests.support.kafka_wire import batch_of
from tests.unit.gateway.registry_schemas import FixedSchemas

CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
ROOM = 1 << 24
ENVELOPE = TopicInfo("t", "id", "envelope", 1, 5, {5: ENVELOPE_SCHEMA}, (), None, {}, 0, ())
TYPED = TopicInfo("t", "id", "typed", 1, 5, {5: pa.schema([("s", pa.string())])}, (), None, {}, 0, ())
VALUES: list[bytes | None] = [b'{"s":"%d"}' % (i % 7) for i in range(3_000)]


def stored(topic: TopicInfo, codec: int, values: list[bytes | None] = VALUES) -> memoryview:
    """The broker's form of a batch that a producer has compressed."""
    records = write_small(None, values, [0] * len(values))
    data = compress(codec, [records]) if codec else records
    ((head, view),) = iterate_batches(memoryview(batch_of(data, len(values), codec=codec)))
    if topic.is_envelope:
        return broker_batch(head, view, topic, ROOM)
    return typed_batch(head, view, topic, ROOM, 0, FixedSchemas()).payload


def answered(topic: TopicInfo, *batches: memoryview, **more: Any) -> list[tuple[int, list[bytes | None]]]:
    """The codec and the values of each batch that a consumer gets."""
    data = memoryview(b"".join(batches))
    rows_of = as_they_are if topic.is_envelope else TypedRows(topic, FixedSchemas())
    codec = codec_of_topic(topic.compression_type)
    parts = client_batches(data, topic.schema_of, rows_of, codec=codec, **more)
    found = []
    for head, view in iterate_batches(memoryview(b"".join(parts))):
        raw = decompress(head.codec, view, ROOM) if head.codec else view
        rows = decode_records(raw, head.record_count, head.base_timestamp_ms)
        found.append((head.codec, rows.column(1).to_pylist()))
    return found


def of_type(topic: TopicInfo, compression_type: str) -> TopicInfo:
    return replace(topic, configs={"compression.type": compression_type})


@for_each("topic, codec", [(topic, codec) for topic in (ENVELOPE, TYPED) for codec in CODECS])
def test_a_consumer_gets_the_codec_of_the_producer(topic: TopicInfo, codec: int) -> None:
    for values in (VALUES, VALUES[:2]):
        assert answered(topic, stored(topic, codec, values)) == [(codec, values)]


@for_each("name, expected", [("uncompressed", NONE), ("gzip", GZIP), ("snappy", SNAPPY), ("lz4", LZ4), ("zstd", ZSTD)])
def test_a_topics_compression_type_is_the_codec_of_its_batches(name: str, expected: int) -> None:
    for topic in (of_type(ENVELOPE, name), of_type(TYPED, name)):
        for codec in CODECS:
            assert answered(topic, stored(topic, codec)) == [(expected, VALUES)]


def test_batches_from_before_a_change_of_the_type_follow_it() -> None:
    batches = [stored(ENVELOPE, codec) for codec in CODECS]
    assert [codec for codec, _ in answered(of_type(ENVELOPE, "uncompressed"), *batches)] == [NONE] * len(CODECS)
    written = stored(of_type(ENVELOPE, "gzip"), NONE)
    assert answered(ENVELOPE, written) == [(GZIP, VALUES)]


def test_batches_of_own_producers_keep_their_codec() -> None:
    rows = pa.record_batch([VALUES], schema=pa.schema([("s", pa.string())]))
    for name, codec in (("none", NONE), ("lz4", LZ4), ("zstd", ZSTD)):
        batch = encode_batch(rows, schema_id=5, min_timestamp_ms=1, max_timestamp_ms=1, compression=name)
        assert [codec for codec, _ in answered(TYPED, batch)] == [codec]


def test_old_clients_get_no_zstd() -> None:
    before, zstd = stored(ENVELOPE, LZ4), stored(ENVELOPE, ZSTD)
    with pytest.raises(UnsupportedCodecError, match="version 10"):
        answered(ENVELOPE, zstd, has_zstd=False)
    assert answered(ENVELOPE, before, zstd, has_zstd=False) == [(LZ4, VALUES)], "the batches before it are answered"
    assert answered(of_type(ENVELOPE, "uncompressed"), zstd, has_zstd=False) == [(NONE, VALUES)]
    with pytest.raises(UnsupportedCodecError):
        answered(of_type(ENVELOPE, "zstd"), before, has_zstd=False)


@for_each("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_records_may_have_exactly_the_largest_size(codec: int) -> None:
    records = bytes(1_000)
    compressed = memoryview(compress(codec, [records]))
    assert bytes(decompress(codec, compressed, len(records))) == records
    with pytest.raises(MessageTooLargeError):
        decompress(codec, compressed, len(records) - 1)


def lz4_blocks(frame: bytes) -> list[int]:
    """The sizes of the blocks of an LZ4 frame that are compressed; a plain block counts as its negative size."""
    sizes, position = [], 7
    while size := int.from_bytes(frame[position : position + 4], "little"):
        stored_size = size & ~(1 << 31)
        sizes.append(-stored_size if size >> 31 else stored_size)
        position += 4 + stored_size
    assert len(frame) == position + 4, "nothing follows the end mark"
    return sizes


@for_each("size, blocks", [(0, 0), (1, 1), (1 << 16, 1), ((1 << 16) + 1, 2), (300_000, 5)])
def test_lz4_frames_have_independent_blocks_which_java_clients_need(size: int, blocks: int) -> None:
    for data in (bytes(size), random.Random(size).randbytes(size)):
        frame = compress(LZ4, [data])
        assert frame[:5] == b"\x04\x22\x4d\x18\x60", "version 1, independent blocks, no checksums, no size"
        assert len(lz4_blocks(frame)) == blocks
        assert all(abs(block) <= 1 << 16 for block in lz4_blocks(frame))
        if data:
            assert decompress(LZ4, memoryview(frame), ROOM) == data
            with pa.input_stream(pa.py_buffer(frame), compression="lz4") as stream:
                assert stream.read() == data
    assert lz4_blocks(compress(LZ4, [random.Random(0).randbytes(1_000)])) == [-1_000], "it cannot be compressed"
