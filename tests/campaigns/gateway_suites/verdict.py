"""The verdict on a suite: tests may fail only with a reason, and a reason has to hold."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Verdict(NamedTuple):
    """Outcome of a run."""

    passed: set[str]
    unexpected: set[str]
    """Tests that fail without a reason."""
    outdated: set[str]
    """Tests that pass although the list says that they fail."""

    @property
    def is_good(self) -> bool:
        """True if all is as the list says."""
        return bool(self.passed) and not self.unexpected and not self.outdated

    def report(self, suite: str) -> str:
        """The verdict as lines."""
        lines = [f"{suite}: {len(self.passed)} passed, {len(self.unexpected)} failed"]
        lines += [f"  {name} failed, and is not in the list" for name in sorted(self.unexpected)]
        lines += [f"  {name} passed: take it out of the list" for name in sorted(self.outdated)]
        return "\n".join(lines)


def judge(passed: set[str], failed: set[str], refused: Collection[str]) -> Verdict:
    """The verdict on a suite's results."""
    return Verdict(passed, failed - set(refused), passed & set(refused))
