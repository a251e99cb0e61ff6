"""`sparklog log`: shows, checks and repairs a broker's files. No broker is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.log import rebuild as log_rebuild
from sparklog.cli.log import repair as log_repair
from sparklog.cli.log import restore as log_restore
from sparklog.cli.log import verify as log_verify
from sparklog.cli.options import TextFormat

if TYPE_CHECKING:
    from sparklog.cli.log.segment_dump import BatchFacts, SegmentFacts

app = typer.Typer(help="Show, check and repair a broker's files; no broker is needed.", no_args_is_help=True)
app.command("verify", epilog=log_verify.VERIFY_EPILOG)(log_verify.verify)
app.command("repair", epilog=log_repair.REPAIR_EPILOG)(log_repair.repair)
app.command("rebuild-metadata", epilog=log_rebuild.REBUILD_EPILOG)(log_rebuild.rebuild_metadata)
app.command("restore-remote", epilog=log_restore.RESTORE_EPILOG)(log_restore.restore_remote)

_DUMP_EPILOG = """\
**Examples**

`sparklog log dump sparklog-data/flights-0`

`sparklog log dump sparklog-data/flights-0/00000000000000000000.arrow --records 3`

`sparklog log dump sparklog-data/flights-0 --format json | jq '.batches[].records'`

`sparklog log dump sparklog-data/flights-0 --indexes --max-batches 0`

Every batch's checksum is verified; with --verify also offsets, footer, indexes and what is beside the segments. Exit
status 1 if a file is damaged. Nothing is written; a broker may be running.
"""


@app.callback()
def _log() -> None:
    """Show, check and repair a broker's files; no broker is needed."""


@app.command("dump", epilog=_DUMP_EPILOG)
def dump(
    path: Annotated[
        Path,
        typer.Argument(
            exists=True,
            help="A segment file (.arrow), a partition's directory, or a producer file in it (.snapshot, .txnindex).",
        ),
    ],
    records: Annotated[int, typer.Option("--records", "-n", min=0, help="Also print the first N records.")] = 0,
    max_batches: Annotated[
        int, typer.Option(min=0, help="Batches (and index entries) shown per segment as text; 0 = all.")
    ] = 20,
    indexes: Annotated[bool, typer.Option("--indexes", help="Also print the entries of both indexes.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Also check everything, as `sparklog log verify`.")] = False,
    format: Annotated[
        TextFormat, typer.Option(help="Output format; json is one object per segment.")
    ] = TextFormat.text,
) -> None:
    """Show the batches of segment files, and the results of their checks."""
    from sparklog.cli.log.producer_dump import SUFFIXES, dump_producer_file, print_producer_file
    from sparklog.cli.log.segment_dump import dump_segment, read_indexes, read_records, segment_paths

    if path.suffix in SUFFIXES:
        content = dump_producer_file(path)
        if format is TextFormat.json:
            import msgspec

            print(msgspec.json.encode(content).decode())
        else:
            print_producer_file(content)
        return
    damaged = False
    remaining = records
    segments = segment_paths(path)
    if not segments and format is TextFormat.text:
        print(f"{path}: no record was written to this partition, or none is left on this disk")
    for file in segments:
        facts = dump_segment(file)
        damaged = damaged or facts.is_damaged
        rows = list(read_records(facts, remaining)) if remaining else []
        remaining -= len(rows)
        if format is TextFormat.json:
            import msgspec

            shown = facts.as_json() | ({"first_records": rows} if records else {})
            shown |= read_indexes(file, facts.base_offset) if indexes else {}
            print(msgspec.json.encode(shown).decode())
        else:
            _print_text(facts, max_batches)
            if indexes:
                _print_indexes(read_indexes(file, facts.base_offset), max_batches)
            _print_rows(rows)
    if verify and _verify(path, format):
        raise typer.Exit(1)
    if damaged:
        from sparklog.cli.errors import report

        report("damaged", "a batch in the middle of the log cannot be read", log_verify.DAMAGED_HINT)
        raise typer.Exit(1)


def _verify(path: Path, format: TextFormat) -> bool:
    """Check all files of `path` and print the report. Returns True if a file is damaged."""
    report = log_verify.run_verify([path])
    if format is TextFormat.json:
        import msgspec

        print(msgspec.json.encode({"verify": log_verify.report_as_json(report)}).decode())
    else:
        log_verify.print_report(report, notes=True)
    return bool(report.damage)


def _producer(batch: BatchFacts) -> str:
    return f"{batch.producer_id} epoch {batch.producer_epoch}" if batch.producer_id >= 0 else "-"


def _print_indexes(indexes: dict[str, list[dict[str, int]]], entries_max: int) -> None:
    from sparklog.cli import console

    for name, entries in indexes.items():
        print(f"  {name.replace('_', ' ')}: {len(entries):,} entries")
        shown = entries if entries_max == 0 else entries[:entries_max]
        if shown:
            table = console.table(*shown[0], right=tuple(shown[0]))
            for entry in shown:
                table.add_row(*(console.time(v) if k == "timestamp_ms" else str(v) for k, v in entry.items()))
            console.stdout().print(table)
        if len(shown) < len(entries):
            print(f"  … and {len(entries) - len(shown):,} more entries (--max-batches 0 shows all)")


def _print_rows(rows: list[dict[str, object]]) -> None:
    import msgspec

    for row in rows:
        print(msgspec.json.encode(row).decode())
    print()


def _print_text(facts: SegmentFacts, max_batches: int) -> None:
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
    for b in facts.batches:
        if b.problem:
            print(f"  UNREADABLE batch at byte {b.position}, offset {b.base_offset}: {b.problem}")
    shown = facts.batches if max_batches == 0 else facts.batches[:max_batches]
    numbers = ("position", "offsets", "records", "size", "epoch")
    produced = ("producer", "sequence", "kind") if any(b.producer_id >= 0 for b in shown) else ()
    table = console.table(*numbers, "oldest", "newest", "appended", "compression", "crc", *produced, right=numbers)
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
            "BAD" if not b.crc_ok else "UNREADABLE" if b.problem else "ok",
            *((_producer(b), str(b.base_sequence), b.kind) if produced else ()),
        )
    if shown:
        console.stdout().print(table)
    if len(shown) < len(facts.batches):
        print(f"  … and {len(facts.batches) - len(shown):,} more batches (--max-batches 0 shows all)")
