"""The text of `sparklog mirror create --dry-run`."""

from __future__ import annotations

from typing import Any

import pytest

from sparklog.cli.mirror_plan import print_plan
from sparklog.cli.options import TableFormat
from sparklog.client.admin.mirror_estimate import MirrorEstimate, TopicEstimate, Trial
from sparklog.client.admin.mirror_plan import MirrorPlan
from sparklog.mirror.plan import PlannedTopic

ISR = "min.insync.replicas = '2' is not kept"
UNFIT = TopicEstimate(9, 900, trial=Trial(9, 2, "offset 4 of partition 0: no number"))


def shown(capsys: pytest.CaptureFixture[str], topics: int, pattern: str, groups: list[str]) -> list[str]:
    planned = tuple(PlannedTopic(f"t{i}", 1, {}, (ISR,)) for i in range(topics))
    sizes: dict[str, Any] = {"t1": UNFIT}
    print_plan(MirrorPlan(planned, {}), MirrorEstimate(sizes, 0.0), pattern, groups, TableFormat.table)
    return capsys.readouterr().out.splitlines()


def test_a_remark_about_many_topics_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, 1_000, "", [])
    assert [line for line in lines if ISR in line] == [f"t0, t1, t2, t3, t4 and 995 more: {ISR}"]
    assert "t1: 2 of 9 tried records do not fit, such as offset 4 of partition 0: no number" in lines
    assert [line for line in shown(capsys, 1, "", []) if ISR in line] == [f"t0: {ISR}"]


def test_a_pattern_of_groups_without_a_match_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    groups = lambda *arguments: [one for one in shown(capsys, 2, *arguments) if one.startswith("groups")]  # noqa: E731
    assert groups("", []) == []
    assert groups("a.*", []) == ["groups: none matches 'a.*', or the mirror's user cannot describe it"]
    assert groups("a.*", [f"a{i}" for i in range(22)])[0].endswith("a18, a19 and 2 more")
