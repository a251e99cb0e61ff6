"""`sparklog log restore-remote`: restores a partition's lost journal of remote segments from the object store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparklog.cli.log.repair import locked

RESTORE_EPILOG = """\
**Example**

`sparklog log restore-remote sparklog-data/flights-0 --url s3://bucket/tier --yes`

The journal (remote-log.journal) lists the old segments of the partition in the object store. If the journal is lost, this
command lists the store and writes the journal again. Without --yes nothing is written. With --yes the broker has to be stopped.
"""


def restore_remote(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A partition's directory.")],
    url: Annotated[str, typer.Option(help="The broker's remote.log.storage.url.")],
    options: Annotated[str, typer.Option(help="The broker's remote.log.storage.options: JSON, or a file.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write the journal.")] = False,
) -> None:
    """Write the journal of a partition's remote segments again."""
    from sparklog.cli.errors import report as report_error
    from sparklog.environment.files import RealFiles, absolute
    from sparklog.log.tiering.object_store import ObjectStore, parse_options
    from sparklog.log.tiering.restore import restore_journal

    with locked(absolute(path).parent, takes_lock=yes):
        restored = restore_journal(
            RealFiles(), path, ObjectStore(url, parse_options(options, "--options"), setting="--url"), dry_run=not yes
        )
    for segment in restored.segments:
        print(f"offsets {segment.base_offset} to {segment.next_offset - 1}: {segment.prefix}")
    for key in restored.unreadable:
        report_error("unreadable", f"{url}/{key} is no manifest of this partition", "it is left out")
    print(f"{len(restored.segments)} segments {'are in the journal now' if yes else 'would be in the journal'}")
