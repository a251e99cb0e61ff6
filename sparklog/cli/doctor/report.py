"""The report of `sparklog doctor` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sparklog.cli.doctor.facts import Facts
from sparklog.cli.doctor.findings import CheckFinding, Severity, exit_status
from sparklog.cli.printing import printable

TEXT_CHARS_MAX = 1_000
_COLOURS = {Severity.error: "\033[31m", Severity.warning: "\033[33m", Severity.note: "\033[2m"}
_OFF = "\033[0m"


def as_text(findings: Sequence[CheckFinding], facts: Facts, checks: int, *, colours: bool) -> Iterator[str]:
    """Yield the lines of the report: each finding, then a line with the checked objects and numbers of findings."""
    for check, finding in findings:
        mark, off = (_COLOURS[finding.severity], _OFF) if colours else ("", "")
        yield f"{mark}{finding.severity.name}{off}  {_line(finding.fault)}  [{check}]"
        yield f"  why:  {_line(finding.why)}"
        yield f"  do:   {_line(finding.todo)}"
        if finding.command:
            yield f"        $ {_line(finding.command)}"
        yield ""
    counts = [(sum(f.finding.severity is s for f in findings), s.name) for s in reversed(Severity)]
    counted = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts if count)
    yield f"{checks} checks of {', '.join(looked_at(facts))}: {counted or 'nothing is wrong'}"


def looked_at(facts: Facts) -> list[str]:
    parts = []
    if (cluster := facts.cluster) is not None:
        inside = f" ({_count(cluster.topics, 'topic')}, {_count(cluster.groups, 'group')})" if cluster.topics else ""
        parts.append(f"the cluster at {_line(cluster.bootstrap_servers)}{inside}")
    if facts.data_dir is not None:
        parts.append(f"{_line(facts.data_dir.path)}")
    if facts.page is not None:
        parts.append(_line(facts.page.url))
    if facts.config is not None:
        parts.append(_line(facts.config.path))
    return parts


def _count(items: Sequence[object], noun: str) -> str:
    return f"{len(items):,} {noun}{'' if len(items) == 1 else 's'}"


def _line(text: str) -> str:
    return printable(text, TEXT_CHARS_MAX)


def as_json(findings: Sequence[CheckFinding], facts: Facts, checks: Sequence[str]) -> dict[str, Any]:
    """Return the report for scripts. The keys and the names of checks are stable."""
    return {
        "status": exit_status(findings),
        "looked_at": looked_at(facts),
        "checks": list(checks),
        "findings": [
            {
                "check": check,
                "severity": finding.severity.name,
                "what": finding.fault,
                "why": finding.why,
                "do": finding.todo,
                "command": finding.command,
            }
            for check, finding in findings
        ],
    }
