"""`sparklog log repair`: moves damaged bytes out of segment files; without --yes a dry run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.options import TextFormat

if TYPE_CHECKING:
    from sparklog.log.tools.repair import RepairReport

REPAIR_EPILOG = """\
**Examples**

`sparklog log repair sparklog-data/flights-0`

`sparklog log repair sparklog-data/flights-0 --yes`

`sparklog log repair sparklog-data/flights-3` (a missing directory)

Bad bytes are moved to files beside the segment (`….arrow.POSITION.corrupt`). Intact batches stay and keep their offsets;
missing offsets are listed. Without --yes nothing is written, and the exit status is 1 if a repair is needed. With --yes
the broker has to be stopped. A broker of a cluster copies the missing records from the partition's leader at its next
start.
"""


def repair(
    path: Annotated[
        Path, typer.Argument(metavar="DIR", help="A partition's directory, or a log directory for all in it.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write the repair.")] = False,
    format: Annotated[
        TextFormat, typer.Option(help="Output format; json is one object per partition.")
    ] = TextFormat.text,
) -> None:
    """Show the repair of damaged partitions, or repair them."""
    from sparklog.cli.errors import report as report_error
    from sparklog.environment.files import OddFileError, RealFiles, absolute
    from sparklog.errors import LogCorruptError
    from sparklog.log.tools.repair import repair as repair_partition
    from sparklog.log.tools.verify import partition_directories

    directories = [path] if _is_lost_partition(path) else partition_directories(path)
    to_repair = failed = 0
    with locked(absolute(directories[0]).parent, takes_lock=yes):
        for directory in directories:
            try:
                report = repair_partition(directory, RealFiles(), dry_run=not yes)
            except LogCorruptError as e:
                report_error(e.name, str(e), "restore the partition from a copy, or delete the topic")
                failed += 1
                continue
            except OddFileError as e:
                report_error(e.name, str(e))
                failed += 1
                continue
            to_repair += report.changed
            _print(report, format)
    if to_repair and not yes and format is TextFormat.text:
        report_error("not repaired", "this was a dry run", "stop the broker, then run the command again with --yes")
    if failed or (to_repair and not yes):
        raise typer.Exit(1)


def _is_lost_partition(path: Path) -> bool:
    """True if `path` is a missing or empty partition directory in a log directory."""
    from sparklog.environment.files import RealFiles
    from sparklog.format.checkpoint import META_FILE
    from sparklog.log.tools.repair import has_lost_everything

    topic, dash, number = path.name.rpartition("-")
    named = bool(topic and dash and number.isascii() and number.isdigit())
    return named and (path.parent / META_FILE).exists() and has_lost_everything(path, RealFiles())


@contextmanager
def locked(log_directory: Path, *, takes_lock: bool) -> Iterator[None]:
    """Hold the lock of a log directory, so that no broker starts meanwhile.

    No lock is taken without `takes_lock`, or if the directory is not a log directory. Raises DataDirLockedError.
    """
    from sparklog.environment.files import RealFiles
    from sparklog.errors import DataDirLockedError
    from sparklog.format.checkpoint import META_FILE
    from sparklog.log.directories.log_directory import take_lock
    from sparklog.log.model.watched_files import LOCK_FILE

    is_one = (log_directory / LOCK_FILE).exists() or (log_directory / META_FILE).exists()
    if not takes_lock or not is_one:
        yield
        return
    try:
        lock = take_lock(RealFiles(), log_directory, "DIR")
    except DataDirLockedError as e:
        raise DataDirLockedError(f"{log_directory} is in use by a broker; stop it, then repair") from e
    try:
        yield
    finally:
        lock.close()


def _print(report: RepairReport, format: TextFormat) -> None:
    if format is TextFormat.json:
        import msgspec

        print(msgspec.json.encode(_as_json(report)).decode())
        return
    if not report.changed:
        print(f"{report.directory}: nothing to repair, {report.records:,} records")
        return
    print(f"{report.directory}: {'would keep' if report.dry_run else 'kept'} {report.records:,} records")
    for finding in report.findings:
        where = f"{report.directory / finding.file}, position {finding.position}"
        goes = f", {finding.length_bytes:,} bytes to {finding.quarantine}" if finding.quarantine else ""
        print(f"  {where}: {finding.reason}{goes}")
    for first, following in report.gaps:
        print(f"  offsets {first} to {following - 1} {'would be' if report.dry_run else 'are'} missing")


def _as_json(report: RepairReport) -> dict[str, Any]:
    return {
        "directory": str(report.directory),
        "dry_run": report.dry_run,
        "changed": report.changed,
        "batches": report.batches,
        "records": report.records,
        "log_end_offset": report.log_end_offset,
        "findings": [
            {
                "path": str(report.directory / f.file),
                "position": f.position,
                "length_bytes": f.length_bytes,
                "reason": f.reason,
                "quarantine": f.quarantine,
            }
            for f in report.findings
        ],
        "gaps": [{"first": first, "last": following - 1} for first, following in report.gaps],
    }
