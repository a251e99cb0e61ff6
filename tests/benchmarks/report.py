"""Results as text and pictures: a line, a Markdown table, docs/benchmarks.md with its plots."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from . import pictures
from .results import Measurement, RowResult, median_field, summarize

RESULTS_FILE = "results.json"
LIMITS_FILE = "limits.md"
"""Written by hand: where the time of the rows goes that miss their goals."""
LINE_CHARS_MAX = 120
_WORDS = re.compile(r"(?:`[^`]*`|[^\s`])+")
_BEGINS_A_BLOCK = re.compile(r"[-+*>|=#]+|\d+[.)]")
_HEAD = """# Benchmarks

sparklog beside its peers, measured in the same run on the same machine: `make bench` measures, `make bench-report`
writes this page from what was measured. Every figure is minimum · **median** · maximum of the runs; the ratio is
sparklog / peer, of the medians. Rows that lose are shown like the others.

"""
_METHOD = """
## How it is measured

- A warm-up of both sides is discarded; then sparklog and the peer run in turn, in pairs, and the side that begins
  alternates. Before every run `sync` empties the write-back queue.
- Every client run is a process of its own, Kafka's tools included. *Client CPU* is that process from start to end,
  with the start of its interpreter or JVM; the rates are what is timed inside, without it. *Server CPU* is what the
  server used meanwhile. Clients, servers and the harness share the machine's processors.
- Both sides have the same durability: acknowledged means in the leader's page cache, unless a row says fsync. No
  compression unless a row says so. The servers keep their default settings except where a row names them.
- Payloads come from the same file on both sides: 10,000 lines, half of each random, half constant.
- *bytes/record* is the size of the segment files (without indexes) by the number of records.
- Latency is measured open loop, from the time a record was due to be sent, so a stalled sender is counted, too.
- The raw results, every run with the load of the machine before it, are in [results.json](benchmarks/results.json).
"""


def number(value: float) -> str:
    """Three significant digits, with k and M."""
    size = abs(value)
    for limit, divisor, unit in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if size >= limit:
            return f"{_significant(value / divisor)}{unit}"
    return _significant(value)


def _significant(value: float) -> str:
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def wrapped(text: str, hanging: str = "") -> str:
    """A paragraph of Markdown in lines of at most LINE_CHARS_MAX, if its words allow that; the lines behind the first
    one begin with `hanging`. Code is not divided, and no line begins with what Markdown would take for a list or a
    heading."""
    lines = [""]
    for word in _WORDS.findall(text):
        line = lines[-1]
        if not line.strip():
            lines[-1] = line + word
        elif len(line) + 1 + len(word) <= LINE_CHARS_MAX or _BEGINS_A_BLOCK.fullmatch(word):
            lines[-1] = f"{line} {word}"
        else:
            lines.append(hanging + word)
    return "\n".join(lines)


def spread(measurements: Sequence[Measurement]) -> str:
    found = summarize(m.value for m in measurements)
    return f"{number(found.minimum)} · **{number(found.median)}** · {number(found.maximum)}"


def one_line(row: RowResult) -> str:
    """A row for the screen."""
    if row.failure:
        return f"{row.name}: FAILED: {row.failure}"
    met = {True: "goal met", False: "goal not met", None: "no goal"}[row.goal_met]
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
    return (
        f"{row.name}: sparklog {spread(row.sparklog)}, {row.peer} {spread(row.other)} {row.unit}: "
        f"{ratio} ({row.goal or 'none'}: {met})"
    ).replace("**", "")


def table(rows: Sequence[RowResult]) -> str:
    """All rows as a Markdown table."""
    lines = [
        "| row | against | unit | sparklog | peer | ratio | goal | server CPU s | client CPU s | server RSS MB | client RSS MB | bytes/record |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        start = f"| {row.title} (`{row.name}`) | {row.peer} | {row.unit} |"
        goal = str(row.goal) if row.goal else "-"
        if row.failure:
            reason = " ".join(row.failure.split()).replace("|", "\\|")[:300]
            lines.append(f"{start} failed: {reason} | | | {goal} | | | | | |")
            continue
        met = {True: " ✓", False: " ✗", None: ""}[row.goal_met]
        ratio = "-" if row.ratio is None else f"**{row.ratio:.2f}x**"
        lines.append(
            f"{start} {spread(row.sparklog)} | {spread(row.other)} | {ratio} | {goal}{met} "
            f"| {_both(row, 'server_cpu_s')} | {_both(row, 'client_cpu_s')} | {_both(row, 'server_rss_bytes', 1e6)} "
            f"| {_both(row, 'client_rss_bytes', 1e6)} | {_both(row, 'bytes_per_record')} |"
        )
    return "\n".join(lines) + "\n"


def _both(row: RowResult, field: str, divisor: float = 1) -> str:
    """Medians of both sides: `sparklog / peer`."""
    found = [median_field(side, field) for side in (row.sparklog, row.other)]
    if all(v is None for v in found):
        return "-"
    return " / ".join("-" if v is None else _significant(v / divisor) for v in found)


def published(docs: Path) -> dict[str, RowResult]:
    """The rows of the page as it is: a campaign takes hours, so rows are measured anew a few at a time.

    Raises ValueError when the file is not of this harness.
    """
    path = docs / "benchmarks" / RESULTS_FILE
    if not path.exists():
        return {}
    try:
        return {row.name: row for row in msgspec.json.decode(path.read_bytes(), type=list[RowResult])}
    except msgspec.MsgspecError as e:
        raise ValueError(f"{path} is not of this harness ({e}): remove it, then measure the rows anew") from e


def write(rows: Sequence[RowResult], docs: Path) -> Path:
    """Writes docs/benchmarks.md, its pictures and the raw results; what LIMITS_FILE says of single rows is in it.

    Raises ValueError for scaled-down results.
    """
    scaled = [r.name for r in rows if r.scale != 1]
    if scaled:
        raise ValueError(f"{', '.join(scaled)} were measured scaled down: these are no figures to publish")
    directory = docs / "benchmarks"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / RESULTS_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(list(rows)), indent=1) + b"\n")
    text = _HEAD + table(rows) + _summary(rows)
    for picture, caption in pictures.draw(rows, directory):
        text += f"\n![{caption}](benchmarks/{picture})\n"
    limits = directory / LIMITS_FILE
    text += _latencies(rows) + (limits.read_text(encoding="utf-8") if limits.exists() else "")
    text += _METHOD + _details(rows)
    path = docs / "benchmarks.md"
    path.write_text(text, encoding="utf-8")
    return path


def _latencies(rows: Sequence[RowResult]) -> str:
    """Percentiles of the rows that have them: medians over the runs."""
    lines = []
    fields = ("p50_ms", "p99_ms", "p999_ms", "max_ms")
    for row in rows:
        for label, side in (("sparklog", row.sparklog), (row.peer, row.other)):
            if not row.failure and side and all(f in m.extra for m in side for f in fields):
                cells = [_significant(statistics.median(m.extra[f] for m in side)) for f in fields]
                lines.append(f"| {row.title} (`{row.name}`) | {label} | {' | '.join(cells)} |")
    if not lines:
        return ""
    head = ["\n## Latency\n", "| row | | p50 ms | p99 ms | p99.9 ms | max ms |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *lines]) + "\n"


def _summary(rows: Sequence[RowResult]) -> str:
    met = sum(r.goal_met is True for r in rows)
    missed = [f"`{r.name}`" for r in rows if r.goal_met is False]
    failed = [f"`{r.name}`" for r in rows if r.failure]
    text = f"{met} of {len(rows)} rows reach their goal."
    if missed:
        text += f" Not reached: {', '.join(missed)}."
    if failed:
        text += f" Failed: {', '.join(failed)}."
    return f"\n{wrapped(text)}\n"


def _details(rows: Sequence[RowResult]) -> str:
    """Machine and versions, once per different set, and every row's settings."""
    lines = ["\n## Machine and versions\n"]
    surroundings: dict[str, list[str]] = {}
    for row in rows:
        described = "; ".join(f"{k} {v}" for k, v in (row.machine | row.versions).items())
        surroundings.setdefault(described, []).append(f"`{row.name}`")
    for described, names in surroundings.items():
        which = "All rows" if len(surroundings) == 1 else ", ".join(names)
        lines.append(wrapped(f"- {which}: {described}.", "  "))
    lines.append("\n## Settings per row\n")
    for row in rows:
        settings = "; ".join(f"*{k}*: {v}" for k, v in row.settings.items())
        runs = f"{row.measured_at}, {len(row.sparklog)} pairs{_load(row)}"
        lines.append(wrapped(f"- {row.title} (`{row.name}`; {runs}): {settings or '-'}", "  "))
    return "\n".join(lines) + "\n"


def _load(row: RowResult) -> str:
    loads = [m.load_before for m in (*row.sparklog, *row.other) if m.load_before is not None]
    return f", load before the runs {min(loads):.1f} to {max(loads):.1f}" if loads else ""
