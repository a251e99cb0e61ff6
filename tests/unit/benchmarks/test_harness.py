"""The benchmark harness: statistics, the order of runs, what is kept, what the report says. Nothing is timed here."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.benchmarks import campaign, kafka, latency, payloads, pictures, quick, report, results
from tests.benchmarks.__main__ import main, results_directory
from tests.benchmarks.context import Context
from tests.benchmarks.machine import versions
from tests.benchmarks.processes import MeasurementError, run, usage
from tests.benchmarks.results import Goal, Measurement, RowResult
from tests.benchmarks.rows import ROWS, Row, select
from tests.benchmarks.spark_session import CONFIGS
from tests.spark_settings import published_settings


def row_result(name: str = "a-row", **changes: Any) -> RowResult:
    made = RowResult(
        name=name,
        title="a row",
        peer="Kafka",
        unit="records/s",
        goal=Goal(3.0, at_least=True),
        scale=1.0,
        settings={"records": "10"},
        machine={"processor": "a processor"},
        versions={"python": "3"},
        measured_at="2025-01-01T00:00:00+00:00",
        sparklog=[Measurement(v, client_cpu_s=1.0, bytes_per_record=120.5) for v in (30.0, 10.0, 20.0)],
        other=[Measurement(v, client_cpu_s=4.0) for v in (4.0, 6.0, 5.0)],
    )
    return msgspec.structs.replace(made, **changes)


class TestStatistics:
    def test_minimum_median_maximum(self) -> None:
        assert results.summarize([5.0, 1.0, 3.0, 2.0]) == results.Summary(1.0, 2.5, 5.0, 4)

    @pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
    def test_what_cannot_be_summed_up_is_refused(self, values: list[float]) -> None:
        with pytest.raises(ValueError, match=r"nothing|finite"):
            results.summarize(values)

    def test_the_ratio_is_of_the_medians(self) -> None:
        assert row_result().ratio == 4.0  # not 20/5 pairwise, not of the means
        assert row_result(sparklog=[Measurement(1.0), Measurement(2.0), Measurement(900.0)]).ratio == 0.4

    def test_no_ratio_without_both_sides(self) -> None:
        assert row_result(other=[]).ratio is None
        assert row_result(failure="broken").ratio is None
        assert row_result(other=[Measurement(0.0)]).ratio is None

    @pytest.mark.parametrize(
        ("goal", "met"),
        [(Goal(4.0, at_least=True), True), (Goal(4.1, at_least=True), False), (Goal(4.0, at_least=False), True),
         (Goal(3.9, at_least=False), False), (None, None)],
    )  # fmt: skip
    def test_goals_have_a_direction(self, goal: Goal | None, met: bool | None) -> None:
        assert row_result(goal=goal).goal_met is met

    def test_medians_of_what_some_runs_have(self) -> None:
        runs = [Measurement(1.0, server_cpu_s=2.0), Measurement(1.0), Measurement(1.0, server_cpu_s=4.0)]
        assert results.median_field(runs, "server_cpu_s") == 3.0
        assert results.median_field(runs, "server_rss_bytes") is None


class TestKept:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        rows = [row_result("one"), row_result("two", failure="E: why", goal=None, sparklog=[])]
        for row in rows:
            results.write_row(row, tmp_path)
        assert results.read_rows(tmp_path) == {r.name: r for r in rows}
        assert {p.name for p in tmp_path.iterdir()} == {"one.json", "two.json"}

    @pytest.mark.parametrize("change", [{"unknown": 1}, {"unit": None}, {"format": 2}])
    def test_another_form_is_refused(self, tmp_path: Path, change: dict[str, Any]) -> None:
        path = results.write_row(row_result(), tmp_path)
        path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | change))
        with pytest.raises(ValueError, match=r"a-row\.json"):
            results.read_rows(tmp_path)

    def test_a_name_cannot_leave_the_directory(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="cannot be a row's name"):
            results.write_row(row_result("../elsewhere"), tmp_path)

    def test_scaled_down_results_are_kept_apart(self) -> None:
        assert len({results_directory(1.0), results_directory(0.1), results_directory(0.01)}) == 3


class TestRows:
    def test_names_are_different_and_can_be_kept(self, tmp_path: Path) -> None:
        assert len({row.name for row in ROWS}) == len(ROWS)
        for row in ROWS:
            results.write_row(row_result(row.name), tmp_path)

    def test_all_names_or_beginnings_choose(self) -> None:
        assert select([]) == list(ROWS)
        assert [r.name for r in select(["produce-100b"])] == [
            r.name for r in ROWS if r.name.startswith("produce-100b-")
        ]
        assert [r.name for r in select(["start", "spark-typed-filter"])] == ["spark-typed-filter", "start"]

    def test_a_beginning_ends_at_a_dash(self) -> None:
        assert "spark-write" in [r.name for r in select(["spark"])]
        with pytest.raises(ValueError, match="no row 'spar'; there are produce-"):
            select(["spar"])

    def test_the_command_line_says_what_is_wrong(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["run", "--rows", "nonsense"]) == 2
        assert "no row 'nonsense'" in capsys.readouterr().err
        assert main(["run", "--rows", "start", "--scale", "0"]) == 2


class Script:
    """Stands in for a row's two sides: writes down who was asked, answers with numbers that tell the runs apart."""

    def __init__(self, fail_at: int = 0) -> None:
        self.asked: list[str] = []
        self.fail_at = fail_at

    def side(self, name: str) -> Any:
        def measure(_: Context) -> Measurement:
            self.asked.append(name)
            if len(self.asked) == self.fail_at:
                raise MeasurementError("the broker was gone")
            return Measurement(float(len(self.asked)))

        return measure

    def row(self, name: str = "scripted") -> Row:
        return Row(name, "scripted", "Kafka", "s", Goal(1, at_least=True), self.side("ours"), self.side("theirs"))


def run_scripted(script: Script, tmp_path: Path, pairs: int = 3) -> RowResult:
    with Context(0.5, tmp_path) as context:
        return campaign.run_row(
            script.row(), context, pairs=pairs, progress=lambda _: None, machine={"m": "1"}, versions={"v": "2"}
        )


class TestCampaign:
    def test_a_warm_up_is_discarded_and_the_sides_take_turns(self, tmp_path: Path) -> None:
        script = Script()
        result = run_scripted(script, tmp_path)
        pairs = [script.asked[i : i + 2] for i in range(0, 8, 2)]
        assert pairs == [["ours", "theirs"], ["theirs", "ours"], ["ours", "theirs"], ["theirs", "ours"]]
        assert [m.value for m in result.sparklog] == [4.0, 5.0, 8.0]
        assert [m.value for m in result.other] == [3.0, 6.0, 7.0]
        assert (result.failure, result.scale, result.machine, result.versions) == (None, 0.5, {"m": "1"}, {"v": "2"})

    def test_a_failure_is_kept_with_its_reason(self, tmp_path: Path) -> None:
        result = run_scripted(Script(fail_at=6), tmp_path)
        assert result.failure is not None
        assert result.failure.startswith("MeasurementError: the broker was gone (test_harness.py:")
        assert (len(result.sparklog), len(result.other)) == (2, 1)

    def test_a_failure_to_clean_up_is_the_rows_own(self, tmp_path: Path) -> None:
        script = Script()
        with Context(0.5, tmp_path) as context:
            context.after_row("x", lambda: 1 // 0)
            run = {"pairs": 1, "progress": lambda _: None, "machine": {}, "versions": {}}
            bad = campaign.run_row(script.row(), context, **run)  # type: ignore[arg-type]
            good = campaign.run_row(script.row(), context, **run)  # type: ignore[arg-type]
        assert bad.failure is not None
        assert "while giving back what it needed: ZeroDivisionError" in bad.failure
        assert good.failure is None

    def test_the_other_rows_go_on(self, tmp_path: Path) -> None:
        shown: list[str] = []
        with Context(1.0, tmp_path) as context:
            found = campaign.run_rows(
                [Script(fail_at=1).row("bad"), Script().row("good")],
                context,
                tmp_path / "kept",
                pairs=1,
                progress=lambda _: None,
                done=lambda r: shown.append(r.name),
                machine={},
                versions={},
            )
        assert [r.failure is None for r in found] == [False, True]
        assert shown == ["bad", "good"]
        assert set(results.read_rows(tmp_path / "kept")) == {"bad", "good"}


class TestContext:
    def test_once_makes_once_and_forgets_failures(self, tmp_path: Path) -> None:
        with Context(1.0, tmp_path) as context:
            made = iter([1, 2])
            assert [context.once("x", lambda: next(made)) for _ in range(2)] == [1, 1]
            with pytest.raises(ZeroDivisionError):
                context.once("y", lambda: 1 // 0)
            assert context.once("y", lambda: 3) == 3
        assert not list(tmp_path.iterdir())

    def test_what_a_row_alone_needed_is_given_back(self, tmp_path: Path) -> None:
        undone: list[str] = []
        with Context(1.0, tmp_path) as context:

            def make(name: str) -> str:
                context.after_row(name, lambda: undone.append(name))
                return name

            assert [context.once("a", lambda: make("a")) for _ in range(2)] == ["a", "a"]
            context.end_row()
            assert undone == ["a"]
            context.once("a", lambda: make("a"))
            context.once("kept", lambda: "kept")
        assert undone == ["a", "a"]

    def test_a_row_that_needs_a_larger_disk_says_so(self, tmp_path: Path) -> None:
        with Context(1.0, tmp_path) as context:
            context.need_disk(1000)
            with pytest.raises(MeasurementError, match=r"1000000000 GB are needed .* --scratch"):
                context.need_disk(1e18)

    def test_the_scale_has_a_floor(self, tmp_path: Path) -> None:
        with Context(0.01, tmp_path) as context:
            assert (context.records(10_000_000), context.records(20_000)) == (100_000, 1000)

    def test_payloads_are_the_same_everywhere(self, tmp_path: Path) -> None:
        first = payloads.payload_file(tmp_path, 100)
        lines = payloads.read_payloads(first)
        content = first.read_bytes()
        first.unlink()
        assert payloads.payload_file(tmp_path, 100).read_bytes() == content
        assert {len(line) for line in lines} == {100}
        assert len(set(lines)) == len(lines) == payloads.LINES


class TestProcesses:
    def test_the_cost_of_a_process(self) -> None:
        done = run(
            [sys.executable, "-c", "x = bytearray(60_000_000); print(len(x)); sum(range(2_000_000))"], timeout_s=60
        )
        assert done.stdout == "60000000\n"
        assert done.cpu_s > 0
        assert done.peak_rss_bytes > 60_000_000

    def test_last_words_of_a_failure(self) -> None:
        with pytest.raises(MeasurementError, match="ended with 3: wrote some\nno disk"):
            run(
                [
                    sys.executable,
                    "-c",
                    "import sys; print('wrote some'); print('no disk', file=sys.stderr); sys.exit(3)",
                ],
                timeout_s=60,
            )

    def test_what_takes_too_long_is_ended(self) -> None:
        with pytest.raises(MeasurementError, match="not done after 0 s"):
            run([sys.executable, "-c", "import time; time.sleep(600)"], timeout_s=0.2)

    def test_a_process_that_is_gone(self) -> None:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            assert usage(process.pid).rss_bytes > 0
            assert process.stdin is not None
        with pytest.raises(MeasurementError, match="ended while"):
            usage(process.pid)


class TestKafkaTools:
    def test_the_producers_last_line(self) -> None:
        text = (
            "499181 records sent, 99836.2 records/sec (9.52 MB/sec), 2.7 ms avg latency, 310.0 ms max latency.\n"
            "1000000 records sent, 812347.7 records/sec (77.47 MB/sec), 12.34 ms avg latency, 345.00 ms max latency, "
            "5 ms 50th, 40 ms 95th, 120 ms 99th, 300 ms 99.9th.\n"
        )
        found = kafka.parse_producer_performance(text)
        assert (found["records"], found["records_per_s"], found["p99_ms"]) == (1e6, 812347.7, 120.0)

    def test_the_consumers_table(self) -> None:
        text = (
            "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
            "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
            "2025-01-01 10:00:00:000, 2025-01-01 10:00:04:000, 95.3, 23.8, 1000001, 250000.0, 3000, 1000, 95.3, 1000000.5\n"
        )
        found = kafka.parse_consumer_performance(text)
        assert found == {
            "records": 1000001.0,
            "records_per_s": 1000000.5,
            "mib_per_s": 95.3,
            "records_per_s_with_rebalance": 250000.0,
        }

    @pytest.mark.parametrize("text", ["", "WARN something, with, many, commas, in, it, and, more, of, them\n"])
    def test_no_result_is_an_error(self, text: str) -> None:
        with pytest.raises(MeasurementError, match="no result"):
            kafka.parse_producer_performance(text)
        with pytest.raises(MeasurementError, match="no result"):
            kafka.parse_consumer_performance(text)

    def test_the_cache_can_be_elsewhere(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv(kafka.CACHE_VARIABLE, str(tmp_path))
        assert kafka.KafkaInstallation().libs.parent == tmp_path

    def test_a_replaced_jar_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(kafka.TOKEN_JAR_VARIABLE, raising=False)
        assert "spark-token-provider-kafka" not in versions()
        monkeypatch.setenv(kafka.TOKEN_JAR_VARIABLE, "/somewhere/stand-in.jar")
        assert kafka.KafkaInstallation().token_jar() == Path("/somewhere/stand-in.jar")
        assert versions()["spark-token-provider-kafka"] == "not Maven Central's but stand-in.jar"

    def test_installing_needs_maven(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", "")
        with pytest.raises(MeasurementError, match="Maven is needed"):
            kafka.KafkaInstallation(tmp_path).install()


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
        assert waits[:4] == [0, 0, 0, 4_000_000]  # what was due during the stall has waited
        assert waits[7:] == [0, 0, 0]

    def test_the_warm_up_is_left_out(self) -> None:
        pytest.importorskip("hdrh")
        recorder = latency.Recorder(count=4, skip=2)
        for number, wait_us in enumerate((900_000, 900_000, 1_000, 3_000)):
            assert not recorder.done
            due = 10**18
            value = due.to_bytes(8, "little") + number.to_bytes(8, "little")
            recorder.record(value, due + wait_us * 1000)
        assert recorder.done
        found = recorder.result()
        assert (found["p50_ms"], found["records"]) == (1.0, 4)
        assert found["max_ms"] == pytest.approx(3.0, rel=0.01)


class TestReport:
    @pytest.mark.parametrize(
        ("value", "text"),
        [(0, "0"), (0.0123, "0.012"), (0.5, "0.50"), (3.14159, "3.14"), (42.42, "42.4"), (1234, "1,234"),
         (12_345, "12.3 k"), (999_999, "1,000 k"), (8_765_432, "8.77 M"), (2.5e9, "2.50 G"), (-12_345, "-12.3 k")],
    )  # fmt: skip
    def test_numbers(self, value: float, text: str) -> None:
        assert report.number(value) == text

    def test_a_table_line(self) -> None:
        line = report.table([row_result()]).splitlines()[2]
        assert "`a-row`" in line
        assert "| 10.0 · **20.0** · 30.0 | 4.00 · **5.00** · 6.00 | **4.00x** | ≥ 3x ✓ |" in line
        assert "| - | 1.00 / 4.00 | - | - | 120 / - |" in line

    def test_rows_that_lose_or_fail_are_shown(self) -> None:
        rows = [row_result("lost", goal=Goal(5, at_least=True)), row_result("broken", failure="E: a | b\nc")]
        table = report.table(rows)
        assert "≥ 5x ✗" in table
        assert "failed: E: a \\| b c |" in table
        columns = {line.replace("\\|", "").count("|") for line in table.splitlines()}
        assert columns == {13}
        assert "FAILED: E: a" in report.one_line(rows[1])
        assert "goal not met" in report.one_line(rows[0])

    def test_the_page(self, tmp_path: Path) -> None:
        timed = [Measurement(2.0, extra={"p50_ms": 1.0, "p99_ms": 2.0, "p999_ms": 7.5, "max_ms": 9.0})]
        rows = [
            row_result("won"),
            row_result("lost", goal=Goal(5, at_least=True), versions={"python": "4"}),
            row_result("broken", failure="E: why", sparklog=[], other=[]),
            row_result("late", unit="ms (p99)", goal=Goal(1, at_least=False), sparklog=timed, other=timed),
        ]
        page = report.write(rows, tmp_path).read_text()
        assert "2 of 4 rows reach their goal. Not reached: `lost`. Failed: `broken`." in page
        assert "(`late`) | sparklog | 1.00 | 2.00 | 7.50 | 9.00 |" in page
        assert "`lost`: processor a processor; python 4." in page
        for picture in ("ratios.png", "runs.png"):
            assert (tmp_path / "benchmarks" / picture).read_bytes().startswith(b"\x89PNG")
            assert f"](benchmarks/{picture})" in page
        kept = msgspec.json.decode((tmp_path / "benchmarks" / "results.json").read_bytes(), type=list[RowResult])
        assert kept == rows
        assert report.published(tmp_path) == {r.name: r for r in rows}

    def test_the_page_says_what_keeps_rows_from_their_goals(self, tmp_path: Path) -> None:
        assert report.published(tmp_path) == {}
        (tmp_path / "benchmarks").mkdir()
        (tmp_path / "benchmarks" / report.LIMITS_FILE).write_text("\n## Rows that miss\n\n`a-row`: the disk.\n")
        assert "## Rows that miss" in report.write([row_result()], tmp_path).read_text()
        (tmp_path / "benchmarks" / report.RESULTS_FILE).write_text("[1]")
        with pytest.raises(ValueError, match=r"results\.json is not of this harness"):
            report.published(tmp_path)

    def test_pictures_group_rows_by_what_they_measure_and_never_mix_directions(self) -> None:
        rows = [
            row_result("produce-a", unit="records/s", peer="Kafka"),
            row_result("consume-a", unit="MB/s", peer="sendfile loop"),
            row_result("produce-b", unit="records/s", peer="confluent-kafka"),
            row_result("latency-a", unit="ms (p99)", peer="Kafka"),
            row_result("growth-a", unit="µs/record", peer="sparklog, 1 partition"),
        ]
        assert [pictures.more_is_better(r) for r in rows] == [True, True, True, False, False]
        headings = [line.label for line in pictures.lines_of(rows) if line.row is None]
        assert headings[:2] == ["Producing", "Latency"]
        assert headings[2].startswith("Against the limit")
        assert headings[3].startswith("Growing")
        names = [line.row.name for line in pictures.lines_of(rows) if line.row is not None]
        assert names == ["produce-a", "produce-b", "latency-a", "consume-a", "growth-a"]

    def test_scaled_down_results_are_not_published(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="a-row were measured scaled down"):
            report.write([row_result(scale=0.1)], tmp_path)
        assert not list(tmp_path.iterdir())


class TestQuick:
    def test_only_what_is_much_slower_is_pointed_out(self) -> None:
        found = {"same": 1.0, "slower": 0.6, "faster": 2.0, "new": 1.0}
        rows = quick.compare(found, {"same": 1.0, "slower": 1.0, "faster": 1.0, "gone": 1.0})
        assert rows == [
            ("same", 1.0, 1.0, False),
            ("slower", 0.6, 0.6, True),
            ("faster", 2.0, 2.0, False),
            ("new", 1.0, None, False),
        ]

    def test_the_committed_figures(self, tmp_path: Path) -> None:
        path = tmp_path / "deeper" / "quick.json"
        assert quick.read_committed(path) == {}
        quick.write_committed({"a": 1.23456}, path)
        assert quick.read_committed(path) == {"a": 1.2346}
        path.write_text('{"ratios": {"a": "fast"}}')
        with pytest.raises(msgspec.ValidationError):
            quick.read_committed(path)

    def test_the_committed_file_is_of_todays_figures(self) -> None:
        committed = quick.read_committed()
        assert not committed or set(committed) == {figure.name for figure in quick.FIGURES}


def test_the_spark_session_has_the_settings_that_users_are_told() -> None:
    published = published_settings()
    assert published["spark.sql.execution.arrow.maxBytesPerBatch"] == "2147483647"
    differing = {name for name, value in published.items() if CONFIGS[name] != value}
    assert differing == {"spark.sql.shuffle.partitions"}  # of local[2]
