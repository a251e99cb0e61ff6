"""The model of the screen as Rich tables that fit the terminal's size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from sparklog.cli import console
from sparklog.cli.printing import duration, printable
from sparklog.cli.top.rates import (
    BrokerRow,
    GroupRow,
    Model,
    Order,
    TopicRow,
    TransactionRow,
    sorted_groups,
    sorted_topics,
)
from sparklog.cli.top.samples import LakeSample

ROWS_MAX = 1_000
"""Largest number of rows of one table on an unlimited screen."""
NAME_CHARS_MAX = 249
NAME_WIDTH_MIN, NAME_WIDTH_MAX = 12, 48
"""Widths of names on a limited screen."""
NUMBERS_WIDTH = 70
"""Approximate width of all columns of a table except the names."""
_TABLE_LINES = 3
"""Lines of a table without its rows: heading, rule, and the empty line below."""
_ROWS_MIN = 3
T = TypeVar("T")


def render(
    model: Model, order: Order, *, room: ConsoleDimensions | None = None, problem: str = "", hint: str = ""
) -> RenderableType:
    """Return the screen's tables. `room`: size of the terminal; None: at most ROWS_MAX rows per table. `problem`: one
    line about the current fault; empty without a fault. `hint`: meaning of the keys, for the first line; empty without
    keys."""
    head = _heading_lines(model, order, problem, hint)
    topics, groups = sorted_topics(model.topics, order), sorted_groups(model.groups, order)
    sections = (
        (model.brokers, 0, _brokers, "broker"),
        (topics, model.omitted_topics, _topics, "topic"),
        (groups, model.omitted_groups, _groups, "group"),
        (model.transactions, 0, _transactions, "open transaction"),
        (model.lakes, 0, _lakes, "Delta table"),
    )
    row_counts = [len(rows) for rows, *_ in sections]
    shares = [ROWS_MAX] * len(sections) if room is None else share_out(room.height - len(head), row_counts)
    parts: list[RenderableType] = [*head]
    for (rows, omitted, table, noun), rows_max in zip(sections, shares, strict=True):
        parts += _section(rows, omitted, table, noun, rows_max)  # type: ignore[arg-type]
    for part in parts:
        if room is not None and isinstance(part, Table):
            part.columns[0].max_width = max(NAME_WIDTH_MIN, min(NAME_WIDTH_MAX, room.width - NUMBERS_WIDTH))
    return Group(*parts)


def share_out(lines: int, rows: Sequence[int]) -> list[int]:
    """Return the number of rows to show of each table.

    The tables share the lines evenly. A table with fewer rows than its share leaves the rest to the other tables. A
    table without rows takes no line.
    """
    shown = [0] * len(rows)
    tables = [i for i, count in enumerate(rows) if count]
    # one more line per table for the number of rows that are left out
    remaining = lines - (_TABLE_LINES + 1) * len(tables)
    while remaining > 0:
        wanting = [i for i in tables if shown[i] < rows[i]]
        if not wanting:
            break
        each = max(1, remaining // len(wanting))
        for i in wanting:
            more = min(each, rows[i] - shown[i], remaining)
            shown[i] += more
            remaining -= more
    return shown


def _heading_lines(model: Model, order: Order, problem: str, hint: str) -> list[Text]:
    over = "rates with the next sample" if model.over_s is None else f"rates over {model.over_s:.1f} s"
    first = "; ".join((*((hint,) if hint else ()), f"by {order}", over, f"cluster {name(model.cluster_id)}"))
    head = [Text(first, overflow="ellipsis", no_wrap=True)]
    head += [Text(name(p), "red", overflow="ellipsis", no_wrap=True) for p in (problem, model.page_problem) if p]
    return [*head, Text("")]


def _section(
    rows: Sequence[T], omitted: int, table: Callable[[Sequence[T]], Table], noun: str, rows_max: int
) -> list[RenderableType]:
    if not rows:
        return [Text(f"{_count_text(omitted, noun)}, not shown"), Text("")] if omitted else []
    shown = rows[:rows_max]
    parts: list[RenderableType] = [table(shown)] if shown else []
    hidden = len(rows) - len(shown)
    if hidden:
        parts.append(Text(f"and {_count_text(hidden, f'more {noun}')}", "dim"))
    if omitted:
        parts.append(Text(f"and {_count_text(omitted, f'more {noun}')}, not shown", "dim"))
    return [*parts, Text("")]


def _count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _table(*headings: str, right: tuple[str, ...] = ()) -> Table:
    new_table = console.table(*headings, right=right)
    for column in new_table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    return new_table


def _brokers(rows: Sequence[BrokerRow]) -> Table:
    numbers = ("broker", "leads", "requests/s", "errors/s", "connections", "memory")
    table = _table("broker", "address", "leads", *numbers[2:], "", right=numbers)
    for row in rows:
        table.add_row(
            str(row.broker_id),
            name(row.address),
            console.number(row.leads),
            _rate(row.requests_per_s),
            _rate(row.errors_per_s),
            "-" if row.connections is None else console.number(row.connections),
            "-" if row.memory_share is None else f"{row.memory_share:.0%}",
            "controller" if row.is_controller else "",
        )
    return table


def _topics(rows: Sequence[TopicRow]) -> Table:
    numbers = ("partitions", "records/s", "in/s", "out/s", "size", "lag")
    with_page = any(row.bytes_in_per_s is not None or row.bytes_out_per_s is not None for row in rows)
    shown = numbers if with_page else tuple(n for n in numbers if n not in ("in/s", "out/s"))
    table = _table("topic", *shown, "", right=numbers)
    for row in rows:
        flow = (_bytes(row.bytes_in_per_s), _bytes(row.bytes_out_per_s)) if with_page else ()
        table.add_row(
            name(row.name),
            console.number(row.partitions),
            _rate(row.records_per_s),
            *flow,
            console.size(row.size_bytes),
            "-" if row.lag is None else console.number(row.lag),
            Text(row.trouble, "red"),
        )
    return table


def _groups(rows: Sequence[GroupRow]) -> Table:
    numbers = ("members", "lag", "lag/s", "read/s", "caught up in")
    table = _table("group", "state", *numbers, right=numbers)
    for row in rows:
        table.add_row(
            name(row.group_id),
            row.state,
            console.number(row.members),
            "-" if row.lag is None else console.number(row.lag),
            "-" if row.lag_per_s is None else Text(f"{row.lag_per_s:+,.0f}", "red" if row.lag_per_s > 0 else ""),
            _rate(row.read_per_s),
            "-" if row.remaining_s is None else duration(row.remaining_s),
        )
    return table


def _transactions(rows: Sequence[TransactionRow]) -> Table:
    numbers = ("open for", "timeout")
    table = _table("open transaction", "kind", "state", *numbers, "", right=numbers)
    for row in rows:
        table.add_row(
            name(row.transactional_id),
            row.kind,
            row.state,
            duration(row.age_s),
            "-" if row.timeout_s is None else duration(row.timeout_s),
            Text("beyond its timeout" if row.is_late else "", "red"),
        )
    return table


def _lakes(rows: Sequence[LakeSample]) -> Table:
    numbers = ("lag", "behind", "files")
    table = _table("Delta table", "state", *numbers, right=numbers)
    for row in rows:
        table.add_row(
            name(row.topic),
            Text(row.state, "" if row.state == "running" else "red"),
            "-" if row.lag < 0 else console.number(row.lag),
            "-" if row.behind_s < 0 else duration(row.behind_s),
            "-" if row.files < 0 else console.number(row.files),
        )
    return table


def _rate(per_s: float | None) -> str:
    if per_s is None:
        return "-"
    return f"{per_s:,.1f}" if 0 < per_s < 10 else console.number(per_s)


def _bytes(per_s: float | None) -> str:
    return "-" if per_s is None else console.size(per_s)


def name(text: str) -> str:
    """Return an untrusted name as the text of a cell."""
    return printable(text, NAME_CHARS_MAX)
