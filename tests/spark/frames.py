"""Rows of Spark frames as the tests compare them."""

from __future__ import annotations

from typing import Any


def values(frame: Any) -> list[str]:
    """The values of an envelope topic as text, sorted; null as ''."""
    return sorted("" if r.value is None else bytes(r.value).decode() for r in frame.select("value").collect())
