"""Wrong arguments of public calls: an error of sparklog, or a TypeError or ValueError that names the argument."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import DecimalType, IntegerType, StringType, StructField, StructType

import sparklog
from sparklog import Admin, Consumer, OffsetAndMetadata, Producer, TopicPartition
from sparklog.client.local import LocalBroker
from sparklog.client.net.arguments import behind_servers, partitions, servers_may_follow, takes, text, wait, whole
from sparklog.errors import InvalidConfigError, InvalidRequestError, SparklogError, UnknownTopicOrPartitionError
from sparklog.security.quotas import Entity

HUGE = 2**70
TP = TopicPartition("t", 0)
WRONG: list[Any] = [
    None, 5, -1, HUGE, 1.5, float("nan"), True, "", "a\0b", "x" * 5_000, "\ud800", b"bytes", object(), [], {}, [None],
    [5], ["", 1], {None: None}, {"a": 1}, ("t",), ("t", "x"), ("t", -1), ("t", HUGE), ("t", None), TP, [TP],
    [("t", HUGE)], [[TP]], {TP: None}, {TP: HUGE}, {TP: object()}, {TP: []}, {TP: ["x"]}, {"\ud800": 1}, {5: 5},
    {TP: OffsetAndMetadata(1, None)}, {TP: OffsetAndMetadata(1, "x" * 5_000)}, {TP: OffsetAndMetadata(1, b"x")},  # type: ignore[arg-type]
    np.array([1, 2]), {TP: OffsetAndMetadata(1, "", HUGE)}, {TP: OffsetAndMetadata(None)}, {TP: OffsetAndMetadata(1, "\ud800")},  # type: ignore[arg-type]
]  # fmt: skip
RIGHT: dict[str, Any] = {
    "topic": "t", "name": "t", "names": ["t"], "partitions": [TP], "tp": TP, "partition": TP, "offset": 0,
    "offsets": {TP: 0}, "before_offsets": {TP: 0}, "reassignments": {}, "broker_id": 9, "configs": {}, "total": 2,
    "group_id": "g", "group": "g", "transactional_id": "x", "producer_id": 1, "password": "a password", "acls": [],
    "filters": (), "entity": Entity("alice"), "changes": {}, "data": {"value": [b"x"]}, "query": "SELECT 1",
    "bootstrap_servers": None, "timestamps": {TP: 0}, "location": "nowhere://lake",
    "source": "kafka://127.0.0.1:1", "topics": "t",
}  # fmt: skip
MEANINGS = {
    "data": "send_batch takes|data for topic",
    "headers": "headers? must|header's value",
    "isolation_level": "isolation level",
}
"""Text of an error in place of the argument's name."""
UNTRIED = {"close", "flush", "transaction", "participation", "wakeup", "poll", "poll_batches"}
"""They take times alone (see below), or are context managers."""


@pytest.fixture
def servers(broker: LocalBroker) -> str:
    with Admin(broker.bootstrap_servers) as admin:
        if "t" not in admin.list_topics():
            admin.create_topic("t", 1)
    return broker.bootstrap_servers


def failure(call: Callable[[], Any]) -> BaseException | None:
    """The error that `call` raises; the outcome of a future counts."""
    try:
        outcome = call()
        if hasattr(outcome, "result"):
            outcome.result(60)
    except Exception as e:  # noqa: BLE001 - judged by the test
        return e
    return None


def check(label: str, argument: str, call: Callable[[], Any]) -> None:
    error = failure(call)
    if error is None or isinstance(error, SparklogError):
        return
    assert isinstance(error, TypeError | ValueError), f"{label}: {error!r}"
    named = MEANINGS.get(argument, re.escape(argument))
    assert re.search(named, str(error)), f"{label}: {error!r} does not name {argument}"


def wrong_calls(function: Callable[..., Any], call: Callable[..., Any]) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """For each argument of `function` calls where it alone is wrong."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    for p in parameters:
        needed = [q for q in parameters if q is not p and q.default is q.empty]
        named = {q.name: RIGHT[q.name] for q in needed if q.kind not in (q.VAR_POSITIONAL, q.VAR_KEYWORD)}
        for wrong in WRONG if p.kind is not p.VAR_KEYWORD else []:
            label = f"{function.__qualname__}({p.name}={wrong!r:.60})"
            if p.kind is p.VAR_POSITIONAL:
                yield label, p.name, partial(call, wrong, **named)
            else:
                yield label, p.name, partial(call, **named | {p.name: wrong})


def methods(cls: type) -> list[str]:
    return [n for n, v in vars(cls).items() if not n.startswith("_") and callable(v) and n not in UNTRIED]


def test_every_wrong_argument_of_a_client_is_named(servers: str) -> None:
    short: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", "default_api_timeout_ms": 2_000}
    with (
        Producer(servers, max_block_ms=2_000) as producer,
        Admin(servers, request_timeout_ms=2_000) as admin,
        Consumer(servers, **short) as consumer,
    ):
        clients: tuple[Any, ...] = (producer, admin, consumer)
        for client in clients:
            for name in methods(type(client)):
                for label, argument, call in wrong_calls(getattr(type(client), name), getattr(client, name)):
                    if client is consumer:
                        consumer.unsubscribe()
                        consumer.assign(TP)
                    check(label, argument, call)


def test_every_wrong_argument_of_a_function_or_constructor_is_named(servers: str) -> None:
    def made(cls: Any) -> Callable[..., None]:
        def make(**named: Any) -> None:
            with cls(**named):
                pass

        return make

    for cls in (Producer, Consumer, Admin, sparklog.SqlSession):
        for label, argument, call in wrong_calls(cls.__init__, made(cls)):
            check(label, argument, call)
    for function in (sparklog.read_table, sparklog.sql):
        for label, argument, call in wrong_calls(
            function, lambda function=function, **named: function(**named | {"bootstrap_servers": servers})
        ):
            if argument != "bootstrap_servers":  # tried with the constructors
                check(label, argument, call)


def test_wrong_times_of_polls_are_named(servers: str) -> None:
    with Consumer(servers) as consumer:
        consumer.assign(TP)
        polls: tuple[Any, ...] = (consumer.poll, consumer.poll_batches)
        for call in polls:
            for wrong in (None, "1", b"", [], {}, True, float("nan"), object()):
                with pytest.raises(InvalidRequestError, match="timeout_ms = "):
                    call(timeout_ms=wrong)
            assert call(timeout_ms=-1) == [], "at the end, with no offsets of a group"
        for wrong in (0, -1, 1.5, "1", HUGE, True):
            with pytest.raises(InvalidRequestError, match="max_records = "):
                consumer.poll(0, wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="timeout_s = "):
            consumer.close("soon")  # type: ignore[arg-type]
        with Producer(servers) as producer, pytest.raises(InvalidRequestError, match="timeout_s = '5': a number"):
            producer.flush("5")  # type: ignore[arg-type]
        for refused in (lambda: consumer.commit_async({TP: 1}, 5), lambda: consumer.subscribe("t", on_assign=5)):  # type: ignore[arg-type]
            with pytest.raises(InvalidRequestError, match="a function is needed"):
                refused()
    assert wait("timeout_ms", HUGE) == 2**31 - 1


def test_a_partition_alone_or_in_a_list_is_the_same(servers: str) -> None:
    with Consumer(servers, group_id="g", auto_offset_reset="earliest") as consumer, Admin(servers) as admin:
        lists: tuple[Any, ...] = (TP, ("t", 0), [TP], (TP,), {TP}, iter([TP]))
        for given in lists:
            consumer.assign(given)
            assert consumer.assignment() == [TP]
        for given in lists[:3]:
            consumer.pause(given)
            assert consumer.paused() == [TP]
            consumer.resume(given)
            assert consumer.paused() == []
            consumer.seek_to_end(given)
            consumer.seek_to_beginning(given)
            assert consumer.position(TP) == 0
            assert consumer.committed(given).keys() == admin.list_offsets(given).keys() == {TP}
        consumer.commit({TP: OffsetAndMetadata(0, None)})  # type: ignore[arg-type]
        assert consumer.committed(TP)[TP] == OffsetAndMetadata(0)
        consumer.assign([])
        consumer.unsubscribe()
        consumer.subscribe("t")
        consumer.unsubscribe()


def test_whole_numbers_of_other_libraries_are_numbers(servers: str, topic_name: Callable[[], str]) -> None:
    number: Any = np.int64
    five: Any = pd.Series([5])[0]
    tp = TopicPartition(name := topic_name(), number(1))
    settings: dict[str, Any] = {"group_id": name, "max_poll_records": number(3), "auto_offset_reset": "earliest"}
    admin: Any
    producer: Any
    consumer: Any
    with Admin(servers) as admin, Producer(servers) as producer, Consumer(servers, **settings) as consumer:
        admin.create_topic(name, number(2))
        sent = [producer.send(name, b"x", partition=np.int8(1), timestamp_ms=number(i)) for i in range(8)]
        producer.send_batch(name, {"value": [b"y"]}, partition=pa.scalar(1)).result()
        assert [type(future.result().partition) for future in sent] == [int] * 8
        consumer.assign([tp, (name, np.uint16(0))])
        assert {type(p.partition) for p in consumer.assignment()} == {int}
        consumer.seek(tp, five)
        assert [r.offset for r in consumer.poll(number(30_000), number(2))] == [5, 6]
        consumer.commit({tp: five})
        assert consumer.committed(tp)[tp] == OffsetAndMetadata(5)
        epoch = 1_000  # a new topic's epochs begin after those of deleted topics
        consumer.commit({tp: OffsetAndMetadata(number(6), "", number(epoch))})
        assert consumer.committed(tp)[tp] == OffsetAndMetadata(6, "", epoch)
        admin.alter_group_offsets(name, {tp: number(7)})
        assert admin.list_offsets({tp: number(3)})[tp] == (3, 3)
        for start, rows in ((five, 4), ({number(1): pa.scalar(7)}, 2), (-number(1), 1)):
            assert sparklog.read_table(servers, name, start=start, limit=number(9)).num_rows == rows
        assert admin.delete_records({tp: five}) == {tp: 5}
        assert admin.add_partitions(name, number(3)).partitions == 3
        for wrong in (np.bool_(True), np.float64(1), np.array([1]), pd.NA, pa.scalar(1.0)):
            with pytest.raises(InvalidRequestError):
                consumer.seek(tp, wrong)


def test_offsets_of_a_consumer_by_name_and_time(servers: str, topic_name: Callable[[], str]) -> None:
    """The three calls of kafka-python; the end is the isolation's."""
    tp, other = TopicPartition(name := topic_name(), 0), TopicPartition(name, 1)
    with (
        Admin(servers) as admin,
        Producer(servers, transactional_id=name) as producer,
        Consumer(servers) as consumer,
        Consumer(servers, isolation_level="read_committed") as committed,
    ):
        admin.create_topic(name, 2)
        producer.init_transactions()
        with producer.transaction():
            for i in range(5):
                producer.send(name, b"x", partition=0, timestamp_ms=1_000 * i)
        producer.begin_transaction()
        producer.send(name, b"open", partition=0, timestamp_ms=9_000).result()
        admin.delete_records({tp: 2})
        assert consumer.beginning_offsets([tp, other]) == {tp: 2, other: 0}
        assert consumer.end_offsets([tp, other]) == {tp: 7, other: 0}
        assert committed.end_offsets(tp) == {tp: 6}
        assert consumer.offsets_for_times({tp: 3_500, other: 0}) == {tp: (4, 4_000), other: None}
        assert consumer.offsets_for_times({tp: 9_000})[tp] == (6, 9_000)
        assert committed.offsets_for_times({tp: 9_000}) == {tp: None}
        assert consumer.assignment() == []
        producer.abort_transaction()
        with pytest.raises(UnknownTopicOrPartitionError, match="no partition 5"):
            consumer.end_offsets(TopicPartition(name, 5))


def test_servers_that_can_be_none_are_refused_before_they_are_looked_up() -> None:
    clients: tuple[Any, ...] = (Producer, Consumer, Admin)
    for servers in ("a..b:9092", ".a:1", "..", f"{'x' * 64}:1", "\ud800:1", "[a..b]:1", ["a:1", None], [5], 5):
        for cls in clients:
            with pytest.raises(InvalidConfigError, match="bootstrap servers"):
                cls(servers)


def test_a_name_that_no_request_can_hold_is_refused_with_its_limit() -> None:
    with Admin(wait_for_broker=False) as admin:
        for call in (admin.describe_group, admin.delete_group, admin.describe_topic, admin.delete_topic):
            with pytest.raises(InvalidRequestError, match=r"(name|group_id) = 'x+…: a name has at most 249 characters"):
                call("x" * 300)


def test_a_schema_may_be_sparks(servers: str, topic_name: Callable[[], str]) -> None:
    spark = StructType([StructField("zone", StringType(), False), StructField("fare", DecimalType(8, 2))])
    arrow = pa.schema([("zone", pa.string()), ("fare", pa.decimal128(8, 2))])
    with Admin(servers) as admin:
        for schema in (spark, "zone STRING NOT NULL, fare DECIMAL(8,2)", arrow, {f.name: f.type for f in arrow}):
            made = admin.create_topic(name := topic_name(), 1, schema, "zone")
            assert made.schema.equals(arrow)
            for more in ("tip INT", StructType().add("tip", IntegerType()), {"tip": pa.int32()}):
                assert admin.alter_schema(name, add_columns=more).schema.field("tip").type == pa.int32()
            assert admin.alter_schema(name, widen_columns="tip BIGINT").schema.field("tip").type == pa.int64()


def test_readers_of_arguments_and_how_they_are_put_before_a_function() -> None:
    @takes(name=text, rest=partitions, number=whole(1, 9))
    def call(name: str, *rest: Any, number: int = 0) -> Any:
        return name, rest, number

    circle: list[Any] = []
    circle.append(circle)
    assert call("a") == ("a", (), 0)
    assert call("a", TP, [TP, ("u", 1)], number=9) == ("a", (TP, TP, TopicPartition("u", 1)), 9)
    for wrong, named in (
        (lambda: call(5), "name = 5: a text"),  # type: ignore[arg-type]
        (lambda: call("a", "t"), "rest = 't': TopicPartition"),
        (lambda: call("a", circle), r"rest = \[\[...\]\]: at most 10 lists are nested"),
        (lambda: call("a", number=10), "number = 10: a whole number from 1 to 9 is needed"),
    ):
        with pytest.raises(InvalidRequestError, match=named):
            wrong()
    with pytest.raises(TypeError):
        call()  # type: ignore[call-arg]


def test_the_servers_may_be_omitted_or_follow() -> None:
    @servers_may_follow("topic")
    @takes(topic=behind_servers("read(bootstrap_servers, topic)"))
    def read(bootstrap_servers: str | None, topic: str, columns: Any = None, *, limit: int = 0) -> tuple[Any, ...]:
        return bootstrap_servers, topic, columns, limit

    call: Any = read
    assert call("h:1", "t") == ("h:1", "t", None, 0)
    assert call("h:1", topic="t") == ("h:1", "t", None, 0)
    assert call(bootstrap_servers="h:1", topic="t", limit=2) == ("h:1", "t", None, 2)
    assert call("t") == call(topic="t") == (None, "t", None, 0)
    assert call("t", bootstrap_servers="h:1") == ("h:1", "t", None, 0)
    assert call("t", ["a"], bootstrap_servers="h:1") == ("h:1", "t", ["a"], 0)
    assert call(None, "t", ["a"]) == (None, "t", ["a"], 0)
    with pytest.raises(
        InvalidRequestError, match=r"topic = 'h:1,g:2': this is the address .* read\(bootstrap_servers, topic\)"
    ):
        call("t", "h:1,g:2")
    for wrong in (call, partial(call, columns=["a"]), partial(call, "h:1", "t", topic="t")):
        with pytest.raises(TypeError, match=r"read\(\) .*; call it as read\(bootstrap_servers, topic, columns\)"):
            wrong()


def test_a_call_that_does_not_fit_names_the_argument_that_was_meant() -> None:
    api: Any = sparklog  # the calls are wrong for type checkers, too
    consumer, producer, admin = api.Consumer("h:1"), api.Producer("h:1"), api.Admin("h:1")
    for wrong, said in (
        (lambda: api.read_table("t", startingOffsets=5), r"read_table\(\) has no argument 'startingOffsets': did you mean 'start'\?"),
        (lambda: api.read_table("t", colums=["a"]), "did you mean 'columns'"),
        (lambda: api.read_table("t", xyzzy=1), "no argument 'xyzzy': its arguments are bootstrap_servers, topic, columns"),
        (lambda: api.sql(), r"sql\(\) missing 2 .*; call it as sql\(bootstrap_servers, query\)"),
        (lambda: api.sql("SELECT 1", bootstrap_server="h:1"), "did you mean 'bootstrap_servers'"),
        (lambda: api.history(None, "t", "h:1"), r"history\(\) takes 2 arguments by position \(spark, topic\); name the others: bootstrap_servers="),
        (lambda: api.start_local(port=9292), "did you mean 'listen'"),
        (lambda: api.start_local(num_brokers=3), "did you mean 'brokers'"),
        (lambda: api.Consumer("t", bootstrap_servers="h:1"), r"Consumer\(\) takes the addresses of brokers.*consumer.subscribe\(\[topic\]\)"),
        (lambda: api.Consumer("t", bootstrap_servers="h:1", group_id="g"), r"Consumer\(\) takes the addresses of brokers"),
        (lambda: api.Consumer("h:1", "g"), r"Consumer\(\) takes 1 arguments? by position \(bootstrap_servers\)"),
        (lambda: consumer.poll(timeout=30), "did you mean 'timeout_ms'"),
        (lambda: admin.create_topic("t", num_partitions=3), "did you mean 'partitions'"),
        (lambda: producer.send_batch("t", rows=[]), "did you mean 'data'"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=said):
            wrong()
    with pytest.raises(InvalidRequestError, match=r"data_dir = 3: .*brokers=3"):
        api.start_local(3)
    with pytest.raises(InvalidRequestError, match=r"query = 'h:1'.*sql\(bootstrap_servers, query\)"):
        api.sql("SELECT 1", "h:1")
    for opened in (consumer, producer, admin):
        opened.close()


def test_a_type_error_inside_of_a_call_stays_as_it_is() -> None:
    @takes()
    def call(x: int) -> int:
        return len(x)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        call(5)


def test_history_and_latest_take_the_active_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)  # another test may have left one
    with pytest.raises(InvalidRequestError, match=r"no active Spark session: use history\(spark, topic\)"):
        sparklog.history("t")  # type: ignore[call-arg, arg-type]
