"""The promises of one broker after the partition, the group or the transaction has moved to another, and the losses and
stalls of other systems at such moments. Three real brokers on a quiet network.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import pyarrow as pa
import pytest
from sparklog_broker.coordinators.other_brokers import OtherBrokers

from sparklog.errors import SparklogError
from sparklog.format.batch import assign_producer
from sparklog.metadata.store import TopicSpec
from sparklog.protocol import group_messages as g
from sparklog.protocol import transaction_messages as t
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from sparklog.protocol.topic_messages import (
    AlterSchemaRequest,
    AlterSchemaResponse,
    MetadataRequest,
    MetadataResponse,
)
from sparklog.replication.controller.model import Elect, ElectionKind, Reassign
from sparklog.testing._sim_loop import Simulation
from sparklog.testing._sim_reader import SimReader
from sparklog.types import LATEST_TIMESTAMP, TopicPartition
from tests.simulation.cluster.play import PATIENCE_S, PLAN, SESSION_S, STARTED_MS, TP, Play
from tests.simulation.plans import OUTPUT
from tests.simulation.sim_producer import encode_values

DISKS = ("/disk-1", "/disk-2")


@pytest.fixture
def play_with_disks() -> Iterator[Play]:
    with Simulation(1) as simulation:
        yield Play(simulation, PLAN._replace(disks=DISKS))


def fail_over(play: Play) -> None:
    """Let broker 2 lead, without broker 1, the former leader."""
    play[1].kill()
    play.until(lambda: play.state.leader not in (-1, 1))
    play.until(lambda: play.leads(play.state.leader))


def test_a_leader_whose_disk_fails_removes_only_itself_from_the_isr(play_with_disks: Play) -> None:
    """KAFKA-7837: a leader whose partition is offline must not shrink the ISR to itself, because it cannot lead."""
    play = play_with_disks
    controller = play.world.controller()
    assert controller is not None
    leader = next(node for node in play.world.nodes if node is not controller)
    play.order(leader.id, *(node.id for node in play.world.nodes if node is not leader))
    end = play.acknowledged() + 3
    disk = "/" + leader.broker.storage.logs.table.location_of(TP)[0].parts[1]  # type: ignore[union-attr]
    assert disk in DISKS
    links = [(leader.host, controller.host), (controller.host, leader.host)]
    for link in links:
        play.world.net.cut(*link)  # it cannot hand over its partitions yet, and no follower copies from it
    play.world.trouble.disks[leader.id].broken.add(disk)
    task = play.client.loop.create_task(_one_try(play))
    play.pass_time(3.0)  # a replica may lag one second
    seen: set[tuple[int, ...]] = set()

    def led_by_another() -> bool:
        seen.add(play.state.isr)
        return play.state.leader not in (leader.id, -1)

    play.world.net.heal_links(links)
    play.until_turn(led_by_another)
    assert (leader.id,) not in seen
    play.until(task.done)
    assert play.acknowledged() >= end
    play.world.trouble.disks[leader.id].heal()
    leader.kill()
    leader.start()
    play.come_to_rest()


async def _one_try(play: Play) -> None:
    payload = encode_values([next(play.values)], STARTED_MS)
    assign_producer(memoryview(payload), producer_id=-1, producer_epoch=-1, base_sequence=-1)
    request = ProduceRequest(1, 1_000, [ProducePartition(*TP, len(payload))])
    with contextlib.suppress(SparklogError):
        await play.client.ask(Api.PRODUCE, request, ProduceResponse, bytes(payload))


def test_a_change_that_does_not_concern_a_follower_does_not_disturb_its_copying(play: Play) -> None:
    """fluss 620: every notice restarted all replicas as followers, with new fetchers."""
    play.acknowledged()
    server = play[1].cluster.server  # type: ignore[union-attr]
    session = server._sessions[2]
    state = play[2].broker.partitions.find(TP).replicas.state  # type: ignore[union-attr]
    play[3].stop(10.0)
    play.until(lambda: play.state.isr == (1, 2))
    play.acknowledged()
    play[3].start()
    play.until(lambda: set(play.state.isr) == {1, 2, 3})
    play.acknowledged()
    assert server._sessions[2] is session
    assert play[2].broker.partitions.find(TP).replicas.state is state  # type: ignore[union-attr]
    play.come_to_rest()


def test_a_new_leader_with_a_lagging_follower_stays_in_the_isr(play: Play) -> None:
    """fluss 3927: a shrink decided as a follower was proposed as the leader, without the leader."""
    play.acknowledged()
    lagging = next(n for n in play.world.nodes if n is not play.world.controller())
    one, other = (n.id for n in play.world.nodes if n is not lagging)
    for broker_id in (one, other):
        play.world.net.cut(lagging.host, play[broker_id].host)
    seen: set[tuple[int, tuple[int, ...]]] = set()

    def lead(*replicas: int) -> None:
        play.order(*replicas, lagging.id)
        seen.add((play.state.leader, play.state.isr))

    def has_shrunk() -> bool:
        seen.add((play.state.leader, play.state.isr))
        return lagging.id not in play.state.isr

    for _ in range(3):
        lead(one, other)
        lead(other, one)
    play.until_turn(has_shrunk)
    lead(one, other)
    assert all(leader in isr for leader, isr in seen)
    assert any(lagging.id not in isr for _, isr in seen)
    play.world.net.heal()
    play.acknowledged()
    play.come_to_rest()


def test_a_time_has_the_same_offset_at_the_next_leader(play: Play) -> None:
    """Also a time between batches, before all, and after all; and again when the old leader is back."""
    times = [STARTED_MS + step for step in (0, 10_000, 5_000, 40_000, 30_000)]  # not in their order
    for at_ms in times:
        play.acknowledged(at_ms=at_ms)
    asked = [STARTED_MS - 1, *sorted(times), STARTED_MS + 7_000, STARTED_MS + 35_000, STARTED_MS + 50_000]
    before = play.found_at(asked)
    assert {offset for offset, _ in before} >= {0, 3, 9, -1}
    fail_over(play)
    assert play.found_at(asked) == before
    play[1].start()
    play.until(lambda: 1 in play.state.isr)
    play.order(1, 2, 3)
    assert play.found_at(asked) == before
    play.come_to_rest()


def test_the_next_leader_knows_a_schema_that_was_added_just_before(play: Play) -> None:
    """The next leader takes records of the schema, and reports it as the newest."""
    first = pa.schema([pa.field("a", pa.int64())])
    spec = TopicSpec("typed", 1, schema=first, replication_factor=3)
    play.world.at_controller(lambda broker: broker.topics.create(spec), limit_s=PATIENCE_S)
    added = pa.schema([pa.field("b", pa.string())])
    request = AlterSchemaRequest("typed", add_columns=added.serialize().to_pybytes())
    altered = play.ask(Api.ALTER_SCHEMA, request, AlterSchemaResponse).topic
    assert len(altered.schemas) == 2
    leader, controller = altered.partitions[0].leader, play.world.controller()
    assert controller is not None
    gone = {leader, controller.id}
    for broker_id in gone:
        play[broker_id].kill()
    for broker_id in gone - {leader}:
        play[broker_id].start()
    play.until(lambda: play.world.controller() is not None)
    image = play.world.controller_image
    play.until(lambda: (i := image()) is not None and i.topics["typed"].partitions[0].leader not in (-1, leader))
    answer = play.ask(Api.METADATA, MetadataRequest(["typed"]), MetadataResponse)
    assert [s.schema_id for s in answer.topics[0].schemas] == [s.schema_id for s in altered.schemas]
    play.come_to_rest()
    for node in play.world.nodes:
        schemas = node.broker.partitions.topics["typed"].schemas  # type: ignore[union-attr]
        assert [s.names for s in schemas.values()] == [["a"], ["a", "b"]]


def test_an_open_transaction_hides_the_records_behind_it_at_the_next_leader_too(play: Play) -> None:
    """A reader of committed records gets the transaction as a whole, after its commit at the next leader."""
    drawn = play.ask(Api.INIT_PRODUCER_ID, t.InitProducerIdRequest("open", 60_000), t.InitProducerIdResponse)
    payload = encode_values([next(play.values) for _ in range(2)], STARTED_MS)
    identity = drawn.producer_id, drawn.producer_epoch
    assign_producer(
        memoryview(payload), producer_id=identity[0], producer_epoch=identity[1], base_sequence=0, transactional=True
    )
    request = ProduceRequest(-1, 5_000, [ProducePartition(*TP, len(payload))], "open")
    (stored,) = play.ask(Api.PRODUCE, request, ProduceResponse, bytes(payload)).results
    assert stored.error_code == 0, stored
    behind = play.acknowledged()
    fail_over(play)
    assert _committed(play, until=-1) == []
    play.ask(Api.END_TXN, t.EndTxnRequest("open", *identity, True), t.EndTxnResponse)
    assert _committed(play, until=behind + 2) == [0, 1, *range(behind, behind + 3)]
    play.come_to_rest()


def test_the_ends_of_several_leaders_lie_inside_no_transaction(play: Play) -> None:
    """Broker 1 leads a partition with an open transaction, broker 2 another one. The part behind the open transaction
    is compared across brokers, and only then is there a request for it."""
    other = TopicPartition(OUTPUT, 0)
    play.ask_controller(lambda token: Reassign(token, {other: (2, 3, 1)}))
    play.ask_controller(lambda token: Elect(token, ElectionKind.PREFERRED, (other,)))
    play.until(lambda: all(play[i].broker.cluster.image.partition(other).leader == 2 for i in (1, 2, 3)))  # type: ignore[union-attr]
    drawn = {
        name: play.ask(Api.INIT_PRODUCER_ID, t.InitProducerIdRequest(name, 60_000), t.InitProducerIdResponse)
        for name in ("open", "whole")
    }

    def write(name: str, tp: TopicPartition) -> None:
        payload = encode_values([next(play.values)], STARTED_MS)
        identity = drawn[name].producer_id, drawn[name].producer_epoch
        assign_producer(
            memoryview(payload),
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=0,
            transactional=True,
        )
        request = ProduceRequest(-1, 5_000, [ProducePartition(*tp, len(payload))], name)
        (stored,) = play.ask(Api.PRODUCE, request, ProduceResponse, bytes(payload)).results
        assert stored.error_code == 0, stored

    def end(name: str, *, commit: bool) -> None:
        request = t.EndTxnRequest(name, drawn[name].producer_id, drawn[name].producer_epoch, commit)
        play.ask(Api.END_TXN, request, t.EndTxnResponse)

    def ends(asked: int) -> list[int]:
        request = ListOffsetsRequest([ListOffsetsPartition(*tp, LATEST_TIMESTAMP) for tp in (TP, other)], 1, True)
        work = play.client._ask_host(play[asked].host, Api.LIST_OFFSETS, request, ListOffsetsResponse, b"", 10.0)
        answer, _ = play.simulation.complete(play.client.loop, work, limit_s=PATIENCE_S)
        assert not any(r.error_code for r in answer.results), answer
        return [r.offset for r in answer.results]

    with mock.patch.object(OtherBrokers, "commits", autospec=True, side_effect=OtherBrokers.commits) as requests:
        write("open", TP)
        write("whole", TP)
        write("whole", other)
        assert [ends(1), ends(2)] == [[0, 0]] * 2
        assert not requests.called, "nothing is committed behind the open transaction"
        end("whole", commit=True)
        assert [ends(1), ends(2)] == [[0, 0]] * 2
        assert requests.called
        end("open", commit=True)
        assert [ends(1), ends(2)] == [[4, 2]] * 2
    play.come_to_rest()


def _committed(play: Play, until: int) -> list[int]:
    """Return the offsets that a new reader of committed records gets, until `until` is among them; -1: in three
    answers."""
    reader = SimReader(play.client, committed=True)  # type: ignore[arg-type]
    reader.assign({TP: 0})
    found: list[int] = []
    answers = 0
    end_s = play.simulation.now_s + PATIENCE_S
    while (until < 0 and answers < 3) or (until >= 0 and until not in found):
        assert play.simulation.now_s < end_s, found
        try:
            rows = play.simulation.complete(play.client.loop, reader.poll(wait_ms=200), limit_s=PATIENCE_S)
        except SparklogError:  # it has to look for the new leader
            play.pass_time(0.1)
            continue
        answers += 1
        found += [row.offset for row in rows.get(TP, [])]
    return found


def test_a_group_goes_on_where_it_has_committed_when_its_coordinator_has_moved(play: Play) -> None:
    """Earlier commits exist, and a later one counts; also when the first coordinator is back."""

    def commit(offset: int) -> None:
        request = g.OffsetCommitRequest("moved", [g.CommittedOffset(*TP, offset)], "", -1)
        end_s = play.simulation.now_s + PATIENCE_S
        while True:
            (result,) = play.ask(Api.OFFSET_COMMIT, request, g.OffsetCommitResponse).results
            if not result.error_code:
                return
            assert play.simulation.now_s < end_s, result
            play.pass_time(0.1)

    def committed() -> int:
        wanted = [g.TopicPartitions(TP.topic, [TP.partition])]
        request = g.OffsetFetchRequest("moved", wanted, require_stable=True)
        (found,) = play.ask(Api.OFFSET_FETCH, request, g.OffsetFetchResponse).offsets
        assert found.error_code == 0, found
        return int(found.offset)

    def coordinator() -> int:
        request = g.FindCoordinatorRequest("moved", 0)
        return int(play.ask(Api.FIND_COORDINATOR, request, g.FindCoordinatorResponse).broker_id)

    commit(5)
    for offset in (7, 9):
        old = coordinator()
        play[old].kill()
        play.until(lambda old=old: play.world.controller() is not None and old not in _alive(play))  # type: ignore[misc]
        assert committed() == offset - 2
        commit(offset)
        assert committed() == offset
        assert coordinator() != old
        play[old].start()
        play.until(lambda old=old: old in play.state.isr)  # type: ignore[misc]
    play.pass_time(2 * SESSION_S)
    assert committed() == 9
    play.come_to_rest()


def _alive(play: Play) -> list[int]:
    image = play.world.controller_image()
    return [] if image is None else list(image.brokers)
