"""The text of `sparklog mirror create --dry-run`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparklog.cli.options import TableFormat

if TYPE_CHECKING:
    from sparklog.client.admin.mirror_estimate import MirrorEstimate, TopicEstimate
    from sparklog.client.admin.mirror_plan import MirrorPlan

REASON_CHARS_MAX = 1_000
HELD = "which wait at the source for the end of an open transaction"
GROUPS_SHOWN_MAX = 20
TOPICS_SHOWN_MAX = 5
"""Largest number of topics that a remark names."""


def print_plan(
    plan: MirrorPlan, estimate: MirrorEstimate, pattern: str, groups: list[str], format: TableFormat
) -> None:
    """Print the topics that a mirror would create. `pattern`: expressions of the groups; "": no groups are copied."""
    from sparklog.cli import console
    from sparklog.cli.printing import duration, printable
    from sparklog.client.admin.mirror_estimate import TopicEstimate
    from sparklog.settings import MIRROR_PREFIX

    rows = [
        (
            topic,
            estimate.topics.get(topic.name, TopicEstimate(0, 0)),
            {n: v for n, v in topic.configs.items() if not n.startswith(MIRROR_PREFIX)},
        )
        for topic in plan.topics
    ]
    if format is TableFormat.json:
        import json

        topics = [
            {
                "topic": topic.name,
                "partitions": topic.partitions,
                "records": size.records,
                "bytes": size.size_bytes,
                "held": size.held,
                "tried": size.trial._asdict(),
                "configs": configs,
                "remarks": list(topic.remarks),
            }
            for topic, size, configs in rows
        ]
        shown = {"topics": topics, "refused": plan.refused, "groups": groups, "seconds": round(estimate.seconds, 1)}
        print(json.dumps(shown))
        return
    numbers = ("partitions", "records", "size")
    table = console.table("topic", *numbers, "settings", right=numbers)
    for topic, size, configs in rows:
        settings = ", ".join(f"{n}={v}" for n, v in configs.items()) or "defaults"
        numbers = (str(topic.partitions), console.number(size.records), console.size(size.size_bytes))
        table.add_row(topic.name, *numbers, settings)
    console.stdout().print(table)
    topics_of: dict[str, list[str]] = {}
    for topic, size, _ in rows:
        for remark in (*topic.remarks, *_findings(size)):
            topics_of.setdefault(remark, []).append(topic.name)
    for remark, names in topics_of.items():
        print(printable(f"{_some(names, TOPICS_SHOWN_MAX)}: {remark}", REASON_CHARS_MAX))
    if groups:
        print(f"groups: {printable(_some(groups, GROUPS_SHOWN_MAX), REASON_CHARS_MAX)}")
    elif pattern:
        none = f"none matches {pattern!r}, or the mirror's user cannot describe it"
        print(f"groups: {printable(none, REASON_CHARS_MAX)}")
    for name, reason in plan.refused.items():
        print(f"not mirrored: {printable(f'{name}: {reason}', REASON_CHARS_MAX)}")
    if estimate.seconds:
        total = sum(size.size_bytes for size in estimate.topics.values())
        print(
            f"about {console.size(total)}, which one worker fetches and converts in about {duration(estimate.seconds)}"
        )
    print(f"{len(rows)} {'topic' if len(rows) == 1 else 'topics'} would be created; nothing was changed")


def _some(names: list[str], count_max: int) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - count_max} more" if len(names) > count_max else ""
    return ", ".join(names[:count_max]) + more


def _findings(size: TopicEstimate) -> Iterator[str]:
    """Yield what the look at a topic's offsets and at some of its records has shown."""
    from sparklog.cli import console

    if size.held:
        yield f"{console.number(size.held)} more offsets, {HELD}"
    if size.trial.unfit:
        tried, unfit = console.number(size.trial.records), console.number(size.trial.unfit)
        yield f"{unfit} of {tried} tried records do not fit, such as {size.trial.problem}"
    elif size.trial.problem:
        yield f"its records cannot be converted: {size.trial.problem}"
