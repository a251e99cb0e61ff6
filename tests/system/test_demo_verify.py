"""The demo's own arithmetic, checked by hand-made cases, because the demo's verdict relies on it."""

from __future__ import annotations

import datetime as dt
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
sys.path.insert(0, str(NOTEBOOKS))

from flights_demo import data, feed, interrupts, jvm, outages, picture, screen, steps, verify  # noqa: E402
from flights_demo.background import Worker, in_background  # noqa: E402
from flights_demo.query import Progress, SparkJob, delta_failure, first_lines  # noqa: E402


def hour(number: int) -> dt.datetime:
    return dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC) + dt.timedelta(hours=number)


def flights(rows: list[tuple[str, int, int | None]]) -> pa.Table:
    """(origin, hour, departure delay) as the columns the aggregate needs."""
    schema = pa.schema([data.FLIGHTS_SCHEMA.field(n) for n in ("origin", "time_hour", "dep_delay")])
    columns = [[r[0] for r in rows], [hour(r[1]) for r in rows], [r[2] for r in rows]]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [  # the vectors of Kafka's own UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, hashed: int) -> None:
    assert verify.murmur2(key) == hashed % 2**32


def test_rows_are_split_by_their_keys_hash_and_keep_their_order() -> None:
    table = pa.table({"carrier": ["UA", "AA", "UA", "B6", "AA"], "n": [0, 1, 2, 3, 4]})
    parts = verify.split_by_partition(table, "carrier", 3)
    assert sum(p.num_rows for p in parts) == 5
    for number, part in enumerate(parts):
        assert part["n"].to_pylist() == sorted(part["n"].to_pylist())
        assert {verify.partition_of(c.encode(), 3) for c in part["carrier"].to_pylist()} <= {number}


def test_the_aggregate_counts_cancelled_flights_and_leaves_their_delay_out() -> None:
    table = flights([("EWR", 0, 10), ("EWR", 0, None), ("EWR", 0, -3), ("JFK", 0, None), ("EWR", 1, 7)])
    rows = verify.delay_by_origin_hour(table).to_pylist()
    assert [tuple(r.values()) for r in rows] == [
        ("EWR", hour(0), 3, 2, 7, 3.5, 10),
        ("JFK", hour(0), 1, 0, None, None, None),
        ("EWR", hour(1), 1, 1, 7, 7.0, 7),
    ]


def test_equal_tables_compare_equal_in_any_order_of_rows_and_columns() -> None:
    expected = verify.delay_by_origin_hour(flights([("EWR", 0, 1), ("JFK", 0, None), ("LGA", 2, 5)]))
    found = expected.take([2, 0, 1]).select(list(reversed(expected.column_names)))
    assert verify.rows_check("x", expected, found).ok


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda t: t.slice(1), verify.Difference(2, 1, 0)),
        (lambda t: pa.concat_tables([t, t.slice(0, 1)]), verify.Difference(3, 0, 1)),
        (lambda t: t.set_column(2, "flights", pa.array([1, 1, 9], pa.int64())), verify.Difference(2, 1, 1)),
        (lambda t: t.set_column(4, "total_delay_min", pa.array([0, 0, 5], pa.int64())), verify.Difference(1, 2, 2)),
    ],
    ids=["missing row", "duplicate row", "changed value", "null became zero"],
)
def test_every_kind_of_difference_fails_the_check(change: object, difference: verify.Difference) -> None:
    expected = verify.delay_by_origin_hour(flights([("EWR", 0, 1), ("JFK", 0, None), ("LGA", 2, 5)]))
    found = change(expected)  # type: ignore[operator]
    assert verify.compare_rows(expected, found) == difference
    assert not verify.rows_check("x", expected, found).ok


def test_a_table_without_a_column_fails_the_check_and_names_it() -> None:
    expected = verify.delay_by_origin_hour(flights([("EWR", 0, 1)]))
    result = verify.rows_check("x", expected, expected.drop_columns(["departed"]))
    assert not result.ok
    assert "departed" in result.found


def partition(values: list[int | None], offsets: list[int] | None = None) -> pa.Table:
    numbers = offsets if offsets is not None else list(range(len(values)))
    return pa.table({"v": pa.array(values, pa.int32()), "_offset": pa.array(numbers, pa.int64())})


def test_a_topic_with_the_sent_records_passes() -> None:
    found = [partition([1, None]), partition([3])]
    checks = verify.topic_checks("t", [p.select(["v"]) for p in found], found, [2, 1])
    assert [c.ok for c in checks] == [True] * 4


@pytest.mark.parametrize(
    ("found", "ends", "failing"),
    [
        ([partition([1, 2]), partition([3])], [2, 2], "end offset"),
        ([partition([1]), partition([3])], [2, 1], "rows read"),
        ([partition([1, 2], [0, 2]), partition([3])], [2, 1], "without a gap"),
        ([partition([2, 1]), partition([3])], [2, 1], "in order"),
        ([partition([1, None]), partition([3])], [2, 1], "in order"),
    ],
    ids=["broker counts one more", "row lost", "gap", "order", "value became null"],
)
def test_a_topic_that_does_not_fails_at_the_right_check(found: list[pa.Table], ends: list[int], failing: str) -> None:
    expected = [partition([1, 2]).select(["v"]), partition([3]).select(["v"])]
    failed = [c.what for c in verify.topic_checks("t", expected, found, ends) if not c.ok]
    assert any(failing in what for what in failed), failed


def test_sums_tell_nulls_from_zeros() -> None:
    first, second = partition([5, None]), partition([5, 0])
    assert verify.sum_checks("t", ["v"], first, first)[0].ok
    assert not verify.sum_checks("t", ["v"], first, second)[0].ok


def test_the_data_have_their_true_types_and_are_in_time_order() -> None:
    loaded = data.load(5000)
    assert loaded.flights.schema.equals(data.FLIGHTS_SCHEMA)
    assert loaded.flights.num_rows == loaded.events.num_rows == 5000
    assert loaded.flights["dep_delay"].null_count > 0
    assert loaded.weather.schema.equals(data.WEATHER_SCHEMA)
    for times in (loaded.flights["time_hour"], loaded.weather["time_hour"], loaded.events["timestamp"]):
        assert (np.diff(times.cast(pa.int64()).to_numpy()) >= 0).all()
    assert loaded.weather["time_hour"][-1].as_py() <= loaded.flights["time_hour"][-1].as_py()


def test_the_whole_year_is_complete() -> None:
    loaded = data.load()
    assert (loaded.flights.num_rows, loaded.flights.num_columns, loaded.weather.num_rows) == (336_776, 19, 26_115)


def test_events_are_json_of_the_flights() -> None:
    loaded = data.load(2000)
    parsed = verify.parsed_events(loaded.events["value"])
    assert parsed["dep_delay"].cast(pa.int32()).equals(loaded.flights["dep_delay"])
    assert parsed["carrier"].equals(loaded.flights["carrier"])


def test_daily_cuts_cover_every_row_once() -> None:
    loaded = data.load(5000)
    times = {"f": loaded.flights["time_hour"], "w": loaded.weather["time_hour"]}
    cuts, days = feed._daily_cuts(times)
    for name, column in times.items():
        assert len(cuts[name]) == len(days) + 1
        assert (cuts[name][0], cuts[name][-1]) == (0, len(column))
        for step, day in enumerate(days):
            seen = column.slice(cuts[name][step], cuts[name][step + 1] - cuts[name][step]).to_pylist()
            assert {t.date() for t in seen} <= {day}


def report(
    batch: int, flights: int, *, clock: int = 0, rows: int = 10, late: int = 0, added: int = 5
) -> dict[str, Any]:
    offsets = {"flights": {"0": flights, "1": 1}, "flights-clock": {"0": clock}, "$ids": {"flights": "x"}}
    return {
        "batchId": batch,
        "numInputRows": rows,
        "processedRowsPerSecond": rows * 2.0,
        "durationMs": {"addBatch": added},
        "sources": [{"endOffset": offsets}],
        "stateOperators": [{"numRowsDroppedByWatermark": late}],
    }


def test_progress_counts_every_micro_batch_once() -> None:
    progress = Progress()
    for r in (
        report(0, 4, late=1),
        report(0, 4, late=1),
        report(1, 9, clock=1, rows=50, late=2),
        report(1, 9, clock=1, added=0),
    ):
        progress.add(r)
    assert (progress.batches, progress.flights_read, progress.clock_read, progress.late_rows) == (2, 10, 1, 3)
    assert progress.best_rows_per_s == 100.0


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('java version "1.8.0_292"', 8),
        ("no version here", None),
    ],
)
def test_javas_version_is_read_from_its_output(text: str, major: int | None) -> None:
    assert jvm.java_major(text) == major


def test_missing_java_is_said_with_the_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(jvm.JavaMissingError, match="openjdk"):
        jvm.require_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(jvm.JavaMissingError, match="no java on the PATH"):
        jvm.require_java()


def test_the_reason_of_a_failed_resolution_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text("noise\n\t\t:: unresolved dependency: io.delta#delta-spark: not found ::\nmore\n")
    assert delta_failure(log) == "unresolved dependency: io.delta#delta-spark: not found"
    assert first_lines("A\n\tat x.y(Z)\nB\nC\nD") == "A B C"


def test_the_picture_puts_a_delay_at_its_local_hour_and_day(tmp_path: Path) -> None:
    loaded = data.load(3000)
    result = verify.delay_by_origin_hour(loaded.flights)
    first_day = (dt.date(2013, 1, 1) - dt.date(1970, 1, 1)).days
    grid = picture.hour_grid(result, "JFK", first_day, 4)
    row = next(r for r in result.to_pylist() if r["origin"] == "JFK" and r["mean_delay_min"] is not None)
    local = row["time_hour"].astimezone(dt.timezone(-dt.timedelta(hours=5)))  # winter
    assert grid[local.hour - picture.FIRST_HOUR, local.day - 1] == row["mean_delay_min"]
    path = picture.draw(result, loaded.weather, tmp_path / "p.png")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(("ok", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_is_the_verdict(
    ok: bool, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = steps.Demo(steps.Options(output=tmp_path))
    job = SparkJob(tmp_path, delta=False, say=print)
    broker, feeder = (
        SimpleNamespace(bootstrap_servers="127.0.0.1:1"),
        SimpleNamespace(rows_sent=1, seconds=1.0, busy_s=1.0),
    )
    checks = [verify.check("rows", 1, 1), verify.check("sum", 5, 5 if ok else 6)]
    closed = demo._close(broker, job, checks, tmp_path / "p.png", feeder, SimpleNamespace(first_at=None))
    assert closed == status
    assert ("1 of 2 checks failed" in capsys.readouterr().out) is not ok


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_raised_at_the_next_wait(number: signal.Signals, status: int) -> None:
    before = {n: signal.getsignal(n) for n in interrupts.EXIT_STATUS}
    try:
        interrupts.install()
        interrupts.check()
        signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            in_background(lambda: None).result()
        assert interrupts.exit_status() == status
    finally:
        interrupts.install()  # forgets the signal
        for n, handler in before.items():
            signal.signal(n, handler)


def test_a_workers_error_is_raised_where_its_result_is_waited_for() -> None:
    worker = Worker("test")
    assert [worker.call(int, "7").result(), worker.call(int, "8").result()] == [7, 8]
    with pytest.raises(ValueError, match="invalid literal"):
        worker.call(int, "x").result()


def test_the_cluster_table_shows_leaders_lagging_and_absent_brokers() -> None:
    lines = (outages.PartitionLine(0, 2, (2, 3), (1, 2, 3)), outages.PartitionLine(1, 3, (1, 2, 3), (3, 1, 2)))
    view = outages.ClusterView(3, (2, 3), lines)
    assert not view.all_in_sync
    table = screen.cluster_table(view, {1: False, 2: True, 3: True}, has_zookeeper=False)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table)
    shown = captured.get()
    assert "ZooKeeper is away" in shown
    assert "broker 1 is away" in shown
    assert "broker 3 (controller)" in shown
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    assert rows == [
        ["0", "· behind", "● leads", "○ in sync", "2, 3"],
        ["1", "○ in sync", "○ in sync", "● leads", "1, 2, 3"],
    ]
    assert outages.ClusterView(3, (1, 2, 3), lines[1:]).all_in_sync
