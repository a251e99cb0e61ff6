"""Losses and stalls of other systems, played step by step with three real brokers on a quiet network. More are in
`test_replication_scenarios.py`, where logs are models that can lag.
"""

from __future__ import annotations

import pytest
from sparklog_broker.cluster.membership import ImageNews

from sparklog.errors import BrokerNotAvailableError, NotControllerError, SparklogError
from sparklog.format.batch import assign_producer
from sparklog.format.epoch_checkpoint import LEADER_EPOCHS_FILE
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import Create
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse
from sparklog.protocol.topic_messages import DeleteTopicRequest, DeleteTopicResponse, MetadataRequest, MetadataResponse
from sparklog.replication.controller.model import AlterConfig, Elect, ElectionKind, Reassign
from sparklog.testing._sim_client import SimClient
from sparklog.testing._sim_loop import Simulation
from tests.simulation.cluster.play import PATIENCE_S, PLAN, SESSION_S, STARTED_MS, TP, Play
from tests.simulation.cluster.promises import batches_of
from tests.simulation.plans import INPUT, OUTPUT
from tests.simulation.sim_producer import encode_values


def test_a_controller_that_wakes_up_behind_another_one_makes_no_change(play: Play) -> None:
    """KAFKA-6082, fluss 2778: its writes are fenced, whatever its belief."""
    old = play.world.controller()
    assert old is not None and old.cluster is not None and old.loop is not None
    old.pause(4 * SESSION_S)
    play.until(lambda: play.world.controller() is not old)
    before = play.state
    old.resume()
    asked = old.loop.create_task(old.cluster.membership.ask(lambda token: Reassign(token, {TP: (3, 2, 1)})))
    play.until(asked.done)
    if asked.exception() is None:  # it had learnt of its end before, and asked again as one of the others
        raise AssertionError(asked.result())
    assert isinstance(asked.exception(), NotControllerError)
    assert play.state.replicas == before.replicas
    play.come_to_rest()


def test_a_registration_of_an_earlier_session_of_the_same_process_is_renewed(play: Play) -> None:
    """KAFKA-7165: the node exists, but belongs to an ended session."""
    node = play[2]
    zk = node.zk
    assert zk is not None
    path = f"{znodes.BROKER_IDS}/2"
    registered = play.world.zookeeper.znodes.read(path)
    stranger = play.world.zookeeper.client()
    play.pass_time(1.0)
    play.world.zookeeper.end_session(zk.session_id)
    made = stranger.transaction([Create(path, registered.data, ephemeral=True)])
    play.until(made.done)
    node.cut_zookeeper(0)
    node.heal_zookeeper()
    play.until(lambda: (n := play.world.zookeeper.znodes.find(path)) is not None and n.owner == zk.session_id)
    assert play.world.zookeeper.znodes.read(path).czxid > registered.czxid
    play.come_to_rest()


def test_an_image_that_comes_late_is_dropped(play: Play) -> None:
    """KAFKA-7235: decisions of an earlier controller, or of this one earlier, do not come back."""
    node = play[3]
    assert node.cluster is not None and node.loop is not None
    images = node.cluster.images
    late = images.image
    play.order(2, 1, 3)
    play.until(lambda: images.image.version > late.version)
    newer = images.image
    play.simulation.complete(node.loop, images._take(ImageNews(late)))
    assert images.image is newer
    play.come_to_rest()


def test_a_follower_that_ends_below_its_leaders_start_continues_at_the_start(play: Play) -> None:
    """KAFKA-7414: the follower continues after an out-of-range error. fluss 703: also with a sequence in the middle, of
    a producer that it does not know. fluss 4012: no record of the old log comes back at the next start.
    """
    play.acknowledged()
    play[3].kill()
    play.until(lambda: 3 not in play.state.isr)
    end = play.acknowledged()
    play.delete_below(end + 2)
    play.acknowledged()
    play[3].start()
    play.until(lambda: 3 in play.state.isr)
    assert play.log(3).log_start_offset == end + 2
    play[3].kill()
    play[3].start()
    play.until(lambda: play[3].has_joined and 3 in play.state.isr)
    assert play.log(3).log_start_offset == end + 2
    play.acknowledged()
    play.come_to_rest()


def test_epochs_are_read_from_the_batches_when_their_file_is_gone(play: Play) -> None:
    """KAFKA-10432: the first epoch too."""
    play.acknowledged()
    play.order(2, 1, 3)
    play.acknowledged()
    before = play.log(3).epochs.entries
    assert len(before) == 2
    place = play[3].broker.storage.logs.table.location_of(TP)[0] / str(TP)  # type: ignore[union-attr]
    play[3].kill()
    play[3].machine.files.remove(place / LEADER_EPOCHS_FILE)
    play[3].start()
    play.until(lambda: play[3].has_joined and 3 in play.state.isr)
    assert play.log(3).epochs.entries == before
    play.come_to_rest()


def test_a_proposal_lost_with_a_controller_is_repeated(play: Play) -> None:
    """KAFKA-14154: otherwise the partition stays under-replicated forever."""
    leader = next(n for n in play.world.nodes if n is not play.world.controller())
    follower = next(n for n in play.world.nodes if n is not leader and n is not play.world.controller())
    others = [n.id for n in play.world.nodes if n is not leader]
    play.order(leader.id, *others)
    controller = play.world.controller()
    assert controller is not None
    play.world.net.cut(follower.host, leader.host)
    play.world.net.cut(leader.host, follower.host)
    controller.kill()  # at about the time when the leader proposes to go on without the follower
    play.until(lambda: play.world.controller() not in (None, controller))
    play.world.net.heal()
    controller.start()
    play.until(lambda: set(play.state.isr) == {1, 2, 3})
    play.acknowledged()
    play.come_to_rest()


def test_a_smaller_isr_is_no_new_leader_epoch(play: Play) -> None:
    """KAFKA-15021: a follower that stops costs neither a new epoch nor the waiting requests of others."""
    play.acknowledged()
    epoch = play.state.leader_epoch
    play[3].stop(10.0)
    play.until(lambda: 3 not in play.state.isr)
    play.acknowledged()
    assert (play.state.leader, play.state.leader_epoch) == (1, epoch)
    play.come_to_rest()


def test_with_a_lower_min_isr_no_replica_stays_eligible(play: Play) -> None:
    """KAFKA-16540: records are then committed without the replicas that have left."""
    for other in (2, 3):
        play[other].stop(10.0)
    play.until(lambda: play.state.isr == (1,) and play.state.elr)
    play.ask_controller(lambda token: AlterConfig(token, INPUT, {"min.insync.replicas": 1}))
    play.until(lambda: not play.state.elr)
    play.acknowledged()
    play[1].kill()
    for other in (2, 3):
        play[other].start()
    play.until(lambda: play.state.leader == -1)
    play.pass_time(3 * SESSION_S)
    assert play.state.leader == -1  # neither has the last record
    assert play.state.isr == ()
    assert set(play.state.elr) <= {1}


def test_a_new_leader_gives_followers_their_time(play: Play) -> None:
    """fluss 3698, KAFKA-14140: after the first write healthy followers must not count as lagging."""
    play.acknowledged()
    for replicas in ((2, 3, 1), (3, 1, 2), (1, 2, 3)):
        play.order(*replicas)
        epoch = play.state.partition_epoch
        play.acknowledged()
        assert set(play.state.isr) == {1, 2, 3}
        assert play.state.partition_epoch == epoch


def test_a_crashed_follower_does_not_lead_with_the_rest_of_its_log(play: Play) -> None:
    """fluss 644, 662, KAFKA-14617, 18106: it lost its page cache, and the leader stops just afterwards."""
    base = play.acknowledged()
    play[2].power_cut()
    play[1].stop(10.0)
    play[2].start()
    play.until(lambda: play.state.leader == 3 and play[2].broker is not None)
    assert 2 not in play.state.isr or play.log(2).log_end_offset > base
    play.come_to_rest()
    assert play.log(1).log_end_offset > base


def test_when_all_sessions_have_ended_a_controller_is_elected_again(play: Play) -> None:
    """fluss 4362: the processes live, and are not restarted."""
    for node in play.world.nodes:
        assert node.zk is not None
        play.world.zookeeper.end_session(node.zk.session_id)
        node.cut_zookeeper(50)
        node.heal_zookeeper()
    play.until(lambda: (image := play.world.controller_image()) is not None and len(image.eligible()) == 3)
    play.acknowledged()
    play.come_to_rest()


@pytest.mark.parametrize("how", ["killed", "stopped", "session ended"])
def test_the_last_one_in_sync_goes_and_leads_again_when_it_comes_back(how: str) -> None:
    """fluss 2162: no other broker could lead; after its return it did not lead either, and could not let others in."""
    one = {"min.insync.replicas": 1}
    with Simulation(1) as simulation:
        play = Play(simulation, PLAN._replace(topics={INPUT: one, OUTPUT: one}))
        last = play[1]
        for other in (2, 3):
            play[other].kill()
        play.until(lambda: play.state.isr == (1,))
        base = play.acknowledged()
        if how == "session ended":
            assert last.zk is not None
            play.world.zookeeper.end_session(last.zk.session_id)
            last.cut_zookeeper(0)
        elif how == "stopped":
            last.stop(10.0)
        else:
            last.kill()
        for other in (2, 3):
            play[other].start()
        play.until(lambda: play.world.controller() in (play[2], play[3]) and play.state.leader == -1)
        play.pass_time(3 * SESSION_S)
        assert (play.state.leader, play.state.isr, play.state.elr) == (-1, (), (1,))
        last.heal_zookeeper() if how == "session ended" else last.start()
        play.until(lambda: set(play.state.isr) == {1, 2, 3} and play.state.leader == 1)
        assert play.acknowledged() == base + 3
        play.come_to_rest()


def test_a_proposal_that_an_election_has_overtaken_does_not_stand_in_the_way_of_later_ones(play: Play) -> None:
    """fluss 2146: a proposal without an answer was never dropped, so that the ISR did not grow again."""
    controller = play.world.controller()
    assert controller is not None
    leader, joining = (node for node in play.world.nodes if node is not controller)
    play.order(leader.id, controller.id, joining.id)
    joining.kill()
    play.until(lambda: joining.id not in play.state.isr)
    play.acknowledged()
    links = [(leader.host, controller.host), (controller.host, leader.host)]

    def is_proposed() -> bool:
        partition = leader.broker.partitions.find(TP)  # type: ignore[union-attr]
        pending = partition.replicas.state._pending  # type: ignore[union-attr]
        return pending is not None and joining.id in pending.members

    joining.start()
    play.until_turn(is_proposed)
    for link in links:
        play.world.net.cut(*link)
    others = controller.id, leader.id, joining.id
    play.ask_controller(lambda token: Reassign(token, {TP: others}))
    play.ask_controller(lambda token: Elect(token, ElectionKind.PREFERRED, (TP,)))
    play.until(lambda: play.state.leader == controller.id)
    play.world.net.heal()
    play.until(lambda: set(play.state.isr) == {1, 2, 3})
    play.order(leader.id, controller.id, joining.id)
    play.until(lambda: set(play.state.isr) == {1, 2, 3})
    play.acknowledged()
    play.come_to_rest()


def test_a_broker_before_its_join_answers_no_request_and_makes_no_change(play: Play) -> None:
    """A broker listens before it is registered, and its image of the cluster is old: clients ask others. Regression:
    without an image it failed.
    """
    play[3].kill()
    play[3].start()
    play.until_turn(lambda: play[3].broker is not None)
    assert not play[3].has_joined
    loop = play.simulation.loop("early")
    client = SimClient(loop, play.world.net, "early", play[3].host)

    async def metadata() -> None:
        answer, _ = await client.ask(Api.METADATA, MetadataRequest(None), MetadataResponse)
        assert INPUT in {topic.name for topic in answer.topics}

    async def early() -> None:
        with pytest.raises(BrokerNotAvailableError, match="is still joining"):
            await metadata()
        with pytest.raises(BrokerNotAvailableError, match="is still joining"):
            await client.ask(Api.DELETE_TOPIC, DeleteTopicRequest(INPUT), DeleteTopicResponse)

    play.simulation.complete(loop, early(), limit_s=PATIENCE_S)
    play.until(lambda: play[3].has_joined)
    play.simulation.complete(loop, metadata(), limit_s=PATIENCE_S)
    play.come_to_rest()


def test_logs_that_have_parted_agree_again_without_a_loss(play: Play) -> None:
    """KAFKA-6361, fluss 4269: one follower alone has a record, and the next leader has another in its place."""
    play.acknowledged()
    play.world.net.cut(play[1].host, play[2].host)
    play.world.net.cut(play[2].host, play[1].host)
    task = play.client.loop.create_task(_one_try(play))
    play.until(lambda: play.log(3).log_end_offset > play.log(2).log_end_offset)
    play[1].pause(2.0)
    play.order(2, 3, 1) if play.world.controller() is not play[1] else None
    play.until(lambda: play.state.leader in (2, 3))
    play[1].resume()
    play.world.net.heal()
    play.until(task.done)
    play.acknowledged()
    play.come_to_rest()
    logs = [batches_of(play.log(i), 0, play.log(i).log_end_offset) for i in (1, 2, 3)]
    assert logs[0] == logs[1] == logs[2]


async def _one_try(play: Play) -> None:
    payload = encode_values([next(play.values)], STARTED_MS)
    assign_producer(memoryview(payload), producer_id=-1, producer_epoch=-1, base_sequence=-1)
    request = ProduceRequest(-1, 1_000, [ProducePartition(*TP, len(payload))])
    try:
        await play.client.ask(Api.PRODUCE, request, ProduceResponse, bytes(payload))
    except SparklogError:
        return
