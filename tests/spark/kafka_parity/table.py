"""The table of differences, as `make parity` prints it and as it stands in the guide."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from tests.spark.kafka_parity.checks import Observation

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = DOCS / "moving-from-kafka.md"
GATEWAY_PAGE = DOCS / "kafka-clients.md"
SYSTEMS = ("sparklog", "kafka", "gateway")
BEGIN, END = "<!-- parity: written by make parity -->", "<!-- end of parity -->"
HEAD_LINES = 2
_SECTION = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)


def render(seen: Sequence[Observation], system: str = "sparklog") -> str:
    """One row for each check that found other things on Kafka and on the system; a sentence if there is none."""
    kafka = {(s.case, s.check): s for s in seen if s.system == "kafka"}
    lines = [f"| case | Kafka | {system} | why |", "|---|---|---|---|"]
    for ours in (s for s in seen if s.system == system):
        theirs = kafka.get((ours.case, ours.check))
        if theirs is None or theirs.found == ours.found:
            continue
        cells = (f"{ours.case}: {ours.check}", theirs.words, ours.words, ours.why or "**not explained**")
        lines.append("| " + " | ".join(_cell(c) for c in cells) + " |")
    return "\n".join(lines) if len(lines) > HEAD_LINES else f"None: {summary(seen, system)}."


def summary(seen: Sequence[Observation], system: str = "sparklog") -> str:
    """Return the numbers of cases and checks that ran on Kafka and on the system."""
    both = {(s.case, s.check) for s in seen if s.system == "kafka"}
    ours = [s for s in seen if s.system == system and (s.case, s.check) in both]
    found = {(s.case, s.check): s.found for s in seen if s.system == "kafka"}
    differ = sum(found[s.case, s.check] != s.found for s in ours)
    cases = len({s.case for s in ours})
    return f"{cases} cases with {len(ours)} checks ran on both; {differ} checks differ"


def remember(seen: Sequence[Observation], directory: Path, *, whole: bool) -> list[Observation]:
    """Keep the results, for a run of the other system alone; returns the known results of both. A run of some cases
    adds to the kept ones, a `whole` one replaces them."""
    directory.mkdir(parents=True, exist_ok=True)
    result = []  # type: ignore[var-annotated]
    for system in SYSTEMS:
        path = directory / f"{system}.json"
        new = [s for s in seen if s.system == system]
        old = [Observation(*s) for s in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []
        known = {(s.case, s.check): s for s in ([] if whole and new else old)} | {(s.case, s.check): s for s in new}
        path.write_text(json.dumps(list(known.values()), indent=1), encoding="utf-8")
        result += known.values()
    return result


def write(rendered: str, page: Path = PAGE) -> None:
    """Puts the table into the guide's page. Raises ValueError if the page has no place for it."""
    text = page.read_text(encoding="utf-8")
    if not _SECTION.search(text):
        raise ValueError(f"{page.name} has no section between {BEGIN} and {END}")
    section = f"{BEGIN}\n{rendered}\n{END}"
    page.write_text(_SECTION.sub(lambda _: section, text), encoding="utf-8")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
