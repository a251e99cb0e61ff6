"""`sparklog produce`: sends the records of a file or of stdin to a topic."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.client_command import client_security
from sparklog.cli.destination import opened
from sparklog.cli.file_format import COMPRESSED, ENDINGS, delimiter_of, file_format
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, TopicName, config_option, open_admin, parse_settings
from sparklog.settings import Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparklog.cli.input import InputOptions, Source
    from sparklog.cli.input_lines import RefusedLines
    from sparklog.client.admin.admin import TopicDescription
    from sparklog.client.producer.producer import Producer

EPILOG = """\
**Examples**

`sparklog produce flights flights.parquet`

`sparklog produce trips trips.csv --null-value NA`

`printf 'alice:hello\\nbob:hi\\n' | sparklog produce chat --key-separator :`

`tail -F app.log | sparklog produce app-log`

`sparklog produce trips trips.csv --on-error refused.jsonl`

A typed topic takes columns by name (csv, jsonl, parquet, arrow); stdin holds JSON lines. An envelope topic takes lines
of text (.jsonl, .txt, .log, stdin), or files with a column *value*. The columns *key*, *headers*, *timestamp* and
*partition* are optional. Times without a zone are UTC.
"""

IN_FLIGHT_MAX = 256
FAIL = "fail"
SKIP = "skip"


class InputFormat(StrEnum):
    """The formats of the input. json means the same as jsonl."""

    csv = "csv"
    jsonl = "jsonl"
    json = "json"
    parquet = "parquet"
    arrow = "arrow"
    lines = "lines"


def produce(
    topic: TopicName,
    file: Annotated[Path | None, typer.Argument(help="Input file; without it, or with -, stdin.")] = None,
    format: Annotated[InputFormat | None, typer.Option(help="Input format [default: by the file's ending].")] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Lines are KEY, this text, VALUE (envelope topics).")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(metavar="C", help="Column delimiter of a csv. [default: , ]")] = None,
    null_value: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Unquoted csv text that means null, as empty text does; repeatable."),
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(
            metavar="fail|skip|FILE",
            help="A line that does not fit the topic ends the command, is left out, or is written to FILE as JSON: line, reason, text.",
        ),
    ] = FAIL,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Send all records to this partition.")
    ] = None,
    config: Annotated[
        list[str] | None, config_option(Scope.PRODUCER, "A producer setting such as acks=1; repeatable.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Send a file, or the lines of stdin, to a topic."""
    path = None if file is None or str(file) == "-" else file
    parameters = parse_settings(Scope.PRODUCER, config)
    from sparklog.cli.input import InputOptions
    from sparklog.cli.input_lines import fail

    with open_admin(bootstrap_servers) as admin:
        described = admin.describe_topic(topic)
    _check_file(path)
    chosen = _choose_format(described, path, format, key_separator)
    if partition is not None and partition >= described.partitions:
        raise typer.BadParameter(
            f"--partition {partition}: topic {topic} has partitions 0 to {described.partitions - 1}"
        )
    if on_error != FAIL and chosen not in ("csv", "jsonl", "lines"):
        raise typer.BadParameter(f"--on-error needs lines of text, and {chosen} has none")
    with _open_refused_lines(on_error) as refuse:
        options = InputOptions(
            schema=None if described.kind == "envelope" else described.schema,
            key_separator=key_separator,
            delimiter=delimiter or delimiter_of(path),
            null_values=("", *(null_value or [])),
            refuse=refuse or fail,
        )
        typing = path is None and sys.stdin.isatty()
        if typing and not quiet:
            print("reading from the keyboard: one record per line, Ctrl-D ends", file=sys.stderr)
        sent = _SentRecords(topic, partition)
        _send(sent, path, chosen, options, bootstrap_servers, parameters, progress=not (quiet or typing))
    if not quiet:
        print(sent.summary(described.partitions), file=sys.stderr)
    if refuse is not None and refuse.count:
        where = "" if on_error == SKIP else f": {on_error} has them with the reasons"
        print(f"{refuse.count:,} record{'' if refuse.count == 1 else 's'} refused{where}", file=sys.stderr)


@contextmanager
def _open_refused_lines(on_error: str) -> Iterator[RefusedLines | None]:
    """Yield the handler of refused records for `--on-error`; None if the first refused record ends the command. Raises
    typer.BadParameter."""
    from sparklog.cli.input_lines import RefusedLines

    if on_error == FAIL:
        yield None
        return
    if on_error == SKIP:
        yield RefusedLines(None)
        return
    ending = Path(on_error).suffix.lower()
    if ending in COMPRESSED or "jsonl" not in ENDINGS.get(ending, ("jsonl",)):
        raise typer.BadParameter(
            f"--on-error {on_error}: refused records are written as JSON lines, each with its reason: use the ending .jsonl"
        )
    with opened(Path(on_error)) as out:
        yield RefusedLines(out)


def _send(
    sent: _SentRecords,
    path: Path | None,
    format: str,
    options: InputOptions,
    bootstrap_servers: str,
    parameters: dict[str, Any],
    *,
    progress: bool,
) -> None:
    from sparklog.cli.input import InputError, open_input
    from sparklog.client.producer.producer import Producer

    try:
        with Producer(bootstrap_servers, security=client_security(), **parameters) as producer:
            options = replace(options, accept=partial(sent.send, producer))
            source = open_input(path, sys.stdin.buffer, format, options)
            with _progress(source, progress) as advance:
                sent.finish(producer, source, advance)
    except InputError as e:
        from sparklog.cli.errors import report

        print(f"records acknowledged before the failure: {sent.records:,}", file=sys.stderr)
        report(
            str(path or "stdin"),
            str(e),
            "the records before it are in the topic: mend the input and send the rest, or use --on-error skip|FILE",
        )
        raise typer.Exit(1) from e
    except KeyboardInterrupt:
        print(f"stopped; records acknowledged: {sent.records:,}", file=sys.stderr)
        raise typer.Exit(130) from None


def _choose_format(
    topic: TopicDescription, path: Path | None, format: InputFormat | None, key_separator: str | None
) -> str:
    """Return the input's format: of the option, else of the file's ending, else (stdin) of the topic's kind. Raises
    typer.BadParameter."""
    envelope = topic.kind == "envelope"
    decided = file_format(path, format, InputFormat)
    if decided is not None:
        chosen = "jsonl" if decided is InputFormat.json else decided.value
    elif path is None:
        chosen = "lines" if envelope else "jsonl"
    else:
        raise typer.BadParameter(f"{path} has no ending; name its format with --format {'|'.join(InputFormat)}")
    if chosen == "lines" and not envelope:
        raise typer.BadParameter(
            f"topic {topic.name} is typed: lines of text do not fit; use --format jsonl, csv, parquet or arrow"
        )
    if key_separator is not None and (not envelope or chosen not in ("lines", "jsonl")):
        raise typer.BadParameter("--key-separator is for lines of text into an envelope topic")
    return chosen


def _check_file(path: Path | None) -> None:
    if path is not None and not path.is_file():
        raise typer.BadParameter(f"{path}: {'a directory' if path.is_dir() else 'no such file'}", param_hint="FILE")


class _SentRecords:
    """Sends chunks and counts acknowledged records. At most IN_FLIGHT_MAX chunks are unacknowledged."""

    def __init__(self, topic: str, partition: int | None) -> None:
        self._topic = topic
        self._partition = partition
        self._unacknowledged: deque[tuple[Any, int]] = deque()
        self._partitions: set[int] = set()
        self.records = 0
        self._bytes = 0
        self._started = time.monotonic()

    def send(self, producer: Producer, table: Any) -> None:
        """Send a table. Raises one of REFUSALS if the producer takes none of its rows."""
        from sparklog.cli.input_lines import InputError
        from sparklog.errors import MessageTooLargeError

        try:
            future = producer.send_batch(self._topic, table, partition=self._partition)
        except MessageTooLargeError as e:
            if e.__cause__ is None:
                raise
            raise InputError(str(e)) from e  # rows before the large one were taken, and must not be sent again
        self._unacknowledged.append((future, table.num_rows))
        self._bytes += table.nbytes

    def finish(self, producer: Producer, source: Source, advance: Callable[[int, int], None]) -> None:
        """Read the source, which sends its rows with `send`, and wait for the acknowledgements."""
        from sparklog.cli.input_lines import InputError

        try:
            for _, done in source.chunks:
                self._collect(IN_FLIGHT_MAX)
                advance(done, self.records)
            producer.flush()
            self._collect(0)
        except (KeyboardInterrupt, InputError):  # the count of earlier records tells the user where to continue
            producer.flush()
            self._collect(0)
            raise
        except Exception:
            self._report_partial()
            raise
        advance(source.total or 0, self.records)

    def _collect(self, leave: int) -> None:
        while self._unacknowledged and (len(self._unacknowledged) > leave or self._unacknowledged[0][0].done()):
            future, rows = self._unacknowledged[0]
            self._partitions.update(metadata.partition for metadata in future.result())
            self._unacknowledged.popleft()
            self.records += rows

    def _report_partial(self) -> None:
        """Print the number of acknowledged records after a failure, so that the user can continue from there."""
        while (
            self._unacknowledged
            and self._unacknowledged[0][0].done()
            and self._unacknowledged[0][0].exception() is None
        ):
            self.records += self._unacknowledged.popleft()[1]
        print(f"records acknowledged before the failure: {self.records:,}", file=sys.stderr)

    def summary(self, partitions: int) -> str:
        """Return one line with the numbers of records and partitions, the time and the rates."""
        seconds = max(time.monotonic() - self._started, 1e-6)
        rate, mib_rate = self.records / seconds, self._bytes / seconds / 2**20
        return (
            f"{self.records:,} record{'' if self.records == 1 else 's'} to {self._topic} ({len(self._partitions)} of {partitions} partitions) "
            f"in {seconds:.1f} s: {rate:,.0f} records/s, {mib_rate:.1f} MiB/s"
        )


@contextmanager
def _progress(source: Source, is_shown: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a function `advance(done, records)` that moves a progress bar on stderr, if stderr is a terminal."""
    if not is_shown or not sys.stderr.isatty():
        yield lambda done, records: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from sparklog.cli import console

    columns = (
        SpinnerColumn(),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[records]} records"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console.stderr(), transient=True) as progress:
        task = progress.add_task("", total=source.total, records="0")
        yield lambda done, records: progress.update(task, completed=done, records=f"{records:,}")
