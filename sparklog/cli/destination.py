"""The place that a command writes its result to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

UNFINISHED_SUFFIX = ".unfinished"


@contextmanager
def destination(path: Path | None) -> Iterator[BinaryIO]:
    """The output of a result: stdout, or a file that appears when it is complete."""
    if path is None or str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists() and not path.is_file():  # a device or a pipe
        with path.open("wb") as out:
            yield out
        return
    path = Path(os.path.realpath(path))  # a link stays one
    unfinished = path.with_name(f"{path.name}{UNFINISHED_SUFFIX}")
    try:
        opened = unfinished.open("wb")
    except OSError as e:
        e.filename = str(path)  # the name that was given
        raise
    try:
        with opened as out:
            yield out
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
