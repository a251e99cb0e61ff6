"""The rule of a file's ending and `--format`."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from sparklog.cli.consume import OutputFormat as Consumed
from sparklog.cli.file_format import ENDINGS, delimiter_of, file_format
from sparklog.cli.produce import InputFormat
from sparklog.cli.sql.format import OutputFormat as Queried

COMMANDS = (Consumed, Queried, InputFormat)


def test_the_ending_decides() -> None:
    for name, formats, decided in (
        ("x.parquet", Consumed, Consumed.parquet),
        ("x.PARQUET", Queried, Queried.parquet),
        ("x.feather", Consumed, Consumed.arrow),
        ("x.json", Consumed, Consumed.json),
        ("x.ndjson", Queried, Queried.json),
        ("x.csv", Queried, Queried.csv),
        ("x.tsv", InputFormat, InputFormat.csv),
        ("x.jsonl", InputFormat, InputFormat.json),
        ("x.log", InputFormat, InputFormat.lines),
    ):
        assert file_format(Path(name), None, formats) is decided, name
    assert [delimiter_of(Path(n)) for n in ("x.csv", "x.TSV", "x")] == [",", "\t", ","]


def test_no_format_writes_a_file_that_is_named_after_another() -> None:
    """Each ending, with each format of each command: the format is one that the ending can have, or it is refused."""
    for formats in COMMANDS:
        for ending, possible in ENDINGS.items():
            for given in formats:
                name = {"json": "jsonl"}.get(given.value, given.value)
                if name in possible:
                    assert file_format(Path(f"a{ending}"), given, formats) is given
                    continue
                with pytest.raises(typer.BadParameter) as e:
                    file_format(Path(f"a{ending}"), given, formats)
                assert f"a{ending}" in e.value.message
                assert f"--format {given.value}" in e.value.message


def test_endings_that_a_command_does_not_know() -> None:
    for name in ("x.xlsx", "x.avro", "x.txt"):
        with pytest.raises(typer.BadParameter, match="json, csv, table, arrow, parquet"):
            file_format(Path(name), None, Consumed)
    assert file_format(Path("x.dat"), Consumed.json, Consumed) is Consumed.json
    for name in ("x.csv.gz", "x.parquet.zst"):
        with pytest.raises(typer.BadParameter, match="neither compressed"):
            file_format(Path(name), Consumed.parquet, Consumed)
    for path in (None, Path("x"), Path("-"), Path("/dev/stdout")):
        assert file_format(path, None, Consumed) is None
        assert file_format(path, Consumed.arrow, Consumed) is Consumed.arrow
