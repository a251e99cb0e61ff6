"""A cache of values that are computed from a schema. Its key is the object's identity, because hashing or comparing
schemas takes as long as decoding a small batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar

T = TypeVar("T")
KEPT_MAX = 64


def kept_by_identity(make: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return a function that calls `make` once per argument and returns the same result from then on. After KEPT_MAX
    arguments all results are dropped. The arguments must not change; the cache keeps them alive, so that each identity
    stays unique.
    """
    kept: dict[int, tuple[Any, T]] = {}

    def kept_or_new(argument: Any) -> T:
        entry = kept.get(id(argument))
        if entry is None:
            if len(kept) >= KEPT_MAX:
                kept.clear()
            entry = kept[id(argument)] = argument, make(argument)
        return entry[1]

    update_wrapper(kept_or_new, make)
    return kept_or_new
