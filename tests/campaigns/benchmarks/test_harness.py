"""The benchmark harness: statistics, the order of runs, the published table, secure servers. No test measures time."""

from __future__ import annotations

import contextlib
import math
import ssl
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sparklog.security.tls import server_context
from tests.campaigns.benchmarks import (
    campaign,
    growth_figures,
    latency,
    quick,
    report,
    results,
    secure_servers,
    switches,
)
from tests.campaigns.benchmarks.__main__ import main, results_directory
from tests.campaigns.benchmarks.context import ROOT, Context
from tests.campaigns.benchmarks.results import Goal, Measurement, RowResult
from tests.campaigns.benchmarks.rows import ROWS, Row, select
from tests.campaigns.benchmarks.rows.row import row
from tests.campaigns.benchmarks.spark_session import CONFIGS
from tests.spark_settings import published_settings
from tests.support import kafka
from tests.support.processes import MeasurementError, run, usage

PAGE = "# A page\n\n<!-- table: benchmarks -->\n<!-- end of table -->\n\nReasons.\n"


def row_result(name: str = "a-row", **changes: Any) -> RowResult:
    ours = [Measurement(v, client_cpu_s=1.0, bytes_per_record=120.5) for v in (30.0, 10.0, 20.0)]
    theirs = [Measurement(v, client_cpu_s=4.0) for v in (4.0, 6.0, 5.0)]
    made = RowResult(name, "a row", "Kafka", "records/s", Goal(3.0, True), 1.0, {}, {}, {}, "2025", ours, theirs)
    return msgspec.structs.replace(made, **changes)


class TestStatistics:
    def test_the_ratio_is_of_the_medians(self) -> None:
        assert results.summarize([5.0, 1.0, 3.0, 2.0]) == (1.0, 2.5, 5.0)
        assert row_result().ratio == 4.0  # not 20/5 pairwise, not of the means
        for missing in (row_result(other=[]), row_result(failure="broken"), row_result(other=[Measurement(0.0)])):
            assert missing.ratio is None
        for values in ([], [1.0, math.nan], [math.inf]):
            with pytest.raises(ValueError, match=r"nothing|finite"):
                results.summarize(values)

    def test_goals_have_a_direction(self) -> None:
        for goal, met in ((Goal(4.1, True), False), (Goal(4.0, False), True), (Goal(3.9, False), False), (None, None)):
            assert row_result(goal=goal).goal_met is met
        measure = row_result
        assert row("r", "", 2, measure, unit="rows/s").goal == Goal(2, at_least=True)  # type: ignore[arg-type]
        assert row("r", "", 2, measure, unit="ms (p99)").goal == Goal(2, at_least=False)  # type: ignore[arg-type]


class TestResults:
    def test_files_are_read_as_they_were_written(self, tmp_path: Path) -> None:
        rows = [row_result("one"), row_result("two", failure="E: why", goal=None, sparklog=[])]
        for each in rows:
            path = results.write_row(each, tmp_path)
        assert results.read_rows(tmp_path) == {r.name: r for r in rows}
        for change in ({"unknown": 1}, {"unit": None}):
            path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | change))
            with pytest.raises(ValueError, match=r"two\.json"):
                results.read_rows(tmp_path)
        with pytest.raises(ValueError, match="cannot be a row's name"):
            results.write_row(row_result("../elsewhere"), tmp_path)

    def test_they_stay_out_of_git_and_scaled_ones_apart(self) -> None:
        assert len({results_directory(scale) for scale in (1.0, 0.1, 0.01)}) == 3
        assert "build/" in (ROOT / ".gitignore").read_text().splitlines()
        assert results_directory(1.0).is_relative_to(ROOT / "build")


class TestRows:
    def test_names_choose(self, tmp_path: Path) -> None:
        assert len({r.name for r in ROWS}) == len(ROWS)
        for each in ROWS:
            results.write_row(row_result(each.name), tmp_path)
        assert select([]) == list(ROWS)
        assert [r.name for r in select(["start", "spark-typed-filter"])] == ["spark-typed-filter", "start"]
        assert select(["lake-*"]) == select(["lake"]) == [r for r in ROWS if r.name.startswith("lake-")]
        assert {r.name for r in select(["produce-100b"])} == {
            r.name for r in ROWS if r.name.startswith("produce-100b-")
        }
        with pytest.raises(ValueError, match="no row 'spar'; there are produce-"):
            select(["spar"])

    def test_the_command_line_names_the_fault(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["run", "--rows", "nonsense"]) == 2
        assert "no row 'nonsense'" in capsys.readouterr().err
        assert main(["run", "--rows", "start", "--scale", "0"]) == 2
        assert main(["fast-paths", "nonsense"]) == 2
        assert "unknown fast path 'nonsense'" in capsys.readouterr().err


class TestCampaign:
    def run(self, directory: Path, fail_at: int = 0, after_row: Any = None) -> tuple[list[str], list[RowResult]]:
        """Run two rows; the call `fail_at` fails."""
        calls: list[str] = []

        def measure(_: Context, *, side: str) -> Measurement:
            calls.append(side)
            if len(calls) == fail_at:
                raise MeasurementError("the broker was gone")
            return Measurement(float(len(calls)))

        rows: list[Row] = [
            row(name, "", 1, measure, unit="s", ours={"side": "ours"}, theirs={"side": "theirs"}) for name in ("a", "b")
        ]
        with Context(0.5, directory) as context:
            if after_row:
                context.after_row("x", after_row)
            found = list(campaign.run_rows(rows, context, directory / "kept", 3, lambda _: None, {"m": "1"}, {}))
        assert results.read_rows(directory / "kept") == {r.name: r for r in found}
        return calls, found

    def test_a_warm_up_is_discarded_and_the_sides_take_turns(self, tmp_path: Path) -> None:
        calls, (found, _) = self.run(tmp_path)
        assert calls[:8] == ["ours", "theirs", "theirs", "ours"] * 2
        assert [m.value for m in found.sparklog] == [4.0, 5.0, 8.0]
        assert [m.value for m in found.other] == [3.0, 6.0, 7.0]
        assert (found.failure, found.scale, found.machine) == (None, 0.5, {"m": "1"})

    def test_a_failure_is_kept_and_the_other_rows_go_on(self, tmp_path: Path) -> None:
        _, (bad, good) = self.run(tmp_path, fail_at=6)
        assert bad.failure is not None
        assert bad.failure.startswith("MeasurementError: the broker was gone (test_harness.py:")
        assert (len(bad.sparklog), len(bad.other), good.failure) == (2, 1, None)

    def test_a_failure_to_clean_up_is_the_rows_own(self, tmp_path: Path) -> None:
        _, (bad, good) = self.run(tmp_path, after_row=lambda: 1 // 0)
        assert "while releasing its resources: ZeroDivisionError" in (bad.failure or "")
        assert good.failure is None


class TestContext:
    def test_resources_live_for_a_campaign_or_a_row(self, tmp_path: Path) -> None:
        ended: list[str] = []
        with Context(1.0, tmp_path) as context:
            for _ in range(2):
                assert context.once("kept", lambda: "kept", ended.append) == "kept"
            with pytest.raises(ZeroDivisionError):
                context.once("failed", lambda: 1 // 0)
            assert context.once("failed", lambda: 3) == 3
            context.once("of a row", lambda: "1")
            context.after_row("of a row", lambda: ended.append("of a row"))
            context.end_row()
            assert ended == ["of a row"]
            assert context.once("of a row", lambda: "2") == "2"
        assert ended == ["of a row", "kept"]
        assert not list(tmp_path.iterdir())

    def test_sizes(self, tmp_path: Path) -> None:
        with Context(0.01, tmp_path) as context:
            assert (context.records(10_000_000), context.records(20_000)) == (100_000, 1000)
            context.need_disk(1000)
            with pytest.raises(MeasurementError, match=r"1000000000 GB are needed .* --scratch"):
                context.need_disk(1e18)


class TestProcesses:
    def test_the_cost_of_a_process(self) -> None:
        done = run(
            [sys.executable, "-c", "x = bytearray(60_000_000); print(len(x)); sum(range(2_000_000))"], timeout_s=60
        )
        assert (done.stdout, done.cpu_s > 0, done.peak_rss_bytes > 60_000_000) == ("60000000\n", True, True)

    def test_failures_have_a_reason(self) -> None:
        program = "import sys; print('wrote some'); print('no disk', file=sys.stderr); sys.exit(3)"
        with pytest.raises(MeasurementError, match="ended with 3: wrote some\nno disk"):
            run([sys.executable, "-c", program], timeout_s=60)
        with pytest.raises(MeasurementError, match="not done after 0 s"):
            run([sys.executable, "-c", "import time; time.sleep(600)"], timeout_s=0.2)
        with pytest.raises(MeasurementError, match="ended while"):
            usage(2**22 + 1)


class TestKafkaTools:
    def test_outputs_are_parsed(self) -> None:
        produced = (
            "499181 records sent, 99836.2 records/sec (9.52 MB/sec), 2.7 ms avg latency, 310.0 ms max latency.\n"
            "1000000 records sent, 812347.7 records/sec (77.47 MB/sec), 12.34 ms avg latency, 345.00 ms max latency, "
            "5 ms 50th, 40 ms 95th, 120 ms 99th, 300 ms 99.9th.\n"
        )
        found = kafka.parse("ProducerPerformance", produced)
        assert (found["records"], found["records_per_s"], found["p99_ms"]) == (1e6, 812347.7, 120.0)
        names = ["start.time", "end.time", "data.consumed.in.MB", "MB.sec", "data.consumed.in.nMsg", "nMsg.sec"]
        names += ["rebalance.time.ms", "fetch.time.ms", "fetch.MB.sec", "fetch.nMsg.sec"]
        table = f"{', '.join(names)}\n1, 2, 95.3, 23.8, 1000001, 250000.0, 3000, 1000, 95.3, 1000000.5\n"
        assert kafka.parse("ConsumerPerformance", table)["records_per_s"] == 1000000.5
        trips = "0\t2.5\nAvg latency: 0.4812 ms\n\nPercentiles: 50th = 0, 99th = 2, 99.9th = 7\n"
        assert kafka.parse("EndToEndLatency", trips) == {"average_ms": 0.4812, "p50_ms": 0, "p99_ms": 2, "p999_ms": 7}
        for text in ("", "WARN something, with, many, commas, in, it, and, more, of, them\n"):
            for tool in ("ProducerPerformance", "ConsumerPerformance", "EndToEndLatency"):
                with pytest.raises(MeasurementError, match="no result"):
                    kafka.parse(tool, text)


class TestOpenLoop:
    def test_a_stalled_sender_keeps_its_schedule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [1_000_000_000]
        monkeypatch.setattr(latency.time, "time_ns", lambda: now[0])
        monkeypatch.setattr(latency.time, "sleep", lambda s: now.__setitem__(0, now[0] + round(s * 1e9)))
        sent: list[tuple[int, int, int]] = []

        def send(value: bytes) -> None:
            due, number = (int.from_bytes(value[i : i + 8], "little") for i in (0, 8))
            sent.append((number, due, now[0]))
            assert len(value) == 100
            if number == 2:
                now[0] += 5_000_000  # five intervals

        latency.open_loop(send, rate=1000, count=10, value_bytes=100)
        start = 1_000_000_000 + latency.LEAD_NS
        assert [(n, due) for n, due, _ in sent] == [(i, start + i * 1_000_000) for i in range(10)]
        waits = [at - due for _, due, at in sent]
        assert waits[:4] == [0, 0, 0, 4_000_000]  # a record that was due during the stall has waited
        assert waits[7:] == [0, 0, 0]


class TestReport:
    def test_numbers(self) -> None:
        for value, text in (
            (0, "0"), (0.0123, "0.012"), (0.5, "0.50"), (3.14159, "3.14"), (42.42, "42.4"), (1234, "1,234"),
            (12_345, "12.3 k"), (999_999, "1,000 k"), (8_765_432, "8.77 M"), (2.5e9, "2.50 G"), (-12_345, "-12.3 k"),
        ):  # fmt: skip
            assert report.number(value) == text

    def test_a_line_names_the_measured_row(self) -> None:
        line = report.line(row_result())
        assert "| 10.0 · **20.0** · 30.0 | 4.00 · **5.00** · 6.00 | **4.00x** | ≥ 3x ✓ |" in line
        assert "| - | 1.00 / 4.00 | - | - | 120 / - |" in line
        broken = row_result("broken", failure="E: a | b\nc")
        assert "failed: E: a \\| b c |" in report.line(broken)
        assert "FAILED: E: a" in report.one_line(broken)
        assert {text.replace("\\|", "").count("|") for text in report.table([row_result(), broken]).splitlines()} == {
            13
        }

    def test_a_line_is_read_as_it_was_written(self) -> None:
        timed = [Measurement(17_512.0)]
        rows = [
            row_result(), row_result("lost", goal=Goal(5, True)), row_result("free", goal=None),
            row_result("late", unit="ms (p99)", goal=Goal(0.01, False), other=timed), row_result("failed", failure="E"),
        ]  # fmt: skip
        for each in rows:
            found = report.parse(report.line(each))
            assert found == (each.name, each.title, each.peer, each.unit, found.ratio, each.goal, each.goal_met)
            assert found.ratio == (None if each.ratio is None else pytest.approx(each.ratio, rel=0.01))

    def test_measured_rows_replace_lines_and_the_others_stay(self, tmp_path: Path) -> None:
        (tmp_path / "benchmarks.md").write_text(PAGE)
        order = ["first", "second", "third"]
        report.write({name: row_result(name) for name in ("third", "first")}, order, tmp_path)
        lost = row_result("first", goal=Goal(5, at_least=True))
        page = report.write({"second": row_result("second"), "first": lost}, order, tmp_path).read_text()
        assert list(report.read_lines(page)) == order
        assert "2 of 3 goals are met; 3 rows." in page
        assert page.endswith("<!-- end of table -->\n\nReasons.\n")
        assert (tmp_path / "benchmarks" / "ratios.png").read_bytes().startswith(b"\x89PNG")
        with pytest.raises(ValueError, match="a-row were measured scaled down"):
            report.updated(page, {"a-row": row_result(scale=0.1)}, order)
        with pytest.raises(ValueError, match="has no '<!-- table"):
            report.updated("# Another page\n", {}, order)

    def test_the_published_page(self) -> None:
        page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
        lines = report.read_lines(page)
        rows = [report.parse(text) for text in lines.values()]
        assert set(lines) <= {r.name for r in ROWS}
        for each in rows:
            known = next(r for r in ROWS if r.name == each.name)
            assert (each.title, each.peer, each.unit, each.goal) == (known.title, known.peer, known.unit, known.goal)
        assert report.summary(rows) in page
        reasons = page.partition("## Missed goals")[2]
        named: set[str] = set()
        for reason in reasons.split("\n- ")[1:]:
            names, _, text = reason.partition("**: ")
            named.update(names.strip("*").replace("`", "").split(", "))
            assert len(text.split()) <= 40, names
        assert named == {r.name for r in rows if r.goal_met is False}


def test_quick_figures_are_compared_with_the_committed_ones(tmp_path: Path) -> None:
    found = {"same": 1.0, "slower": 0.6, "new": 1.0}
    compared = [("same", 1.0, 1.0, False), ("slower", 0.6, 0.6, True), ("new", 1.0, None, False)]
    assert quick.compare(found, {"same": 1.0, "slower": 1.0, "gone": 1.0}) == compared
    path = tmp_path / "quick.json"
    assert quick.read_committed(path) == {}
    quick.write_committed({"a": 1.23456}, path)
    assert quick.read_committed(path) == {"a": 1.2346}
    assert set(quick.read_committed()) == {figure.name for figure in quick.FIGURES}


def test_figures_of_growth_have_the_headings_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    growth_figures.main(["3:60"])
    heading, _, figures = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs" / "how-far-it-goes.md").read_text(encoding="utf-8")
    assert heading in page.splitlines()
    cells = [cell.strip() for cell in figures.strip("|").split("|")]
    assert cells[:2] == ["3", "60"]
    assert all(float(cell.replace(",", "")) > 0 for cell in cells)


def test_a_size_of_a_cluster_without_a_number_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for size in ("3", "3:x", "2:60", "30:20"):
        with pytest.raises(SystemExit):
            growth_figures.main([size])
        assert size in capsys.readouterr().err


def test_every_switch_finds_its_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, targets in switches.SWITCHES.items():
        for target in targets:
            module, _, path = target.partition(":")
            monkeypatch.setattr(f"{module}.{path}", lambda *_: "real")  # undone after the test
        switches.switch_off(name)
    from sparklog.client.consumer import fetch_turn
    from sparklog.client.producer import encoding

    stand_ins: Any = (encoding, fetch_turn)
    assert stand_ins[0].encode_packed_batch("any", argument=1) is None
    assert stand_ins[1].FetchTurn.is_polls(None) is False


def test_the_spark_session_has_the_documented_settings() -> None:
    published = published_settings()
    assert published["spark.sql.execution.arrow.maxBytesPerBatch"] == "2147483647"
    differing = {name for name, value in published.items() if CONFIGS[name] != value}
    assert differing == {"spark.sql.shuffle.partitions"}  # of local[2]


def test_the_certificate_is_good_for_the_measured_address(tmp_path: Path) -> None:
    made = secure_servers.make_certificates(tmp_path / "new")
    server = server_context(secure_servers.sparklog_settings(made, {}))
    client = ssl.create_default_context(cafile=str(made.authority))
    pipes = [ssl.MemoryBIO() for _ in range(2)]
    ours = server.wrap_bio(pipes[0], pipes[1], server_side=True)
    theirs = client.wrap_bio(pipes[1], pipes[0], server_hostname="127.0.0.1")
    waiting = [theirs, ours]
    for _ in range(10):
        for side in list(waiting):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                waiting.remove(side)
    assert not waiting
    assert theirs.version() == "TLSv1.3"


def test_kafka_gets_the_same_certificate_and_mechanism(tmp_path: Path) -> None:
    made = secure_servers.make_certificates(tmp_path)
    theirs = secure_servers.kafka_settings(made)
    ours = secure_servers.sparklog_settings(made, {"PLAINTEXT": 1, "SSL": 2})
    assert ours["listeners"] == "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2"
    for name in ("ssl.keystore.location", "sasl.enabled.mechanisms", "super.users"):
        assert theirs[name] == ours[name]
    assert f"ssl.keystore.location={made.broker}" in kafka.properties(theirs).splitlines()


def test_a_kafka_that_does_not_start_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    class NeverStarts:
        def __init__(self, *_: object, **__: object) -> None: ...

        def start(self) -> float:
            raise MeasurementError("no")

        def stop(self, *, kill: bool) -> None:
            ended.append("killed" if kill else "stopped")

    monkeypatch.setattr(secure_servers, "KafkaServer", NeverStarts)
    monkeypatch.setattr(Context, "installation", None)
    with Context(0.01, tmp_path) as context:
        for _ in range(2):
            with pytest.raises(MeasurementError):
                context.kafka(secure_servers.TLS)
        assert ended == ["killed", "killed"]
