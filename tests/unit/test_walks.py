"""The walks through the code (docs/internals/life-of-a-batch.md) name modules, functions and classes that exist. No
stretch of a walk names many."""

from __future__ import annotations

import ast
import asyncio
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pytest

import sparklog
from sparklog.client.net.addresses import Endpoint
from sparklog.gateway.gateway import Gateway
from sparklog.gateway.registry import served_apis
from sparklog.gateway.server import GatewayServer
from sparklog.security.listeners import Listener, SecurityProtocol
from tests.support.clients import fill
from tests.support.kafka_wire import KafkaWire, batch_of_values, fetched, produced
from tests.unit.client.fake_broker import FakeBroker
from tests.unit.lake.model_log import ModelLog, settings_at, sync_of
from tests.unit.walks import PAGE, ROOT, count_returns, modules_of, returns_in, rows, walks

MODULES_MAX = 10
CREATE_TOPIC_MODULES_MAX = 10
LAKE_RETURNS_MAX = 20
TABLE_RETURNS_MAX = 12
"""Also over all modules of the client and of `format/`, not only those of the page."""
FETCH_RETURNS_MAX = 48
KAFKA_PRODUCE_RETURNS_MAX = 28
KAFKA_FETCH_RETURNS_MAX = 20
THREAD_ROWS_MAX = 25


def defined(tree: ast.Module) -> set[str]:
    """Functions as they are named in the tables: `function`, `Class.method`."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, functions)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, functions)}
    return names


def test_ten_walks_of_few_modules() -> None:
    assert {heading: len(tables) for heading, tables in walks().items()} == {
        "A produced batch": 3,
        "A table from Python": 1,
        "A fetch": 3,
        "A Kafka client's produce": 2,
        "A Kafka client's fetch": 2,
        "An offset commit": 2,
        "A commit of the Spark sink": 7,
        "A replica fetch": 4,
        "Creating a topic": 5,
        "A round of the lake": 3,
    }
    for table in [table for tables in walks().values() for table in tables]:
        assert [row.number for row in table] == list(range(1, len(table) + 1))
        assert len({row.module for row in table}) == len(table) <= MODULES_MAX


def test_a_topic_passes_few_modules() -> None:
    """From the broker that the client asks to the controller's decision, and on each other stretch."""
    client, asked, controller, *stored = walks()["Creating a topic"]
    for table in (client, [*asked, *controller], *stored):
        assert len({row.module for row in table}) <= CREATE_TOPIC_MODULES_MAX


def test_the_reader_of_a_round_of_the_lake_returns_to_few_modules(tmp_path: Path) -> None:
    """The round is a real one, of a table that exists; a model stands in the place of the log."""
    log, settings = ModelLog(pa.schema([("id", pa.int64())])), settings_at(tmp_path / "table")
    log.rows[0] = [{"id": 1}]
    sync, info = sync_of(log), log.newest()
    sync.round(info, settings, lambda _: None)
    log.rows[0].append({"id": 2})
    modules = modules_of("A round of the lake")
    model = Path(ModelLog.ends.__code__.co_filename).relative_to(ROOT).as_posix()
    modules[model] = "sparklog/lake/worker/topic_reader.py"
    assert 0 < count_returns(lambda: sync.round(info, settings, lambda _: None), modules) <= LAKE_RETURNS_MAX


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A broker with the envelope topic `events` and the typed topic `typed`."""
    with closing(FakeBroker(2)) as fake:
        schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("minutes", pa.float64())])
        fake.add_topic("typed", 4, schema, key_columns=["id"], configs={"kafka.key.format": "json"})
        yield fake


TABLES: dict[str, tuple[str, Any]] = {
    "rows": ("typed", [{"id": n, "name": "a", "minutes": 0.5} for n in range(9)]),
    "columns": ("typed", {"id": [1, 2], "name": ["a", None]}),
    "frame": ("typed", pd.DataFrame({"id": [1, 2], "name": ["a", None]})),
    "table": ("typed", pa.table({"id": [1, 2], "minutes": [1, 2]})),
    "values": ("events", {"value": [b"a"] * 9}),
    "keys": ("events", {"value": [b"a"] * 9, "key": [b"k"] * 9}),
}


@pytest.mark.parametrize("form", TABLES)
def test_the_reader_of_send_batch_returns_to_few_modules(broker: FakeBroker, form: str) -> None:
    """The calls on the application's thread, from `send_batch` to the queue."""
    topic, data = TABLES[form]
    code = [path for folder in ("client", "format") for path in (ROOT / "sparklog" / folder).rglob("*.py")]
    every = {path.relative_to(ROOT).as_posix(): str(path) for path in code}
    del every["sparklog/client/net/arguments.py"]  # a decorator
    for modules in (modules_of("A table from Python"), every):
        with sparklog.Producer(broker.address) as producer:
            producer.send_batch(topic, data).result(60)

            def send(producer: sparklog.Producer = producer) -> None:
                producer.send_batch(topic, data)

            assert 0 < count_returns(send, modules) <= TABLE_RETURNS_MAX


def test_the_reader_of_poll_returns_to_few_modules(broker: FakeBroker) -> None:
    """The calls on the application's thread, which receives a small answer itself."""
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "local_read": "off"}
    with sparklog.Consumer(broker.address, **settings) as consumer:
        consumer.assign([sparklog.TopicPartition("events", 0)])
        fill(broker, 1)
        while not consumer.poll(1_000):
            pass
        with returns_in(modules_of("A fetch")) as returns:
            fill(broker, 1)
            while not consumer.poll(1_000):
                pass
    assert 0 < returns.count <= FETCH_RETURNS_MAX


def gateway_returns(broker: FakeBroker, heading: str, ask: Callable[[KafkaWire], object]) -> int:
    """Return the number of returns on the event loop of a gateway that answers a request a second time."""

    async def serve() -> int:
        gateway = Gateway([Endpoint("127.0.0.1", broker.port)])
        with socket.create_server(("127.0.0.1", 0)) as sock:
            server = GatewayServer(
                gateway, served_apis(), [(Listener("L", "127.0.0.1", 0, SecurityProtocol.PLAINTEXT), sock)]
            )
            await gateway.start()
            server.start()
            try:
                wire = await asyncio.to_thread(KafkaWire, server.addresses[0])
                with closing(wire):
                    await asyncio.to_thread(ask, wire)
                    with returns_in(modules_of(heading)) as returns:
                        await asyncio.to_thread(ask, wire)
                return returns.count
            finally:
                await server.stop()
                gateway.close()

    return asyncio.run(asyncio.wait_for(serve(), 60))


@pytest.mark.parametrize("topic", ["events", "typed"])
def test_the_reader_of_a_kafka_clients_requests_returns_to_few_modules(broker: FakeBroker, topic: str) -> None:
    values = [b'{"id":1,"name":"a"}'] * 20
    batch = batch_of_values(values, [b'{"id":1}'] * len(values))

    def produce(wire: KafkaWire) -> None:
        assert produced(wire, topic, batch)["error_code"] == 0

    def fetch(wire: KafkaWire) -> None:
        assert fetched(wire, topic)["records"]

    count = gateway_returns(broker, "A Kafka client's produce", produce)
    assert 0 < count <= KAFKA_PRODUCE_RETURNS_MAX
    count = gateway_returns(broker, "A Kafka client's fetch", fetch)
    assert 0 < count <= KAFKA_FETCH_RETURNS_MAX


@pytest.mark.parametrize(("module", "function"), sorted({row[1:] for row in rows()}))
def test_names_of_a_walk_exist(module: str, function: str) -> None:
    assert function in defined(ast.parse((ROOT / module).read_text(encoding="utf-8")))


def test_no_row_is_overlooked() -> None:
    found = [line for line in PAGE.splitlines() if re.match(r"\| \d", line)]
    assert len(found) == len(rows())


def test_objects_in_the_table_of_threads_exist() -> None:
    section = PAGE.partition("## Objects and their threads")[2]
    found = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert 0 < len(found) <= THREAD_ROWS_MAX
    named = {name for line in found for name in re.findall(r"`([A-Z]\w+)(?:\.\w+)?`", line)}
    code = [path for folder in ("sparklog", "broker_daemon", "datasource") for path in (ROOT / folder).rglob("*.py")]
    classes = {name for path in code for name in re.findall(r"(?m)^class (\w+)", path.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert not named - classes
