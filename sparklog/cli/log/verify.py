"""`sparklog log verify`: checks the files of log directories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.options import TextFormat

if TYPE_CHECKING:
    from sparklog.log.tools.verify import Finding, VerifyReport

VERIFY_EPILOG = """\
**Examples**

`sparklog log verify sparklog-data`

`sparklog log verify /disk1/sparklog /disk2/sparklog --notes`

`sparklog log verify sparklog-data/flights-0 --format json | jq '.damage[]'`

The command checks every checksum, offset, index entry and footer, `partition.json` and the checkpoints. The broker may be
running: nothing is written or locked. The exit status is 1 if anything is damaged. Notes do not count: traces of a crash
that the next start removes.
"""


DAMAGED_HINT = (
    "restore the files from a copy, or stop the broker and run `sparklog log repair DIR`: it shows what it would keep"
)


def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…", help="Log directories (data.dir, log.dirs), a partition's directory, or a segment file."
        ),
    ],
    notes: Annotated[
        bool, typer.Option("--notes", help="Also list unusual files and values that are no damage.")
    ] = False,
    format: Annotated[TextFormat, typer.Option(help="Output format; json is one object.")] = TextFormat.text,
) -> None:
    """Check files against their checksums and against each other."""
    report = run_verify(paths)
    if format is TextFormat.json:
        import msgspec

        print(msgspec.json.encode(report_as_json(report)).decode())
    else:
        print_report(report, notes=notes)
    if report.damage:
        raise typer.Exit(1)


def run_verify(paths: list[Path]) -> VerifyReport:
    """Check `paths`, with a progress bar if stderr is a terminal. Raises StorageError."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TransferSpeedColumn

    from sparklog.cli import console
    from sparklog.log.tools import verify as inspect

    columns = (BarColumn(), TaskProgressColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    stderr = console.stderr()
    with Progress(
        TextColumn("checking"), *columns, console=stderr, transient=True, disable=not stderr.is_terminal
    ) as bar:
        task = bar.add_task("", total=inspect.bytes_to_check(paths))
        return inspect.verify(paths, lambda size_bytes: bar.advance(task, size_bytes))


def finding_as_json(finding: Finding) -> dict[str, Any]:
    return {"path": finding.path, "position": finding.position, "kind": finding.kind, "message": finding.message}


def report_as_json(report: VerifyReport) -> dict[str, Any]:
    return {
        "sound": not report.damage,
        "directories": report.directories,
        "partitions": report.partitions,
        "segments": report.segments,
        "batches": report.batches,
        "records": report.records,
        "size_bytes": report.size_bytes,
        "damage": [finding_as_json(f) for f in report.damage],
        "notes": [finding_as_json(f) for f in report.notes],
    }


def print_report(report: VerifyReport, *, notes: bool) -> None:
    """Print the findings, one per line, and the numbers of checked partitions, segments and records."""
    from sparklog.cli import console
    from sparklog.cli.errors import report as report_error

    for finding in report.damage:
        print(f"damaged  {finding}")
    for finding in report.notes if notes else ():
        print(f"note     {finding}")
    counts = ", ".join(
        _count_text(count, noun)
        for count, noun in (
            (report.partitions, "partition"),
            (report.segments, "segment"),
            (report.records, "record"),
        )
    )
    print(f"checked {counts} in {console.size(report.size_bytes)}: {_verdict(report, notes)}", flush=True)
    if report.damage:
        report_error(
            "damaged",
            f"{_count_text(len(report.damage), 'place')} in {_count_text(len({f.path for f in report.damage}), 'file')}",
            DAMAGED_HINT,
        )


def _verdict(report: VerifyReport, notes: bool) -> str:
    if report.damage:
        return "DAMAGED"
    if report.notes and not notes:
        return f"sound ({_count_text(len(report.notes), 'note')}, shown with --notes)"
    return "sound"


def _count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
