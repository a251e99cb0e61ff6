"""Checks and their findings, and the exit status of all findings."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from sparklog.cli.doctor.facts import Facts

FINDINGS_MAX = 20
"""Largest number of shown findings of one check; one more finding has the number of the others."""
NAMED_MAX = 5


class Severity(IntEnum):
    """Severity of a finding. The largest one is the exit status of the command."""

    note = 0
    warning = 1
    error = 2


class Finding(NamedTuple):
    """A fault."""

    severity: Severity
    fault: str
    """The fault."""
    why: str
    """The consequence of the fault."""
    todo: str
    """The remedy."""
    command: str = ""
    """Shell command for the remedy; empty if there is none."""


class Check(NamedTuple):
    """One check."""

    name: str
    """A stable name, for scripts."""
    look: Callable[[Facts], Iterable[Finding]]
    """Yields the faults in the facts."""


class CheckFinding(NamedTuple):
    """A finding and the name of its check."""

    check: str
    finding: Finding


def examine(facts: Facts, checks: Iterable[Check]) -> list[CheckFinding]:
    """Run the checks and return their findings, sorted by severity, the worst first, and then by check."""
    findings = [CheckFinding(check.name, finding) for check in checks for finding in _limit(check.look(facts))]
    return sorted(findings, key=lambda f: -f.finding.severity)


def _limit(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the worst FINDINGS_MAX findings, and one finding with the number of the others."""
    ordered = sorted(findings, key=lambda finding: -finding.severity)
    yield from ordered[:FINDINGS_MAX]
    rest = ordered[FINDINGS_MAX:]
    if rest:
        last = rest[0]
        yield last._replace(fault=f"{len(rest)} more like these, the first: {last.fault}")


def exit_status(findings: Sequence[CheckFinding]) -> int:
    """Return the exit status of the findings: 0 without warnings, 1 with warnings, 2 with errors."""
    return max((int(f.finding.severity) for f in findings), default=0)


def named(names: Sequence[object]) -> str:
    """Return the first NAMED_MAX names and the number of the others: "a, b, c, d, e and 7 more"."""
    shown = ", ".join(str(name) for name in names[:NAMED_MAX])
    return shown if len(names) <= NAMED_MAX else f"{shown} and {len(names) - NAMED_MAX:,} more"


def quoted(*words: object) -> str:
    """Return a shell command of these words, quoted because clients choose names of topics and groups."""
    return shlex.join(str(word) for word in words)


def is_loopback(host: str) -> bool:
    """True if the address can be reached from its own machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
