"""After `close` every method raises ClosedError, and `close` again is fine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.errors import ClosedError
from sparklog.security.quotas import Entity
from tests.unit.client.fake_broker import FakeBroker

TP = TopicPartition("events", 0)

ADMIN: dict[str, tuple[Any, ...]] = {
    "create_topic": ("new",),
    "list_topics": (),
    "partition_counts": (),
    "describe_cluster": (),
    "describe_log_dirs": (),
    "describe_topics": (["events"],),
    "describe_segments": (TP,),
    "describe_batches": (TP, 0),
    "describe_topic": ("events",),
    "alter_schema": ("events", pa.schema([("n", pa.int64())])),
    "alter_topic": ("events", {}),
    "add_partitions": ("events", 2),
    "delete_records": ({},),
    "delete_topic": ("events",),
    "list_offsets": ({},),
    "list_groups": (),
    "describe_group": ("g",),
    "list_group_offsets": ("g",),
    "alter_group_offsets": ("g", {}),
    "delete_group": ("g",),
    "list_transactions": (),
    "describe_transaction": ("t",),
    "abort_transaction": ("t",),
    "abort_hanging_transaction": (TP, 1),
    "describe_producers": (TP,),
    "find_hanging_transactions": (),
    "alter_partition_reassignments": ({},),
    "list_partition_reassignments": (),
    "cancel_partition_reassignments": (),
    "elect_leaders": (),
    "cordon_broker": (1,),
    "describe_broker": (None,),
    "alter_broker": (None, {"max.connections": 1_000}),
    "set_user_password": ("alice", "secret"),
    "describe_users": (),
    "remove_user": ("alice",),
    "create_acls": ([],),
    "delete_acls": (),
    "describe_acls": (),
    "describe_client_quotas": (),
    "alter_client_quotas": (Entity(user="alice"), {}),
    "enable_lake": ("events", "file:///lake"),
    "describe_lake": ("events",),
    "disable_lake": ("events",),
    "pause_lake": ("events",),
    "resume_lake": ("events",),
    "rebuild_lake": ("events",),
    "create_mirror": ("m", "kafka://h:9092", "events"),
    "describe_mirrors": (),
    "promote_mirror": ("m",),
    "pause_mirror": ("m",),
    "resume_mirror": ("m",),
    "delete_mirror": ("m",),
}
KEYWORDS = {"alter_schema": ("add_columns",), "enable_lake": ("location",), "create_mirror": ("source", "topics")}
"""Methods whose arguments after the first one have to be named."""
CONSUMER: dict[str, tuple[Any, ...]] = {
    "assign": ([TP],),
    "subscribe": (["events"],),
    "subscription": (),
    "unsubscribe": (),
    "pause": (TP,),
    "resume": (TP,),
    "paused": (),
    "assignment": (),
    "seek": (TP, 0),
    "seek_to_beginning": (),
    "seek_to_end": (),
    "position": (TP,),
    "beginning_offsets": (TP,),
    "end_offsets": (TP,),
    "offsets_for_times": ({TP: 0},),
    "commit": (),
    "commit_async": (),
    "committed": ([TP],),
    "group_metadata": (),
    "poll": (),
    "poll_batches": (),
}
PRODUCER: dict[str, tuple[Any, ...]] = {
    "send": ("events", b"x"),
    "send_batch": ("events", []),
    "flush": (),
    "init_transactions": (),
    "begin_transaction": (),
    "send_offsets_to_transaction": ({}, "g"),
    "commit_transaction": (),
    "abort_transaction": (),
}
NEED_NO_CHECK = {"close", "wakeup", "transaction", "participation", "settings"}
"""The context managers raise when they are entered; `wakeup` may come after the close of another thread."""


@pytest.mark.parametrize(
    ("make", "calls"),
    [
        (Admin, ADMIN),
        (lambda address: Consumer(address, group_id="g"), CONSUMER),
        (lambda address: Producer(address, transactional_id="t"), PRODUCER),
    ],
    ids=["Admin", "Consumer", "Producer"],
)
def test_every_method(make: Callable[[str], Any], calls: dict[str, tuple[Any, ...]], fake: FakeBroker) -> None:
    client = make(fake.address)
    assert {n for n in dir(client) if not n.startswith("_")} - NEED_NO_CHECK == set(calls)
    with client:
        pass
    client.close()
    for name, arguments in calls.items():
        with pytest.raises(ClosedError):
            keywords = dict(zip(KEYWORDS[name], arguments[1:], strict=True)) if name in KEYWORDS else {}
            getattr(client, name)(*arguments[:1] if keywords else arguments, **keywords)
    assert fake.requests == []


def test_entering_a_transaction_of_a_closed_producer(fake: FakeBroker) -> None:
    producer = Producer(fake.address, transactional_id="t")
    producer.close()
    with pytest.raises(ClosedError), producer.transaction():
        pass
