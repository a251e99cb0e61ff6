"""The format of a file that a command reads or writes, from the file's ending and `--format`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import typer

F = TypeVar("F", bound=StrEnum)

ENDINGS: dict[str, tuple[str, ...]] = {
    ".csv": ("csv", "lines"),
    ".tsv": ("csv", "lines"),
    ".json": ("jsonl", "lines"),
    ".jsonl": ("jsonl", "lines"),
    ".ndjson": ("jsonl", "lines"),
    ".parquet": ("parquet",),
    ".arrow": ("arrow",),
    ".ipc": ("arrow",),
    ".feather": ("arrow",),
    ".arrows": ("arrow",),
    ".txt": ("lines", "csv", "jsonl"),
    ".log": ("lines", "csv", "jsonl"),
}
"""The possible formats of a file by its ending. The first one is the default without `--format`."""

COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
_SYNONYMS = {"json": "jsonl"}


def file_format(path: Path | None, option: F | None, formats: type[F]) -> F | None:
    """Decide the format of a file. `option`: the value of `--format`; None without the option. Returns the format; None
    if the file has no ending and `--format` is not given. Raises typer.BadParameter: The ending and `--format`
    contradict each other, or the command does not know the ending."""
    ending = "" if path is None else path.suffix.lower()
    if ending in COMPRESSED:
        raise typer.BadParameter(
            f"{path}: files are neither compressed nor decompressed; pipe through a tool that does"
        )
    if not ending or (option is not None and ending not in ENDINGS):
        return option
    possible = ENDINGS.get(ending, ())
    by_name = {_SYNONYMS.get(f.value, f.value): f for f in formats}
    if option is None:
        if possible and possible[0] in by_name:
            return by_name[possible[0]]
        names = ", ".join(formats)
        raise typer.BadParameter(f"{path}: no format of this command ({names}) has the ending {ending}; "
                                 f"rename the file, or add --format")  # fmt: skip
    if _SYNONYMS.get(option.value, option.value) not in possible:
        raise typer.BadParameter(
            f"--format {option.value} contradicts the ending of {path}: {ending} is {' or '.join(possible)}; leave --format "
            f"out, or rename the file"
        )
    return option


def delimiter_of(path: Path | None) -> str:
    """Return the column delimiter of a CSV file: a tab for `.tsv`, else a comma."""
    return "\t" if path is not None and path.suffix.lower() == ".tsv" else ","


def is_arrow_stream(path: Path | None) -> bool:
    """Return True if Arrow data go to `path` as an IPC stream: to stdout, and to a file `.arrows`."""
    return path is None or str(path) == "-" or path.suffix.lower() == ".arrows"
