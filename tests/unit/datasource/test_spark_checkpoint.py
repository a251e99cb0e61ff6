"""Readable parts of a checkpoint, and the refusal of anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark_sparklog.sink.spark_checkpoint import input_digest, location_of

META = '{"batchWatermarkMs":0,"batchTimestampMs":%d}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of query "q", with a blank in its name."""
    made = tmp_path / "a checkpoint"
    (made / "offsets").mkdir(parents=True)
    (made / "metadata").write_text(json.dumps({"id": "q"}))
    return made


def write(checkpoint: Path, batch: int, *offsets: str, at_ms: int = 1) -> None:
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(["v1", META % at_ms, *offsets]))


def test_it_goes_by_where_the_batch_begins_and_ends(checkpoint: Path) -> None:
    write(checkpoint, 0, '{"t":{"0":3}}')
    write(checkpoint, 1, '{"t":{"0":5}}', "7")
    first, second = input_digest(str(checkpoint), "q", 0), input_digest(str(checkpoint), "q", 1)
    assert first and second and first != second
    write(checkpoint, 1, '{"t":{"0":5}}', "7", at_ms=2)
    assert input_digest(str(checkpoint), "q", 1) == second, "planned at another time"
    write(checkpoint, 1, '{"t":{"0":6}}', "7")
    assert input_digest(str(checkpoint), "q", 1) not in ("", second)
    write(checkpoint, 1, '{"t":{"0":5}}', "7")
    write(checkpoint, 0, '{"t":{"0":4}}')
    assert input_digest(str(checkpoint), "q", 1) not in ("", second), "begins elsewhere"


def test_a_location_can_be_a_url(checkpoint: Path) -> None:
    write(checkpoint, 0, "{}")
    found = input_digest(str(checkpoint), "q", 0)
    assert found == input_digest(checkpoint.as_uri(), "q", 0) == input_digest(f"file:{checkpoint}", "q", 0)


def test_unreadable_files_have_no_checkpoint(checkpoint: Path) -> None:
    write(checkpoint, 0, "{}")
    for location, query, batch in [
        ("", "q", 0),
        ("s3a://bucket/checkpoint", "q", 0),
        (f"hdfs:{checkpoint}", "q", 0),
        (str(checkpoint), "other", 0),
        (str(checkpoint), "", 0),
        (str(checkpoint), "q", 1),
        (str(checkpoint), "q", -1),
        (str(checkpoint) + "x", "q", 0),
    ]:
        assert input_digest(location, query, batch) == "", (location, query, batch)
    (checkpoint / "offsets" / "0").write_text("v1")
    assert input_digest(str(checkpoint), "q", 0) == ""
    (checkpoint / "metadata").write_text("[1]")
    assert input_digest(str(checkpoint), "q", 0) == ""


def test_where_a_query_has_its_checkpoint() -> None:
    assert location_of("/own", "/all", "name") == "/own"
    assert location_of("", "/all/", "name") == "/all/name"
    assert location_of("", "/all", "") == location_of("", None, "name") == ""
