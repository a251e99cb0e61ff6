"""The frame of a comparison of two schemas: the differences that it reports, and its limit on work.

All types of schemas share one question: which values of the *writer's* schema can the *reader's* schema not read? The
modules `avro`, `json_schema` and `protobuf` answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from sparklog.kafka.schemas.errors import invalid_schema

STEPS_MAX = 100_000
"""Largest number of pairs of types that one comparison looks at: schemas are a client's input."""
DIFFERENCES_MAX = 20
"""Number of differences after which a comparison stops: an answer lists no more."""


class Comparison:
    """One comparison in progress."""

    def __init__(self) -> None:
        self.differences: list[str] = []
        self._assumed: dict[Hashable, None] = {}
        """Pairs that are compared or have been, in this order."""
        self._steps = 0

    def report(self, kind: str, path: str, text: str) -> None:
        """Add a difference. `kind`: its name in capitals. `path`: its place in the reader's schema."""
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(f"{kind} at {path or '/'}: {text}")

    def enter(self, *pair: Hashable) -> bool:
        """Begin the comparison of a pair of types; False if the pair is already being compared or has been, as in
        recursive types. Raises RegistryError beyond STEPS_MAX."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise invalid_schema(f"it is too large to compare: more than {STEPS_MAX} pairs of types")
        if pair in self._assumed:
            return False
        self._assumed[pair] = None
        return True

    def holds(self, compare: Callable[[], None]) -> bool:
        """Call `compare` for one branch of an alternative, and return True if it reports no difference. Its differences
        do not count here."""
        outer, entered = self.differences, len(self._assumed)
        self.differences = []
        try:
            compare()
            is_equal = not self.differences
        finally:
            self.differences = outer
        while not is_equal and len(self._assumed) > entered:
            self._assumed.popitem()  # these pairs assumed that the branch is the right one
        return is_equal
