"""Tiering with a real broker: records that are only in the store are read as before, killed uploads leave nothing, S3's
protocol."""

from __future__ import annotations

import http.client
import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec.config
import pyarrow as pa
import pytest

import sparklog
from sparklog import TopicPartition
from sparklog.client.reading import remote_reader
from sparklog.errors import InvalidConfigError, RemoteStorageError
from sparklog.log.tiering.journal import JOURNAL_FILE, decode_journal
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.protocol.messages import FetchResult
from tests.support.cli import run_here
from tests.support.raw_client import envelope_batch
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess, create_topic, fetch, produce

TIERED = {
    "segment.bytes": 4096,
    "retention.ms": -1,
    "remote.storage.enable": True,
    "local.retention.bytes": 0,
    "file.delete.delay.ms": 0,
}
QUICK = {
    "remote.log.manager.task.interval.ms": 20,
    "log.flush.interval.ms": 100,
    "log.retention.check.interval.ms": 20,
}
BUCKET = "tier"


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def s3_settings(endpoint: str) -> dict[str, Any]:
    options = {
        "key": "test",
        "secret": "test-secret",
        "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"},
    }
    return {"remote.log.storage.url": f"s3://{BUCKET}/a/prefix", "remote.log.storage.options": json.dumps(options)}


def make_bucket(endpoint: str) -> None:
    host, _, port = endpoint.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port))
    connection.request("PUT", f"/{BUCKET}")
    assert connection.getresponse().status == 200
    connection.close()


def local_files(local: sparklog.LocalBroker, topic: str) -> list[Path]:
    return sorted((local.data_dir / f"{topic}-0").glob("*.arrow"))


def send(local: sparklog.LocalBroker, topic: str, start: int, end: int) -> None:
    with sparklog.Producer(local.bootstrap_servers, linger_ms=0) as producer:
        for i in range(start, end):
            producer.send(topic, key=b"%d" % i, value=b"%d" % i * 100, partition=0).result(30)


def consumed(local: sparklog.LocalBroker, topic: str, count: int) -> list[tuple[int, bytes | None]]:
    """Return the records of a consumer that starts at the beginning."""
    with sparklog.Consumer(local.bootstrap_servers) as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek_to_beginning()
        found: list[tuple[int, bytes | None]] = []
        until(
            lambda: found.extend((r.offset, r.key) for r in consumer.poll(timeout_ms=200)) or len(found) >= count, "all"
        )
        return found


def wanted(count: int) -> list[tuple[int, bytes]]:
    return [(i, b"%d" % i) for i in range(count)]


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_a_topic_that_lives_in_the_store(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "s3":
        endpoint = request.getfixturevalue("s3_endpoint")
        make_bucket(endpoint)
        store = s3_settings(endpoint)
    else:
        store = {"remote.log.storage.url": (tmp_path / "tier").as_uri()}
    tp = TopicPartition("events", 0)
    with (
        sparklog.start_local(tmp_path / "data", settings=QUICK | store) as local,
        sparklog.Admin(local.bootstrap_servers) as admin,
    ):
        admin.create_topic("events", partitions=1, configs=TIERED)
        send(local, "events", 0, 40)
        until(lambda: len(local_files(local, "events")) == 1, "local files are gone")
        state = admin.describe_topic("events").partition_details[0]
        assert state.log_start_offset == 0 < state.local_log_start_offset
        assert 0 < state.remote_size_bytes < state.size_bytes
        found = (
            admin.list_offsets({tp: "earliest_local"})[tp].offset,
            admin.list_offsets({tp: "latest_tiered"})[tp].offset,
        )
        assert found == (state.local_log_start_offset, state.local_log_start_offset - 1)
        assert admin.list_offsets({tp: "earliest"})[tp].offset == 0
        table = sparklog.read_table(local.bootstrap_servers, "events", include_metadata=True)
        assert list(zip(table["_offset"].to_pylist(), table["key"].to_pylist(), strict=True)) == wanted(40)
        assert consumed(local, "events", 40) == wanted(40)
        middle = (
            table["_timestamp"][20].as_py() if "_timestamp" in table.column_names else table["timestamp"][20].as_py()
        )
        at = admin.list_offsets({tp: int(middle.timestamp() * 1000)})[tp].offset
        assert 0 <= at <= 20
        assert admin.delete_records({tp: 10}) == {tp: 10}
        send(local, "events", 40, 60)
        assert consumed(local, "events", 50) == wanted(60)[10:]
        journal = local.data_dir / "events-0" / JOURNAL_FILE
        until(lambda: min(s.next_offset for s in decode_journal(journal.read_bytes())[0].finished) > 10, "deleted")
        admin.delete_topic("events")
        until(lambda: not list(local.data_dir.glob("events-0*")), "the topic's objects and files are gone")
        if kind == "file":
            assert not list((tmp_path / "tier").rglob("*.arrow"))


def typed(local: sparklog.LocalBroker, admin: sparklog.Admin) -> pa.Table:
    """A topic of large batches that is in the store but for the active segment; its rows."""
    schema = pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("blob", pa.binary()), ("at", pa.timestamp("us", "UTC"))]
    )
    admin.create_topic(
        "typed", partitions=1, schema=schema, timestamp_column="at", configs=TIERED | {"segment.bytes": 3 << 20}
    )
    n, parts = 2_000, []
    with sparklog.Producer(local.bootstrap_servers, compression="none") as producer:
        for start in range(0, 5 * n, n):
            ids = list(range(start, start + n))
            data = [
                ids,
                [f"n{i}" for i in ids],
                [b"%d" % i * 100 for i in ids],
                [1_700_000_000_000_000 + i * 1000 for i in ids],
            ]
            parts.append(pa.table([pa.array(c, f.type) for c, f in zip(data, schema, strict=True)], schema=schema))
            producer.send_batch("typed", parts[-1], partition=0).result(30)
    until(lambda: len(local_files(local, "typed")) == 1, "tiered")
    return pa.concat_tables(parts)


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_columns_are_read_from_the_store_without_the_broker(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "s3":
        endpoint = request.getfixturevalue("s3_endpoint")
        make_bucket(endpoint)
        store = s3_settings(endpoint)
        monkeypatch.setitem(fsspec.config.conf, "s3", json.loads(str(store["remote.log.storage.options"])))
    else:
        store = {"remote.log.storage.url": (tmp_path / "tier").as_uri()}
    with (
        sparklog.start_local(tmp_path / "data", settings=QUICK | store) as local,
        sparklog.Admin(local.bootstrap_servers) as admin,
    ):
        rows = typed(local, admin)
        servers = local.bootstrap_servers
        found = sparklog.read_table(servers, "typed", columns=["name", "id"])
        assert found.equals(rows.select(["name", "id"]))
        whole = sparklog.read_table(servers, "typed", include_metadata=True)
        assert whole.select(rows.column_names).equals(rows)
        assert whole["_offset"].to_pylist() == list(range(rows.num_rows))
        some = sparklog.read_table(servers, "typed", columns=["id"], start=1_500, end=4_321)
        assert some["id"].to_pylist() == list(range(1_500, 4_321))
        assert not list((local.data_dir / "remote-log-cache").glob("*")), "the broker has fetched nothing"
        monkeypatch.setattr(remote_reader, "_store", _no_store)
        assert sparklog.read_table(servers, "typed", columns=["id"]).equals(rows.select(["id"]))
        assert list((local.data_dir / "remote-log-cache").glob("*")), "the broker has fetched them"


def _no_store(url: str, process_id: int) -> ObjectStore:
    raise RemoteStorageError("no way to the store from here")


def test_settings_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    settings = QUICK | {"remote.log.storage.url": (tmp_path / "tier").as_uri()}
    with (
        sparklog.start_local(tmp_path / "data", settings=settings) as local,
        sparklog.Admin(local.bootstrap_servers) as admin,
    ):
        with pytest.raises(InvalidConfigError, match="exclude each other"):
            admin.create_topic("t", configs={"remote.storage.enable": True, "cleanup.policy": "compact"})
        with pytest.raises(InvalidConfigError, match=r"more than retention\.ms"):
            admin.create_topic("t", configs={"local.retention.ms": 2_000, "retention.ms": 1_000})
        admin.create_topic("t", partitions=1, configs=TIERED)
        with pytest.raises(InvalidConfigError, match="exclude each other"):
            admin.alter_topic("t", {"cleanup.policy": "compact"})
        send(local, "t", 0, 20)
        until(lambda: len(local_files(local, "t")) == 1, "tiered")
        with pytest.raises(InvalidConfigError, match="object store"):
            admin.alter_topic("t", {"cleanup.policy": "compact", "remote.storage.enable": False})


def test_a_broker_without_a_store_refuses_to_tier(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path / "data") as local, sparklog.Admin(local.bootstrap_servers) as admin:
        with pytest.raises(InvalidConfigError, match=r"remote\.log\.storage\.url"):
            admin.create_topic("t", configs={"remote.storage.enable": True})
        admin.create_topic("t")
        with pytest.raises(InvalidConfigError, match=r"remote\.log\.storage\.url"):
            admin.alter_topic("t", {"remote.storage.enable": True})


@pytest.mark.parametrize(
    ("url", "says"), [("nosuch://x", "nosuch"), ("/just/a/path", "URL with its protocol"), ("memory://x", "")]
)
def test_a_wrong_url_is_reported_at_the_start(url: str, says: str, tmp_path: Path) -> None:
    text = f'"remote.log.storage.url" = "{url}"\n'
    broker = BrokerProcess(tmp_path / "data", settings=text, work_dir=tmp_path)
    if not says:
        assert broker.stop() == 0
        return
    assert broker.wait() != 0
    assert says in broker.stderr
    assert "Traceback" not in broker.stderr


@pytest.mark.crash
def test_a_broker_killed_while_it_uploads_has_everything_once(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    text = "".join(
        f"{key} = {value}\n" if isinstance(value, int) else f'{key} = "{value}"\n'
        for key, value in (QUICK | {"remote.log.storage.url": tier.as_uri()}).items()
    )
    batch = envelope_batch(10, 100)
    count = 120
    broker = BrokerProcess(tmp_path / "data", settings=text, work_dir=tmp_path)
    try:
        with broker.connect() as client:
            create_topic(client, "t", configs=TIERED)
            for _ in range(count):
                assert produce(client, [("t", 0, batch)])[0].error_code == 0
        until(lambda: len(list(tier.glob("*/0/*"))) >= 3, "uploads have begun")
        for kills in (8, 16):
            assert broker.stop(signal.SIGKILL) == -signal.SIGKILL
            broker = BrokerProcess(tmp_path / "data", settings=text, work_dir=tmp_path)
            until(lambda n=kills: len(list(tier.glob("*/0/*/manifest.json"))) >= n, "it goes on")  # type: ignore[misc]
        directory = tmp_path / "data" / "t-0"
        until(lambda: len(list(directory.glob("*.arrow"))) == 1, "all is copied")
        with broker.connect() as client:
            offset, data = 0, b""
            while offset < count * 10:
                result, part = fetch(client, "t", offset, wait_ms=100)
                assert isinstance(result, FetchResult) and not result.error_code, result.message
                data += part
                offset = _next_offset(part, offset)
        assert offset == count * 10
        assert len(data) == count * len(batch)
        state, _ = decode_journal((directory / JOURNAL_FILE).read_bytes())
        assert not state.orphans
        assert state.finished[0].base_offset == 0
        known = {tier / s.prefix for s in state.finished}
        assert set(tier.glob("*/0/*")) == known, "no orphan is left"
        for before, after in zip(state.finished, state.finished[1:], strict=False):
            assert before.next_offset == after.base_offset
    finally:
        broker.stop()


def _next_offset(data: bytes, offset: int) -> int:
    from sparklog.format.batch import iterate_batches

    for _, header in iterate_batches(data):
        assert header.base_offset == offset, "every batch once and in order"
        offset = header.next_offset
    return offset


def tool(*arguments: object) -> str:
    """What `sparklog` prints."""
    done = run_here(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_command_line_shows_both_parts(tmp_path: Path) -> None:
    settings = QUICK | {"remote.log.storage.url": (tmp_path / uuid.uuid4().hex).as_uri()}
    with (
        sparklog.start_local(tmp_path / "data", settings=settings) as local,
        sparklog.Admin(local.bootstrap_servers) as admin,
    ):
        admin.create_topic("t", partitions=1, configs=TIERED)
        send(local, "t", 0, 20)
        until(lambda: len(local_files(local, "t")) == 1, "tiered")
        shown = tool("topic", "describe", "t", "--bootstrap-servers", local.bootstrap_servers)
        assert "local start" in shown and "in the tier" in shown
        shown = tool("log", "verify", local.data_dir, "--notes")
        assert "are in the object store" in shown and "leftover" not in shown
