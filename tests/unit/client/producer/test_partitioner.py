"""The partitioner against Kafka's own vectors and against a scalar reference."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.producer.partitioner import (
    VECTOR_KEY_BYTES_MAX,
    StickyPartition,
    murmur2,
    murmur2_array,
    partition_for_key,
    partitions_for_columns,
    partitions_for_keys,
)

KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), KAFKA_VECTORS.items())
def test_kafka_vectors(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF
    assert murmur2_array(pa.array([key, key])).tolist() == [expected & 0xFFFFFFFF] * 2
    assert partition_for_key(key, 7) == (expected & 0x7FFFFFFF) % 7


@given(
    st.lists(st.none() | st.binary(max_size=40) | st.binary(min_size=1020, max_size=1030), max_size=30),
    st.integers(0, 5),
)
def test_vectorised_equals_scalar(keys: list[bytes | None], skip: int) -> None:
    array = pa.array(keys, pa.binary()).slice(skip)
    kept = keys[skip:]
    assert murmur2_array(array).tolist() == [0 if k is None else murmur2(k) for k in kept]
    assert partitions_for_keys(array, 5).tolist() == [-1 if k is None else partition_for_key(k, 5) for k in kept]


def test_uniform_lengths_and_large_offsets() -> None:
    keys = [b"key-%04d" % i for i in range(1000)]
    for t in (pa.binary(), pa.large_binary()):
        assert murmur2_array(pa.array(keys, t)).tolist() == [murmur2(k) for k in keys]


def test_long_keys_take_the_scalar_path() -> None:
    keys = [b"x" * (VECTOR_KEY_BYTES_MAX + 1), b"short", b""]
    assert murmur2_array(pa.array(keys)).tolist() == [murmur2(k) for k in keys]


@pytest.mark.parametrize(
    ("column", "encoded"),
    [
        (pa.array(["a", "über"]), [b"a", "über".encode()]),
        (pa.array([b"a", b""]), [b"a", b""]),
        (pa.array([1, -2], pa.int8()), [struct.pack(">b", v) for v in (1, -2)]),
        (pa.array([1, -2], pa.int16()), [struct.pack(">h", v) for v in (1, -2)]),
        (pa.array([1, -2], pa.int32()), [struct.pack(">i", v) for v in (1, -2)]),
        (pa.array([1, -2], pa.int64()), [struct.pack(">q", v) for v in (1, -2)]),
        (pa.array([1.5, -0.0], pa.float64()), [struct.pack(">d", v) for v in (1.5, 0.0)]),
        (pa.array([1.5, -0.0], pa.float32()), [struct.pack(">f", v) for v in (1.5, 0.0)]),
        (pa.array([True, False]), [b"\1", b"\0"]),
        (pa.array([1, 2], pa.int32()).cast(pa.date32()), [struct.pack(">i", v) for v in (1, 2)]),
        (pa.array([1, 2], pa.int64()).cast(pa.timestamp("us", "UTC")), [struct.pack(">q", v) for v in (1, 2)]),
        (
            pa.array([5, -6], pa.int32()).cast(pa.decimal128(20, 0)),
            [v.to_bytes(16, "big", signed=True) for v in (5, -6)],
        ),
    ],
)
def test_typed_columns_hash_as_kafkas_serializers(column: pa.Array, encoded: list[bytes]) -> None:
    assert partitions_for_columns([column], 97).tolist() == [partition_for_key(e, 97) for e in encoded]
    chunked = pa.chunked_array([column.slice(0, 1), column.slice(1)])
    assert partitions_for_columns([chunked], 97).tolist() == [partition_for_key(e, 97) for e in encoded]


def test_several_columns_are_folded_and_null_hashes_as_zero() -> None:
    text, number = pa.array(["x", None, "z"]), pa.array([1, 2, None], pa.int32())
    hashes = [
        (murmur2(b"x") * 31 + murmur2(struct.pack(">i", 1))) & 0xFFFFFFFF,
        murmur2(struct.pack(">i", 2)),
        (murmur2(b"z") * 31) & 0xFFFFFFFF,
    ]
    expected = [(h & 0x7FFFFFFF) % 13 for h in hashes]
    assert partitions_for_columns([text, number], 13).tolist() == expected


def test_sticky_moves_on_when_a_batch_is_full() -> None:
    sticky = StickyPartition(3, start=1)
    assert [sticky.take(40, 100) for _ in range(5)] == [1, 1, 1, 2, 2]
    sticky.advance()
    assert sticky.current == 0


def test_no_rows() -> None:
    assert murmur2_array(pa.array([], pa.binary())).dtype == np.uint32
