"""A file whose data come in small pieces."""

from __future__ import annotations

import io


class SmallReads(io.BytesIO):
    """`read1` gives at most `size_bytes` at a time, as a pipe does."""

    def __init__(self, data: bytes, size_bytes: int) -> None:
        super().__init__(data)
        self._size_bytes = size_bytes

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(self._size_bytes if size is None or size < 0 else min(size, self._size_bytes))
