"""The frames written here are LZ4's: its library reads them."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sparklog.format.lz4_repeats import pattern_of, repeated
from tests.support.cases import for_each

BLOCK = 64 * 1024
PATTERN = b"\x01\x23\x45\x67\x89\xab\xcd\xef"
SIZES = [*range(1, 64), *(255 * i + j for i in (1, 2, 9) for j in range(26, 40)), *(BLOCK + i for i in range(-30, 40))]


def read(frame: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(frame), "lz4") as stream:
        return bytes(stream.read())


@for_each("size", [*SIZES, 2 * BLOCK, 5 * BLOCK + 8])
def test_the_library_reads_them(size: int) -> None:
    expected = (PATTERN * (size // 8 + 1))[:size]
    frame = repeated(PATTERN, size)
    assert read(frame) == expected
    assert pa.Codec("lz4").decompress(frame, size, asbytes=True) == expected


@given(st.binary(min_size=8, max_size=8), st.integers(8, 200_000))
def test_patterns_are_recognized(pattern: bytes, size: int) -> None:
    frame = repeated(pattern, size)
    assert read(frame) == (pattern * (size // 8 + 1))[:size]
    assert len(frame) < 60 + size / 200
    if size >= 20:
        assert pattern_of(frame, size) == pattern
        assert pattern_of(frame, size + 8) is None
        assert pattern_of(frame[:-1], size) is None


@for_each("frame", [b"", b"\0" * 40, repeated(PATTERN, 800)[:19]])
def test_other_frames_are_not_recognized(frame: bytes) -> None:
    assert pattern_of(frame, 800) is None
    assert pattern_of(pa.Codec("lz4").compress(bytes(range(200)) * 4, asbytes=True), 800) is None


def test_any_byte_that_is_wrong_makes_it_another_frame() -> None:
    frame = repeated(PATTERN, 80_000)
    for at in range(len(frame)):
        changed = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
        found = pattern_of(changed, 80_000)
        assert found is None or repeated(found, 80_000) == changed
