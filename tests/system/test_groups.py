"""Consumer groups with a real broker and consumers in processes of their own, which are killed, stopped and woken
up."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog import Admin, Consumer, OffsetAndMetadata, Producer, TopicPartition
from sparklog.client.local import LocalBroker
from sparklog.client.net.deadline import Deadline
from sparklog.errors import (
    CommitFailedError,
    GroupIdNotFoundError,
    InvalidGroupIdError,
    InvalidRequestError,
    NonEmptyGroupError,
    SparklogError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnstableOffsetCommitError,
)
from tests.support.waiting import until
from tests.system.member_process import MemberProcess

FAST = {"group.consumer.heartbeat.interval.ms": 100, "offsets.topic.num.partitions": 2}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with sparklog.start_local(data_dir=tmp_path_factory.mktemp("groups") / "data", settings=FAST) as broker:
        yield broker


@pytest.fixture
def fast_admin(local: LocalBroker) -> Iterator[Admin]:
    with Admin(local.bootstrap_servers) as admin:
        yield admin


Start = Callable[..., MemberProcess]


@pytest.fixture
def start(local: LocalBroker, topic: str) -> Iterator[Start]:
    """Starts members of the group `topic` that read `topic`."""
    started: list[MemberProcess] = []

    def start(instance: str = "") -> MemberProcess:
        started.append(MemberProcess(local.bootstrap_servers, topic, topic, instance))
        return started[-1]

    yield start
    for member in started:
        member.end(signal.SIGKILL)


def send(local: LocalBroker, topic: str, count: int, partitions: int) -> None:
    with Producer(local.bootstrap_servers) as producer:
        for i in range(count):
            producer.send(topic, value=str(i).encode(), partition=i % partitions)


def consumer(local: LocalBroker, group: str, **settings: Any) -> Consumer:
    return Consumer(local.bootstrap_servers, group_id=group, **settings)


def poll_until(condition: Callable[[], bool], what: str, *consumers: Consumer) -> list[sparklog.Record]:
    """Poll all of them until the condition holds; returns their records."""
    records: list[sparklog.Record] = []

    def polled() -> bool:
        for c in consumers:
            records.extend(c.poll(10))
        return condition()

    until(polled, what)
    return records


@pytest.mark.crash
def test_a_killed_members_partitions_move_and_all_records_are_read(
    local: LocalBroker, fast_admin: Admin, topic: str, start: Start
) -> None:
    fast_admin.create_topic(topic, 4)
    first, second = start(), start()
    until(lambda: len(first.has) == len(second.has) == 2, "both have two partitions")
    assert first.has.isdisjoint(second.has)
    send(local, topic, 200, 4)
    until(lambda: len(first.records("committed") + second.records("committed")) == 200, "all is read")
    first.end(signal.SIGKILL)
    send(local, topic, 200, 4)
    until(lambda: second.has == {0, 1, 2, 3}, "its partitions move after its session")
    everything = {(p, o) for p in range(4) for o in range(100)}
    read = lambda: set(first.records("committed") + second.records("committed"))  # noqa: E731
    until(lambda: read() == everything, "the other one goes on where the killed one had committed")
    again = len(first.records("committed") + second.records("committed")) - len(everything)
    assert again == 0, "every commit was answered before the kill"
    until(lambda: sum(p.lag or 0 for p in fast_admin.describe_group(topic).partitions) == 0, "no lag is left")
    second.end()
    assert second.said[-1] == {"what": "closed"}
    assert fast_admin.describe_group(topic).state == "Empty"


def test_commits_of_a_frozen_consumer_are_refused(local: LocalBroker, fast_admin: Admin, topic: str) -> None:
    """As above, with the commit certainly in progress: the zombie's heartbeats are frozen."""
    fast_admin.create_topic(topic, 1)
    send(local, topic, 10, 1)
    zombie = consumer(local, topic, session_timeout_ms=300, enable_auto_commit=False)
    zombie.subscribe([topic])
    poll_until(lambda: zombie.assignment() != [], "assigned", zombie)
    assert zombie._group is not None
    assert zombie._group._heartbeats is not None
    heartbeats = zombie._group._heartbeats
    heartbeats._max_poll_interval_s = 3600.0
    hold = threading.Event()
    beat = heartbeats._beat

    def frozen() -> float:
        hold.wait(30)
        return beat()

    heartbeats._beat = frozen  # type: ignore[method-assign]
    heir = consumer(local, topic, enable_auto_commit=False)
    heir.subscribe([topic])
    poll_until(lambda: heir.assignment() != [], "moved", heir)
    heir.commit({TopicPartition(topic, 0): 7})
    assert zombie.assignment() == [TopicPartition(topic, 0)], "it knows nothing"
    with pytest.raises(CommitFailedError):
        zombie.commit({TopicPartition(topic, 0): 3})
    assert fast_admin.list_group_offsets(topic)[TopicPartition(topic, 0)].offset == 7
    hold.set()
    lost: list[list[TopicPartition]] = []
    assert zombie._group is not None
    zombie.subscribe([topic], on_lost=lost.append)
    poll_until(lambda: bool(lost), "told", zombie)
    zombie.close()
    heir.close()


def test_auto_commit_never_covers_records_that_poll_has_not_returned(
    local: LocalBroker, fast_admin: Admin, topic: str
) -> None:
    fast_admin.create_topic(topic, 1)
    send(local, topic, 50, 1)
    tp = TopicPartition(topic, 0)
    reader = consumer(local, topic, auto_commit_interval_ms=0, max_poll_records=10)
    reader.subscribe([topic])
    read = poll_until(lambda: reader.assignment() != [], "assigned", reader)
    while len(read) < 20:
        read += reader.poll(100)
    committed = fast_admin.list_group_offsets(topic).get(tp)
    assert committed is None or committed.offset <= len(read) - 10, "the last ten may still be at work"
    reader.close()
    assert fast_admin.list_group_offsets(topic)[tp].offset == len(read), "a close has handed out all it counts"
    with consumer(local, topic) as later:
        later.assign([tp])
        assert later.position(tp) == len(read), "a consumer by hand begins there, too"


def test_cooperation_callbacks_and_commit_before_letting_go(local: LocalBroker, fast_admin: Admin, topic: str) -> None:
    fast_admin.create_topic(topic, 2)
    send(local, topic, 20, 2)
    events: list[tuple[str, int]] = []
    first = consumer(local, topic)

    def revoked(partitions: list[TopicPartition]) -> None:
        offsets = first.committed(partitions)
        events.append(("revoked", sum(o.offset for o in offsets.values() if o is not None)))

    first.subscribe([topic], on_assign=lambda p: events.append(("assigned", len(p))), on_revoke=revoked)
    read = poll_until(lambda: first.assignment() != [], "assigned", first)
    while len(read) < 20:
        read += first.poll(100)
    second = consumer(local, topic)
    second.subscribe([topic])
    more = poll_until(lambda: len(second.assignment()) == 1, "one moves", first, second)
    assert not more, "nothing is read again"
    assert events == [("assigned", 2), ("revoked", 10)], "what is revoked is committed, what stays is not touched"
    assert len(first.assignment()) == 1
    second.close()
    first.close()


def test_pause_keeps_the_member_alive(local: LocalBroker, fast_admin: Admin, topic: str) -> None:
    fast_admin.create_topic(topic, 2)
    send(local, topic, 40, 2)
    reader = consumer(local, topic, max_poll_interval_ms=3_000, max_poll_records=5)
    reader.subscribe([topic])
    read = poll_until(lambda: reader.assignment() != [], "assigned", reader)
    while len(read) < 5:
        read += reader.poll(100)
    reader.pause(*reader.assignment())
    epoch = reader.group_metadata().member_epoch
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        assert reader.poll(50) == [], "paused"
    assert reader.group_metadata().member_epoch == epoch, "poll was called: it is a member still"
    first = reader.paused()[0]
    at = reader.position(first)
    reader.seek(first, at)
    assert reader.paused() == reader.assignment(), "a seek does not resume"
    reader.resume(*reader.paused())
    while len(read) < 40:
        read += reader.poll(100)
    assert sorted((r.partition, r.offset) for r in read) == [(p, o) for p in range(2) for o in range(20)]
    reader.close()


def test_a_member_that_does_not_poll_leaves_and_comes_back(local: LocalBroker, fast_admin: Admin, topic: str) -> None:
    fast_admin.create_topic(topic, 1)
    send(local, topic, 5, 1)
    lost: list[list[TopicPartition]] = []
    slow = consumer(local, topic, max_poll_interval_ms=500, enable_auto_commit=False)
    slow.subscribe([topic], on_lost=lost.append)
    read = poll_until(lambda: slow.assignment() != [], "assigned", slow)
    while len(read) < 5:
        read += slow.poll(50)
    until(lambda: fast_admin.describe_group(topic).state == "Empty", "it leaves by itself")
    with pytest.raises(CommitFailedError):
        slow.commit()
    again = poll_until(lambda: bool(lost) and slow.assignment() != [], "it is back", slow)
    while len(again) < 5:
        again += slow.poll(50)
    assert [r.offset for r in again] == [0, 1, 2, 3, 4], "nothing was committed"
    slow.commit()
    slow.close()


def test_a_static_member_keeps_its_place(local: LocalBroker, fast_admin: Admin, topic: str) -> None:
    fast_admin.create_topic(topic, 2)
    stays = consumer(local, topic)
    stays.subscribe([topic])
    static = consumer(local, topic, group_instance_id="one")
    static.subscribe([topic])
    poll_until(lambda: len(static.assignment()) == len(stays.assignment()) == 1, "shared", stays, static)
    had, epoch = static.assignment(), fast_admin.describe_group(topic).epoch
    static.close()
    assert {m.instance_id: m.epoch for m in fast_admin.describe_group(topic).members}["one"] == -2, "away"
    back = consumer(local, topic, group_instance_id="one")
    back.subscribe([topic])
    poll_until(lambda: back.assignment() == had, "as before", stays, back)
    assert fast_admin.describe_group(topic).epoch == epoch, "nothing was shared out anew"
    other = consumer(local, topic, group_instance_id="one")
    other.subscribe([topic])
    assert other._group is not None
    assert other._group._heartbeats is not None
    other._group._heartbeats._joining_since -= 3600  # as if it had waited for the session's end
    with pytest.raises(UnreleasedInstanceIdError):
        poll_until(lambda: False, "refused", other)
    for c in (other, back, stays):
        c.close()


def test_later_topics_and_patterns(
    local: LocalBroker, fast_admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    by_name = consumer(local, topic)
    by_name.subscribe([f"{topic}-a"])
    by_pattern = consumer(local, f"{topic}-p", metadata_max_age_ms=50)
    by_pattern.subscribe(pattern=f"{topic}-.")
    poll_until(lambda: by_name.group_metadata().member_epoch > 0, "joined", by_name, by_pattern)
    by_near_name = consumer(local, f"{topic}-n")
    fast_admin.create_topic(f"{topic}-near-b", 1)
    by_near_name.subscribe([f"{topic}-near-a"])

    def warnings() -> set[str]:
        return {text for text in caplog.messages if "once" in text}

    poll_until(lambda: len(warnings()) == 3, "warned", by_near_name, by_pattern, by_name)
    assert warnings() == {
        f"group {topic} reads topic '{topic}-a' once it exists: no topic '{topic}-a' at {local.bootstrap_servers}: "
        f"create it with `sparklog topic create {topic}-a` or Admin.create_topic",
        f"group {topic}-p reads topics that match '{topic}-.' once one exists: no topic's whole name matches",
        f"group {topic}-n reads topic '{topic}-near-a' once it exists: no topic '{topic}-near-a' at "
        f"{local.bootstrap_servers} (did you mean '{topic}-near-b'?): create it with "
        f"`sparklog topic create {topic}-near-a` or Admin.create_topic",
    }
    by_near_name.close()
    fast_admin.create_topic(f"{topic}-a", 2)
    fast_admin.create_topic(f"{topic}-bb", 1)
    poll_until(lambda: len(by_name.assignment()) == 2, "made later", by_name)
    poll_until(lambda: len(by_pattern.assignment()) == 2, "matches", by_pattern)
    fast_admin.create_topic(f"{topic}-c", 1)
    poll_until(lambda: len(by_pattern.assignment()) == 3, "matches, too", by_pattern)
    assert by_pattern.subscription() == [f"{topic}-a", f"{topic}-c"]
    fast_admin.delete_topic(f"{topic}-a")
    poll_until(lambda: by_pattern.assignment() == [TopicPartition(f"{topic}-c", 0)], "it is gone", by_pattern)
    by_pattern.unsubscribe()
    assert by_pattern.assignment() == []
    assert by_pattern.subscription() == []
    by_pattern.close()
    by_name.close()


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_commit_that_was_begun_ends_before_the_member_leaves(
    autocommit: bool, local: LocalBroker, fast_admin: Admin, topic: str
) -> None:
    fast_admin.create_topic(topic, 1)
    tp = TopicPartition(topic, 0)
    told: list[SparklogError | None] = []
    for number in range(1, 6):
        member = consumer(local, topic, enable_auto_commit=False)
        member.subscribe([topic])
        poll_until(lambda member=member: member.assignment() == [tp], "assigned", member)  # type: ignore[misc]
        member.commit_async({tp: number}, lambda _, error: told.append(error))
        member.close(autocommit=autocommit)
        assert told == [None] * number
        assert fast_admin.list_group_offsets(topic)[tp] == OffsetAndMetadata(number)


def test_the_close_commits_no_position_that_the_application_does_not_know(
    local: LocalBroker, fast_admin: Admin, topic: str
) -> None:
    fast_admin.create_topic(topic, 2)
    send(local, topic, 20, 2)
    first, second = (TopicPartition(topic, p) for p in range(2))
    with consumer(local, topic) as member:
        member.assign([first, second])
        member.commit({first: 4})
        until(lambda: len(member._fetcher.ready._batches) == 2, "both are read in the background")
    assert fast_admin.list_group_offsets(topic) == {first: OffsetAndMetadata(4)}
    with consumer(local, topic) as member:
        member.assign([first, second])
        member.seek(first, 2)
        assert member.position(second) == 0
    assert {tp: o.offset for tp, o in fast_admin.list_group_offsets(topic).items()} == {first: 2, second: 0}
    with consumer(local, topic) as member:
        member.assign([first, second])
        member.commit({first: 5})
        until(lambda: not member.poll(100) and member.position(first) == 10, "everything is read")
    assert {tp: o.offset for tp, o in fast_admin.list_group_offsets(topic).items()} == {first: 10, second: 10}


def test_the_close_commits_the_records_before_one_that_cannot_be_read(
    local: LocalBroker, fast_admin: Admin, topic: str
) -> None:
    fast_admin.create_topic(topic, 1)
    send(local, topic, 20, 1)

    def deserialize(value: bytes) -> int:
        number = int(value)
        if number == 7:
            raise ValueError("seven")
        return number

    with consumer(local, topic, value_deserializer=deserialize) as member:
        member.assign(TopicPartition(topic, 0))
        assert [r.value for r in member.poll(10_000)] == list(range(7))
    assert fast_admin.list_group_offsets(topic)[TopicPartition(topic, 0)].offset == 7


def test_offsets_by_hand_and_by_an_administrator(local: LocalBroker, fast_admin: Admin, topic: str) -> None:
    fast_admin.create_topic(topic, 2)
    tps = [TopicPartition(topic, p) for p in range(2)]
    send(local, topic, 20, 2)
    with consumer(local, topic, enable_auto_commit=False) as by_hand:
        by_hand.assign(tps)
        told: list[tuple[Any, SparklogError | None]] = []
        by_hand.commit_async(
            {tps[0]: OffsetAndMetadata(4, "here")}, lambda offsets, error: told.append((offsets, error))
        )
        by_hand.commit({tps[1]: 6})
        assert told == [({tps[0]: OffsetAndMetadata(4, "here")}, None)]
        assert by_hand.committed(tps) == {tps[0]: OffsetAndMetadata(4, "here"), tps[1]: OffsetAndMetadata(6)}
        for wrong in ({tps[0]: -1}, {topic: 5}, 5):
            with pytest.raises(InvalidRequestError):
                by_hand.commit(wrong)  # type: ignore[arg-type]
    group = fast_admin.describe_group(topic)
    assert (group.state, group.members, [p.lag for p in group.partitions]) == ("Empty", (), [6, 4])
    with consumer(local, topic) as member:
        member.subscribe([topic])
        poll_until(lambda: member.assignment() == tps, "assigned", member)
        with pytest.raises(NonEmptyGroupError):
            fast_admin.alter_group_offsets(topic, {tps[0]: 0})
        with pytest.raises(InvalidRequestError):
            member.assign(tps)
    fast_admin.alter_group_offsets(topic, {tps[0]: 9})
    assert fast_admin.list_group_offsets(topic)[tps[0]] == OffsetAndMetadata(9)
    assert fast_admin.delete_group(topic) == 2
    with pytest.raises(GroupIdNotFoundError):
        fast_admin.describe_group(topic)


def test_calls_that_need_a_group_say_so(local: LocalBroker, topic: str) -> None:
    with Consumer(local.bootstrap_servers) as alone:
        for call in (alone.commit, alone.group_metadata, lambda: alone.subscribe([topic]), lambda: alone.committed([])):
            with pytest.raises(InvalidGroupIdError):
                call()
    with consumer(local, topic) as member, pytest.raises(InvalidRequestError):
        member.subscribe()


def test_a_new_owner_waits_for_the_transaction_of_the_old_one(
    local: LocalBroker, fast_admin: Admin, topic: str
) -> None:
    fast_admin.create_topic(topic, 1)
    send(local, topic, 10, 1)
    tp = TopicPartition(topic, 0)
    first = consumer(local, topic, enable_auto_commit=False)
    first.subscribe([topic])
    read = poll_until(lambda: first.assignment() != [], "assigned", first)
    while len(read) < 10:
        read += first.poll(50)
    with Producer(local.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({tp: OffsetAndMetadata(10, "all")}, first.group_metadata())
        member = first.group_metadata()
        first.close()
        second = consumer(local, topic, enable_auto_commit=False)
        second.subscribe([topic])
        early = poll_until(lambda: second.assignment() == [tp], "assigned", second)
        assert second._group is not None
        with pytest.raises(UnstableOffsetCommitError):
            second._group.committed([tp], Deadline(100))
        for _ in range(5):
            early += second.poll(20)
        assert early == [], "it does not know where to begin"
        producer.commit_transaction()
        assert second.committed([tp]) == {tp: OffsetAndMetadata(10, "all")}
        send(local, topic, 1, 1)
        until(lambda: [r.offset for r in second.poll(50)] == [10], "it goes on behind the transaction")
        producer.begin_transaction()
        with pytest.raises(UnknownMemberIdError):
            producer.send_offsets_to_transaction({tp: 3}, member)
        producer.abort_transaction()
        second.close()


@pytest.mark.crash
@pytest.mark.parametrize("step", ["consumer.before-commit", "consumer.after-commit"])
def test_a_consumer_that_dies_around_a_commit(
    local: LocalBroker, fast_admin: Admin, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    fast_admin.create_topic(topic, 1)
    send(local, topic, 10, 1)
    monkeypatch.setenv("SPARKLOG_FAULT", f"{step}:kill")
    first = start()
    monkeypatch.delenv("SPARKLOG_FAULT")
    assert first.process.wait(30) == -signal.SIGKILL
    offsets = fast_admin.list_group_offsets(topic)
    done = len(first.records("read")) if step == "consumer.after-commit" else 0
    assert sum(o.offset for o in offsets.values()) == done
    second = start()
    until(lambda: len(second.records("committed")) == 10 - done, "the rest is read, and nothing that is committed")
    second.end()


@pytest.mark.crash
def test_a_broker_that_is_killed_keeps_groups_and_commits(tmp_path: Path, topic: str) -> None:
    broker = sparklog.start_local(data_dir=tmp_path / "data", settings=FAST)
    try:
        servers = broker.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topic(topic, 2)
        send(broker, topic, 100, 2)
        reader = Consumer(servers, group_id="g", enable_auto_commit=False, max_poll_records=10)
        reader.subscribe([topic])
        read: list[tuple[int, int]] = []
        while len(read) < 50:
            read += [(r.partition, r.offset) for r in reader.poll(100)]
        reader.commit()
        before = reader.group_metadata()
        broker.kill()
        broker = sparklog.start_local(data_dir=tmp_path / "data", settings=FAST, listen=servers)
        assert broker.bootstrap_servers == servers
        while len(read) < 100:
            read += [(r.partition, r.offset) for r in reader.poll(100)]
        reader.commit()
        assert sorted(read) == [(p, o) for p in range(2) for o in range(50)], "nothing twice: it has kept its place"
        assert reader.group_metadata() == before, "as the same member"
        with Admin(servers) as admin:
            assert [p.lag for p in admin.describe_group("g").partitions] == [0, 0]
        reader.close()
        reader._cluster.close()  # not the process's shared one any more: that was forgotten with the killed broker
    finally:
        broker.stop()
