"""The `sparklog` command as a process, against a real broker."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparklog
from sparklog.cli import output
from sparklog.client.net.connection import Connection
from sparklog.errors import RequestTimedOutError
from sparklog.types import TopicPartition
from tests.support.cli import COMMAND, Run, rows
from tests.system.broker_process import readable

if TYPE_CHECKING:
    from sparklog.client.local import LocalBroker

TRIPS = "id BIGINT, zone STRING, at TIMESTAMP, fare DECIMAL(8,2)"


class Terminal(io.TextIOWrapper):
    """A standard input that somebody types."""

    def isatty(self) -> bool:
        return True


def test_adding_partitions_asks_in_a_terminal(run: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run("topic", "create", topic)
    monkeypatch.setattr(io, "TextIOWrapper", Terminal)
    asked = run("topic", "add-partitions", topic, "-p", 2, stdin="n\n", code=1)
    assert f"Give topic {topic} 2 partitions instead of 1?" in asked.stdout + asked.stderr
    assert "partitions  1" in run("topic", "describe", topic).stdout
    run("topic", "add-partitions", topic, "-p", 2, stdin="y\n")
    run("topic", "add-partitions", topic, "-p", 3, "--yes", stdin="")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "arrow"])
def test_files_into_a_typed_topic(run: Run, topic: str, tmp_path: Path, ending: str) -> None:
    run("topic", "create", topic, "-p", 2, "--schema", TRIPS, "--key-columns", "zone", "--timestamp-column", "at")
    path = tmp_path / f"trips.{ending}"
    text = {"id": [1, 2], "zone": ["Harbour", None], "at": ["2024-03-01T12:30:00Z", None], "fare": ["1.25", "2.00"]}
    table = pa.table(text).cast(
        pa.schema([("id", pa.int32()), ("zone", pa.string()), ("at", pa.string()), ("fare", pa.string())])
    )
    if ending == "csv":
        path.write_text("fare,id,zone,at\n1.25,1,Harbour,2024-03-01 12:30:00\n2.00,2,,\n")
    elif ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        at = table.column("at").cast(pa.timestamp("ms", tz="UTC"))
        typed = table.set_column(2, "at", at).set_column(3, "fare", table.column("fare").cast(pa.decimal128(8, 2)))
        if ending == "parquet":
            pq.write_table(typed, path)
        else:
            with pa.ipc.new_file(path, typed.schema) as writer:
                writer.write_table(typed)
    assert "2 records" in run("produce", topic, path).stderr
    read = sorted(rows(run("consume", topic)), key=lambda r: r["id"])
    assert read == [
        {"id": 1, "zone": "Harbour", "at": "2024-03-01T12:30:00Z", "fare": 1.25},
        {"id": 2, "zone": None, "at": None, "fare": 2},
    ]


def test_lines_that_the_producer_refuses(run: Run, topic: str, tmp_path: Path) -> None:
    settings = ("--key-columns", "k", "-c", "cleanup.policy=compact", "-c", "max.message.bytes=2000")
    run("topic", "create", topic, "--schema", "k STRING, v STRING", *settings)
    (tmp_path / "in.csv").write_text(f"k,v\na,1\n,2\nb,{'x' * 4000}\nc,3\n")
    failed = run("produce", topic, "in.csv", code=1).stderr
    assert "in.csv: line 3: " in failed and "the record has no key: add a key" in failed
    assert "records acknowledged before the failure: 1" in failed
    left = run("produce", topic, "in.csv", "--on-error", "refused.jsonl").stderr
    assert "2 records to" in left and "2 records refused" in left
    refused = [json.loads(line) for line in (tmp_path / "refused.jsonl").read_text().splitlines()]
    assert [r["line"] for r in refused] == [3, 4] and "takes batches of at most 2000 bytes" in refused[1]["reason"]
    assert [r["k"] for r in rows(run("consume", topic))] == ["a", "a", "c"]
    run("topic", "delete", topic)
    run("topic", "create", topic, "--partitions", 2)
    said = run("produce", topic, "--format", "csv", stdin="value,partition\na,0\nb,9\n", code=1).stderr
    assert f"line 3: topic '{topic}' has partitions 0 to 1, the record names 9" in said
    assert "--partition 9" in run("produce", topic, "-p", 9, stdin="a\n", code=2).stderr
    assert [r["value"] for r in rows(run("consume", topic))] == ["a"]


def test_consume_by_time(run: Run, topic: str) -> None:
    run("topic", "create", topic, "--schema", "id INT, at TIMESTAMP", "--timestamp-column", "at")
    now = datetime.now(UTC)
    hours = [(now - timedelta(hours=h)).isoformat() for h in range(49, -1, -1)]
    run(
        "produce",
        topic,
        "--format",
        "jsonl",
        stdin="".join(f'{{"id": {i}, "at": "{at}"}}\n' for i, at in enumerate(hours)),
    )

    def ids(*arguments: object) -> list[int]:
        return [int(r["id"]) for r in rows(run("consume", topic, *arguments))]

    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    days = [datetime.fromisoformat(at) for at in hours]
    yesterday = [i for i, at in enumerate(days) if midnight - timedelta(days=1) <= at < midnight]
    assert ids("--from", "yesterday", "--until", "today") == yesterday
    assert ids("--from", "-90m") == [48, 49]
    assert ids("--from", "90m ago", "--until", -1) == [48]
    assert ids("--until", 3) == [0, 1, 2]
    assert ids("--from", "2999-01-01") == []
    wrong = run("consume", topic, "--until", "tomorrow", code=2).stderr.replace("\n", " ")
    assert "use earliest, latest, an offset" in " ".join(wrong.replace("│", " ").split())
    assert "leave --follow out" in run("consume", topic, "--until", "5", "--follow", code=2).stderr
    shown = rows(run("offsets", topic, "--at", "yesterday", "--format", "json"))
    assert [(r["offset"], r["log_end"]) for r in shown] == [(yesterday[0], 50)]
    assert "50" in run("offsets", topic, "--at", "now").stdout
    moved = run("group", "reset-offsets", "g", "--topic", topic, "--to", "yesterday").stdout
    assert f" {yesterday[0]}\n" in moved
    left = run("delete-records", topic, "--before", "yesterday").stdout  # no question outside of a terminal
    assert f"begins at offset {yesterday[0]}" in left


def test_consume_formats(run: Run, topic: str, tmp_path: Path) -> None:
    run("topic", "create", topic, "--schema", "a INT, b STRING")
    run("produce", topic, stdin="".join(f'{{"a": {i}, "b": "x"}}\n' for i in range(100)))
    table = run("consume", topic, "--format", "table", "--max-records", 2, "--metadata")
    assert "_offset" in table.stdout
    assert "2 of 100 records" in table.stderr
    for format in ("arrow", "parquet"):
        run("consume", topic, "--format", format, "--output", f"out.{format}", "--columns", "b,a")
    run("consume", topic, "--output", "by-ending.parquet", "--columns", "b,a")
    assert pq.read_table(tmp_path / "by-ending.parquet").equals(pq.read_table(tmp_path / "out.parquet"))
    contradicted = run("consume", topic, "--output", "out.json", "--format", "parquet", code=2).stderr
    assert "--format parquet contradicts" in " ".join(contradicted.split())
    assert "for the terminal" in run("consume", topic, "--output", "out", "--format", "table", code=2).stderr
    assert not (tmp_path / "out.json").exists()
    run("consume", topic, "--output", "out.jsonl", "--max-records", 3)
    assert (tmp_path / "out.jsonl").read_text().splitlines()[2] == '{"a":2,"b":"x"}'
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.column_names == ["b", "a"]
    assert written.column("a").to_pylist() == list(range(100))
    assert pa.ipc.open_file(str(tmp_path / "out.arrow")).read_all().equals(written)
    assert "needs --output" in run("consume", topic, "--format", "parquet", code=2).stderr
    assert "no column c" in run("consume", topic, "--columns", "c", code=2).stderr.replace("\n", " ")


def test_a_few_records_are_read_without_many_ahead(run: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run("topic", "create", topic, "-p", 4, "--schema", "text STRING")
    run("produce", topic, "-", stdin="".join(json.dumps({"text": f"{i:1000}"}) + "\n" for i in range(12_000)))
    sizes: list[int] = []
    receive = Connection.receive

    def counted(connection: Connection, *args: Any, **more: Any) -> Any:
        message, payload = receive(connection, *args, **more)
        sizes.append(0 if payload is None else payload.size)
        return message, payload

    monkeypatch.setattr(Connection, "receive", counted)
    assert len(rows(run("consume", topic, "-n", 5, "-c", "local.read=off"))) == 5
    assert 0 < sum(sizes) < 4 << 20


def test_small_batches_of_a_topic_become_one_row_group(
    run: Run, topic: str, tmp_path: Path, broker: LocalBroker
) -> None:
    """A row group, or a record batch, per batch of the log would make the file several times larger."""
    run("topic", "create", topic, "--schema", "a INT, b STRING")
    expected = [{"a": n, "b": None if n % 2 else f"text {n}"} for n in range(3_000)]
    with sparklog.Producer(broker.bootstrap_servers) as producer:
        for first in range(0, len(expected), 10):
            producer.send_batch(topic, expected[first : first + 10])
            producer.flush()
    with sparklog.Consumer(broker.bootstrap_servers, max_poll_records=100) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        assert max(b.num_rows for b in consumer.poll_batches(timeout_ms=30_000)) == 10
    for name, command in (
        ("consume", ("consume", topic, "--output")),
        ("limited", ("consume", topic, "--max-records", 2_999, "--output")),
        ("sql", ("sql", f'SELECT a, b FROM "{topic}"', "--output")),
    ):
        rows_of_file = expected[:2_999] if name == "limited" else expected
        for ending in ("parquet", "arrow", "arrows"):
            path = tmp_path / f"{name}.{ending}"
            run(*command, path.name)
            if ending == "parquet":
                file = pq.ParquetFile(path)
                assert (file.num_row_groups, file.read().to_pylist()) == (1, rows_of_file)
            else:
                read = pa.ipc.open_file(str(path)) if ending == "arrow" else pa.ipc.open_stream(path.read_bytes())
                table = read.read_all()
                assert (table.column("a").num_chunks, table.to_pylist()) == (1, rows_of_file), path
    assert len(list(tmp_path.iterdir())) == 9


def test_a_reader_of_a_followed_stream_gets_each_batch_at_once(run: Run, topic: str, broker: LocalBroker) -> None:
    run("topic", "create", topic, "--schema", "a INT")
    command = [*COMMAND, "consume", topic, "--follow", "--format", "arrow", "-o", "-", "-b", broker.bootstrap_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as consume:
        assert consume.stdout
        try:
            with sparklog.Producer(broker.bootstrap_servers) as producer:
                producer.send_batch(topic, {"a": [0]}).result()
                with pa.ipc.open_stream(consume.stdout) as stream:
                    for n in range(1, 4):
                        assert stream.read_next_batch().to_pylist() == [{"a": n - 1}]
                        producer.send_batch(topic, {"a": [n]}).result()
        finally:
            consume.kill()


def test_a_failed_consume_leaves_no_file(run: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("topic", "create", topic, "--schema", "a INT")
    run("produce", topic, stdin='{"a": 1}\n')
    stop: list[BaseException] = []

    def write(self: Any, batch: Any, rows: int) -> None:
        before(self, batch, rows)
        raise stop[-1]

    for writer, ending in ((output.JsonWriter, "jsonl"), (output.FileWriter, "arrow"), (output.FileWriter, "parquet")):
        before: Any = writer.write
        for error in (RequestTimedOutError("no record arrived"), KeyboardInterrupt()):
            stop.append(error)
            monkeypatch.setattr(writer, "write", write)
            run("consume", topic, "--output", f"x.{ending}", code=1 if error is stop[0] else 130)
            assert list(tmp_path.iterdir()) == []
            run("consume", topic, "--output", f"x.{ending}", "--follow", code=1 if error is stop[0] else 0)
            monkeypatch.setattr(writer, "write", before)
            followed = [] if error is stop[0] and ending != "jsonl" else [tmp_path / f"x.{ending}"]
            assert list(tmp_path.iterdir()) == followed  # an end that was asked for; lines are there at once
            for path in followed:
                if ending == "jsonl":
                    content = [json.loads(line) for line in path.read_text().splitlines()]
                elif ending == "arrow":
                    content = pa.ipc.open_file(str(path)).read_all().to_pylist()
                else:
                    content = pq.read_table(path).to_pylist()
                assert content == [{"a": 1}]
                path.unlink()
        stop.clear()


def test_a_reader_that_has_had_enough(run: Run, topic: str, broker: LocalBroker) -> None:
    run("topic", "create", topic)
    run("produce", topic, stdin="some text\n" * 50_000)
    consume = subprocess.Popen(
        [*COMMAND, "consume", topic, "-b", broker.bootstrap_servers], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert consume.stdout
    assert consume.stderr
    assert consume.stdout.readline()
    consume.stdout.close()
    assert consume.stderr.read() == b""
    consume.stderr.close()
    assert consume.wait(30) == 0


def test_following_until_interrupted(run: Run, topic: str, broker: LocalBroker) -> None:
    run("topic", "create", topic)
    with subprocess.Popen(
        [*COMMAND, "consume", topic, "--follow", "-b", broker.bootstrap_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as consume:
        assert consume.stdout
        for text in ("one", "two"):
            run("produce", topic, stdin=f"{text}\n")
            assert json.loads(consume.stdout.readline())["value"] == text
        consume.send_signal(signal.SIGINT)
        out, err = consume.communicate(timeout=30)
    assert (out, err) == (b"", b"")
    assert consume.returncode in (0, 130)


def read_terminal(descriptor: int, until: str, seconds: float = 30) -> str:
    """Return a program's output on its terminal, up to `until`."""
    shown = ""
    deadline = time.monotonic() + seconds
    while until not in shown:
        assert readable(descriptor, max(0, deadline - time.monotonic())), f"no {until!r} in {shown!r}"
        shown += os.read(descriptor, 65536).decode()
    return shown


def test_progress_is_shown_on_a_terminal(run: Run, topic: str, broker: LocalBroker, tmp_path: Path) -> None:
    run("topic", "create", topic)
    (tmp_path / "lines.txt").write_text("some text\n" * 100_000)
    terminal, inner = os.openpty()
    with subprocess.Popen(
        [*COMMAND, "produce", topic, "lines.txt", "-b", broker.bootstrap_servers],
        cwd=tmp_path,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        stderr=inner,
    ) as produce:
        shown = read_terminal(terminal, "100,000 records to")
        assert produce.wait(30) == 0
    os.close(inner)
    os.close(terminal)
    assert "100%" in shown


def test_consume_follows_on_a_terminal(run: Run, topic: str, broker: LocalBroker) -> None:
    run("topic", "create", topic)
    terminal, inner = os.openpty()
    with subprocess.Popen(
        [*COMMAND, "consume", topic, "-b", broker.bootstrap_servers], stdout=inner, stderr=subprocess.PIPE
    ) as consume:
        for text in ("one", "two"):
            run("produce", topic, stdin=f"{text}\n")
            read_terminal(terminal, f'"value":"{text}"')
        consume.send_signal(signal.SIGINT)
        assert consume.communicate(timeout=30)[1] == b""
    os.close(inner)
    os.close(terminal)
    assert consume.returncode == 0


def test_log_dump_of_a_running_broker(run: Run, topic: str, broker: LocalBroker) -> None:
    run("topic", "create", topic)
    run("produce", topic, "--config", "compression=lz4", stdin="some text\n" * 1000)
    directory = Path(broker.data_dir) / f"{topic}-0"
    (facts,) = rows(run("log", "dump", directory, "--format", "json", "--records", 2))
    assert (facts["topic"], facts["records"], facts["sealed"]) == (topic, 1000, False)
    assert {b["compression"] for b in facts["batches"]} == {"lz4"}
    assert [r["value"] for r in facts["first_records"]] == ["some text"] * 2
    text = run("log", "dump", directory).stdout
    assert "active (not sealed)" in text
    assert "lz4" in text


def test_log_dump_of_a_damaged_file(run: Run, topic: str, broker: LocalBroker, tmp_path: Path) -> None:
    run("topic", "create", topic)
    for _ in range(2):
        run("produce", topic, stdin="some text\n" * 1000)
    (segment,) = (Path(broker.data_dir) / f"{topic}-0").glob("*.arrow")
    data = bytearray(segment.read_bytes())
    data[data.index(b"some textsome text") + 5] ^= 1
    copy = tmp_path / segment.name
    copy.write_bytes(data)
    result = run("log", "dump", copy, code=1)
    assert "CORRUPT at byte" in result.stdout
    assert "BAD" in result.stdout


def test_a_command_that_waits_for_a_broker_says_so() -> None:
    waiting = [*COMMAND, "--timeout", "3", "topic", "list", "-b", "127.0.0.1:1"]
    ended = subprocess.run(waiting, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    told, failed, *_ = ended.stderr.splitlines()
    assert told.startswith("no broker at 127.0.0.1:1 ")
    assert "trying again for up to" in told
    assert failed.startswith("BROKER_NOT_AVAILABLE: no broker at 127.0.0.1:1 ")
    assert "gave up after 3 s" in failed


def test_a_secure_setup_for_an_invalid_host(run: Run, tmp_path: Path) -> None:
    assert "'bad host'" in run("broker", "--secure-setup", "a b", "--hostname", "bad host", code=1).stderr
    assert not (tmp_path / "a b").exists()
    assert "--config 'a b'/broker.toml" in run("broker", "--secure-setup", "a b", "--hostname", "good.host").stdout


def test_debug_shows_the_traceback(broker: LocalBroker) -> None:
    result = subprocess.run(
        [*COMMAND, "--debug", "topic", "describe", "none", "-b", broker.bootstrap_servers],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "UnknownTopicOrPartitionError" in result.stderr


def test_help_teaches(run: Run) -> None:
    commands = [
        "broker",
        "topic create",
        "topic list",
        "topic describe",
        "topic delete",
        "produce",
        "consume",
        "offsets",
        "log dump",
        "config",
    ]
    for command in commands:
        shown = run(*command.split(), "--help").stdout
        assert "Example" in shown, command
        assert f"sparklog {command}" in " ".join(shown.split()), command


def test_broker_command(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "broker", "--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        line = process.stdout.readline()
        modules = Path(f"/proc/{process.pid}/maps")
        loaded = modules.read_text() if modules.exists() else ""
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert line.startswith("listening on 127.0.0.1:")
    assert "_compute.cpython" not in loaded, (
        "an idle broker needs neither compute kernels nor anything for the terminal"
    )
    assert (process.returncode, out) == (0, "")
    assert (tmp_path / "data" / "clean-shutdown").exists()


def test_broker_with_a_bad_configuration(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text("[segment]\nbytes = 1\n")
    result = subprocess.run(
        [*COMMAND, "broker", "--config", tmp_path / "broker.toml"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 2
    assert "segment.bytes" in result.stderr
    assert "Traceback" not in result.stderr
