"""A checkpoint that was set back: batches with new input have the numbers of batches in the topic. None of them is
skipped in silence, and a batch that Spark runs again after a crash still is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from tests.support.cases import in_gate


class Query:
    """A query that copies a topic, run after run, with a checkpoint that can be copied and put back. `location`: an
    option or the session's setting names its place, or (elsewhere) an option with a path that Python cannot open."""

    def __init__(self, reads: Any, target: str, source: str, directory: Path, location: str) -> None:
        self.reads = reads
        self.target = target
        self.source = source
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self.copy = directory / "copy"
        self.location = location
        if location == "elsewhere":
            hadoop = reads.spark._jsc.hadoopConfiguration()
            hadoop.set(f"fs.viewfs.mounttable.{target}.link./checkpoint", self.checkpoint.as_uri())

    def run(self, tasks: int = 2, rows: str = "value", **options: str) -> Exception | None:
        """Run to the end of the present records; returns the query's error."""
        settings = self.reads.spark.conf
        frame = self.reads.stream(self.source, startingOffsets="earliest").selectExpr(f"{rows} as value")
        writer = frame.repartition(tasks).writeStream.format("sparklog").trigger(availableNow=True)
        writer = writer.options(**{"sparklog.bootstrap.servers": self.reads.bootstrap_servers, "topic": self.target})
        try:
            if self.location == "setting":
                settings.set("spark.sql.streaming.checkpointLocation", str(self.directory))
                writer = writer.queryName("checkpoint")
            elif self.location == "elsewhere":
                writer = writer.option("checkpointLocation", f"viewfs://{self.target}/checkpoint")
            else:
                writer = writer.option("checkpointLocation", str(self.checkpoint))
            assert writer.options(**options).start().awaitTermination(120)
        except Exception as e:  # noqa: BLE001  Spark's exceptions have no common base of their own
            return e
        finally:
            settings.unset("spark.sql.streaming.checkpointLocation")
        return None

    def save(self) -> None:
        shutil.copytree(self.checkpoint, self.copy)

    def restore(self) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(self.copy, self.checkpoint)

    def forget_commit(self, batch: int) -> None:
        """As if the driver had died before Spark noted the commit."""
        for name in (str(batch), f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def visible(self) -> list[str]:
        table = sparklog.read_table(self.reads.bootstrap_servers, self.target)
        return sorted(v.decode() for v in table.column("value").to_pylist())


@pytest.fixture
def query(reads: Any, topic: Any, tmp_path: Path) -> Callable[[str], Query]:
    return lambda location: Query(reads, topic("out"), topic("in"), tmp_path, location)


@pytest.mark.parametrize("location", in_gate(["option", "elsewhere"], "option"))
def test_new_input_under_the_last_number_fails(query: Any, send: Any, location: str) -> None:
    copying = query(location)
    send(copying.source, "a", "b")
    assert copying.run() is None
    copying.save()
    send(copying.source, "c")
    assert copying.run() is None
    copying.restore()
    send(copying.source, "d")
    error = str(copying.run())
    assert "committed before with other input" in error and "its 2 rows are not in the topic" in error
    assert "new checkpoint location" in error and "txnAppId" in error
    assert copying.visible() == ["a", "b", "c"]
    assert copying.run(txnAppId=f"again-{copying.target}") is None
    assert copying.visible() == ["a", "b", "c", "c", "d"]


@pytest.mark.nightly
def test_an_older_number_fails(query: Any, send: Any) -> None:
    copying = query("option")
    send(copying.source, "a")
    assert copying.run() is None
    copying.save()
    for value in "bc":
        send(copying.source, value)
        assert copying.run() is None
    copying.restore()
    send(copying.source, "d")
    error = str(copying.run())
    assert "STALE_CHECKPOINT" in error or "StaleCheckpointError" in error
    assert "batch 1 of" in error and "batches up to 2 have been committed" in error
    assert copying.visible() == ["a", "b", "c"]


@pytest.mark.nightly
@pytest.mark.parametrize("location", ["setting", "elsewhere"])
def test_a_batch_that_spark_repeats_is_skipped(query: Any, send: Any, location: str) -> None:
    copying = query(location)
    send(copying.source, *"abcdefgh")
    assert copying.run(tasks=1) is None
    copying.forget_commit(0)
    send(copying.source, "i")
    assert copying.run(tasks=3) is None
    assert copying.visible() == [*"abcdefghi"]


@pytest.mark.nightly
def test_rows_may_differ_where_the_checkpoint_can_be_read(query: Any, send: Any) -> None:
    for location, differs in {"option": False, "elsewhere": True}.items():
        copying = query(location)
        send(copying.source, "a")
        assert copying.run(rows="uuid()") is None
        before = copying.visible()
        copying.forget_commit(0)
        error = copying.run(rows="uuid()")
        assert ("other rows; the source offsets cannot be compared" in str(error)) is differs
        assert copying.visible() == before
        shutil.rmtree(copying.checkpoint)


@pytest.mark.nightly
def test_a_name_is_not_used_again_with_a_new_checkpoint(query: Any, send: Any) -> None:
    copying = query("option")
    send(copying.source, "a")
    assert copying.run(txnAppId=copying.target) is None
    shutil.rmtree(copying.checkpoint)
    assert "by query " in str(copying.run(txnAppId=copying.target))
    assert copying.visible() == ["a"]
