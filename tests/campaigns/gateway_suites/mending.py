"""Lines of another project's source that a suite replaces before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


class MendError(Exception):
    """A line that a suite's list replaces is not in the source."""


def mend(source: Path, mended: Sequence[dict[str, Any]], listing: str) -> None:
    """Replace lines of a source; indentation stays. `listing`: name of the suite's list. Raises MendError if a line is
    not there as often as the entry says in `times`, without it exactly once."""
    for entry in mended:
        path = source / entry["file"]
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        places = [n for n, line in enumerate(lines) if line.strip() == entry["before"]]
        times = entry.get("times", 1)
        if len(places) != times:
            raise MendError(
                f"{entry['file']} has the line {entry['before']!r} {len(places)} times instead of {times}. If this "
                f"version has mended the fault, delete its entry of [[mended]] in {listing}. Otherwise put the new "
                "line there."
            )
        for place in places:
            lines[place] = lines[place].replace(entry["before"], entry["after"])
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
