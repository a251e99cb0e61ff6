"""Transactions in a broker without sockets: plain and shared, across restarts, with failing disks and deleted topics."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sparklog_broker.broker import Broker

from sparklog.errors import (
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortedError,
)
from sparklog.types import shared_transactional_id
from tests.unit.broker.transaction_support import T0, T1, log_of, refused, run, send, visible


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


def test_only_the_winners_of_a_shared_transaction_are_committed(tmp_path: Path) -> None:
    app = shared_transactional_id("app")

    async def scenario(broker: Broker) -> None:
        txn = broker.transactions
        joined = await asyncio.gather(*(txn.join("app", 0, "run", 5, 60_000) for _ in range(4)))
        ids = [j.identity for j in joined]
        assert len({i.producer_id for i in ids if i}) == 4
        for n, identity in enumerate(ids):
            assert identity is not None
            await send(broker, app, identity, 0, b"%d" % n, T0, T1)
        winners = [ids[1].producer_id, ids[3].producer_id]  # type: ignore[union-attr]
        assert await txn.end_shared("app", 0, "run", 5, winners, commit=True)
        assert visible(broker, T0) == visible(broker, T1) == [b"1", b"3"]
        assert await txn.end_shared("app", 0, "run", 5, winners, commit=True)
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
        before = {n: broker.partition("__transaction_state", n).log.log_end_offset for n in range(8)}
        await asyncio.gather(*(txn.join("app", 0, "run", 5, 60_000) for _ in range(50)))
        grown = [n for n in range(8) if broker.partition("__transaction_state", n).log.log_end_offset > before[n]]
        (n,) = grown
        log = broker.partition("__transaction_state", n).log
        assert log.log_end_offset - before[n] == 50
        piece = log.read(before[n], 1 << 20)
        assert piece is not None
        from sparklog.format.batch import iterate_batches

        batches = len(list(iterate_batches(piece.read())))
        piece.release()
        assert batches <= 3

    run(tmp_path, scenario)


def test_a_deleted_topic_needs_no_marker(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        me = await broker.transactions.init_producer_id("id", 60_000)
        await send(broker, "id", me, 0, b"a", T0)
        await broker.delete_topic("t")
        await broker.transactions.end("id", *me, commit=True)
        assert broker.transactions.describe("id").summary.state == "CompleteCommit"  # type: ignore[union-attr]

    run(tmp_path, scenario)


def test_timeouts_abort_what_is_open(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        txn = broker.transactions
        me = await txn.init_producer_id("id", 1)
        await send(broker, "id", me, 0, b"a", T0)
        one = (await txn.join("app", 0, "run", 5, 1)).identity
        assert one is not None
        await send(broker, shared_transactional_id("app"), one, 0, b"b", T1)
        while log_of(broker, T0).last_stable_offset < 2 or log_of(broker, T1).last_stable_offset < 2:
            await asyncio.sleep(0.01)
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

    run(tmp_path, scenario, transaction_abort_timed_out_transaction_cleanup_interval_ms=10)


def test_operators_abort_what_is_open_and_what_hangs(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        txn = broker.transactions
        me = await txn.init_producer_id("id", 60_000)
        assert await refused(txn.abort("id")) is InvalidTxnStateError
        await send(broker, "id", me, 0, b"a", T0, T1)
        assert await refused(txn.abort_hanging(T0, me.producer_id)) is InvalidTxnStateError, "it does not hang"
        (listed,) = txn.summaries(["Ongoing"])
        assert (listed.transactional_id, listed.producer_id) == ("id", me.producer_id)
        assert txn.summaries(["CompleteAbort"]) == []
        assert txn.summaries(running_ms_min=60_000) == []
        assert [p.transactional_id for p in txn.describe_producers(T0).producers] == ["id"]
        assert await txn.abort("id") == 2
        assert visible(broker, T0) == []
        # as a broker without verification would have let it in
        from tests.unit.broker.transaction_support import rows

        log = log_of(broker, T1)
        info = log.append_internal(bytearray(rows(b"hangs", (999, 3), 0)))
        broker.partition(*T1).on_appended(info)
        (found,) = [p for p in txn.describe_producers(T1).producers if p.transaction_first_offset >= 0]
        assert (found.producer_id, found.transactional_id) == (999, None)
        assert await txn.abort_hanging(T1, 999) == 1
        assert log.last_stable_offset == log.log_end_offset
        assert visible(broker, T1) == []

    run(tmp_path, scenario)
