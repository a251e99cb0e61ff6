"""Options of commands, the short way to a command, and arguments of produce and reassign."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
import typer

from sparklog.cli import decommission, lake, mirror, reassign, worker_process
from sparklog.cli.broker import broker
from sparklog.cli.consume import _form
from sparklog.cli.durations import parse_number_or_ms, parse_seconds
from sparklog.cli.elect_leaders import _parse_partitions
from sparklog.cli.input_lines import InputError
from sparklog.cli.main import BROKER_OPTIONS, is_plain_broker
from sparklog.cli.options import parse_changes
from sparklog.cli.produce import _SentRecords
from sparklog.client.admin.admin import Admin
from sparklog.errors import MessageTooLargeError, RequestTimedOutError
from sparklog.types import TopicPartition
from tests.support.cases import for_each


def test_changes_of_settings() -> None:
    assert parse_changes(["a=1", "b = 2"], ["c"], "--add", "--delete") == {"a": "1", "b": "2", "c": None}
    with pytest.raises(typer.BadParameter, match="a is given to --add and to --delete"):
        parse_changes(["a=1"], ["a"], "--add", "--delete")
    with pytest.raises(typer.BadParameter, match="a is given to NAME=VALUE and to --delete"):
        parse_changes(["a=1"], ["a"], "", "--delete")


@for_each("command, noun", [(lake.run, "topics"), (mirror.run, "mirrors")])
def test_a_worker_that_stays_takes_no_names(command: Any, noun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []
    monkeypatch.setattr(worker_process, "run_worker", lambda _, names, *, once, **__: runs.append((names, once)) or {})
    monkeypatch.setattr("pyarrow.set_memory_pool", lambda _: None)
    command(["one"], once=True)
    command(None, once=True)
    command(None, once=False)
    with pytest.raises(typer.BadParameter, match=f"{noun} need --once"):
        command(["one"], once=False)
    assert runs == [(["one"], True), (None, True), (None, False)]


def test_a_partition_is_a_number_in_ascii() -> None:
    assert _parse_partitions("events:1", {"events": 2}) == [TopicPartition("events", 1)]
    for number in ("2", "²", "-1", ""):
        with pytest.raises(typer.BadParameter, match="partitions 0 to 1"):
            _parse_partitions(f"events:{number}", {"events": 2})


def test_a_broker_that_keeps_its_partitions_is_not_called_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    moves: dict[TopicPartition, tuple[int, ...]] = {TopicPartition("events", 0): (2, 3)}
    accepted: list[Any] = []
    monkeypatch.setattr(decommission, "plan", lambda *_: moves)
    monkeypatch.setattr("sparklog.cli.reassignment_progress.follow", lambda _: None)
    admin = SimpleNamespace(alter_partition_reassignments=lambda m, throttle_bytes: accepted.append(m))
    with pytest.raises(RequestTimedOutError, match="1 partitions are still on broker 1"):
        decommission._drain(cast("Admin", admin), 1, moves, None)
    assert len(accepted) == decommission.ROUNDS_MAX


# Durations of options: with a unit, or as a plain number of the option's unit


def test_a_plain_number_has_the_unit_of_the_option() -> None:
    assert parse_seconds("5", "--interval", 0.1, 60) == parse_seconds("5s", "--interval", 0.1, 60) == 5
    assert parse_seconds("0.5", "--interval", 0.1, 60) == 0.5
    assert parse_number_or_ms("1000", "--interval", 1, 1) == parse_number_or_ms("1s", "--interval", 1, 1) == 1_000
    for wrong in ("-1", "１", "nan", "1e1", ""):
        with pytest.raises(typer.BadParameter):
            parse_seconds(wrong, "--interval", 0.1, 60)


# The decisions of `produce` and `consume` that need no broker


class RefusingProducer:
    """A producer that refuses a table, after it has taken some rows if `is_partial`."""

    def __init__(self, *, is_partial: bool) -> None:
        self._is_partial = is_partial

    def send_batch(self, topic: str, data: Any, *, partition: int | None) -> Any:
        error = MessageTooLargeError("a record of 99 bytes")
        if self._is_partial:
            raise MessageTooLargeError(f"{error} (1 of the 2 rows were already accepted)") from error
        raise error


def test_rows_that_the_producer_took_are_not_sent_again() -> None:
    table = pa.table({"a": [1, 2]})
    for is_partial, expected in ((False, MessageTooLargeError), (True, InputError)):
        producer: Any = RefusingProducer(is_partial=is_partial)
        with pytest.raises(expected, match="a record of 99 bytes"):
            _SentRecords("t", None).send(producer, table)


def test_output_format_goes_to_text_files() -> None:
    for name in ("x.txt", "x.csv", "x.jsonl", "x", "x.own"):
        assert _form("%s", None, Path(name))
    for name in ("x.parquet", "x.arrow", "x.txt.gz"):
        with pytest.raises(typer.BadParameter, match=f"writes text, which contradicts the ending of {name}"):
            _form("%s", None, Path(name))


# Plans of `sparklog reassign`: a plan that is not exact is refused before any request


ENTRY = {"topic": "b", "partition": 0, "replicas": [2, 3]}


def plan(*entries: object, **others: object) -> str:
    return json.dumps({"partitions": entries} | others)


def test_a_plan_is_read_with_and_without_the_fields_that_kafka_writes(tmp_path: Path) -> None:
    path = tmp_path / "moves.json"
    for text in (plan(ENTRY), plan(ENTRY | {"log_dirs": ["any", "any"]}, version=1)):
        path.write_text(text)
        assert reassign._read(path) == {TopicPartition("b", 0): [2, 3]}


@for_each(
    "content,reason",
    [
        (plan(ENTRY, ENTRY | {"partition": 0.9}), "partitions[1].partition = 0.9: a whole number"),
        (plan(ENTRY | {"partition": "0"}), "partitions[0].partition = '0': a whole number"),
        (plan(ENTRY | {"replicas": [2.0, 3]}), "partitions[0].replicas = 2.0: a whole number"),
        (plan(ENTRY | {"replicas": [2, True]}), "partitions[0].replicas = True: a whole number"),
        (plan(ENTRY | {"replicas": "23"}), "partitions[0].replicas = '23': a list is needed"),
        (plan(ENTRY | {"topic": 7}), "partitions[0].topic = 7: a text is needed"),
        (plan(ENTRY | {"log_dirs": ["/d", "any"]}), "partitions[0].log_dirs"),
        (plan(ENTRY | {"replica": [1]}), "an object with the fields partition, replicas, topic is needed"),
        (plan({"topic": "b"}), "an object with the fields partition, replicas, topic is needed"),
        (plan(ENTRY, ENTRY | {"replicas": [1]}), "the plan names b-0 twice"),
        (plan(ENTRY, version=2), "version = 2: use 1"),
        (plan(ENTRY, version=True), "version = True: a whole number"),
        (plan(ENTRY, throttle=7), "an object with the fields partitions is needed"),
        ("[]", "the plan = []: an object with the fields partitions is needed"),
        ("", "Expecting value"),
        ("[" * 100_000, "nested too deeply"),
        (b"\x80\xff" * 4_000, "can't decode byte 0x80 in position 0"),
        (b" " * (reassign.PLAN_BYTES_MAX + 2), "larger than 67108864 bytes"),
    ],
)
def test_an_inexact_plan_is_refused_with_the_place_of_the_fault(
    tmp_path: Path, content: str | bytes, reason: str
) -> None:
    path = tmp_path / "moves.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(typer.BadParameter) as refused:
        reassign._read(path)
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 500


# The short way into the broker accepts exactly the arguments of the long way


def test_the_options_are_the_commands() -> None:
    """But for those that run no broker."""
    others = {"context", "secure_setup", "hostname", "brokers", "super_user"}
    parameters = [name for name in inspect.signature(broker).parameters if name not in others]
    assert sorted(BROKER_OPTIONS) == sorted("--" + name.replace("_", "-") for name in parameters)


@for_each(
    "text",
    [
        "broker",
        "broker --listen 127.0.0.1:0",
        "broker --listen=127.0.0.1:0 --data-dir d --config f --log-level DEBUG",
    ],
)
def test_the_short_way(text: str) -> None:
    assert is_plain_broker(text.split())


@for_each(
    "text",
    [
        "",
        "topic list",
        "--debug broker",
        "broker --help",
        "broker decommission 3",
        "broker -h",
        "broker --lisen x",
        "broker --listen",
        "broker --listen --data-dir d",
        "broker extra",
        "broker --data-dir d extra",
    ],
)
def test_everything_else_goes_the_long_way(text: str) -> None:
    assert not is_plain_broker(text.split())
