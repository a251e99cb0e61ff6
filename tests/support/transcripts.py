"""Transcripts: commands of `sparklog` with their output, in files that people can read.

    ## Lines with a key
    $ sparklog produce trips-0000 --key-separator :
    < alice:hello
    ! 1 record to trips-0000 …
    $ sparklog consume trips-0000 --format xml
    ! …
    [2]

| line | meaning |
|---|---|
| `$` | a command; `write FILE` writes its input into a file, `cat FILE` prints one, `ls` prints the names of all |
| `<` | a line of the command's standard input |
| `!` | a line of standard error; an error of usage is one line without its frame |
| `[2]` | the exit status, if it is not 0 |
| `##` | a title |
| `broker:` | first line of a file that has a broker of its own, with its settings as JSON |
| `source:` | second line of such a file, for a second broker with a gateway: KAFKA and SOURCE are its addresses |
| other lines | standard output |

`…` is any text in a line, and as a whole line any number of lines. A name that ends with `-0000` is replaced by a name
that no other test uses. `python -m tests.support.transcripts [FILE …]` writes the present output into the files; lines
with `…` that still match stay.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import sparklog
from tests.support.cli import run_here

FOLDER = Path(__file__).resolve().parents[1] / "system" / "transcripts"
ANY = "…"
BROKER, SOURCE = "broker: ", "\nsource:"
USAGE = re.compile(r"Usage: .*\nTry .*\n╭─ Error ─+╮\n((?:│ .* │\n)+)╰─+╯\n")
"""The frame around an error of usage, whose lines depend on the width of the terminal."""
NAME = re.compile(r"\b[a-z]+-0000\b")
VARYING = re.compile(
    r"20(?:2[6-9]|[3-9]\d)-\d\d-\d\d[T ]\d\d:\d\d:[\d.]+Z?"
    r"|127\.0\.0\.1:\d{3,}"
    r"|\b1[789]\d{11}\b"
    r"|\b[0-9a-f]{32}\b"
    r"|(?<=schema )\d+"
    r"|(?<= in )[\d.]+ s: .*B/s"
)
"""Times, addresses, ids and speeds, which a new line of a transcript gets as `…`."""
ENVIRONMENT = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
_numbers = itertools.count(1)


class Step(NamedTuple):
    """One command of a transcript."""

    title: list[str]
    """Lines above the command, which are written back as they are."""
    command: str
    stdin: list[str]
    output: list[str]


def steps_of(text: str) -> list[Step]:
    """Return the commands of a transcript."""
    steps: list[Step] = []
    title: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append(Step(title, line[2:], [], []))
            title = []
        elif line.startswith("## ") or title or not steps:
            title.append(line)
        elif line.startswith("< "):
            steps[-1].stdin.append(line[2:])
        else:
            steps[-1].output.append(line)
    for step in steps:
        while step.output and not step.output[-1]:
            step.output.pop()
    return steps


def text_of(steps: list[Step]) -> str:
    """Return the transcript with these commands."""
    lines: list[str] = []
    for step in steps:
        if lines and step.title:
            lines.append("")
        lines += [*step.title, f"$ {step.command}", *(f"< {line}" for line in step.stdin), *step.output]
    return "\n".join(lines) + "\n"


def run(path: Path, directory: Path) -> list[Step]:
    """Run the commands of a file in `directory`. The environment names the broker, if the file has none of its own.

    Returns the commands with their present output, in which lines with `…` that match stay.
    """
    text = path.read_text(encoding="utf-8")
    names = {name: name.replace("0000", f"{next(_numbers):04}") for name in NAME.findall(text)}
    with _broker(text, directory), _source(text) as addresses:
        names |= addresses
        return [step._replace(output=_merged(step.output, _output(step, names))) for step in steps_of(text)]


def difference(path: Path, steps: list[Step]) -> str:
    """Return the difference between a file and its commands' present output; empty if there is none."""
    lines = (path.read_text(encoding="utf-8").splitlines(), text_of(steps).splitlines())
    return "\n".join(difflib.unified_diff(*lines, path.name, "present output", n=4, lineterm=""))


@contextlib.contextmanager
def _broker(text: str, directory: Path) -> Iterator[None]:
    first = text.partition("\n")[0]
    if not first.startswith(BROKER):
        yield
        return
    settings = json.loads(first.removeprefix(BROKER))
    with (
        tempfile.TemporaryDirectory(prefix="transcript-", dir=directory.parent) as data_dir,
        sparklog.start_local(data_dir, settings=settings) as broker,
        mock.patch.dict(os.environ, {"SPARKLOG_BOOTSTRAP_SERVERS": broker.bootstrap_servers}),
    ):
        yield


@contextlib.contextmanager
def _source(text: str) -> Iterator[dict[str, str]]:
    """Start the second broker, and return its addresses by their names in the file."""
    if SOURCE not in text.partition("\n$ ")[0]:
        yield {}
        return
    with sparklog.start_local(kafka=True) as source:
        yield {"KAFKA": source.kafka_bootstrap_servers, "SOURCE": source.bootstrap_servers}


def _output(step: Step, names: dict[str, str]) -> list[str]:
    """Run a command in the current directory. Returns the lines of both streams and of the exit status."""
    command, stdin = step.command, "".join(f"{line}\n" for line in step.stdin)
    for name, own in names.items():
        command, stdin = command.replace(name, own), stdin.replace(name, own)
    program, *arguments = shlex.split(command)
    if program == "write":
        Path(arguments[0]).write_text(stdin, encoding="utf-8")
        return []
    if program == "cat":
        lines = [line for path in arguments for line in Path(path).read_text(encoding="utf-8").splitlines()]
    elif program == "ls":
        lines = sorted(path.name for path in Path().iterdir())
    else:
        assert program == "sparklog", f"{program}: use sparklog, write, cat or ls"
        result = run_here(*arguments, stdin=stdin, environment=ENVIRONMENT)
        errors = USAGE.sub(lambda m: " ".join(line.strip("│ ") for line in m[1].splitlines()), result.stderr)
        lines = [*result.stdout.splitlines(), *(f"! {line}".rstrip() for line in errors.splitlines())]
        lines += [f"[{result.returncode}]"] if result.returncode else []
    for name, own in names.items():
        lines = [line.replace(own, name) for line in lines]
    return [line.rstrip() for line in lines]


def _merged(expected: list[str], lines: list[str]) -> list[str]:
    """Return the present lines, with those of `expected` that have `…` in the places where they match."""
    text = "".join(f"{line}\n" for line in lines)
    if re.fullmatch("".join(map(_pattern, expected)), text):
        return expected
    patterns = [line for line in expected if ANY in line and line.strip("! ") != ANY]
    return [next((p for p in patterns if re.fullmatch(_pattern(p), f"{line}\n")), _masked(line)) for line in lines]


def _pattern(line: str) -> str:
    if line == ANY:
        return r"(?:.*\n)*?"
    return ".*?".join(map(re.escape, line.split(ANY))) + r"\n"


def _masked(line: str) -> str:
    return VARYING.sub(ANY, line)


def main(names: list[str]) -> None:
    """Write the present output into the files with these names, or into all."""
    here = Path.cwd()
    for path in [Path(name).resolve() for name in names] or sorted(FOLDER.glob("*.txt")):
        with (
            tempfile.TemporaryDirectory() as directory,
            sparklog.start_local() as broker,
            mock.patch.dict(os.environ, {"SPARKLOG_BOOTSTRAP_SERVERS": broker.bootstrap_servers}),
        ):
            os.chdir(directory)
            try:
                steps = run(path, Path(directory))
            finally:
                os.chdir(here)
        path.write_text(text_of(steps), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
