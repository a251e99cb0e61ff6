"""A leader with a full disk: others with room lead, and it leads again when it has room."""

from __future__ import annotations

from sparklog.log.directories.room import HOLD_S
from tests.simulation.cluster.play import Play

SOON_S = 8.0
"""Well below a production `replica.lag.time.max.ms`: two checks, and the controller's time."""
BROKERS = (1, 2, 3)


def fill(play: Play, *brokers: int) -> None:
    for i in brokers:
        disks = play.world.trouble.disks[i]
        disks.full.add("/data")
        play[i].machine.files.fault = disks.fault


def test_records_are_acknowledged_while_two_replicas_have_room(play: Play) -> None:
    play.acknowledged()
    fill(play, 1)
    began_s = play.simulation.now_s
    play.acknowledged()
    assert play.simulation.now_s - began_s < SOON_S
    assert play.state.leader != 1
    assert 1 not in play.state.isr
    epoch = play.state.leader_epoch
    for _ in range(20):
        play.acknowledged()
        play.pass_time(1.0)
    assert play.state.leader_epoch == epoch, "nothing goes back and forth"
    play.world.trouble.disks[1].heal()
    play.until(lambda: 1 in play.state.isr)
    play.pass_time(2.0)
    play.order(1, 2, 3)
    play.acknowledged()
    play.come_to_rest()


def test_a_full_follower_delays_no_acknowledgement(play: Play) -> None:
    play.acknowledged()
    fill(play, 3)
    began_s = play.simulation.now_s
    play.acknowledged()
    play.acknowledged()
    assert play.simulation.now_s - began_s < SOON_S
    assert play.state.leader == 1 and 3 not in play.state.isr
    play.come_to_rest()


def test_without_room_on_any_broker_the_isr_stays(play: Play) -> None:
    play.acknowledged()
    fill(play, *BROKERS)
    sent = play.simulation.loop("impatient").create_task(_nothing())
    play.pass_time(3 * HOLD_S)
    assert sent.done()
    assert play.state.leader_epoch <= 5, "leaders do not go round"
    for i in BROKERS:
        play.world.trouble.disks[i].heal()
    play.acknowledged()
    play.come_to_rest()


async def _nothing() -> None:
    return None
