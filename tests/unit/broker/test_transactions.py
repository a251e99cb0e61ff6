"""Transactions in a broker without sockets: plain and shared, across restarts, with failing disks and deleted
topics."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.handlers.produce import produce
from sparklog_broker.partitions.storage import Storage
from sparklog_broker.request_context import RequestContext

from sparklog.environment import real_environment
from sparklog.environment.clock import SystemClock
from sparklog.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTopicError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
    SparklogError,
    StorageError,
    StorageFullError,
    TransactionAbortedError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.batch import iterate_batches
from sparklog.log.parts.log_appender import LogAppender
from sparklog.metadata.producer_ids import SMALL_BLOCK_IDS
from sparklog.protocol.messages import ProducePartition, ProduceRequest
from sparklog.replication.transactions import Marker
from sparklog.types import TopicPartition, shared_transactional_id
from tests.simulation.ablation import ANSWERS_FIRST, without
from tests.support.producers import produced
from tests.support.transactions import T0, T1, log_of, refused, rows, run, send, visible


def test_a_transaction_becomes_visible_as_a_whole(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        txn = broker.transactions
        me = await txn.init_producer_id("id", 60_000)
        await send(broker, "id", me, 0, b"a", T0, T1)
        await send(broker, "id", me, 1, b"b", T0)
        assert log_of(broker, T0).last_stable_offset == 0
        assert visible(broker, T0) == []
        assert txn.describe("id").summary.state == "Ongoing"  # type: ignore[union-attr]
        after = await txn.end("id", *me, commit=True)
        assert after == (me.producer_id, me.producer_epoch + 1)
        assert (visible(broker, T0), visible(broker, T1)) == ([b"a", b"b"], [b"a"])
        assert log_of(broker, T0).last_stable_offset == log_of(broker, T0).log_end_offset == 3
        assert await txn.end("id", *me, commit=True) == after, "asked again"
        await send(broker, "id", after, 0, b"c", T0)
        assert await refused(send(broker, "id", me, 2, b"late", T0)) is ProducerFencedError
        assert await refused(send(broker, "id", me, 0, b"late", T1)) is ProducerFencedError
        last = await txn.end("id", *after, commit=False)
        assert visible(broker, T0) == [b"a", b"b"]
        assert log_of(broker, T0).last_stable_offset == 5
        await send(broker, "id", last, 0, b"d", T1)
        newer = await txn.init_producer_id("id", 60_000)
        assert newer.producer_epoch == last.producer_epoch + 2, "the open one is aborted first"
        assert visible(broker, T1) == [b"a"]
        assert await refused(txn.end("id", *last, commit=True)) is ProducerFencedError

    run(tmp_path, scenario)


def test_a_transaction_survives_a_restart(tmp_path: Path) -> None:
    kept: list[tuple[int, int]] = []

    async def first(broker: Broker) -> None:
        me = await broker.transactions.init_producer_id("id", 60_000)
        await send(broker, "id", me, 0, b"a", T0)
        kept.append(me)

    async def second(broker: Broker) -> None:
        await broker.transactions.loaded()
        (me,) = kept
        assert log_of(broker, T0).last_stable_offset == 0
        await send(broker, "id", me, 1, b"b", T0)
        await broker.transactions.end("id", *me, commit=True)
        assert visible(broker, T0) == [b"a", b"b"]

    run(tmp_path, first, second)


def test_only_the_committed_participants_of_a_shared_transaction_are_committed(tmp_path: Path) -> None:
    app = shared_transactional_id("app")

    async def scenario(broker: Broker) -> None:
        txn = broker.transactions
        joined = await asyncio.gather(*(txn.join("app", 0, "run", 5, 60_000) for _ in range(4)))
        ids = [j.identity for j in joined]
        assert len({i.producer_id for i in ids if i}) == 4
        for n, identity in enumerate(ids):
            assert identity is not None
            await send(broker, app, identity, 0, b"%d" % n, T0, T1)
        committed_participants = [ids[1].producer_id, ids[3].producer_id]  # type: ignore[union-attr]
        assert await txn.end_shared("app", 0, "run", 5, committed_participants, commit=True)
        assert visible(broker, T0) == visible(broker, T1) == [b"1", b"3"]
        assert await txn.end_shared("app", 0, "run", 5, committed_participants, commit=True)
        assert await txn.end_shared("app", 0, "run", 5, [], commit=False), "an abort after the commit changes nothing"
        assert (await txn.join("app", 0, "run2", 9, 60_000)).identity is None
        assert await refused(send(broker, app, ids[0], 1, b"zombie", T0)) is ProducerFencedError  # type: ignore[arg-type]
        assert await refused(txn.join("app", 1, "run", 5, 60_000)) is ProducerFencedError
        assert txn.describe(app).last_committed_version == 0

    async def again(broker: Broker) -> None:
        await broker.transactions.loaded()
        txn = broker.transactions
        assert (await txn.join("app", 0, "run2", 9, 60_000)).identity is None
        assert await refused(txn.join("app", 1, "run", 5, 60_000)) is ProducerFencedError
        one = (await txn.join("app", 1, "run2", 9, 60_000)).identity
        assert one is not None
        await send(broker, app, one, 0, b"4", T0)
        assert not await txn.end_shared("app", 1, "run2", 9, [], commit=False)
        assert (
            await refused(txn.end_shared("app", 1, "run2", 9, [one.producer_id], commit=True))
            is TransactionAbortedError
        )
        assert visible(broker, T0) == [b"1", b"3"]
        two = (await txn.join("app", 1, "run3", 10, 60_000)).identity
        assert two is not None
        await send(broker, app, two, 0, b"5", T0)
        assert await txn.end_shared("app", 1, "run3", 10, [two.producer_id], commit=True)
        assert visible(broker, T0) == [b"1", b"3", b"5"]

    run(tmp_path, scenario, again)


def test_joins_at_the_same_time_share_an_append(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        txn = broker.transactions
        await txn.join("app", 0, "run", 5, 60_000)
        before = {n: broker.partitions.get("__transaction_state", n).log.log_end_offset for n in range(8)}
        await asyncio.gather(*(txn.join("app", 0, "run", 5, 60_000) for _ in range(50)))
        grown = [n for n in range(8) if broker.partitions.get("__transaction_state", n).log.log_end_offset > before[n]]
        (n,) = grown
        log = broker.partitions.get("__transaction_state", n).log
        assert log.log_end_offset - before[n] == 50
        piece = log.reader.read(before[n], 1 << 20)
        assert piece is not None
        batches = len(list(iterate_batches(piece.read())))
        piece.release()
        assert batches <= 3

    run(tmp_path, scenario)


def test_a_deleted_topic_needs_no_marker(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        me = await broker.transactions.init_producer_id("id", 60_000)
        await send(broker, "id", me, 0, b"a", T0)
        await broker.topics.delete("t")
        await broker.transactions.end("id", *me, commit=True)
        assert broker.transactions.describe("id").summary.state == "CompleteCommit"  # type: ignore[union-attr]

    run(tmp_path, scenario)


class SetClock(SystemClock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1_000


def test_timeouts_abort_open_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SetClock()
    monkeypatch.setattr(Storage, "expiry_ms", lambda _: clock.ms)

    async def scenario(broker: Broker) -> None:
        txn = broker.transactions
        me = await txn.init_producer_id("id", 60_000)
        await send(broker, "id", me, 0, b"a", T0)
        one = (await txn.join("app", 0, "run", 5, 60_000)).identity
        assert one is not None
        await send(broker, shared_transactional_id("app"), one, 0, b"b", T1)
        clock.ms += 59_999
        await txn.end_overdue()
        assert [s.state for s in txn.summaries(running_ms_min=59_999)] == ["Ongoing", "Ongoing"]
        clock.ms += 1
        await txn.end_overdue()
        while log_of(broker, T0).last_stable_offset < 2 or log_of(broker, T1).last_stable_offset < 2:
            await asyncio.sleep(0)
        assert visible(broker, T0) == visible(broker, T1) == []
        assert await refused(send(broker, "id", me, 1, b"late", T0)) is TransactionAbortedError
        assert await refused(txn.end("id", *me, commit=True)) is TransactionAbortedError
        after = await txn.end("id", *me, commit=False)
        await send(broker, "id", after, 0, b"c", T0)
        await txn.end("id", *after, commit=True)
        assert visible(broker, T0) == [b"c"]
        assert (
            await refused(txn.end_shared("app", 0, "run", 5, [one.producer_id], commit=True)) is TransactionAbortedError
        )

        assert await txn.end_shared("app", 0, "run2", 6, [], commit=True)
        clock.ms += 7 * 86_400_000
        await txn.end_overdue()
        assert [s.kind for s in txn.summaries()] == ["shared"], "plain ids are forgotten after a week"

    async def later(broker: Broker) -> None:
        txn = broker.transactions
        await txn.loaded()
        assert txn.describe("id").error_code == InvalidProducerIdMappingError.code
        assert txn.describe(shared_transactional_id("app")).last_committed_version == 0
        clock.ms += 83 * 86_400_000
        await txn.end_overdue()
        assert not [*txn.summaries()]

    run(tmp_path, scenario, later, environment=real_environment()._replace(clock=clock))


def test_operators_abort_open_and_hanging_transactions(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        txn = broker.transactions
        me = await txn.init_producer_id("id", 60_000)
        assert await refused(txn.abort("id")) is InvalidTxnStateError
        await send(broker, "id", me, 0, b"a", T0, T1)
        assert await refused(txn.abort_hanging(T0, me.producer_id, txn.owners(T0))) is InvalidTxnStateError, (
            "it does not hang"
        )
        (listed,) = txn.summaries(["Ongoing"])
        assert (listed.transactional_id, listed.producer_id) == ("id", me.producer_id)
        assert not [*txn.summaries(["CompleteAbort"])]
        assert not [*txn.summaries(running_ms_min=60_000)]
        assert [p.transactional_id for p in txn.describe_producers(T0, txn.owners(T0)).producers] == ["id"]
        assert await txn.abort("id") == 2
        assert visible(broker, T0) == []
        # as a broker without verification would have let it in
        log = log_of(broker, T1)
        info = log.appender.append_internal(bytearray(rows(b"hangs", (999, 3), 0)))
        broker.partitions.get(*T1).on_appended(info)
        described = txn.describe_producers(T1, txn.owners(T1)).producers
        (found,) = [p for p in described if p.transaction_first_offset >= 0]
        assert (found.producer_id, found.transactional_id) == (999, None)
        assert await txn.abort_hanging(T1, 999, {}) == 1
        assert log.last_stable_offset == log.log_end_offset
        assert visible(broker, T1) == []

    run(tmp_path, scenario)


def test_a_transaction_that_hangs_from_the_first_offset_on_is_aborted_once(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        txn, log = broker.transactions, log_of(broker, T1)
        info = log.appender.append_internal(bytearray(rows(b"hangs", (999, 3), 0)))
        broker.partitions.get(*T1).on_appended(info)
        assert log.producers()[0].transaction_first_offset == 0
        assert await txn.abort_hanging(T1, 999, {}) == 1
        assert log.last_stable_offset == log.log_end_offset == 2
        for producer_id in (999, 998):
            assert await refused(txn.abort_hanging(T1, producer_id, {})) is InvalidTxnStateError

    run(tmp_path, scenario)


def failing_on(monkeypatch: pytest.MonkeyPatch, method: str, topic: str, error: SparklogError) -> list[bool]:
    """`LogAppender.<method>` of a topic raises `error` while the list's element is True."""
    original = getattr(LogAppender, method)
    fails = [False]

    def maybe(self: LogAppender, *args: Any, **more: Any) -> Any:
        if self._state.owner.topic == topic and fails[0]:
            raise error
        return original(self, *args, **more)

    monkeypatch.setattr(LogAppender, method, maybe)
    return fails


def test_a_state_that_cannot_be_written_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = failing_on(monkeypatch, "append_internal", "__transaction_state", StorageFullError("the disk is full"))

    async def scenario(broker: Broker) -> None:
        txn = broker.transactions
        me = await txn.init_producer_id("id", 60_000)
        await send(broker, "id", me, 0, b"a", T0)
        fails[0] = True
        assert await refused(txn.end("id", *me, commit=True)) is StorageFullError
        assert await refused(send(broker, "id", me, 0, b"a", T1)) in (StorageFullError, CoordinatorLoadingError)
        assert visible(broker, T0) == []
        fails[0] = False
        assert await again(lambda: txn.end("id", *me, commit=True)) == (me.producer_id, me.producer_epoch + 1)
        assert visible(broker, T0) == [b"a"]

    run(tmp_path, scenario)


async def again(request: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """The answer, when the coordinator has been made anew."""
    while True:
        try:
            return await request()
        except CoordinatorLoadingError:
            await asyncio.sleep(0.01)


def test_a_partition_that_cannot_be_written_gets_its_marker_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = failing_on(monkeypatch, "append_marker", "t", StorageError("the disk is broken"))
    kept: list[tuple[int, int]] = []

    async def first(broker: Broker) -> None:
        txn = broker.transactions
        me = await txn.init_producer_id("id", 60_000)
        kept.append(me)
        await send(broker, "id", me, 0, b"a", T0, T1)
        txn._shard("id").wait_s_max = 0.05
        fails[0] = True
        assert await refused(txn.end("id", *me, commit=True)) is ConcurrentTransactionsError
        assert txn.describe("id").summary.state == "PrepareCommit"  # type: ignore[union-attr]
        assert await refused(txn.end("id", *me, commit=True)) is ConcurrentTransactionsError
        assert await refused(txn.end("id", *me, commit=False)) is InvalidTxnStateError, "it is decided"
        assert await refused(txn.init_producer_id("id", 60_000)) is ConcurrentTransactionsError

    async def second(broker: Broker) -> None:
        fails[0] = False
        await broker.transactions.loaded()
        while log_of(broker, T0).last_stable_offset < 2 or log_of(broker, T1).last_stable_offset < 2:
            await asyncio.sleep(0.01)
        assert visible(broker, T0) == visible(broker, T1) == [b"a"]
        me = kept[0]
        assert await broker.transactions.end("id", *me, commit=True) == (me[0], me[1] + 1)

    run(tmp_path, first, second)


def test_a_repeated_batch_is_answered_with_its_offset_also_after_the_first_of_a_transaction(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        me = await broker.transactions.init_producer_id("id", 60_000)
        assert await send(broker, "id", me, 0, b"a", T0, T1) == [0, 0]
        assert await send(broker, "id", me, 0, b"a", T0, T1) == [0, 0]
        assert await send(broker, "id", me, 1, b"b", T1) == [1]
        after = await broker.transactions.end("id", *me, commit=True)
        assert (visible(broker, T0), visible(broker, T1)) == ([b"a"], [b"a", b"b"])
        assert await refused(send(broker, "id", me, 0, b"a", T0)) is ProducerFencedError, (
            "its answer was lost for too long"
        )
        assert await send(broker, "id", after, 0, b"c", T1) == [3]

    run(tmp_path, scenario)


def test_a_transaction_needs_acks_all_and_an_identity_of_the_id(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        me = await broker.transactions.init_producer_id("id", 60_000)
        data = rows(b"a", me, 0)
        weak = ProduceRequest(1, 1_000, [ProducePartition("t", 0, len(data))], "id")
        with pytest.raises(InvalidRequestError):
            await produce(weak, memoryview(bytearray(data)), RequestContext(broker, ("", 0), ""))
        assert await refused(send(broker, "other", me, 0, b"a", T0)) is InvalidProducerIdMappingError
        assert await refused(send(broker, "id", (me[0] + 1, 0), 0, b"a", T0)) is InvalidProducerIdMappingError
        assert await refused(send(broker, "id", (me[0], me[1] + 1), 0, b"a", T0)) is InvalidProducerEpochError
        plain = ProduceRequest(-1, 1_000, [ProducePartition("t", 0, len(data))])
        response = await produce(plain, memoryview(bytearray(data)), RequestContext(broker, ("", 0), ""))
        (result,) = response.message.results  # type: ignore[union-attr]
        assert result.error_code == InvalidTxnStateError.code, "nobody has verified it"
        assert log_of(broker, T0).log_end_offset == 0
        assert await refused(broker.transactions.init_producer_id("__shared:x", 1)) is InvalidRequestError
        assert await refused(broker.transactions.init_producer_id("y", 900_001)) is InvalidTransactionTimeoutError

    run(tmp_path, scenario)


@pytest.mark.parametrize("mode", ["none", "group"])
def test_a_decision_about_a_durable_topic_is_on_the_disk_before_its_markers(tmp_path: Path, mode: str) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.alter("t", {"flush.mode": mode, "retention.ms": -1})  # the records are of 2023
        txn = broker.transactions
        me = await txn.init_producer_id("id", 60_000)
        await send(broker, "id", me, 0, b"a", T0)
        (state,) = [
            log for n in range(8) if (log := log_of(broker, TopicPartition("__transaction_state", n))).log_end_offset
        ]
        seen: list[int] = []
        original = LogAppender.append_marker

        def noting(self: LogAppender, *args: Any, **more: Any) -> Any:
            seen.append(state.log_end_offset - state.flushed_offset)
            return original(self, *args, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LogAppender, "append_marker", noting)
            await txn.end("id", *me, commit=True)
        assert visible(broker, T0) == [b"a"]
        assert (seen == [0]) is (mode == "group")

    run(tmp_path, scenario)


def test_transactions_lost_from_the_state_topic_are_aborted_at_the_start(tmp_path: Path) -> None:
    async def first(broker: Broker) -> None:
        for producer in ((900, 0), (901, 5)):
            log = log_of(broker, T1)
            broker.partitions.get(*T1).on_appended(log.appender.append_internal(bytearray(rows(b"lost", producer, 0))))
        me = await broker.transactions.init_producer_id("id", 60_000)
        await send(broker, "id", me, 0, b"known", T0, T1)

    async def second(broker: Broker) -> None:
        await broker.transactions.loaded()
        assert log_of(broker, T1).last_stable_offset == 2, "what is known stays open"
        (owner,) = broker.transactions.summaries(["Ongoing"])
        await broker.transactions.end("id", owner.producer_id, owner.producer_epoch, commit=True)
        assert (visible(broker, T0), visible(broker, T1)) == ([b"known"], [b"known"])
        assert await refused(send(broker, "id", (901, 5), 1, b"late", T1)) is ProducerFencedError

    run(tmp_path, first, second)


def test_a_metadata_store_from_an_older_copy_issues_no_id_twice(tmp_path: Path) -> None:
    """Ids in logs and in the state topic are in use. A fencing token above all drawn ones would fence forever."""
    store = tmp_path / "data" / "metadata.db"
    used: list[int] = []

    async def first(broker: Broker) -> None:
        await broker.transactions.join("app", 0, "run", 5, 60_000)  # makes the state topic
        shutil.copy(store, tmp_path / "copy")

    async def second(broker: Broker) -> None:
        used.extend([await broker.storage.new_producer_id() for _ in range(2 * SMALL_BLOCK_IDS)][-1:])
        log, issued = log_of(broker, T0), broker.storage.producer_ids.is_issued
        epoch = broker.partitions.get(*T0).replicas.leader_epoch
        log.appender.append(produced(used[0], 0), leader_epoch=epoch, issued=issued)
        used.append(await broker.storage.new_producer_id())
        await broker.transactions.join("app", 1, "run2", used[1], 60_000)

    async def restored(broker: Broker) -> None:
        await broker.transactions.loaded()
        assert await broker.storage.new_producer_id() > used[1] > used[0]
        fencing_token = await broker.storage.new_producer_id()
        assert (await broker.transactions.join("app", 1, "run3", fencing_token, 60_000)).identity is not None

    run(tmp_path, first, second)
    shutil.copy(tmp_path / "copy", store)
    run(tmp_path, restored)


def test_a_refused_batch_makes_its_partition_no_part_of_the_transaction(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        txn = broker.transactions
        me = await txn.init_producer_id("id", 60_000)
        internal, missing = TopicPartition("__transaction_state", 0), TopicPartition("t", 9)
        assert await refused(send(broker, "id", me, 0, b"x", internal)) is InvalidTopicError
        assert await refused(send(broker, "id", me, 0, b"x", missing)) is UnknownTopicOrPartitionError
        assert await refused(send(broker, "nobody", me, 0, b"x", T0)) is InvalidProducerIdMappingError
        stranger = me._replace(producer_epoch=32_767)
        assert await refused(send(broker, "id", stranger, 0, b"x", T0)) is InvalidProducerEpochError
        assert txn.describe("id").partitions == []
        await send(broker, "id", me, 0, b"a", T0)
        await txn.end("id", *me, commit=True)
        assert visible(broker, T0) == [b"a"]

    run(tmp_path, scenario)


def _markers_without_a_decision(tmp_path: Path) -> list[Marker]:
    """The markers that are begun for a commit whose record cannot be stored."""
    begun: list[Marker] = []

    async def scenario(broker: Broker) -> None:
        me = await broker.transactions.init_producer_id("id", 60_000)
        await send(broker, "id", me, 0, b"a", T0)

        async def fail(*_: object, **__: object) -> None:
            for _turn in range(10):  # tasks that do not wait for the record begin meanwhile
                await asyncio.sleep(0)
            raise StorageFullError("no room for the decision")

        async def note(markers: Iterable[Marker], *_: object) -> None:
            begun.extend(markers)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.transactions.topic, "append", fail)
            patch.setattr(broker.markers, "write_all", note)
            assert await refused(broker.transactions.end("id", *me, commit=True)) is StorageFullError

    run(tmp_path, scenario)
    return begun


def test_a_commit_that_is_not_stored_has_no_markers(tmp_path: Path) -> None:
    assert _markers_without_a_decision(tmp_path / "as it is") == []
    with without(ANSWERS_FIRST):
        assert [m.partition for m in _markers_without_a_decision(tmp_path / "answers first")] == [T0]
