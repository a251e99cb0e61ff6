"""Source offsets as text: topics and numbers for everybody who parses it, and what else the source must remember
between them.

Spark keeps nothing of a Python source but the text of its offsets, and others read that text, too: tools that sum over
the numbers of a query's progress to find its lag. So what is no position stands where JSON readers skip it: in the
white space in front of the last brace, a space or a tab for each bit. Spark hands the text on as it is, in the
checkpoint as in the progress.

The Python process that Spark runs a streaming source in turns offsets into text and back with its name `json`. That
name is given a module that knows of the white space; where it cannot be, offsets hold the same state as entries of
their own.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The program of the process that a streaming source lives in."""

BESIDE_BYTES_MAX = 64 << 20
_BITS = str.maketrans("01", " \t")
_BLANKS = str.maketrans(" \t", "01")


class OffsetDict(dict[str, Any]):
    """Positions `{"topic": {"0": 12}}`; `beside`: what is kept with them (JSON values), which no other reader sees."""

    def __init__(self, positions: Mapping[str, Any], beside: Mapping[str, Any], text: str = "") -> None:
        super().__init__(positions)
        self.beside = dict(beside)
        self.text = text or _with_blanks(json.dumps(dict(positions)), self.beside)


class OffsetJson(ModuleType):
    """What the runner has under the name `json`."""

    def __init__(self) -> None:
        super().__init__("json")

    def dumps(self, value: Any, **more: Any) -> str:
        return value.text if isinstance(value, OffsetDict) else json.dumps(value, **more)

    def loads(self, text: str | bytes, **more: Any) -> Any:
        value = json.loads(text, **more)
        beside = _beside(text) if isinstance(text, str) and isinstance(value, dict) else None
        return value if beside is None else OffsetDict(value, beside, str(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(json, name)


def install() -> None:
    """Makes this process write and read such offsets, if it is the one that Spark's streaming source lives in."""
    for module in (sys.modules.get("__main__"), sys.modules.get(RUNNER)):
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.name == RUNNER and getattr(module, "json", None) is json:
            module.json = OffsetJson()  # type: ignore[union-attr]


def is_installed() -> bool:
    """Whether what is beside the positions of an OffsetDict gets to Spark."""
    modules = (sys.modules.get("__main__"), sys.modules.get(RUNNER))
    return any(isinstance(getattr(module, "json", None), OffsetJson) for module in modules)


def _with_blanks(text: str, beside: Mapping[str, Any]) -> str:
    packed = zlib.compress(json.dumps(beside, separators=(",", ":")).encode(), 9)
    # the bit in front keeps leading zeros
    bits = format(int.from_bytes(b"\1" + packed), "b")[1:]
    return text[:-1] + bits.translate(_BITS) + text[-1]


def _beside(text: str) -> dict[str, Any] | None:
    """None if the white space, if there is any, is not ours."""
    body = text[:-1]
    blanks = body[len(body.rstrip(" \t")) :]
    if not blanks or len(blanks) % 8 or len(blanks) > 8 * BESIDE_BYTES_MAX:
        return None
    packed = int(blanks.translate(_BLANKS), 2).to_bytes(len(blanks) // 8)
    unpacking = zlib.decompressobj()
    try:
        value = json.loads(unpacking.decompress(packed, BESIDE_BYTES_MAX))
    except (zlib.error, ValueError):
        return None
    return value if unpacking.eof and isinstance(value, dict) else None
