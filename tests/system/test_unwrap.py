"""`sparklog unwrap`: a database's change events become rows of a keyed topic, exactly once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import pytest

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.net.registry_client import RegistryClient
from tests.support.cli import run_here
from tests.support.waiting import PATIENCE_S, until
from tests.unit.debezium.avro_records import ENVELOPE, KEY, framed
from tests.unit.debezium.avro_records import row as avro_row
from tests.unit.debezium.envelopes import PLACEHOLDER, TIME, decimal, event, field, key, unscaled

FIELDS = [field("id", "int64"), decimal("balance", 10, 2), field("day", "int32", TIME + "Date"), field("doc", "string")]
KEY_FIELDS = [{"field": "id", "type": "int64"}]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with sparklog.start_local(tmp_path_factory.mktemp("unwrap") / "data", kafka=True) as local:
        yield local


def source(broker: LocalBroker, name: str, partitions: int = 2) -> str:
    with sparklog.Admin(broker.bootstrap_servers) as admin:
        admin.create_topic(name, partitions=partitions)
    return name


def send(broker: LocalBroker, topic: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    with sparklog.Producer(broker.bootstrap_servers) as producer:
        for record_key, value in records:
            producer.send(topic, value, key=record_key)


def change(
    operation: str, number: int, cents: int = 0, doc: str = "text", fields: Any = FIELDS, **more: Any
) -> tuple[bytes, bytes]:
    row = {"id": number, "balance": unscaled(cents), "day": 20_000, "doc": doc, **more}
    before, after = (row, None) if operation == "d" else (None, row)
    return key({"id": number}, KEY_FIELDS), event(operation, before, after, fields)


def unwrap(broker: LocalBroker, *words: object) -> tuple[int, str]:
    environment = {"SPARKLOG_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    result = run_here("unwrap", *words, "--once", environment=environment)
    return result.returncode, result.stderr


def latest(broker: LocalBroker, topic: str) -> dict[int, dict[str, Any]]:
    rows = sparklog.read_table(broker.bootstrap_servers, topic, latest=True)
    return {row["id"]: row for row in rows.to_pylist()}


def count(broker: LocalBroker, topic: str) -> int:
    return sparklog.read_table(broker.bootstrap_servers, topic).num_rows


def test_events_with_a_schema_part_create_and_widen_the_topic(broker: LocalBroker) -> None:
    events = source(broker, "server.db.accounts")
    send(broker, events, (change("c", i, 100 * i) for i in range(20)))
    assert unwrap(broker, "--from", events, "--to", "accounts") == (0, "")
    with sparklog.Admin(broker.bootstrap_servers) as admin:
        target = admin.describe_topic("accounts")
    assert (target.partitions, target.key_columns) == (2, ("id",))
    assert target.setting("cleanup.policy") == "compact"
    assert latest(broker, "accounts")[7]["balance"] == Decimal("7.00")
    more = [*FIELDS, field("points", "int16")]
    send(broker, events, [change("u", 3, 5, PLACEHOLDER, more, points=9), change("d", 4), (change("d", 4)[0], None)])
    assert unwrap(broker, "--from", events, "--to", "accounts") == (0, "")
    rows = latest(broker, "accounts")
    assert sorted(rows) == [i for i in range(20) if i != 4]
    assert (rows[3]["doc"], rows[3]["balance"], rows[3]["points"]) == ("text", Decimal("0.05"), 9)
    assert count(broker, "accounts") == 22


def test_an_event_that_cannot_be_a_row_ends_the_command_at_its_offset(broker: LocalBroker) -> None:
    events = source(broker, "server.db.refused", 1)
    bad = (key({"id": 9}, KEY_FIELDS), event("u", None, {"id": 9, "doc": PLACEHOLDER}, FIELDS))
    send(broker, events, [change("c", 1), bad, change("c", 2)])
    code, text = unwrap(broker, "--from", events, "--to", "refused")
    assert code == 1
    assert "partition 0 of server.db.refused" in text
    assert "Debezium event 1: the value of column 'doc' is unavailable" in text
    assert sorted(latest(broker, "refused")) == [1]
    step = text.partition("`sparklog group")[2].partition("`")[0]
    environment = {"SPARKLOG_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    assert run_here("group", *step.split(), environment=environment).returncode == 0
    assert unwrap(broker, "--from", events, "--to", "refused") == (0, "")
    assert sorted(latest(broker, "refused")) == [1, 2]


def test_events_without_a_schema_part_need_the_columns(broker: LocalBroker) -> None:
    events = source(broker, "server.db.plain")
    record = key({"id": 1}), event("c", None, {"id": 1, "balance": "1.50", "other": "x"})
    send(broker, events, [record])
    code, text = unwrap(broker, "--from", events, "--to", "plain")
    assert code == 1
    assert "name them with --schema" in text
    columns = ("--schema", "id BIGINT, balance DECIMAL(10,2)", "--connector", "decimal.handling.mode=string")
    assert unwrap(broker, "--from", events, "--to", "plain", *columns) == (0, "")
    assert latest(broker, "plain")[1] == {"id": 1, "balance": Decimal("1.50"), "_op": "c"}
    code, text = unwrap(broker, "--from", events, "--to", "plain", "--group", "again")
    assert code == 1
    assert "no column 'other'" in text


def register(broker: LocalBroker, subject: str, schema: Any) -> int:
    path = ["subjects", subject, "versions"]
    answer = RegistryClient(broker.schema_registry_url).ask("POST", path, body={"schema": json.dumps(schema)})
    return int(answer["id"])


def test_events_in_avro_with_a_registry(broker: LocalBroker) -> None:
    events = source(broker, "server.db.avro")
    ids = {name: register(broker, f"{events}-{name}", schema) for name, schema in (("value", ENVELOPE), ("key", KEY))}

    def record(number: int, value: Any) -> tuple[bytes, bytes]:
        return framed(ids["key"], {"id": number}, KEY), framed(ids["value"], {"before": None, **value}, ENVELOPE)

    send(broker, events, [record(i, {"after": avro_row(i), "op": "c"}) for i in range(5)])
    send(broker, events, [record(3, {"after": None, "op": "d"})])
    assert "name the registry" in unwrap(broker, "--from", events, "--to", "avro")[1]
    assert unwrap(broker, "--from", events, "--to", "avro", "--registry", broker.schema_registry_url) == (0, "")
    rows = latest(broker, "avro")
    assert sorted(rows) == [0, 1, 2, 4]
    assert (rows[1]["balance"], rows[1]["odd"], rows[1]["bits"]) == (Decimal("-2.00"), "0.256", b"\x05")


def test_topics_that_do_not_fit_are_refused(broker: LocalBroker) -> None:
    with sparklog.Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("typed", schema="id BIGINT, name STRING", key_columns=["id"])
        admin.create_topic("keyless", schema="id BIGINT, _op STRING")
        admin.create_topic("keyed", schema="id BIGINT, _op STRING", key_columns=["id"])
    events = source(broker, "server.db.fit")
    assert "typed is a typed topic" in unwrap(broker, "--from", "typed", "--to", "new")[1]
    for name in ("typed", "keyless"):
        assert f"{name} cannot take changed rows" in unwrap(broker, "--from", events, "--to", name)[1]
    columns = ("--schema", "id BIGINT, name STRING")
    assert "keyed lacks the columns name" in unwrap(broker, "--from", events, "--to", "keyed", *columns)[1]


def test_workers_that_are_killed_write_each_change_once(broker: LocalBroker) -> None:
    """Two workers share the events; one after the other is killed while more events come."""
    events, rng = source(broker, "server.db.killed", 4), random.Random(5)
    words = [sys.executable, "-m", "sparklog.cli", "unwrap", "--from", events, "--to", "killed"]
    words += ["--bootstrap-servers", broker.bootstrap_servers]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, stderr=subprocess.DEVNULL)

    workers = [start(), start()]
    total = 0
    try:
        for victim in (0, 1, 0):
            written = rows_in(broker, "killed")
            send(broker, events, [change("u", rng.randrange(50), total + i, str(total + i)) for i in range(200)])
            total += 200
            until(lambda: rows_in(broker, "killed") > written, "more rows", within_s=2 * PATIENCE_S)  # noqa: B023
            workers[victim].send_signal(signal.SIGKILL)
            workers[victim].wait(PATIENCE_S)
            workers[victim] = start()
        until(lambda: rows_in(broker, "killed") >= total, "all rows", within_s=4 * PATIENCE_S)
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        codes = [worker.wait(PATIENCE_S) for worker in workers]
    assert {*codes} <= {0, -signal.SIGTERM}, "the last worker may still be starting"
    docs = sparklog.read_table(broker.bootstrap_servers, "killed").column("doc").to_pylist()
    assert sorted(map(int, docs)) == list(range(total))


def rows_in(broker: LocalBroker, topic: str) -> int:
    with sparklog.Admin(broker.bootstrap_servers) as admin:
        return count(broker, topic) if topic in admin.list_topics() else 0
