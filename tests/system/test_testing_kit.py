"""The test kit with real brokers: topics, faults by name, moved time, recorded cases, and the pytest plugin."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparklog
from sparklog.errors import InvalidRequestError, TransactionAbortedError
from sparklog.testing import KitBroker, exactly_once, record, replay
from tests.support.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SEEDS_TIMEOUT_S = 7_200
PLUGIN = ("-p", "no:sparklog", "-p", "sparklog.testing._plugin", "-p", "no:cacheprovider")


@pytest.fixture(scope="module")
def kit() -> Iterator[KitBroker]:
    with KitBroker() as broker:
        yield broker


@pytest.fixture
def broker(kit: KitBroker) -> Iterator[KitBroker]:
    yield kit
    kit.reset()


def test_topics_end_with_their_test(broker: KitBroker) -> None:
    for n in range(2):
        broker.create_topic("clicks", "user STRING, n INT", partitions=2)
        broker.produce("clicks", [{"user": "ann", "n": n}])
        assert broker.rows("clicks") == [{"user": "ann", "n": n}]
        broker.reset()
    assert broker.admin.list_topics() == []


def test_texts_are_values_of_envelope_topics(broker: KitBroker) -> None:
    broker.create_topic("raw")
    broker.produce("raw", ["a", b"b", {"key": "k", "value": "c"}])
    assert [(row["key"], row["value"]) for row in broker.rows("raw")] == [(None, b"a"), (None, b"b"), (b"k", b"c")]


def test_tables_are_rows(broker: KitBroker) -> None:
    broker.create_topic("numbers", "n INT, m MAP<STRING, INT>")
    table = pa.table({"n": [1, 2], "m": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32()))})
    expected = [{"n": 1, "m": {"a": 1}}, {"n": 2, "m": None}]
    for rows in (table, table.to_batches()[0], pd.DataFrame(expected), pl.DataFrame(expected[1:]), iter(expected)):
        broker.produce("numbers", rows)
    assert broker.rows("numbers") == [*expected, *expected, *expected, expected[1], *expected]


@for_each("fault", ["refuse", "lose_response", "disconnect", "slow"])
def test_an_idempotent_producer_survives_faults(fault: str, broker: KitBroker) -> None:
    broker.create_topic("numbers", "n INT")
    faults = broker.faults
    orders: dict[str, Any] = {
        "refuse": lambda: faults.refuse("PRODUCE", error="NOT_LEADER", times=3),
        "lose_response": lambda: faults.lose_response("PRODUCE"),
        "disconnect": lambda: faults.disconnect(after_bytes=10, api="PRODUCE"),
        "slow": lambda: faults.slow("PRODUCE", seconds=0.2, times=1),
    }
    orders[fault]()
    began_s = time.monotonic()
    broker.produce("numbers", [{"n": 1}])
    assert fault != "slow" or time.monotonic() - began_s >= 0.2
    assert broker.order("GET", "/faults") == [[]], "the fault has not struck"
    exactly_once([{"n": 1}], broker.rows("numbers"), key="n")
    broker.reset()


def test_a_producer_that_sends_again_after_a_lost_response_stores_twice(broker: KitBroker) -> None:
    broker.create_topic("numbers", "n INT")
    broker.faults.lose_response("PRODUCE")
    with sparklog.Producer(broker.bootstrap_servers, enable_idempotence=False) as producer:
        producer.send("numbers", {"n": 1}).result(30)
    with pytest.raises(AssertionError, match="more than once"):
        exactly_once([{"n": 1}], broker.rows("numbers"), key="n")


def test_half_of_a_response_is_read_again(broker: KitBroker) -> None:
    broker.create_topic("numbers", "n INT")
    broker.produce("numbers", [{"n": n} for n in range(1_000)])
    broker.faults.disconnect(after_bytes=500)
    assert len(broker.rows("numbers", local="off")) == 1_000
    assert broker.order("GET", "/faults") == [[]]


def test_a_full_disk_is_full_until_the_fault_ends(broker: KitBroker) -> None:
    broker.create_topic("numbers", "n INT")
    broker.faults.full_disk()
    with sparklog.Producer(broker.bootstrap_servers, linger_ms=0) as producer:
        future = producer.send("numbers", {"n": 1})
        with pytest.raises(TimeoutError):
            future.result(1)
        broker.faults.clear()
        future.result(30)
    assert broker.rows("numbers") == [{"n": 1}]


def test_a_lost_commit_is_committed(broker: KitBroker) -> None:
    broker.create_topic("numbers", "n INT")
    with sparklog.Producer(broker.bootstrap_servers, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("numbers", {"n": 1})
        broker.faults.lose_response("COMMIT")
        producer.commit_transaction()
    assert broker.rows("numbers") == [{"n": 1}]


def test_a_fenced_producer_cannot_commit(broker: KitBroker) -> None:
    broker.create_topic("numbers", "n INT")
    with sparklog.Producer(broker.bootstrap_servers, transactional_id="fenced") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("numbers", {"n": 1}).result(30)
        broker.faults.fence_producer("fenced")
        with pytest.raises(sparklog.SparklogError, match=r"(?i)fenced|newer"):
            producer.commit_transaction()
    assert broker.rows("numbers") == []


def test_a_sole_broker_has_no_other_leader(broker: KitBroker) -> None:
    broker.create_topic("numbers")
    with pytest.raises(InvalidRequestError, match="brokers=3"):
        broker.faults.move_leader("numbers")


def test_retention_by_moved_time(broker: KitBroker) -> None:
    broker.create_topic("old", "n INT", configs={"retention.ms": 7 * DAY_MS})
    broker.produce("old", [{"n": 1}])
    broker.advance("6 days")
    assert len(broker.rows("old")) == 1
    broker.advance("2 days")
    assert broker.rows("old") == []
    address = broker.bootstrap_servers
    broker.reset()
    assert broker.bootstrap_servers == address
    broker.create_topic("old", "n INT", configs={"retention.ms": 7 * DAY_MS})
    broker.produce("old", [{"n": 2}])
    assert broker.rows("old") == [{"n": 2}], "the broker of the next test has the machine's time"


def test_sessions_and_transactions_end_by_moved_time(broker: KitBroker) -> None:
    broker.create_topic("numbers", "n INT")
    with (
        sparklog.Consumer(broker.bootstrap_servers, group_id="g", session_timeout_ms=45_000) as consumer,
        sparklog.Producer(broker.bootstrap_servers, transactional_id="t", transaction_timeout_ms=60_000) as producer,
    ):
        consumer.subscribe(["numbers"])
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("numbers", {"n": 1}).result(30)
        member = broker.admin.describe_group("g").members[0].member_id
        broker.advance("1 minute 1 s")
        with pytest.raises(TransactionAbortedError):
            producer.commit_transaction()
        members = [one.member_id for one in broker.admin.describe_group("g").members]
        assert member not in members or consumer.assignment() == []


def test_a_broker_comes_back_with_its_data(broker: KitBroker) -> None:
    broker.create_topic("numbers", "n INT")
    broker.produce("numbers", [{"n": 1}])
    broker.advance("1 hour")
    broker.kill()
    with pytest.raises(InvalidRequestError, match=r"call broker\.start"):
        broker.advance("1 hour")
    broker.start()
    assert broker.rows("numbers") == [{"n": 1}]
    (now,) = broker.order("POST", "/clock", advance_ms=0)
    assert now["now_ms"] - time.time() * 1000 > HOUR_MS - 60_000, "a restart has turned the clock back"


def test_a_case_is_masked_and_replayed(broker: KitBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLOG_CONFIG_DIR", str(tmp_path / "config"))
    broker.create_topic("orders", "email STRING, cups INT", partitions=2, key_columns=["email"])
    people = ["ann@x", "bob@x", "ann@x"]
    for cups, email in enumerate(people):
        broker.produce("orders", [{"email": email, "cups": cups}])
    arguments = ("orders", "--last", "1h", "--mask", "email", "--out", str(tmp_path / "cases"))
    printed = command("record", *arguments, SPARKLOG_BOOTSTRAP_SERVERS=broker.bootstrap_servers)
    path = tmp_path / "cases" / "orders.parquet"
    assert printed == f"{path}: 3 records of orders\n"
    assert b"ann" not in path.read_bytes()
    before = path.read_bytes()
    assert record("orders", tmp_path / "cases", bootstrap_servers=broker.bootstrap_servers, mask=["email"]) == path
    assert path.read_bytes() == before
    assert (tmp_path / "config" / "mask.key").stat().st_mode & 0o077 == 0
    pauses: list[float] = []
    assert replay(path, broker, topic="again", speed=60, sleep=pauses.append) == "again"
    rows = sorted(broker.rows("again"), key=lambda row: row["cups"])
    assert [row["cups"] for row in rows] == [0, 1, 2]
    assert rows[0]["email"] == rows[2]["email"] != rows[1]["email"]
    times = pq.read_table(path)["_timestamp"].to_pylist()
    assert sum(pauses) == pytest.approx((times[-1] - times[0]).total_seconds() / 60)
    with pytest.raises(InvalidRequestError, match="is no case"):
        pq.write_table(pq.read_table(path).replace_schema_metadata(), tmp_path / "other.parquet")
        replay(tmp_path / "other.parquet", broker)


def command(*words: str, cwd: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sparklog.cli", "testing", *words],
        cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_broker_for_other_languages(tmp_path: Path) -> None:
    words = ["broker", "--listen", "127.0.0.1:0", "--faults-listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-m", "sparklog.cli", "testing", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().removeprefix("listening on ").strip() for _ in range(3)]
        assert re.fullmatch(r"127\.0\.0\.1:\d+", lines[0])
        assert lines[1].startswith("kafka.PLAINTEXT://127.0.0.1:")
        orders = f"http://{lines[2].removeprefix('faults://')}"
        refused = json.dumps({"fault": "refuse", "api": "PRODUCE", "error": "NOT_LEADER"}).encode()
        assert json.load(urllib.request.urlopen(f"{orders}/faults", refused, timeout=30)) == {}
        (fault,) = json.load(urllib.request.urlopen(f"{orders}/faults", timeout=30))
        assert fault["times"] == 1
        with pytest.raises(urllib.request.HTTPError, match="400"):
            urllib.request.urlopen(urllib.request.Request(f"{orders}/faults", method="PUT"), timeout=30)
        web_page = urllib.request.Request(f"{orders}/faults", headers={"Origin": "https://example.org"})
        with pytest.raises(urllib.request.HTTPError, match="403"):
            urllib.request.urlopen(web_page, timeout=30)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@for_each(
    "options, text",
    [
        (["--faults-listen", "127.0.0.1:0"], "needs --testing"),
        (["--testing", "--faults-listen", "0.0.0.0:0"], "of this"),
    ],
)
def test_production_takes_no_orders(options: list[str], text: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sparklog_broker", "--data-dir", str(tmp_path / "data"), *options],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert text in done.stderr
    assert not (tmp_path / "data").exists()


SUITE = '''
import os, subprocess, sys

import pytest
import sparklog
from sparklog.testing import seeds

def test_nothing_heavy_is_loaded_before():
    heavy = {"pyarrow", "numpy", "sparklog.client", "pyspark"} & set(sys.modules)
    assert not heavy, heavy

def test_topic(topic, produce, rows):
    produce(topic("clicks", "n INT"), [{"n": 1}])
    assert rows("clicks") == [{"n": 1}]

def test_fresh_topic(topic, rows, faults):
    topic("clicks", "n INT")
    assert rows("clicks") == []
    faults.refuse("PRODUCE", error="NOT_LEADER", times=0)  # ends with the test

def test_child_process_with_kafka(kafka_broker, topic):
    topic("clicks")
    program = """
import os
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]})
producer.produce("clicks", b"from Kafka")
assert producer.flush(30) == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert sparklog.read_table("clicks")["value"].to_pylist() == [b"from Kafka"]

def pays(n):
    """The program creates its topic, unless it exists already."""
    with sparklog.Admin() as admin:
        if "paid" not in admin.list_topics():
            admin.create_topic("paid", schema="n INT")
    with sparklog.Producer() as producer:
        producer.send("paid", {"n": n}).result(30)

def test_topic_of_a_program(broker, rows):
    pays(1)
    assert rows("paid") == [{"n": 1}]

def test_topic_of_the_program_is_new(broker, rows):
    pays(2)
    assert rows("paid") == [{"n": 2}]

@pytest.fixture(scope="session")
def shared(sparklog_broker):
    sparklog_broker.admin.create_topic("shared")
    yield "shared"

def test_topic_of_a_fixture(shared, produce):
    produce("shared", ["a"])

def test_topic_of_a_fixture_stays(shared, rows):
    assert len(rows("shared")) == 1

@pytest.fixture(scope="module")
def of_module(sparklog_broker):
    return sparklog_broker.create_topic("of_module", "n INT")

@pytest.fixture(scope="class")
def of_class(sparklog_broker):
    name = sparklog_broker.create_topic("of_class", "n INT")
    yield name
    assert sparklog_broker.rows(name) == [{"n": 1}]

class TestClass:
    def test_topics_of_wider_fixtures(self, of_module, of_class, topic, produce):
        produce(of_module, [{"n": 1}])
        produce(of_class, [{"n": 1}])
        topic("clicks")

    def test_topics_of_wider_fixtures_stay(self, of_module, of_class, rows, broker):
        assert rows(of_module) == rows(of_class) == [{"n": 1}]
        assert "clicks" not in broker.admin.list_topics()

def test_the_topic_of_a_class_ends_with_it(of_module, broker):
    assert {"of_module"} <= set(broker.admin.list_topics()) <= {"of_module", "shared"}

def test_fixtures_by_name(request):
    request.getfixturevalue("topic")("clicks")
    request.getfixturevalue("faults").refuse("PRODUCE", error="NotLeaderError", times=0)

def test_effects_of_fixtures_by_name_end(topic, broker):
    topic("clicks")
    assert broker.order("GET", "/faults") == [[]]

def test_moved_time(broker, topic):
    broker.advance("8 days")

@seeds(2)
def test_seeds(seed):
    assert seed < 1
'''


def run_pytest(directory: Path, *options: str, timeout_s: float = 280, **environment: str) -> str:
    """Return the output of pytest with the kit's plugin, in a process of its own."""
    paths = f"{ROOT}:{ROOT / 'broker_daemon'}:{ROOT / 'datasource'}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *PLUGIN, *options],
        cwd=directory, env=os.environ | {"PYTHONPATH": paths} | environment,
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_the_plugin(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    (tmp_path / "test_suite.py").write_text(SUITE, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n", encoding="utf-8")
    out = run_pytest(tmp_path, "-W", "error")
    assert "1 failed, 15 passed" in out, out
    assert "pytest 'test_suite.py::test_seeds[seed=1]'" in out, out


@pytest.fixture
def page(broker: KitBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of the page's examples without Spark, as their readers have them, with the case that one replays."""
    pytest.importorskip("confluent_kafka")
    text = (ROOT / "docs" / "testing-streaming-jobs.md").read_text(encoding="utf-8")
    monkeypatch.setenv("SPARKLOG_CONFIG_DIR", str(tmp_path / "config"))
    broker.create_topic("orders", "email STRING, name STRING, cups INT")
    broker.produce("orders", [{"email": "ann@x", "name": "Ann", "cups": 2}])
    (words,) = re.findall(r"^sparklog testing (record .*)$", text, re.MULTILINE)
    command(*words.split(), cwd=tmp_path, SPARKLOG_BOOTSTRAP_SERVERS=broker.bootstrap_servers)
    examples = re.findall(r"<!-- test: pytest -->\n```python\n(.*?)```", text, re.DOTALL)
    for number, example in enumerate(examples):
        (tmp_path / f"test_{number}.py").write_text(example, encoding="utf-8")
    return tmp_path


def test_the_page(page: Path) -> None:
    out = run_pytest(page, "-W", "error", SPARKLOG_SEEDS="2")
    assert "15 passed" in out, out


@pytest.mark.nightly
@pytest.mark.timeout(SEEDS_TIMEOUT_S)
def test_the_programs_of_the_page_pass_200_seeds(page: Path) -> None:
    """The planted errors of the page are caught by the same examples."""
    out = run_pytest(page, "-k", "every_order or each_order_is_stored or is_found", timeout_s=SEEDS_TIMEOUT_S)
    assert "603 passed" in out, out


CLUSTER = """
import pytest
from sparklog.testing import eventually, exactly_once

@pytest.mark.sparklog(brokers=3)
def test_a_moved_leader(topic, produce, rows, faults, broker):
    topic("orders", "id INT")
    leaders = [broker.admin.describe_topic("orders").partition_details[0].leader]
    produce("orders", [{"id": 1}])
    leaders.append(faults.move_leader("orders", 0))
    produce("orders", [{"id": 2}])
    broker.brokers[leaders[1] - 1].kill()
    produce("orders", [{"id": 3}])
    assert leaders[0] != leaders[1]
    eventually(lambda: len(broker.admin.describe_topic("orders").partition_details[0].isr) == 2, within="60 s")
    leaders.append(faults.move_leader("orders", 0))  # the killed broker is not in sync
    assert leaders[2] != leaders[1]
    produce("orders", [{"id": 4}])
    exactly_once([{"id": n} for n in (1, 2, 3, 4)], rows("orders"), key="id")

@pytest.mark.sparklog(brokers=3)
def test_moved_time(topic, produce, rows, broker):
    topic("orders", "id INT", configs={"retention.ms": 7 * 86_400_000})
    produce("orders", [{"id": 1}])
    broker.advance("8 days")
    assert rows("orders") == []

@pytest.mark.sparklog(brokers=3)
def test_a_new_cluster_follows(topic, rows):
    topic("orders", "id INT")
    assert rows("orders") == []
"""


@pytest.mark.nightly
def test_a_cluster(tmp_path: Path) -> None:
    pytest.importorskip("kazoo")
    (tmp_path / "test_cluster.py").write_text(CLUSTER, encoding="utf-8")
    assert "3 passed" in (out := run_pytest(tmp_path)), out
