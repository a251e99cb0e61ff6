"""A verdict for people."""

from __future__ import annotations

from collections.abc import Iterable

from tests.campaigns.checker.analysis import Anomaly, Verdict


def report(verdict: Verdict, allowed: Iterable[Anomaly] = ()) -> str:
    """Return some lines: the amount of work, then each anomaly with its first examples; allowed ones are marked."""
    allowed = frozenset(allowed)
    lines = [
        f"{verdict.sent} values sent, {verdict.acknowledged} acknowledged, {verdict.seen} read; "
        f"{verdict.transactions} transactions committed"
    ]
    for found in verdict.found:
        mark = " (allowed)" if found.anomaly in allowed else ""
        lines.append(f"{found.anomaly}{mark}: {found.count}")
        lines += [f"    {example}" for example in found.examples]
        if found.count > len(found.examples):
            lines.append(f"    and {found.count - len(found.examples)} more")
    if not verdict.found:
        lines.append("no anomaly")
    return "\n".join(lines)
