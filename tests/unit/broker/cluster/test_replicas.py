"""Replicas of a broker: images, requests before the join, the throttle of copies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from sparklog_broker.broker import Broker
from sparklog_broker.cluster.replica import ClusterReplica
from sparklog_broker.cluster.replicas import Replicas
from sparklog_broker.cluster.replication_throttle import Quota, is_throttled
from sparklog_broker.config import make_config
from sparklog_broker.counters.replication import ReplicationCounters
from sparklog_broker.network.connection import Connection
from sparklog_broker.pipeline import Pipeline
from sparklog_broker.registry import HANDLERS

from sparklog.environment.clock import SystemClock
from sparklog.errors import BrokerNotAvailableError
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.codec import encode
from sparklog.protocol.frames import RequestPrefix, decode_response_prefix
from sparklog.replication.cluster_image import (
    BrokerImage,
    ClusterDelta,
    ClusterImage,
    PartitionImage,
    TopicImage,
    Version,
)
from sparklog.replication.replica.follower import Follower
from sparklog.replication.replica.model import NewImage, ReplicaConfig
from sparklog.types import TopicPartition
from tests.support.logs import open_log, records
from tests.support.requests import Asking
from tests.unit.broker.security.requests_about import NOT_THERE, REQUESTS_ABOUT, parts

KEY = TopicPartition("events", 0)
LIVES = {1: 10, 2: 20}


class Thread:
    """An I/O thread that works when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def index_of(self, topic: str, partition: int) -> int:
        return 0

    def submit(self, index: int, job: Callable[[], Any], deliver: Callable[[Any, Exception | None], None]) -> None:
        self.jobs.append(lambda: deliver(job(), None))

    def work(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


def replicas_of(partitions: Any, thread: Thread | None = None) -> Replicas:
    """The replicas of broker 1, which is registered with the epoch LIVES[1]."""
    server = SimpleNamespace(
        counters=ReplicationCounters(), quota=Quota(lambda: 0), on_new_data=lambda key: None, last_fetch_ms=lambda _: 0
    )
    registration = SimpleNamespace(is_certain=lambda: True, broker_epoch=LIVES[1])
    config, unused = make_config({"broker.id": 1}), cast(Any, None)
    replicas = Replicas(
        config, asyncio.get_running_loop(), cast(Any, SystemClock()), cast(Any, thread), unused, partitions,
        cast(Any, server), unused, cast(Any, registration), unused, ClusterImage(), lambda key, leads: None,
    )  # fmt: skip
    replicas.noted_epoch = LIVES[1]
    return replicas


def test_a_follower_begins_behind_the_records_of_its_own_leadership(tmp_path: Path) -> None:
    """Else it would fetch from where the log ended before: it would have records that its leader does not know of."""

    async def scene() -> None:
        thread, log = Thread(), open_log(tmp_path)
        nothing = dict.fromkeys(("on_role_changed", "on_replicated", "on_copied"), lambda: None)
        quiet = SimpleNamespace(key=KEY, open_log=log, **nothing)
        replicas = replicas_of(SimpleNamespace(find=lambda key: quiet, all=lambda: [quiet]), thread)
        before = PartitionImage((1, 2), 1, 4, 7, (1, 2))
        quiet.replicas = replica = ClusterReplica(KEY, 1, before, ReplicaConfig(), replicas)
        replicas._replicas = {KEY: replica}
        after = PartitionImage((1, 2), 2, 5, 8, (1, 2))
        replicas.image = cast(ClusterImage, SimpleNamespace(partition=lambda key: after, brokers={}))
        replica.lead(NewImage(before, LIVES, 1), LIVES[1], log)
        thread.submit(0, lambda: log.appender.append(records(2), leader_epoch=4), lambda *_: None)
        replicas._follow(cast(Any, quiet))
        assert not isinstance(replica.state, Follower)
        thread.work()
        assert isinstance(replica.state, Follower)
        assert (replica.state._end, log.log_end_offset) == (2, 2)
        for _, task in replicas._fetchers.values():
            task.cancel()

    asyncio.run(scene())


def test_an_image_with_one_new_topic_is_no_work_for_the_others() -> None:
    """A broker with thousands of partitions follows each creation; partitions without a role are looked at again."""

    async def scene() -> None:
        partitions: dict[TopicPartition, Any] = {}
        found = SimpleNamespace(
            all=lambda: list(partitions.values()),
            of=lambda topics, keys: [p for key, p in partitions.items() if key.topic in topics or key in keys],
        )
        replicas = replicas_of(found)
        visited: list[str] = []

        def take_role(partition: Any) -> None:
            visited.append(partition.key.topic)
            if partition.key.topic != "offline":
                replicas._follower_states[partition.key] = cast(Any, None)

        replicas._take_role = take_role  # type: ignore[method-assign]

        def image_of(*names: str, before: ClusterImage | None = None) -> ClusterImage:
            state = PartitionImage((1,), 1, 0, 0, (1,))
            delta = ClusterDelta(topics={name: TopicImage(name, name, (state,)) for name in names})
            image = before if before is not None else ClusterImage(brokers={1: BrokerImage(1, LIVES[1])})
            after = image.apply(delta, Version(1, image.version.zxid + 1))
            for name in names:
                key = TopicPartition(name, 0)
                replicas.role_of(key, None)
                partitions[key] = SimpleNamespace(key=key, open_log=None)
            return after

        first = image_of("a", "b", "offline")
        replicas.follow_image(first)
        assert sorted(visited) == ["a", "b", "offline"]
        visited.clear()
        second = image_of("c", before=first)
        replicas.follow_image(second)
        assert sorted(visited) == ["c", "offline"]
        assert replicas.without_log() == [TopicPartition("offline", 0)]
        visited.clear()
        replicas._follower_states.pop(TopicPartition("b", 0))
        replicas.on_role_lost(TopicPartition("b", 0))
        replicas.follow_image(image_of("d", before=second))
        assert sorted(visited) == ["b", "d", "offline"]
        visited.clear()
        replicas.follow_image(replicas.image)
        assert sorted(visited) == ["a", "b", "c", "d", "offline"]

    asyncio.run(scene())


# Requests to a broker whose port answers before it has joined its cluster


def test_a_request_is_answered_with_an_error_that_clients_try_again_after(tmp_path: Path) -> None:
    codes: dict[Api, int] = {}

    async def main() -> None:
        broker = Broker.open(make_config({"data.dir": str(tmp_path / "data")}), asyncio.get_running_loop())
        broker.start()
        pipeline = Pipeline(broker, HANDLERS)
        try:
            for api in (api for api, spec in APIS.items() if not spec.is_before_join):
                request, payload = parts(REQUESTS_ABOUT[api](NOT_THERE))
                body = bytearray(encode(request) + payload)
                prefix = RequestPrefix(api, APIS[api].version_max, 7, len(body) - len(payload), len(body))
                reply = await pipeline.answer(prefix, memoryview(body), cast(Connection, Asking()))
                assert reply is not None
                head = b"".join(bytes(part) for part in reply.parts if isinstance(part, bytes))
                codes[api] = decode_response_prefix(head, 1 << 20).error_code
        finally:
            broker.stop_waiting()
            await broker.close()

    asyncio.run(main())
    assert set(codes.values()) == {BrokerNotAvailableError.code}, codes
    assert BrokerNotAvailableError.retriable


# The limit of copying replicas that are being added


def test_without_a_rate_no_fetch_waits() -> None:
    quota = Quota(lambda: 0)
    assert quota.wait_ms() == 0


def test_borrowed_bytes_are_paid_back() -> None:
    now = [0]
    quota = Quota(lambda: now[0])
    quota.set_rate(1_000)
    assert quota.wait_ms() == 0
    quota.take(3_000)  # one second's worth was in stock
    assert quota.wait_ms() == 2_001
    now[0] = 2_000
    assert quota.wait_ms() > 0
    now[0] = 2_001
    assert quota.wait_ms() == 0
    now[0] = 60_000  # idle time is not saved up
    assert quota.wait_ms() == 0
    quota.take(2_000)
    assert 0 < quota.wait_ms() <= 2_001


def test_over_a_minute_the_rate_is_kept() -> None:
    now = [0]
    quota = Quota(lambda: now[0])
    quota.set_rate(10_000)
    taken = 0
    while now[0] < 60_000:
        wait_ms = quota.wait_ms()
        if wait_ms:
            now[0] += wait_ms
        else:
            quota.take(4_321)
            taken += 4_321
    assert 590_000 < taken < 620_000


def test_only_replicas_that_are_added_and_out_of_sync() -> None:
    partition = PartitionImage((3, 1, 2), 1, 4, 9, (1, 3), adding=(3, 4), removing=(2,))
    assert [broker for broker in range(6) if is_throttled(partition, broker)] == [4]
