"""The verdict on a suite: tests may fail only with a reason, and a reason has to hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple


class Verdict(NamedTuple):
    """Outcome of a run."""

    passed: set[str]
    unexpected: set[str]
    """Tests that fail without a reason."""
    outdated: set[str]
    """Tests that pass although the list says that they fail, and entries of the list for no test."""
    skipped: Mapping[str, str] = {}
    """The reason of each test that the suite itself has left out."""

    @property
    def is_good(self) -> bool:
        """True if all is as the list says."""
        return bool(self.passed) and not self.unexpected and not self.outdated

    def report(self, suite: str) -> str:
        """The verdict as lines."""
        left_out = f", {len(self.skipped)} skipped" if self.skipped else ""
        lines = [f"{suite}: {len(self.passed)} passed, {len(self.unexpected)} failed{left_out}"]
        lines += [f"  {count} skipped: {reason}" for reason, count in Counter(self.skipped.values()).most_common()]
        lines += [f"  {name} failed, and is not in the list" for name in sorted(self.unexpected)]
        lines += [f"  {name} passed or is no test: take it out of the list" for name in sorted(self.outdated)]
        return "\n".join(lines)


def judge(
    passed: set[str], failed: set[str], refused: Collection[str], skipped: Mapping[str, str] | None = None
) -> Verdict:
    """The verdict on a suite's results."""
    return Verdict(passed, failed - set(refused), passed & set(refused), skipped or {})
