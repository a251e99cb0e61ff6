"""Streaming queries under the test kit: steps, crashes, watermarks and state; and the examples of the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import expr, window
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark_sparklog.compatibility import READERS_RECEIVE_THEIR_START, STREAMS_CAN_BE_WRITTEN

from sparklog.errors import InvalidRequestError
from sparklog.testing import KitBroker, Stream
from sparklog.testing._plugin import broker, produce, rows, sparklog_broker, stream, topic

__all__ = ["broker", "produce", "rows", "sparklog_broker", "stream", "topic"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "testing-streaming-jobs.md").read_text(encoding="utf-8")
EXAMPLES_TIMEOUT_S = 1_800
EXAMPLES = re.findall(r"<!-- test: spark -->\n```python\n(.*?)```", PAGE, re.DOTALL)


SETTINGS = """
def test_settings_of_the_conftest(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "Europe/Berlin"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1"
"""


NEEDS_NEWER_SPARK = {
    "test_each_order_is_paid_once": STREAMS_CAN_BE_WRITTEN,
    "test_coffee_replaces_tea": hasattr(DataStreamReader, "name"),
}
"""Examples of the page that not every version of Spark can run, and whether this one can."""


@pytest.fixture(autouse=True)
def fresh_broker(sparklog_broker: KitBroker) -> Iterator[None]:
    """End the topics of each test, as the plugin does it in the projects of users."""
    yield
    sparklog_broker.reset()


@pytest.mark.skipif(READERS_RECEIVE_THEIR_START, reason="this Spark has limits of micro-batches")
def test_limits_of_micro_batches_are_refused_by_version(stream: Stream, topic: Any) -> None:
    topic("orders", "id INT")
    with pytest.raises(Exception, match=r"maxOffsetsPerTrigger .* need PySpark 4\.2"):
        stream.run(lambda orders: orders, options={"maxOffsetsPerTrigger": 1}).step()


def test_a_query_step_by_step(stream: Stream, topic: Any, rows: Any) -> None:
    """One test for the cost of one query: steps, a crash, state, and the watermark."""
    topic("clicks", "user STRING, at TIMESTAMP")

    def counts(clicks: Any) -> Any:
        windows = clicks.withWatermark("at", "10 minutes").groupBy(window("at", "5 minutes"), "user").count()
        return windows.select("window.start", "user", "count")

    run = stream.run(counts)
    with pytest.raises(InvalidRequestError, match="no step has run"):
        run.kill()
    run.add("clicks", [{"user": "ann", "at": at(minute)} for minute in (1, 2)]).step()
    assert run.rows() == []
    assert [row["count"] for row in run.state()] == [2]
    run.kill().kill().step()
    assert [row["count"] for row in run.state()] == [2], "the repeated micro-batch has counted twice"
    run.kill().advance_watermark(at(5))
    assert run.rows() == [{"start": at(0), "user": "ann", "count": 2}]
    assert run.state() == []
    assert rows("clicks") == [{"user": "ann", "at": at(minute)} for minute in (1, 2)], "the hidden row is seen"


@pytest.mark.nightly
@pytest.mark.timeout(EXAMPLES_TIMEOUT_S)
@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_the_examples_of_the_page(kind: str, tmp_path: Path) -> None:
    """They run in a project of their own. With Connect two test processes have a server each, which they start
    themselves; the servers' processes find the broker of their test process, and not that of an older variable."""
    more: dict[str, str] = {}
    options = ["-p", "no:sparklog", "-p", "sparklog.testing._plugin", "-p", "no:cacheprovider"]
    if kind == "connect":
        pytest.importorskip("grpc", reason="needs pip install 'sparklog[connect]'")
        options += ["-n", "2"]
        more = {"SPARK_REMOTE": "local[2]", "SPARKLOG_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"test_{number}.py").write_text(example, encoding="utf-8")
    (settings,) = re.findall(r"<!-- test: conftest -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "conftest.py").write_text(settings, encoding="utf-8")
    (tmp_path / "test_settings.py").write_text(SETTINGS, encoding="utf-8")
    refused = [f"not {name}" for name, is_offered in NEEDS_NEWER_SPARK.items() if not is_offered]
    paths = f"{ROOT}:{ROOT / 'broker_daemon'}:{ROOT / 'datasource'}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, "-k", " and ".join(refused)],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths} | more,
        capture_output=True, text=True, timeout=EXAMPLES_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def at(minute: int) -> Any:
    import datetime as dt

    return dt.datetime(2026, 11, 27, 10, minute, tzinfo=dt.UTC)


def test_a_query_without_a_result_is_refused(stream: Stream, topic: Any) -> None:
    topic("clicks", "user STRING")
    run = stream.run(lambda clicks: None)
    with pytest.raises(InvalidRequestError, match=r"without start\(\)"):
        run.step()
    with pytest.raises(InvalidRequestError, match="state: no step has run"):
        run.state()
    stream.stop()
    with pytest.raises(InvalidRequestError, match="step: the run has been stopped"):
        run.step()


@pytest.mark.nightly
def test_the_state_of_a_join_has_two_sides(stream: Stream, topic: Any) -> None:
    topic("orders", "id INT, at TIMESTAMP")
    topic("payments", "paid INT, paid_at TIMESTAMP")

    def join(orders: Any, payments: Any) -> Any:
        orders, payments = orders.withWatermark("at", "1 minute"), payments.withWatermark("paid_at", "1 minute")
        return orders.join(payments, expr("id = paid AND paid_at BETWEEN at AND at + INTERVAL 5 MINUTES"), "leftOuter")

    run = stream.run(join)
    run.add("orders", [{"id": 1, "at": at(1)}, {"id": 2, "at": at(1)}]).add("payments", [{"paid": 3, "paid_at": at(1)}])
    rows = sorted(run.step().state(), key=lambda row: (row["side"], row.get("id", 0)))
    assert [(row["side"], row.get("id"), row.get("paid")) for row in rows] == [
        ("left", 1, None), ("left", 2, None), ("right", None, 3)
    ]  # fmt: skip
    assert run.advance_watermark(at(30)).state() == []
    with pytest.raises(InvalidRequestError, match=r"operator = 1: .* operators 0$"):
        run.state(1)
    stateless = stream.run(lambda orders: orders).step()
    with pytest.raises(InvalidRequestError, match="stateless"):
        stateless.state()
