"""Losses and stalls of other systems, played step by step in `replication_world` on a quiet network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sparklog.replication.cluster_image import PartitionImage
from sparklog.replication.controller.model import AlterPartition
from sparklog.replication.replica.model import FollowerFetch
from tests.simulation.replication_broker import TP, Broker
from tests.simulation.replication_promises import ViolationError
from tests.simulation.replication_world import SESSION_MS, AllSafeguards, World

PATIENCE_MS = 20_000


class Play:
    """Three brokers, all in sync, broker 1 leads; no message is lost or late unless the play says so."""

    def __init__(self, safeguards: AllSafeguards | None = None, *, flush_each: bool = False) -> None:
        self.world = World(1, safeguards, brokers=3, flush_each=flush_each)
        self.world.loss_percent = 0
        self.world.delay_ms = (1, 5)
        self.world.flushes = False
        self.world.create_topic()
        self.until(lambda: self[1].leader is not None)

    def __getitem__(self, broker_id: int) -> Broker:
        return self.world.brokers[broker_id]

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(PATIENCE_MS // 20):
            if condition():
                return
            self.world.advance(20)
        raise AssertionError(f"it does not come about: {self.state}")

    @property
    def state(self) -> PartitionImage:
        controller = self.world.controller()
        assert controller is not None
        assert controller.controller.image is not None
        found = controller.controller.image.partition(TP)
        assert found is not None
        return found

    def produce(self, broker_id: int, count: int = 1) -> list[str]:
        """Return the answers to the producers so far."""
        told: list[str] = []
        for _ in range(count):
            self[broker_id].produce(self.world.fresh(), told.append)
        return told

    def acknowledged(self, broker_id: int, count: int = 5) -> None:
        told = self.produce(broker_id, count)
        self.until(lambda: told == ["acknowledged"] * count)

    def crash(self, broker_id: int) -> None:
        """Crash the broker; unflushed records are lost."""
        broker = self[broker_id]
        broker.crash(loses=False)
        broker.log.truncate_to(broker.log.flushed_end)

    def led_by(self, broker_id: int) -> bool:
        return self[broker_id].is_alive and self[broker_id].leader is not None


def last_replica_standing(safeguards: AllSafeguards | None = None) -> None:
    play = Play(safeguards)
    play[2].stop_cleanly()
    play.until(lambda: play.state.isr == (1, 3))
    play.acknowledged(1)
    play[3].stop_cleanly()
    play.until(lambda: play.state.isr == (1,))
    play.crash(1)
    play.world.advance(2 * SESSION_MS)
    play[1].start()
    play.world.advance(3_000)
    play[3].start()
    play.until(lambda: play.led_by(3) or play.led_by(1))
    play[2].start()
    play.world.settle()


def test_the_last_replica_crashes_and_the_one_that_stopped_before_it_leads() -> None:
    """KIP-966, KAFKA-18106."""
    last_replica_standing()
    with pytest.raises(ViolationError):
        last_replica_standing(
            replace(AllSafeguards(), controller=replace(AllSafeguards().controller, unclean_restart_forgets=False))
        )


def test_a_late_fetch_of_a_former_life_does_not_enter_the_isr() -> None:
    """KIP-841, KIP-903, KAFKA-14140, KAFKA-15221."""
    play = Play()
    play.acknowledged(1)
    late = FollowerFetch(play.world.fresh(), 2, play[2].registration.broker_epoch, 0, play[2].log.log_end_offset, 0)
    play.crash(2)
    play.until(lambda: play.state.isr == (1, 3))
    play.world.cut_links |= {(1, 2), (2, 1)}
    play[2].start()
    play.until(lambda: play[1].image.known[2] == play[2].registration.broker_epoch)
    play[1].serve(late, lambda _: None)
    play.world.advance(1_500)
    assert play.state.isr == (1, 3)
    play[3].stop_cleanly()
    play.world.advance(500)
    play[1].stop_cleanly()
    play.world.advance(2 * SESSION_MS)
    play.world.settle()


def late_proposal(monkeypatch: pytest.MonkeyPatch, safeguards: AllSafeguards | None = None) -> None:
    play = Play(safeguards)
    held: list[Callable[[], None]] = []
    ask = play.world.ask_controller

    def hold(source: Broker, target: Broker, request: Any, on_answer: Callable[..., None]) -> None:
        send = partial(ask, source, target, request, on_answer)
        grows = isinstance(request, AlterPartition) and any(len(change.isr) == 3 for change in request.changes)
        held.append(send) if grows else send()

    play.acknowledged(1)
    play.world.cut_links |= {(1, 2), (2, 1)}
    play.produce(1)
    play.until(lambda: play.state.isr == (1, 3))
    monkeypatch.setattr(play.world, "ask_controller", hold)
    play.world.cut_links.clear()
    play.until(lambda: bool(held))
    play.crash(2)
    play.world.cut_links |= {(1, 2), (2, 1)}
    play[2].start()
    play.until(lambda: play[1].image.known[2] == play[2].registration.broker_epoch)
    held[0]()
    monkeypatch.undo()
    play.world.advance(500)
    play[3].stop_cleanly()
    play.world.advance(500)
    play[1].stop_cleanly()
    play.world.advance(2 * SESSION_MS)
    play.world.settle()


def test_a_late_proposal_brings_no_former_life_into_the_isr(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-903: the leader's proposal is older than the follower's crash, and only the controller can tell."""
    late_proposal(monkeypatch)
    full = AllSafeguards()
    with pytest.raises(ViolationError):
        late_proposal(monkeypatch, replace(full, controller=replace(full.controller, member_epoch_check=False)))


def test_a_follower_with_a_lagging_high_watermark_keeps_committed_records_when_it_leads() -> None:
    """KIP-101, KAFKA-6361, fluss 673, 674."""
    play = Play(flush_each=True)
    play.acknowledged(1)
    play[2].log.checkpointed_high_watermark = 0
    play[2].crash(loses=True)
    play[2].start()
    play.until(lambda: 2 in play.state.isr and play.state.isr != (1, 3))
    play.world.advance(2_000)
    play[1].crash(loses=True)
    play.until(lambda: play.led_by(2) or play.led_by(3))
    play.world.settle()
    assert len(play.world.promises.acknowledged) == 5


def test_an_isolated_leader_acknowledges_no_record() -> None:
    """A zombie leader does not know that its session has ended (fluss 4362: nor does it stay out forever). Its records
    are dropped, or are on all replicas that may lead.
    """
    play = Play()
    play.acknowledged(1)
    play.world.isolate(play[1], 4_000, 3)
    told = play.produce(1, 3)
    play.world.advance(3_900)
    assert told == []
    assert play.state.leader_epoch > 0
    play.until(lambda: play.led_by(2))
    play.acknowledged(2)
    play.until(lambda: play.state.isr == (2, 3, 1) or set(play.state.isr) == {1, 2, 3})
    assert len(told) == 3
    assert play.world.settle()


def test_a_leader_that_sleeps_over_its_session_wakes_up_as_a_zombie() -> None:
    play = Play()
    play.acknowledged(1)
    play.world.pause(play[1], 3 * SESSION_MS)
    play.until(lambda: play.led_by(2))
    play.acknowledged(2)
    play.until(lambda: set(play.state.isr) == {1, 2, 3})
    assert play.state.leader_epoch >= 1
    assert play.world.settle()


def test_without_zookeeper_the_data_plane_goes_on() -> None:
    """Without ZooKeeper no broker can be elected, so no wrong record can be acknowledged; afterwards everything
    continues (fluss 4362).
    """
    play = Play()
    play.world.zk.stop()
    play.world.advance(SESSION_MS // 3)
    play.acknowledged(1)
    play.world.advance(5 * SESSION_MS)
    play.acknowledged(1)
    play.world.zk.start()
    play.until(lambda: any(play.led_by(i) for i in (1, 2, 3)))
    assert play.world.settle()


def test_an_unreachable_leader_does_not_shrink_the_isr_below_the_minimum() -> None:
    """fluss 2708: the session is shorter than the lag limit; acks=all waits, then is refused."""
    play = Play()
    for other in (2, 3):
        play.world.cut_links |= {(1, other), (other, 1)}
    told = play.produce(1)
    play.world.advance(1_000)
    assert told == []
    assert set(play.state.isr) == {1, 2, 3}


def test_the_next_controller_continues_the_work_of_a_dead_one() -> None:
    play = Play()
    controller = play.world.controller()
    assert controller is not None
    controller.crash(loses=False)
    play.until(lambda: (c := play.world.controller()) is not None and c is not controller)
    play.until(lambda: controller.id not in play.state.isr)
    assert play.state.leader != controller.id
    controller.start()
    play.until(lambda: set(play.state.isr) == {1, 2, 3})


def test_a_controller_whose_node_was_deleted_resigns_without_a_write() -> None:
    play = Play()
    controller = play.world.controller()
    assert controller is not None
    before = play.world.zk.znodes.read("/controller").czxid
    play.world.operator.delete("/controller")
    play.until(lambda: (n := play.world.zk.znodes.find("/controller")) is not None and n.czxid > before)
    play.until(lambda: sum(b.controller_image() is not None for b in play.world.brokers.values()) == 1)
    assert play.world.settle()


def test_two_fast_elections_without_records_leave_no_loop() -> None:
    """KAFKA-10706: epochs without records are cut from the cache too."""
    play = Play(flush_each=True)
    play.acknowledged(1)
    for _ in range(4):
        play.world.move_leader()
        play.world.advance(100)
    assert play.world.settle()
    leader = next(b for b in play.world.brokers.values() if b.leader is not None)
    play.acknowledged(leader.id)
