"""`sparklog log dump`: looks into segment files; no broker is needed."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sparklog.cli.segment_dump import SegmentFacts

app = typer.Typer(help="Look into a broker's files; no broker is needed.", no_args_is_help=True)

_DUMP_EPILOG = """\
**Examples**

`sparklog log dump sparklog-data/flights-0`

`sparklog log dump sparklog-data/flights-0/00000000000000000000.arrow --records 3`

`sparklog log dump sparklog-data/flights-0 --format json | jq '.batches[].records'`

Every batch's checksum is verified. Exit status 1 if a file is damaged.
"""


class DumpFormat(StrEnum):
    """How the dump is printed."""

    text = "text"
    json = "json"


@app.callback()
def _log() -> None:
    """Look into a broker's files; no broker is needed."""


@app.command("dump", epilog=_DUMP_EPILOG)
def dump(
    path: Annotated[Path, typer.Argument(exists=True, help="A segment file (.arrow) or a partition's directory.")],
    records: Annotated[int, typer.Option("--records", "-n", min=0, help="Also print the first N records.")] = 0,
    max_batches: Annotated[int, typer.Option(min=0, help="Batches shown per segment as text; 0 = all.")] = 20,
    format: Annotated[DumpFormat, typer.Option(help="How to print; json is one object per segment.")] = DumpFormat.text,
) -> None:
    """Show the batches of segment files, and whether they are sound."""
    from sparklog.cli.segment_dump import dump_segment, read_records, segment_paths

    damaged = False
    left = records
    for file in segment_paths(path):
        facts = dump_segment(file)
        damaged = damaged or facts.end == "corrupt"
        rows = list(read_records(facts, left)) if left else []
        left -= len(rows)
        if format is DumpFormat.json:
            import msgspec

            shown = facts.as_json() | ({"first_records": rows} if records else {})
            print(msgspec.json.encode(shown).decode())
        else:
            _print_text(facts, rows, max_batches)
    if damaged:
        from sparklog.cli.errors import report

        report("damaged", "a batch in the middle of the log cannot be read", "restore the file, or delete the topic")
        raise typer.Exit(1)


def _print_text(facts: SegmentFacts, rows: list[dict[str, object]], max_batches: int) -> None:
    import msgspec

    from sparklog.cli import console

    state = "sealed" if facts.sealed else "active (not sealed)"
    indexes = ", ".join(
        f"{name} {'missing' if entries is None else f'{entries} entries'}"
        for name, entries in (("offset index", facts.index_entries), ("time index", facts.time_index_entries))
    )
    print(f"{facts.path}")
    print(f"  topic      {facts.topic}, partition {facts.partition}, id {facts.topic_id}")
    print(f"  file       {console.size(facts.size_bytes)}, {state}; {indexes}")
    print(
        f"  content    {console.number(facts.records)} records in {console.number(len(facts.batches))} batches from offset {facts.base_offset}"
    )
    print(f"  columns    {', '.join(f'{f.name}: {f.type}' for f in facts.schema)}  (schema {facts.schema_id})")
    if facts.problem:
        print(f"  {facts.end.upper()} at byte {facts.data_end}: {facts.problem}")
    shown = facts.batches if max_batches == 0 else facts.batches[:max_batches]
    numbers = ("position", "offsets", "records", "size", "epoch")
    table = console.table(*numbers, "oldest", "newest", "appended", "compression", "crc", right=numbers)
    for b in shown:
        table.add_row(
            str(b.position),
            f"{b.base_offset}-{b.last_offset}",
            console.number(b.records),
            console.size(b.size_bytes),
            str(b.leader_epoch),
            console.time(b.min_timestamp_ms),
            console.time(b.max_timestamp_ms),
            console.time(b.append_time_ms),
            b.compression,
            "ok" if b.crc_ok else "BAD",
        )
    if shown:
        console.stdout().print(table)
    if len(shown) < len(facts.batches):
        print(f"  … and {len(facts.batches) - len(shown):,} more batches (--max-batches 0 shows all)")
    for row in rows:
        print(msgspec.json.encode(row).decode())
    print()
