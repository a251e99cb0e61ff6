"""The output of a command: stdout, or a file that appears when it is complete."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

UNFINISHED_SUFFIX = ".unfinished"


class _NamedFile(io.FileIO):
    """A file whose write errors have the name that the user gave. Python's own write errors have no file name."""

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        try:
            super().__init__(path, "wb")
        except OSError as e:
            e.filename = name
            raise

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError as e:
            e.filename = self._name
            raise


def opened(path: Path, *, name: str = "") -> BinaryIO:
    """Open a file for writing. `name`: the file's name in errors; empty for `path`. Raises OSError: The file cannot be
    opened. Writing and closing raise it, too, with the same name."""
    return cast(BinaryIO, io.BufferedWriter(_NamedFile(path, name or str(path))))


@contextmanager
def destination(path: Path | None) -> Iterator[BinaryIO]:
    """Yield stdout (`path` None or "-"), or a file that appears under its name only when it is complete."""
    if path is None or str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists() and not path.is_file():  # a device or a pipe
        with opened(path) as out:
            yield out
        return
    path = Path(os.path.realpath(path))  # replaces the link's target, not the link
    unfinished = path.with_name(f"{path.name}{UNFINISHED_SUFFIX}")
    file = opened(unfinished, name=str(path))
    try:
        with file as out:
            yield out
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
