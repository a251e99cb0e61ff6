"""Tables of Spark's catalog and views in SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sparklog
from tests.spark.frames import values
from tests.support.cases import in_gate


@pytest.fixture
def table(spark: Any, topic_name: Callable[[str], str]) -> Iterator[str]:
    """A name in the catalog."""
    name = topic_name("table").replace("-", "_")
    yield name
    spark.sql(f"drop table if exists {name}")


@pytest.fixture
def create(spark: Any, table: str, broker: sparklog.LocalBroker) -> Callable[..., str]:
    """Makes a table with the options and returns its name."""

    def make(**options: str) -> str:
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers} | options
        listed = ", ".join(f"'{k}' '{v}'" for k, v in given.items())
        spark.sql(f"create table {table} using sparklog options ({listed})")
        return table

    return make


def test_a_table_reads_and_takes_rows(spark: Any, create: Any, topic: Any, send: Any) -> None:
    name = topic()
    send(name, "a")
    table = create(subscribe=name, startingOffsets="earliest")
    assert values(spark.sql(f"select * from {table}")) == ["a"]
    spark.sql(f"insert into {table} (value) select cast('b' as binary)")
    spark.sql(f"execute immediate \"insert into {table} (value) values (cast('c' as binary))\"")
    spark.sql(f"begin insert into {table} (value) values (cast('d' as binary)); end")
    assert values(spark.table(table)) == ["a", "b", "c", "d"]
    assert values(spark.read.option("startingOffsets", f'{{"{name}": {{"0": 4}}}}').table(table)) == ["d"]
    assert values(spark.sql(f"select * from {table} with ('endingOffsets' = '{{\"{name}\": {{\"0\": 1}}}}')")) == ["a"]


def test_a_table_in_a_stream(spark: Any, create: Any, topic: Any, send: Any, collected: Any, tmp_path: Path) -> None:
    name = topic()
    send(name, "a", "b")
    table = create(subscribe=name, startingOffsets="earliest")
    assert collected().run(spark.readStream.table(table), tmp_path).values() == ["a", "b"]


def test_a_typed_topic_as_a_table(spark: Any, admin: sparklog.Admin, topic_name: Any, create: Any, reads: Any) -> None:
    name = topic_name("typed")
    admin.create_topic(name, schema={"id": "int64", "text": "string"})
    table = create(topic=name)
    spark.sql(f"insert into {table} values (1, 'x'), (2, 'y')")
    assert [tuple(r) for r in spark.sql(f"select * from {table} order by id").collect()] == [(1, "x"), (2, "y")]
    assert spark.catalog.tableExists(table)
    same = spark.table(table).selectExpr("id + 2 as id", "text")
    with pytest.raises(Exception, match=r"Spark has given no options.*INSERT INTO t WITH"):
        same.write.insertInto(table)
    assert spark.table(table).count() == 2


def test_catalog_create_table(spark: Any, table: str, topic: Any, send: Any, broker: sparklog.LocalBroker) -> None:
    name = topic()
    send(name, "a")
    options = {"sparklog.bootstrap.servers": broker.bootstrap_servers, "subscribe": name}
    assert values(spark.catalog.createTable(table, source="sparklog", **options)) == ["a"]


def test_a_frame_read_from_a_table_is_written_where_its_options_say(
    spark: Any, create: Any, topic: Any, send: Any, reads: Any, broker: sparklog.LocalBroker
) -> None:
    name, other = topic(), topic()
    send(name, "a")
    frame = spark.table(create(subscribe=name))
    options = {"sparklog.bootstrap.servers": broker.bootstrap_servers, "topic": other}
    frame.write.format("sparklog").options(**options).mode("append").save()
    assert values(reads.batch(other)) == ["a"]
    assert values(reads.batch(name)) == ["a"]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("create table T using sparklog", "the table names no topic: CREATE TABLE t USING sparklog OPTIONS"),
        ("create table T using sparklog options (subscribe 'never-made', 'kafka.bootstrap.servers' 'B')", "no topic"),
        ("create table T using sparklog options (subscribe 'N', 'kafka.acsk' '1')", "did you mean 'kafka.acks'"),
        ("create table T using sparklog options (topic 'N') as select 'a' as value", "Spark has given no options"),
    ],
)
def test_a_table_that_cannot_be(
    spark: Any, table: str, topic: Any, broker: sparklog.LocalBroker, statement: str, message: str
) -> None:
    with pytest.raises(Exception, match=message):
        spark.sql(
            statement.replace("T ", f"{table} ")
            .replace("B'", f"{broker.bootstrap_servers}'")
            .replace("N'", f"{topic()}'")
        )
    assert not spark.catalog.tableExists(table)


def test_a_table_with_columns_has_no_options(
    spark: Any, table: str, topic: Any, send: Any, broker: sparklog.LocalBroker
) -> None:
    name = topic()
    send(name, "a")
    spark.sql(f"create table {table} (value binary) using sparklog options (subscribe '{name}')")
    for action in (lambda: spark.table(table).collect(), lambda: spark.sql(f"insert into {table} values (x'61')")):
        with pytest.raises(Exception, match=r"Spark has given no options.*SELECT … FROM t WITH"):
            action()
    servers = f"'sparklog.bootstrap.servers' = '{broker.bootstrap_servers}'"
    assert values(spark.sql(f"select * from {table} with ({servers}, 'subscribe' = '{name}')")) == ["a"]
    spark.sql(f"insert into {table} with ({servers}, 'topic' = '{name}') values (cast('b' as binary))")
    assert values(spark.sql(f"select * from {table} with ({servers}, 'subscribe' = '{name}')")) == ["a", "b"]


@pytest.mark.parametrize("guarantee", in_gate(["exactly-once", "at-least-once"], "exactly-once"))
def test_a_write_that_would_create_a_table_is_refused_and_writes_no_row(
    spark: Any, table: str, topic: Any, reads: Any, broker: sparklog.LocalBroker, guarantee: str
) -> None:
    name = topic()
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    options = {
        "sparklog.bootstrap.servers": broker.bootstrap_servers, "topic": name, "delivery.guarantee": guarantee
    }  # fmt: skip
    for write in (
        lambda: frame.write.format("sparklog").options(**options).saveAsTable(table),
        lambda: frame.writeTo(table).using("sparklog").options(**options).create(),
    ):
        with pytest.raises(Exception, match=r"nothing is written: saveAsTable"):
            write()
        assert not spark.catalog.tableExists(table)
    assert reads.batch(name, **{"isolation.level": "read_uncommitted"}).count() == 0


def test_a_temporary_view(spark: Any, table: str, topic: Any, send: Any, broker: sparklog.LocalBroker) -> None:
    name = topic()
    send(name, "a")
    spark.sql(
        f"create temporary view {table}_view using sparklog options "
        f"(kafka.bootstrap.servers '{broker.bootstrap_servers}', 'subscribe' '{name}', sparklog.check.crcs 'true')"
    )
    assert values(spark.table(f"{table}_view")) == ["a"]
