"""Streaming queries that run step by step: each step reads all new records, and ends.

A step is a run of the query with Spark's trigger AvailableNow, on the checkpoint of the run. So every step is also a
restart of the query. The rows of a query without a sink of its own are kept in Parquet files, one directory per
micro-batch: a micro-batch that is run again replaces its rows.

`kill` leaves the checkpoint as a crash does between the work of the last micro-batch and its commit: the file of the
commit is missing, and the next step runs the micro-batch again.

`advance_watermark` writes the time into the newest commit of the checkpoint, where a restarted query reads its
watermark. A row of an aborted transaction then makes Spark run a micro-batch, which has no rows.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparklog.errors import InvalidRequestError
from sparklog.testing._broker import ADDRESS_VARIABLES, KitBroker, moment_ms
from sparklog.testing._rows import rows_of_arrow

STEP_TIMEOUT_S = 600.0
START_PATIENCE_S = 300.0
"""The time in which a query is started again and again: Spark gives a Python process ten seconds to start, which slow
machines exceed."""
LATE_PROCESS, STATE, NO_BATCH_YET = "failed to connect back", "Current State: ", "Current State: INITIALIZING"
"""Texts of Spark's errors: a Python process was late; the query has been started; it has run no micro-batch."""
NO_SOURCE = "Failed to find the data source: sparklog"
COMMITS, OFFSETS = "commits", "offsets"
WATERMARK = "nextBatchWatermarkMs"
NAMED_SOURCES = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}
"""Settings for sources with names; version 2 of the offset log has the positions by name."""
Query = Callable[..., Any]
Prepare = Callable[[Query, Sequence[str]], Callable[[str], Any]]
"""A function of a query and its inputs. It returns a function of a checkpoint, which starts a step."""


class StreamRun:
    """A streaming query with inputs and a checkpoint of its own."""

    def __init__(
        self,
        broker: KitBroker,
        spark: Any,
        prepare: Prepare,
        directory: Path,
        *,
        is_complete: bool,
    ) -> None:
        """Prepare a run; tests call `stream.run` instead.

        Args:
            broker: The brokers of the inputs.
            spark: The session.
            prepare: Returns the function that starts a step of a query with inputs.
            directory: Directory of the checkpoint.
            is_complete: True if each micro-batch writes the whole result.
        """
        self._broker = broker
        self._spark = spark
        self._prepare = prepare
        self._start: Callable[[str], Any] | None = None
        self._inputs: Sequence[str] = ()
        self._directory = directory
        self._is_complete = is_complete
        self._is_stopped = False
        self.checkpoint = directory / "checkpoint"
        """Directory of the checkpoint."""
        self.progress: list[Mapping[str, Any]] = []
        """Progress of the last step's micro-batches, as Spark reports it."""

    def change(self, query: Query, inputs: Sequence[str] | None = None) -> StreamRun:
        """Let later steps run another version of the query, on the same checkpoint.

        Args:
            query: The new version, as for `stream.run`.
            inputs: Names of the topics. None: the names of the function's parameters without defaults.

        Returns:
            The run.

        Raises:
            InvalidRequestError: `query` is no function, or `inputs` is no list of names.
        """
        self._inputs = inputs_of(query, inputs)
        self._start = self._prepare(query, self._inputs)
        return self

    def add(self, topic: str, rows: Any, *, partition: int | None = None) -> StreamRun:
        """Append rows to an input; see `KitBroker.produce`.

        Args:
            topic: The topic's name.
            rows: The rows.
            partition: The partition of all rows. None: chosen by the key.

        Returns:
            The run.

        Raises:
            SparklogError: The rows could not be stored.
        """
        self._broker.produce(topic, rows, partition=partition)
        return self

    def step(self) -> StreamRun:
        """Run the query over all new records, to its end.

        Returns:
            The run.

        Raises:
            InvalidRequestError: `stop` has ended the run, or a server of Spark Connect has other files.
            StreamingQueryException: The query has failed.
            TimeoutError: The query has not ended within ten minutes.
        """
        self._check_running("step")
        deadline = time.monotonic() + START_PATIENCE_S
        while True:
            try:
                self._run_query()
                break
            except Exception as e:  # PySpark's classes of it differ between classic and Connect
                if not _is_late_start(str(e)) or time.monotonic() > deadline:
                    for text in _advice(str(e)):
                        e.add_note(text)
                    raise
        if not self.checkpoint.exists():
            raise InvalidRequestError(
                f"the query's checkpoint {self.checkpoint} is not on this machine: start the server of Spark Connect "
                "here, with this file system, or set SPARK_REMOTE=local[2]"
            )
        return self

    def _run_query(self) -> None:
        """Start the query, and wait for its end. Raises the query's failure, or TimeoutError."""
        assert self._start is not None
        query = self._start(str(self.checkpoint))
        try:
            if not query.awaitTermination(STEP_TIMEOUT_S):
                raise TimeoutError(f"the step has not ended within {STEP_TIMEOUT_S:.0f} s")
            self.progress = [dict(json.loads(p.json)) for p in query.recentProgress]
        finally:
            query.stop()

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that the query has written so far, micro-batch after micro-batch.

        With the output mode complete these are the rows of the last micro-batch. A query with a sink of its own has no
        rows here: read the sink.

        Returns:
            A dict by column for each row; timestamps are in UTC, and maps are dicts.

        Raises:
            InvalidRequestError: `stop` has ended the run.
        """
        self._check_running("rows")
        batches = sorted(self._output.iterdir(), key=lambda path: int(path.name)) if self._output.exists() else []
        chosen = batches[-1:] if self._is_complete else batches
        return [row for batch in chosen for row in rows_of_arrow(_in_utc(pq.read_table(batch)))]

    def kill(self) -> StreamRun:
        """Let the query crash after the work of its last micro-batch, before the commit: the next step repeats it.
        Does nothing if the query has crashed already.

        Returns:
            The run.

        Raises:
            InvalidRequestError: No step has run a micro-batch.
        """
        commit = self._newest_commit("kill")
        if not self._is_killed:
            _remove(commit)
        return self

    def advance_watermark(self, moment: Any) -> StreamRun:
        """Let the watermark be `moment`, and run a step, which closes the windows before it. A watermark never goes
        back: if it is later already, it stays. After a `kill`, the micro-batch is repeated before.

        Args:
            moment: A datetime, a text such as "2026-11-27T10:00", or ms since 1970; without a zone in UTC. A text such
                as "-1h" counts from the time of the brokers.

        Returns:
            The run.

        Raises:
            InvalidRequestError: No step has run a micro-batch, or the query reads no topic.
        """
        self._check_running("advance_watermark")
        watermark_ms = moment_ms(moment, self._broker.now_ms)
        if not self._inputs:
            raise InvalidRequestError("the query has no inputs: name them in stream.run(query, inputs=[…])")
        self._newest_commit("advance_watermark")
        if self._is_killed:
            self.step()  # the repeated micro-batch has the watermark of its first run
        path = self._newest_commit("advance_watermark")
        version, _, body = path.read_text(encoding="utf-8").partition("\n")
        commit = json.loads(body)
        commit[WATERMARK] = max(int(commit.get(WATERMARK, 0)), watermark_ms)
        _remove(path)
        path.write_text(f"{version}\n{json.dumps(commit)}", encoding="utf-8")
        self._broker.hide_row(self._inputs[0])
        return self.step()

    def state(self, operator: int = 0) -> list[dict[str, Any]]:
        """Return the state of a stateful operator, after the last micro-batch.

        Args:
            operator: The operator's number; 0: the first.

        Returns:
            A dict for each key, with the columns of the key and of the value. For a join of two streams a dict for each
            row that waits, with its columns and `side`, which is "left" or "right".

        Raises:
            InvalidRequestError: No step has committed a micro-batch, or the query has no such operator.
        """
        self._newest_commit("state")
        if self._newest(COMMITS) < 0:
            raise InvalidRequestError("state: the only micro-batch was killed before its commit: call step() first")
        folder = self.checkpoint / "state"
        operators = (
            sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.exists() else []
        )
        if type(operator) is not int or operator not in operators:
            numbers = ", ".join(map(str, operators)) or "none: it is stateless"
            raise InvalidRequestError(f"operator = {operator!r}: the query has the stateful operators {numbers}")
        is_join = any((folder / str(operator)).glob("*/left-*"))
        return [
            {**({"side": side} if side else row["key"] or {}), **(row["value"] or {})}
            for side in (("left", "right") if is_join else ("",))
            for row in self._state_rows(operator, side)
        ]

    def _state_rows(self, operator: int, side: str) -> list[dict[str, Any]]:
        """Return the rows of Spark's source of states. `side`: of a join; empty: no join."""
        reader = self._spark.read.format("statestore").option("operatorId", operator)
        reader = reader.option("joinSide", side) if side else reader
        return [row.asDict(recursive=True) for row in reader.load(str(self.checkpoint)).collect()]

    def stop(self) -> None:
        """End the run, and remove the checkpoint and the rows."""
        self._is_stopped = True
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def _output(self) -> Path:
        return self._directory / "rows"

    def _check_running(self, action: str) -> None:
        """Raise InvalidRequestError if `stop` has ended the run."""
        if self._is_stopped:
            raise InvalidRequestError(f"{action}: the run has been stopped: begin another one with stream.run")

    def _newest_commit(self, action: str) -> Path:
        """Return the file of the last micro-batch's commit. Raises InvalidRequestError."""
        self._check_running(action)
        number = self._newest(COMMITS)
        if self._newest(OFFSETS) < 0:
            raise InvalidRequestError(f"{action}: no step has run a micro-batch yet: add rows, then call step()")
        return self.checkpoint / COMMITS / str(number)

    @property
    def _is_killed(self) -> bool:
        """True if the last micro-batch has no commit."""
        return self._newest(COMMITS) < self._newest(OFFSETS)

    def _newest(self, name: str) -> int:
        """Return the number of the last micro-batch in a log of the checkpoint; -1 if there is none."""
        folder = self.checkpoint / name
        numbers = (int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.exists() else ()
        return max(numbers, default=-1)


class Stream:
    """Runs streaming queries step by step. Tests use the fixture `stream`."""

    def __init__(self, spark: Any, broker: KitBroker, directory: Path) -> None:
        """Prepare runs.

        Args:
            spark: The session.
            broker: The brokers of the inputs.
            directory: Directory of the checkpoints.
        """
        self._spark = spark
        self._broker = broker
        self._directory = directory
        self._numbers = itertools.count(1)
        self._runs: list[StreamRun] = []

    def run(
        self,
        query: Query,
        inputs: Sequence[str] | None = None,
        *,
        output_mode: str = "append",
        options: Mapping[str, object] | None = None,
        named: bool = False,
    ) -> StreamRun:
        """Prepare a query. It runs with each `step`.

        Args:
            query: A function of one streaming DataFrame per input. It returns a DataFrame, whose rows the run keeps, or
                a DataStreamWriter that is not started, with a sink of its own.
            inputs: Names of the topics. None: the names of the function's parameters without defaults.
            output_mode: Spark's output mode for a DataFrame: "append", "update" or "complete".
            options: Options of the source, such as {"maxOffsetsPerTrigger": 10}. None: the defaults.
            named: True to name each source after its topic, so that `change` can add and remove sources; needs Spark
                4.2. Other characters than letters and digits are underscores in the name.

        Returns:
            The run.

        Raises:
            InvalidRequestError: An argument is wrong, or this Spark has no names of sources. A step raises it if the
                function returns neither a DataFrame nor a DataStreamWriter.
        """
        if not isinstance(options, Mapping | None):
            raise InvalidRequestError(
                f'options = {options!r}: a dict is needed, such as {{"maxOffsetsPerTrigger": 10}}'
            )
        if named and not hasattr(self._spark.readStream, "name"):
            raise InvalidRequestError(f"named = True: Spark {self._spark.version} has no named sources, 4.2 has")
        directory = self._directory / str(next(self._numbers))
        output = str(directory / "rows")

        def writer(query: Query, names: Sequence[str]) -> Any:
            result = query(*(self._read(name, options or {}, named=named) for name in names))
            if hasattr(result, "writeStream"):
                return result.writeStream.outputMode(output_mode).foreachBatch(_keeper(output))
            if not hasattr(result, "foreachBatch"):
                if hasattr(result, "awaitTermination"):
                    result.stop()  # a query that was started would outlive the test
                raise InvalidRequestError(
                    f"the query returned {result!r}: return a DataFrame, or a DataStreamWriter without start()"
                )
            return result

        def prepare(query: Query, names: Sequence[str]) -> Callable[[str], Any]:
            def start(checkpoint: str) -> Any:
                with self._source_evolution(enabled=named):
                    chosen = writer(query, names).option("checkpointLocation", checkpoint)
                    return chosen.trigger(availableNow=True).start()

            return start

        run = StreamRun(self._broker, self._spark, prepare, directory, is_complete=output_mode == "complete")
        run.change(query, inputs)
        self._runs.append(run)
        return run

    def stop(self) -> None:
        """Remove the checkpoints of all runs."""
        for run in self._runs:
            run.stop()

    @contextmanager
    def _source_evolution(self, *, enabled: bool) -> Iterator[None]:
        """Let queries have named sources. With these settings, all queries of the session need names."""
        if not enabled:
            yield
            return
        before = {name: self._spark.conf.get(name, None) for name in NAMED_SOURCES}
        for name, value in NAMED_SOURCES.items():
            self._spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                self._spark.conf.unset(name) if value is None else self._spark.conf.set(name, value)

    def _read(self, topic: str, options: Mapping[str, object], *, named: bool) -> Any:
        reader = self._spark.readStream.format("sparklog").option("startingOffsets", "earliest")
        if named:
            reader = reader.name(re.sub("[^A-Za-z0-9]", "_", topic))
        reader = reader.option("sparklog.bootstrap.servers", self._broker.bootstrap_servers).option("subscribe", topic)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()


def inputs_of(query: Any, inputs: Any) -> list[str]:
    """Return the topics of a query: `inputs`, or the names of the parameters without defaults. Raises
    InvalidRequestError."""
    if not callable(query):
        raise InvalidRequestError(f"query = {query!r}: a function of streaming DataFrames is needed")
    if inputs is None:
        parameters = inspect.signature(query).parameters.values()
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
            raise InvalidRequestError(f"{query!r} takes any arguments: name its topics, as in inputs=['orders']")
        return [p.name for p in parameters if p.default is p.empty]
    if isinstance(inputs, str) or not isinstance(inputs, Sequence) or not all(isinstance(n, str) for n in inputs):
        example = inputs if isinstance(inputs, str) else "orders"
        raise InvalidRequestError(f"inputs = {inputs!r}: a list of topics is needed, such as [{example!r}]")
    return list(inputs)


def _advice(message: str) -> Iterator[str]:
    """Return advice for errors whose cause is a Spark session that is not the kit's own."""
    if ADDRESS_VARIABLES[0] in message:
        yield (
            f"If a fixture of your own creates the Spark session: it has to take sparklog_broker, so that Spark's "
            f"processes inherit {ADDRESS_VARIABLES[0]}."
        )
    if NO_SOURCE in message:
        yield (
            f"Spark's Python does not have sparklog: set PYSPARK_PYTHON={sys.executable} before the session starts. The "
            "kit's own fixture `spark` does."
        )


def _is_late_start(message: str) -> bool:
    """Return True if a query has failed because a Python process was late, before a micro-batch was begun."""
    return LATE_PROCESS in message and (NO_BATCH_YET in message or STATE not in message)


def _keeper(directory: str) -> Callable[[Any, int], None]:
    """Return the function that keeps the rows of each micro-batch."""

    def keep(frame: Any, batch_id: int) -> None:
        frame.write.mode("overwrite").parquet(f"{directory}/{batch_id}")

    return keep


def _in_utc(table: pa.Table) -> pa.Table:
    """Return the table with the timestamps of INT96, which have no zone in the file, as instants."""
    fields = [
        field.with_type(pa.timestamp("us", "UTC")) if field.type == pa.timestamp("ns") else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _remove(path: Path) -> None:
    """Remove a file of the checkpoint, and its checksum."""
    path.unlink()
    with suppress(FileNotFoundError):
        path.with_name(f".{path.name}.crc").unlink()
