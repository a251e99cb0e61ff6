"""Preparation of a command's standard streams, which can be closed, full, or not UTF-8."""

from __future__ import annotations

import io
import os
import sys

__all__ = ["abandon_stdout", "prepare"]


def prepare() -> None:
    """Prepare the standard streams for a command.

    A stream that was closed before the start (`>&-`) gets its descriptor back; otherwise the next file or connection
    would get this descriptor. Writes to a standard output that was closed then fail. Characters that the encoding of
    standard output does not have are escaped. With UTF-8, the bytes of a path that is not UTF-8 are written unchanged.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):  # output: so that writing fails
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # the lowest descriptor that is free
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        is_utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")


def abandon_stdout() -> None:
    """Discard all further output, because the buffered bytes of a failed standard output would fail again at the
    interpreter's exit."""
    if sys.stdout is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
