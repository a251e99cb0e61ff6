"""What the demo shows: steps as they are done, a live view while it streams, the table of checks."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from zoneinfo import ZoneInfo

import pyarrow as pa
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from .outages import ClusterView
from .verify import Check

NEW_YORK = ZoneInfo("America/New_York")
ORIGINS = ("EWR", "JFK", "LGA")
_BARS = "▏▎▍▌▋▊▉█"
_MINUTES_PER_CHARACTER = 10
_WIDTH_OF_A_FILE = 140


class Screen:
    """The terminal. Without one (a pipe, a build log) the live view becomes one plain line every few seconds."""

    def __init__(self, started: float) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal and "COLUMNS" not in os.environ:
            self.console.width = _WIDTH_OF_A_FILE
        self._started = started

    def done(self, text: str) -> None:
        """One step that is done, with the seconds since the start."""
        self.console.print(f"[dim]{self._clock()}[/] [green]✓[/] {text}", soft_wrap=True)

    def note(self, text: str) -> None:
        """Something worth knowing that is not a failure."""
        self.console.print(f"[dim]{self._clock()}[/] [yellow]![/] {text}", soft_wrap=True)

    def fail(self, text: str) -> None:
        self.console.print(f"[dim]{self._clock()}[/] [red]✗[/] {text}", soft_wrap=True)

    def wait(self, text: str) -> AbstractContextManager[object]:
        """A spinner while something takes its time."""
        return self.console.status(text)

    def _clock(self) -> str:
        return f"{time.monotonic() - self._started:5.1f} s"

    def checks(self, checks: Sequence[Check]) -> None:
        """The table of checks with both figures."""
        table = Table(title="Verified against PyArrow on the package's own data", title_justify="left")
        table.add_column("")
        table.add_column("check")
        table.add_column("expected", justify="right")
        table.add_column("found", justify="right")
        for c in checks:
            mark = Text("✓", "bold green") if c.ok else Text("✗", "bold red")
            table.add_row(mark, Text(c.what), Text(c.expected), Text(c.found, "" if c.ok else "bold red"))
        self.console.print(table)

    def facts(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Figures with their names. The title and both columns may hold markup."""
        grid = Table.grid(padding=(0, 2))
        for name, value in rows:
            grid.add_row(f"[dim]{name}[/]", value)
        self.console.print(Panel(grid, title=title, title_align="left", expand=False))

    def what_next(self, entries: Sequence[tuple[str, Sequence[str]]]) -> None:
        """What to do now: a purpose and the lines to type, which are not wrapped, so that they can be copied."""
        self.console.print("\n[bold]What next[/]")
        for purpose, lines in entries:
            self.console.print(f"  [dim]{purpose}[/]")
            for line in lines:
                self.console.print(
                    Text("      " + line, "dim" if line.lstrip().startswith("#") else "cyan"), soft_wrap=True
                )
        self.console.print()


class LiveView:
    """Progress bars of the feed and of the query, and the newest hours of the result as they come out of the log."""

    _LINE_EVERY_S = 5.0

    def __init__(self, screen: Screen, totals: dict[str, int]) -> None:
        self._screen = screen
        self._totals = totals
        self._line_at = time.monotonic()
        self._bars = Progress(
            TextColumn("{task.description:<26}"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:>9,.0f} / {task.total:,.0f}"),
            TextColumn("{task.fields[note]}", style="cyan"),
            console=screen.console,
        )
        self._tasks = {t: self._bars.add_task(f"feed {t}", total=n, note="") for t, n in totals.items()}
        self._query = self._bars.add_task("query read", total=totals["flights"], note="")
        self._live = Live(console=screen.console, refresh_per_second=8, transient=True)
        self._cluster: Table | None = None

    def __enter__(self) -> LiveView:
        if self._screen.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show_cluster(self, view: ClusterView | None, alive: dict[int, bool], *, has_zookeeper: bool) -> None:
        """Who leads what, for the next `show`."""
        if view is not None and self._screen.console.is_terminal:
            self._cluster = cluster_table(view, alive, has_zookeeper=has_zookeeper)

    def show(
        self,
        sent: dict[str, int],
        feed_s: float,
        day: dt.date | None,
        read: int,
        query_note: str,
        hours: int,
        latest: pa.Table | None,
    ) -> None:
        """Brings the view up to date. `hours` is the number of result rows so far, `latest` their newest."""
        if not self._screen.console.is_terminal:
            self._line(sent, day, read, hours)
            return
        for topic, task in self._tasks.items():
            rate = f"{sent[topic] / feed_s:,.0f} rows/s" if feed_s else ""
            when = f" · {day:%d %b %Y}" if day and topic == "flights" else ""
            self._bars.update(task, completed=sent[topic], note=rate + when)
        self._bars.update(self._query, completed=read, note=query_note)
        parts: list[RenderableType] = [self._bars] if self._cluster is None else [self._bars, self._cluster]
        if latest is not None:
            parts.append(_hours_table(latest, hours))
        self._live.update(Group(*parts))

    def _line(self, sent: dict[str, int], day: dt.date | None, read: int, hours: int) -> None:
        now = time.monotonic()
        if now - self._line_at >= self._LINE_EVERY_S:
            self._line_at = now
            total = self._totals["flights"]
            self._screen.console.print(
                f"        fed {sent['flights']:,} of {total:,} flights ({day}), query read {read:,}, hours out {hours:,}"
            )


def cluster_table(view: ClusterView, alive: dict[int, bool], *, has_zookeeper: bool) -> Table:
    """One line per partition, one column per broker: ● leads, ○ in sync, · behind; a broker that is away in red."""
    zookeeper = "[green]ZooKeeper[/]" if has_zookeeper else "[red]ZooKeeper is away[/]"
    table = Table(title=f"flights: leaders and in-sync replicas   {zookeeper}", title_justify="left")
    table.add_column("partition")
    for broker, runs in sorted(alive.items()):
        name = f"broker {broker}" + (" (controller)" if broker == view.controller else "")
        table.add_column(Text(name if runs else f"broker {broker} is away", "" if runs else "red"), min_width=21)
    table.add_column("ISR")
    for line in view.partitions:
        cells = [_replica_text(line.leader, line.isr, broker) for broker in sorted(alive)]
        isr = Text(", ".join(map(str, line.isr)), "" if len(line.isr) == len(line.replicas) else "yellow")
        table.add_row(str(line.partition), *cells, isr)
    return table


def _replica_text(leader: int, isr: tuple[int, ...], broker: int) -> Text:
    if broker == leader:
        return Text("● leads", "bold green")
    return Text("○ in sync", "green") if broker in isr else Text("· behind", "yellow")


def _hours_table(latest: pa.Table, hours: int) -> Table:
    """The newest hours that came out, one line per hour, one column per airport."""
    title = f"delay-by-origin-hour: {hours:,} rows so far, read back by a plain consumer"
    table = Table(title=title, title_justify="left")
    table.add_column("New York time")
    for origin in ORIGINS:
        table.add_column(f"{origin}: mean departure delay", min_width=26)
    cells: dict[dt.datetime, dict[str, Text]] = {}
    for row in latest.to_pylist():
        cells.setdefault(row["time_hour"], {})[row["origin"]] = delay_text(row["mean_delay_min"], row["flights"])
    for hour in sorted(cells):
        table.add_row(f"{hour.astimezone(NEW_YORK):%a %d %b %H:%M}", *(cells[hour].get(o, "") for o in ORIGINS))
    return table


def delay_text(minutes: float | None, flights: int) -> Text:
    """A mean delay as a bar, a figure and the number of flights: green up to 10 minutes, red from 30."""
    if minutes is None:
        return Text(f"all {flights} cancelled", "red")
    colour = "green" if minutes < 10 else "yellow" if minutes < 30 else "red"
    eighths = int(min(max(minutes, 0.0), 99.0) * 8 / _MINUTES_PER_CHARACTER)
    bar = _BARS[-1] * (eighths // 8) + (_BARS[eighths % 8 - 1] if eighths % 8 else "")
    return Text.assemble(
        (bar, colour), (f" {minutes:.0f} min" if bar else f"{minutes:.0f} min", colour), (f" ({flights})", "dim")
    )
