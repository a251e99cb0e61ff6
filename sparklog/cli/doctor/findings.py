"""The findings of the checks, and the exit status of all findings together."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from sparklog.cli.doctor.facts import Facts

FINDINGS_MAX = 20
"""Largest number of findings of one check; the number of further ones is reported."""
NAMED_MAX = 5


class Severity(IntEnum):
    """The exit status is the worst finding's: 0 for notes."""

    note = 0
    warning = 1
    error = 2


class Finding(NamedTuple):
    """A fault, its consequence, its remedy, and the command for the remedy ("" if there is none)."""

    severity: Severity
    what: str
    why: str
    todo: str
    command: str = ""


class Check(NamedTuple):
    """One rule. `name` is stable: scripts may go by it."""

    name: str
    look: Callable[[Facts], Iterable[Finding]]


class CheckFinding(NamedTuple):
    """A finding and the name of its check."""

    check: str
    finding: Finding


def examine(facts: Facts, checks: Iterable[Check]) -> list[CheckFinding]:
    """Return the findings of the checks, the worst first, else in the order of the checks."""
    found = [CheckFinding(check.name, finding) for check in checks for finding in _limit(check.look(facts))]
    return sorted(found, key=lambda f: -f.finding.severity)


def _limit(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the worst findings, and how many more there are."""
    ordered = sorted(findings, key=lambda finding: -finding.severity)
    yield from ordered[:FINDINGS_MAX]
    rest = ordered[FINDINGS_MAX:]
    if rest:
        last = rest[0]
        yield last._replace(what=f"{len(rest)} more like these, the first: {last.what}")


def exit_status(found: Sequence[CheckFinding]) -> int:
    """Return the exit status of the findings: 0 without warnings, 1 with warnings, 2 with errors."""
    return max((int(f.finding.severity) for f in found), default=0)


def named(names: Sequence[object]) -> str:
    """Return "a, b, c and 7 more"."""
    shown = ", ".join(str(name) for name in names[:NAMED_MAX])
    return shown if len(names) <= NAMED_MAX else f"{shown} and {len(names) - NAMED_MAX:,} more"


def quoted(*words: object) -> str:
    """Return words as a shell takes them: names come from clients."""
    return shlex.join(str(word) for word in words)


def is_loopback(host: str) -> bool:
    """True if only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
