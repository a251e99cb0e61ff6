"""The drawing of a model."""

from __future__ import annotations

import pytest
from rich.console import ConsoleDimensions

from sparklog.cli.top.rates import BrokerRow, GroupRow, Model, Order, TopicRow, TransactionRow
from sparklog.cli.top.tables import ROWS_MAX, render, share_out
from tests.support.top import text

EMPTY = Model("c1", 2.0, (), 0, (), 0, (), (), "")


def topics(count: int, name: str = "topic-{}") -> tuple[TopicRow, ...]:
    return tuple(TopicRow(name.format(i), 3, i, None, None, 2048, None, "") for i in range(count))


def groups(count: int) -> tuple[GroupRow, ...]:
    return tuple(GroupRow(f"group-{i}", "Stable", 1, i, 0, 0, None) for i in range(count))


def test_all_four_tables() -> None:
    found = text(
        render(
            Model(
                "c1",
                2.0,
                (TopicRow("rides", 4, 1234.5, None, None, 5 << 20, 17, "1 offline"),),
                0,
                (GroupRow("billing", "Stable", 2, 17, -8.5, 100, 2.0),),
                0,
                (BrokerRow(0, "10.0.0.1:9292", True, 4),),
                (TransactionRow("shop", "plain", "Ongoing", 75.0, 60.0, True),),
                "",
            ),
            Order.size,
        )
    )
    lines = [" ".join(line.replace("│", "").split()) for line in found.splitlines()]
    assert lines[0] == "by size; rates over 2.0 s; cluster c1"
    assert "0 10.0.0.1:9292 4 - - - - controller" in lines
    assert "rides 4 1,234 5.0 MiB 17 1 offline" in lines
    assert "billing Stable 2 17 -8 100 2.0 s" in lines
    assert "shop plain Ongoing 1 min 15 s 1 min 0 s beyond its timeout" in lines


def test_bytes_are_shown_if_measured() -> None:
    row = TopicRow("rides", 4, 1, 2048.0, 0.0, 0, None, "")
    assert "in/s" in text(render(EMPTY._replace(topics=(row,)), Order.lag))
    assert "in/s" not in text(render(EMPTY._replace(topics=topics(1)), Order.lag))


@pytest.mark.parametrize("lines", [12, 20, 24, 50, 500])
@pytest.mark.parametrize(("topic_count", "group_count"), [(1000, 0), (1000, 1000), (3, 1000), (2, 2), (0, 1)])
def test_it_fits_and_says_how_many_more(lines: int, topic_count: int, group_count: int) -> None:
    found = text(
        render(
            EMPTY._replace(topics=topics(topic_count), groups=groups(group_count)),
            Order.lag,
            room=ConsoleDimensions(160, lines),
        )
    )
    assert len(found.splitlines()) <= lines
    for noun, count in (("topic", topic_count), ("group", group_count)):
        shown = found.count(f"{noun}-")
        assert shown == count or f"and {count - shown:,} more {noun}" in found
    assert "-" in found or not (topic_count or group_count)


def test_a_short_table_leaves_its_room_to_the_others() -> None:
    assert share_out(24, [2, 0, 100, 100]) == [2, 0, 5, 5]
    assert share_out(24, [0, 0, 100, 3]) == [0, 0, 13, 3]
    assert share_out(0, [5, 5]) == [0, 0]
    assert share_out(1000, [5, 5]) == [5, 5]


def test_a_limit_holds_without_a_terminal_too() -> None:
    found = text(render(EMPTY._replace(topics=topics(ROWS_MAX + 7)), Order.lag))
    assert "and 7 more topics" in found
    assert found.count("topic-") == ROWS_MAX


def test_skipped_parts_are_named() -> None:
    found = text(render(EMPTY._replace(topics=topics(1), omitted_topics=5, omitted_groups=1), Order.lag))
    assert "and 5 more topics, not shown" in found
    assert "1 group, not shown" in found


def test_problems_are_lines_of_their_own() -> None:
    found = text(render(EMPTY._replace(page_problem="no metrics"), Order.lag, problem="no answer for 3 s")).splitlines()
    assert [line.strip() for line in found[1:3]] == ["no answer for 3 s", "no metrics"]


def test_names_cannot_command_the_terminal() -> None:
    evil = "g\x1b]0;owned\x07\r\n\u202e[red]x[/red]"
    rows = (GroupRow(evil, "Empty", 0, 1, None, None, None),)
    found = text(render(EMPTY._replace(groups=rows), Order.lag))
    assert not any(c in found for c in "\x1b\x07\r\u202e")
    assert "[red]x[/red]" in found


def test_long_names_leave_room_for_numbers() -> None:
    found = text(
        render(EMPTY._replace(topics=topics(1, "t" * 200 + "{}")), Order.lag, room=ConsoleDimensions(90, 30)), width=90
    )
    assert "2.0 KiB" in found
    whole = text(render(EMPTY._replace(topics=topics(1, "t" * 150 + "{}")), Order.lag), width=250)
    assert "t" * 150 in whole
