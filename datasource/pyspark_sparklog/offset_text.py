"""The text of source offsets: JSON with topics and positions, and the rest of the source's state hidden in white space.

Spark passes the text on unchanged, in the checkpoint and in the progress. Its form is in
`sparklog.format.source_offsets`.

The Python process of a streaming source converts offsets to text and back with the module that it imported as `json`.
`install` replaces that module in the process by one that reads and writes the white space. Where `install` finds no
such process, offsets hold the same state as entries beside the topics.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from sparklog.format.source_offsets import HIDDEN_BYTES_MAX, hidden_state, offset_text

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""Name of the module that Spark runs as the main program of a streaming source's Python process."""


class OffsetDict(dict[str, Any]):
    """Positions `{"topic": {"0": 12}}`. `beside`: the hidden state (JSON values). `text`: both as one text."""

    def __init__(self, positions: Mapping[str, Any], beside: Mapping[str, Any], text: str = "") -> None:
        super().__init__(positions)
        self.beside = dict(beside)
        self.text = text or offset_text(positions, self.beside)


class OffsetJson(ModuleType):
    """Replacement for the module `json` in the runner: converts an OffsetDict with its hidden state."""

    def __init__(self, *, beside_bytes_max: int = HIDDEN_BYTES_MAX) -> None:
        super().__init__("json")
        self._beside_bytes_max = beside_bytes_max

    def dumps(self, value: Any, **more: Any) -> str:
        return value.text if isinstance(value, OffsetDict) else json.dumps(value, **more)

    def loads(self, text: str | bytes, **more: Any) -> Any:
        value = json.loads(text, **more)
        beside = None
        if isinstance(text, str) and isinstance(value, dict):
            beside = hidden_state(text, value, self._beside_bytes_max)
        return value if beside is None else OffsetDict(value, beside, str(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(json, name)


def install() -> None:
    """Make this process write and read offsets with white space, if it is the process of Spark's streaming source."""
    for module in (sys.modules.get("__main__"), sys.modules.get(RUNNER)):
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.name == RUNNER and getattr(module, "json", None) is json:
            module.json = OffsetJson()  # type: ignore[union-attr]


def is_installed() -> bool:
    """True if this process passes the hidden state of an OffsetDict on to Spark."""
    modules = (sys.modules.get("__main__"), sys.modules.get(RUNNER))
    return any(isinstance(getattr(module, "json", None), OffsetJson) for module in modules)
