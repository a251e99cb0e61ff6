"""Followers' fetches: an armed partition is answered once, an idle one costs nothing, and a session is one follower's
life."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sparklog_broker.cluster.leader_side.replica_server import ReplicaServer
from sparklog_broker.cluster.replica import ClusterReplica
from sparklog_broker.counters.traffic import Traffic
from sparklog_broker.network.reply import Response
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.partitions.purgatory import Purgatory

from sparklog.errors import InvalidFetchSessionError, NotLeaderError, UnknownTopicOrPartitionError
from sparklog.log.partition_log import PartitionLog
from sparklog.protocol.cluster_messages import (
    ForgottenPartition,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)
from sparklog.replication.cluster_image import PartitionImage
from sparklog.replication.replica.model import (
    AlterOutcome,
    NewImage,
    ProposalResult,
    ProposeIsr,
    ReplicaConfig,
    Tick,
)
from sparklog.types import TopicPartition
from tests.support.logs import open_log, records

EPOCH = 4
LIVES = {1: 10, 2: 20, 3: 30}
"""Broker epochs."""


class ReplicaHost:
    def __init__(self) -> None:
        self.time_ms = 1_000
        self.proposals: list[ProposeIsr] = []
        self.server: ReplicaServer | None = None

    def now_ms(self) -> int:
        return self.time_ms

    def last_fetch_ms(self, broker_id: int) -> int:
        assert self.server is not None
        return self.server.last_fetch_ms(broker_id)

    def propose(self, replica: ClusterReplica, proposal: ProposeIsr) -> None:
        self.proposals.append(proposal)

    def on_role_lost(self, key: TopicPartition) -> None:
        pass

    def on_event(self, key: TopicPartition) -> None:
        pass

    def on_new_data(self, key: TopicPartition) -> None:
        assert self.server is not None
        self.server.on_new_data(key)


class Leading:
    """Broker 1 leads some partitions; brokers 2 and 3 follow. Stands for `Partitions`, too."""

    def __init__(self, directory: Path, count: int) -> None:
        self.host = ReplicaHost()
        self.server = ReplicaServer(self, self.host.now_ms, 1 << 20)  # type: ignore[arg-type]
        self.host.server = self.server
        self._partitions: dict[TopicPartition, Partition] = {}
        self._purgatory = Purgatory(100)
        for number in range(count):
            key = TopicPartition("events", number)
            image = PartitionImage((1, 2, 3), 1, EPOCH, 7, (1, 2, 3))
            replica = ClusterReplica(key, 1, image, ReplicaConfig(lag_max_ms=5_000), self.host)
            log = open_log(directory / str(number))
            partition = Partition(
                key, "0" * 32, replicas=replica, thread=0, fetches=self._purgatory, produces=self._purgatory,
                traffic=Traffic(10).of("events"), log=log,
            )  # fmt: skip
            self._partitions[key] = partition
            replica.on_high_watermark = partition.on_replicated
            replica.lead(NewImage(image, LIVES, 2), LIVES[1], log)

    def get(self, topic: str, number: int) -> Partition:
        found = self._partitions.get(TopicPartition(topic, number))
        if found is None:
            raise UnknownTopicOrPartitionError(f"no {topic}-{number}")
        found.replicas.check_leads()
        return found

    def find(self, key: TopicPartition) -> Partition | None:
        return self._partitions.get(key)

    def log(self, number: int) -> PartitionLog:
        return self._partitions[TopicPartition("events", number)].log

    def replica(self, number: int) -> ClusterReplica:
        found = self._partitions[TopicPartition("events", number)].replicas
        assert isinstance(found, ClusterReplica)
        return found

    def append(self, number: int, count: int = 2) -> None:
        info = self.log(number).appender.append(records(count), leader_epoch=EPOCH)
        self.get("events", number).on_appended(info)


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[Leading]:
    yield Leading(tmp_path, 3)


class Follower:
    """One follower's session."""

    def __init__(self, leading: Leading, broker: int = 2) -> None:
        self.leading = leading
        self.broker = broker
        self.life = LIVES[broker]
        self.session, self.epoch = 0, 0

    def request(
        self,
        *wanted: tuple[int, int],
        wait_ms: int = 0,
        max_bytes: int = 1 << 20,
        forget: tuple[int, ...] = (),
        mark: int = -1,
    ) -> ReplicaFetchRequest:
        """`wanted`: (partition, fetch offset); `mark`: the high watermark that the follower knows."""
        named = [
            ReplicaFetchPartition("events", p, EPOCH, offset, EPOCH if offset else -1, 0, mark, 1 << 20, copied_to=mark)
            for p, offset in wanted
        ]
        return ReplicaFetchRequest(
            self.broker, self.life, wait_ms, max_bytes, self.session, self.epoch, named,
            [ForgottenPartition("events", p) for p in forget],
        )  # fmt: skip

    async def ask(self, *wanted: tuple[int, int], **more: object) -> dict[int, ReplicaFetchResult]:
        response = await self.leading.server.answer(self.request(*wanted, **more))  # type: ignore[arg-type]
        return self.taken(response)

    def taken(self, response: Response) -> dict[int, ReplicaFetchResult]:
        message = response.message
        assert isinstance(message, ReplicaFetchResponse)
        assert sum(r.length_bytes for r in message.results) == response.payload_bytes
        response.release()
        self.session, self.epoch = message.session_id, self.epoch + 1
        return {r.partition: r for r in message.results}


def test_available_records_are_answered_once(leading: Leading) -> None:
    async def scene() -> None:
        follower = Follower(leading)
        leading.append(0)
        found = await follower.ask((0, 0), (1, 0))
        assert (found[0].next_offset, found[0].log_end_offset, found[0].error_code) == (2, 2, 0)
        assert 1 in found  # its high watermark, which the follower did not know
        assert await follower.ask() == {}  # nobody has asked for anything since
        leading.append(0)
        assert await follower.ask() == {}
        found = await follower.ask((0, 2))
        assert found[0].next_offset == 4

    asyncio.run(scene())


def test_an_idle_fetch_stays_armed_and_is_answered_when_records_come(leading: Leading) -> None:
    async def scene() -> None:
        follower = Follower(leading)
        await follower.ask((0, 0), (1, 0), (2, 0))
        named = [ReplicaFetchPartition("events", p, EPOCH, 0, -1, 0, 0, 1 << 20, copied_to=0) for p in range(3)]
        request = follower.request(wait_ms=60_000)
        request.partitions = named
        waiting = asyncio.ensure_future(leading.server.answer(request))
        await asyncio.sleep(0)
        assert not waiting.done()
        leading.append(1)
        found = follower.taken(await waiting)
        assert set(found) == {1}
        waiting = asyncio.ensure_future(leading.server.answer(follower.request(wait_ms=60_000)))
        await asyncio.sleep(0)
        leading.append(2)
        assert set(follower.taken(await waiting)) == {2}

    asyncio.run(scene())


def test_records_of_all_in_sync_replicas_are_committed_and_announced(leading: Leading) -> None:
    async def scene() -> None:
        two, three = Follower(leading, 2), Follower(leading, 3)
        leading.append(0)
        await two.ask((0, 0))
        await three.ask((0, 0))
        request = two.request(wait_ms=60_000)
        request.partitions = [ReplicaFetchPartition("events", 0, EPOCH, 2, EPOCH, 0, 0, 1 << 20, copied_to=0)]
        waiting = asyncio.ensure_future(leading.server.answer(request))
        await asyncio.sleep(0)
        assert leading.log(0).high_watermark == 0
        await three.ask((0, 2))
        assert leading.log(0).high_watermark == 2
        assert two.taken(await waiting)[0].high_watermark == 2

    asyncio.run(scene())


def test_batches_beyond_the_limit_come_next(leading: Leading) -> None:
    async def scene() -> None:
        follower = Follower(leading)
        for partition in range(3):
            leading.append(partition, 50)
        first = await follower.ask((0, 0), (1, 0), (2, 0), max_bytes=1)
        assert [r.next_offset for r in first.values()] == [50]
        second = await follower.ask(max_bytes=1)
        third = await follower.ask(max_bytes=1)
        assert {*first, *second, *third} == {0, 1, 2}

    asyncio.run(scene())


def test_a_batch_larger_than_the_remaining_room_comes_next(leading: Leading) -> None:
    """Nothing else may ever happen in its partition: its producer waits for the followers."""

    async def scene() -> None:
        follower = Follower(leading)
        for partition in range(2):
            leading.append(partition, 50)
        small = leading.log(0).size_bytes + 1
        first = await follower.ask((0, 0), (1, 0), max_bytes=small, mark=0)
        assert [(p, r.next_offset) for p, r in first.items()] == [(0, 50)]
        second = await follower.ask((0, 50), max_bytes=small, mark=0)
        assert [(p, r.next_offset) for p, r in second.items()] == [(1, 50)]

    asyncio.run(scene())


def test_a_session_is_of_one_life_and_one_request_after_the_other(leading: Leading) -> None:
    async def scene() -> None:
        follower = Follower(leading)
        await follower.ask((0, 0))
        for change in ({"session": 99}, {"epoch": 3}, {"epoch": 5}, {"life": 21}):
            before = dict(vars(follower))
            vars(follower).update(change)
            with pytest.raises(InvalidFetchSessionError):
                await leading.server.answer(follower.request())
            vars(follower).update(before)
        assert await follower.ask() == {}
        waiting = asyncio.ensure_future(leading.server.answer(follower.request((0, 0), wait_ms=60_000)))
        await asyncio.sleep(0)
        waiting_result = await waiting  # answered at once: the mark is news
        waiting_result.release()
        again = Follower(leading)
        await again.ask((0, 0))  # a new session of the same follower
        with pytest.raises(InvalidFetchSessionError):
            await leading.server.answer(follower.request())

    asyncio.run(scene())


def test_a_new_session_ends_the_wait_of_the_one_before(leading: Leading) -> None:
    async def scene() -> None:
        follower = Follower(leading)
        await follower.ask((0, 0))
        waiting = asyncio.ensure_future(leading.server.answer(follower.request(wait_ms=60_000)))
        await asyncio.sleep(0)
        await Follower(leading).ask((0, 0))
        with pytest.raises(InvalidFetchSessionError):
            await waiting

    asyncio.run(scene())


@pytest.mark.parametrize("leader", [2, -1])
def test_waiting_fetches_learn_of_another_leader(leading: Leading, leader: int) -> None:
    async def scene() -> None:
        follower = Follower(leading)
        request = follower.request(wait_ms=60_000)
        request.partitions = [ReplicaFetchPartition("events", 0, EPOCH, 0, -1, 0, 0, 1 << 20, copied_to=0)]
        waiting = asyncio.ensure_future(leading.server.answer(request))
        await asyncio.sleep(0)
        leading.replica(0).resign(PartitionImage((1, 2, 3), leader, EPOCH + 1, 8, (2, 3)))
        found = follower.taken(await waiting)
        assert found[0].error_code == NotLeaderError.code

    asyncio.run(scene())


def test_each_error_is_its_partitions_own(leading: Leading) -> None:
    async def scene() -> None:
        follower = Follower(leading)
        leading.append(0)
        request = follower.request((0, 0), (1, 5), (7, 0))
        request.partitions[1].last_epoch = -1
        found = follower.taken(await leading.server.answer(request))
        assert found[0].error_code == 0
        assert found[7].error_code == UnknownTopicOrPartitionError.code
        assert found[1].error_code != 0
        assert (found[1].log_start_offset, found[1].log_end_offset) == (0, 0)

    asyncio.run(scene())


def test_a_forgotten_partition_is_not_answered(leading: Leading) -> None:
    async def scene() -> None:
        follower = Follower(leading)
        request = follower.request()
        request.partitions = [
            ReplicaFetchPartition("events", p, EPOCH, 0, -1, 0, 0, 1 << 20, copied_to=0) for p in (0, 1)
        ]
        follower.taken(await leading.server.answer(request))
        await follower.ask(forget=(0,))
        leading.append(0)
        leading.append(1)
        assert set(await follower.ask()) == {1}

    asyncio.run(scene())


def test_a_follower_that_has_waited_long_does_not_lag_at_the_next_append(leading: Leading) -> None:
    """Only the time since the last answer counts: the follower's fetch waited at the leader all the time."""

    async def scene() -> None:
        for broker in (2, 3):
            await Follower(leading, broker).ask((0, 0), (1, 0), (2, 0))
        follower = Follower(leading, 2)
        await follower.ask((0, 0))
        leading.host.time_ms += 60_000
        await follower.ask()  # heard of, but it asks for nothing
        leading.append(0)
        leading.replica(0).handle(Tick())
        (proposal,) = leading.host.proposals
        assert [member for member, _ in proposal.isr] == [1, 2]  # broker 3 has not been heard of for a minute

    asyncio.run(scene())


def test_waiting_followers_report_again_to_a_leader_that_was_unsure(leading: Leading) -> None:
    """Its leader epoch is the same, but the followers' fetch positions are forgotten: an idle partition that was not
    named again would not return to the ISR before the next append."""
    key = TopicPartition("events", 0)
    image = PartitionImage((1, 2, 3), 1, EPOCH, 8, (1, 3))

    async def scene() -> None:
        follower = Follower(leading)
        request = follower.request()
        request.partitions = [ReplicaFetchPartition(*key, EPOCH, 0, -1, 0, 0, 1 << 20, copied_to=0)]
        assert follower.taken(await leading.server.answer(request)) == {}
        replica = leading.replica(0)
        replica.resign(image)
        replica.lead(NewImage(image, LIVES, 2), LIVES[1], leading.log(0))
        assert set(await follower.ask()) == {0}
        leading.host.proposals.clear()
        await follower.ask((0, 0))
        assert [[member for member, _ in p.isr] for p in leading.host.proposals] == [[1, 3, 2]]

    asyncio.run(scene())


def test_an_older_image_brings_no_leadership_back_that_an_answer_has_ended(leading: Leading) -> None:
    """The controller decides a proposal and moves the leadership at once. By an earlier image the old leader would
    acknowledge without the new one."""
    replica, log = leading.replica(0), leading.log(0)
    before = PartitionImage((1, 2, 3), 1, EPOCH, 7, (1, 2, 3))
    after = PartitionImage((2, 3), 2, EPOCH + 1, 8, (2, 3))
    replica.handle(ProposalResult(7, AlterOutcome.COMMITTED, after))
    assert not replica.lead(NewImage(before, LIVES, 2), LIVES[1], log)
    with pytest.raises(NotLeaderError):
        replica.check_leads()
    again = PartitionImage((1, 2, 3), 1, EPOCH + 2, 9, (1, 2, 3))
    assert replica.lead(NewImage(again, LIVES, 2), LIVES[1], log)
    replica.check_leads()


def test_proposals_stay_valid_when_a_leader_was_unsure_for_a_while(leading: Leading) -> None:
    """It may be stored: a proposed member may be elected, so nothing is acknowledged without it."""
    image = PartitionImage((1, 2, 3), 1, EPOCH, 8, (1, 3))
    replica, log = leading.replica(0), leading.log(0)

    async def scene() -> None:
        two, three = Follower(leading, 2), Follower(leading, 3)
        replica.handle(NewImage(image, LIVES, 2))
        leading.host.proposals.clear()
        await two.ask((0, 0))
        assert [[member for member, _ in p.isr] for p in leading.host.proposals] == [[1, 3, 2]]
        replica.resign(image)
        assert replica.lead(NewImage(image, LIVES, 2), LIVES[1], log)
        leading.append(0)
        await three.ask((0, 2))
        assert log.high_watermark == 0
        await two.ask((0, 2))
        assert log.high_watermark == 2

    asyncio.run(scene())
