"""Members of a group and transactional producers that are dropped without close, beside a real broker."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable

import pytest

from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.client.local import LocalBroker
from tests.support.waiting import until


def test_a_member_leaves_its_group(
    broker: LocalBroker, admin: Admin, topic: str, own_threads: Callable[[], list[str]]
) -> None:
    admin.create_topic(topic, 2)
    with Producer(broker.bootstrap_servers) as producer:
        for partition in (0, 1):
            producer.send(topic, b"x", partition=partition).result(30)
    consumer = Consumer(broker.bootstrap_servers, group_id=topic, enable_auto_commit=False)
    consumer.subscribe([topic], on_revoke=consumer.seek_to_end)  # refers to the consumer
    while not (records := consumer.poll(10_000)):
        pass
    consumer.commit()
    with pytest.warns(ResourceWarning, match=f"unclosed <Consumer .* group '{topic}'"):
        del consumer
        gc.collect()
    until(lambda: own_threads() == [], "the threads end")
    until(lambda: admin.describe_group(topic).members == (), "the member has left")
    committed = admin.list_group_offsets(topic)
    assert committed[TopicPartition(topic, records[0].partition)].offset == 1


def test_the_next_member_reads_uncommitted_records(
    broker: LocalBroker, admin: Admin, topic: str, topic_name: Callable[[], str]
) -> None:
    """The records of the last poll may not have been processed."""
    admin.create_topic(topic, 1)
    group = topic_name()
    with Producer(broker.bootstrap_servers) as producer:
        producer.send(topic, b"x").result(30)
    first = Consumer(broker.bootstrap_servers, group_id=group)
    first.subscribe([topic])
    while not first.poll(10_000):
        pass
    with pytest.warns(ResourceWarning):
        del first
    with Consumer(broker.bootstrap_servers, group_id=group) as second:
        second.subscribe([topic])
        while not (records := second.poll(10_000)):
            pass
    assert records[0].value == b"x"


ENDS_WITHOUT_CLOSE = """
import atexit, sys, threading

def left():
    names = sorted(t.name for t in threading.enumerate() if t is not threading.main_thread())
    print("left:", names, "sessions:", [s for s in sessions if not s._closed])

sessions = []
atexit.register(left)  # the first to be registered is the last to run

from sparklog import Consumer, TopicPartition
from sparklog.query.session import SqlSession

address, topic = sys.argv[1:]
by_socket = Consumer(address, auto_offset_reset="earliest", local_read="off")
by_file = Consumer(address, auto_offset_reset="earliest")
for consumer in (by_socket, by_file):
    consumer.assign([TopicPartition(topic, 0)])
    consumer.poll(10_000)
member = Consumer(address, group_id=topic, auto_offset_reset="earliest")
member.subscribe([topic])
while not member.poll(10_000):
    pass
member.commit_async()
sessions.append(SqlSession(address))
next(iter(sessions[0].execute(f'SELECT * FROM "{topic}"')))
"""


def test_no_thread_of_a_client_outlives_a_script_that_does_not_close_it(
    broker: LocalBroker, admin: Admin, topic: str
) -> None:
    """A thread that is inside Arrow when the interpreter ends aborts the process."""
    admin.create_topic(topic, 1)
    with Producer(broker.bootstrap_servers) as producer:
        for _ in range(50):
            producer.send_batch(topic, {"value": [b"x" * 100] * 500}, partition=0)
    command = [sys.executable, "-c", ENDS_WITHOUT_CLOSE, broker.bootstrap_servers, topic]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "left: [] sessions: []\n"), ended.stderr
    assert admin.describe_group(topic).members == ()
