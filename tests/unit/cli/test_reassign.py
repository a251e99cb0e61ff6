"""Plans of `sparklog reassign`: a plan that is not exact is refused before any request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from sparklog.cli import reassign
from sparklog.types import TopicPartition
from tests.support.cases import for_each

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
