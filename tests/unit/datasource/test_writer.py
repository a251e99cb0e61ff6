"""Which of the writers that Spark asks for asks the broker, and when."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_sparklog import DefaultSource
from pyspark_sparklog.options.options import parse_sink_options
from pyspark_sparklog.sink import publication, writer
from pyspark_sparklog.sink.publication import SinkCommitMessage, TaskPlace
from pyspark_sparklog.sink.writer import SparklogStreamWriter, stream_writer

from sparklog.client.transactions.shared_transaction import LastCommit, SharedTransaction, TransactionOutcome
from sparklog.errors import InvalidConfigError

GIVEN = {"sparklog.bootstrap.servers": "127.0.0.1:1", "topic": "t", "checkpointLocation": "/c"}
VALUE = StructType([StructField("value", BinaryType())])
TRANSACTION = SharedTransaction("query", 7, "run", 40)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests to a missing broker."""
    made: list[str] = []

    def check(*_: Any, **__: Any) -> Any:
        made.append("topic")
        return writer._Kind(envelope=False, keyed=True)

    def draw_fencing_token(*_: Any) -> int:
        made.append("fencing token")
        return 40 + len(made)

    def end(*_: Any, **__: Any) -> TransactionOutcome:
        made.append("end")
        return TransactionOutcome(True, LastCommit(7, ""))

    monkeypatch.setattr(writer, "_check", check)
    monkeypatch.setattr(publication, "draw_fencing_token", draw_fencing_token)
    monkeypatch.setattr(publication, "end_shared_transaction", end)
    return made


def stream_writer_of(source: DefaultSource) -> SparklogStreamWriter:
    made = source.streamWriter(VALUE, overwrite=False)
    assert isinstance(made, SparklogStreamWriter)
    return made


def test_the_one_that_writes_asks_at_once(asked: list[str]) -> None:
    made = stream_writer_of(DefaultSource(GIVEN))
    assert asked == ["topic", "fencing token"]
    task = pickle.loads(pickle.dumps(made))._task
    assert task == made._task and (task.envelope, task.keyed, task.publisher.fencing_token) == (False, True, 42)
    assert asked == ["topic", "fencing token"]


def test_the_committing_writer_sends_no_other_request(asked: list[str]) -> None:
    sent = pickle.loads(pickle.dumps(DefaultSource(GIVEN)))
    place = TaskPlace("query", "run", 7, 0, 0)
    stream_writer_of(sent).commit([SinkCommitMessage(place, TRANSACTION, producer_id=3)], 7)
    stream_writer_of(sent).abort([SinkCommitMessage(place, TRANSACTION, producer_id=3)], 7)
    assert asked == ["end", "end"]
    with pytest.raises(InvalidConfigError, match="complete"):
        sent.streamWriter(VALUE, overwrite=True)


def test_should_spark_write_with_it_all_tasks_get_one_fencing_token(asked: list[str]) -> None:
    made = stream_writer(GIVEN, VALUE, overwrite=False, ends_only=True)
    assert asked == []
    first, second = (pickle.loads(pickle.dumps(made)) for _ in range(2))
    assert asked == ["topic", "fencing token"]
    assert first._task == second._task and first._task.publisher.fencing_token == 42 and first._task.keyed
    assert first._task.options == parse_sink_options(GIVEN, streaming=True)
