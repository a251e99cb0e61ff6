"""The clock of one broker, or of all, is set by hours: durations are measured correctly."""

from __future__ import annotations

from contextlib import suppress

import pytest

from sparklog.errors import SparklogError
from sparklog.format.batch import assign_producer
from sparklog.protocol import transaction_messages as t
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse
from tests.simulation.cluster.play import STARTED_MS, TP, Play
from tests.simulation.sim_producer import encode_values

HOURS_MS = (5 * 3_600_000, -5 * 3_600_000)
TIMEOUT_MS = 20_000
BROKERS = (1, 2, 3)


class Transaction:
    """An open transaction with two records."""

    def __init__(self, play: Play, name: str) -> None:
        self._play, self._name = play, name
        drawn = play.ask(Api.INIT_PRODUCER_ID, t.InitProducerIdRequest(name, TIMEOUT_MS), t.InitProducerIdResponse)
        self._identity = drawn.producer_id, drawn.producer_epoch
        payload = encode_values([next(play.values) for _ in range(2)], STARTED_MS)
        assign_producer(
            memoryview(payload),
            producer_id=self._identity[0],
            producer_epoch=self._identity[1],
            base_sequence=0,
            transactional=True,
        )
        request = ProduceRequest(-1, 5_000, [ProducePartition(*TP, len(payload))], name)
        (stored,) = play.ask(Api.PRODUCE, request, ProduceResponse, bytes(payload)).results
        assert stored.error_code == 0, stored

    def commit(self) -> None:
        """Commit. Raises the coordinator's error."""
        self._play.ask(Api.END_TXN, t.EndTxnRequest(self._name, *self._identity, True), t.EndTxnResponse)

    @property
    def is_open(self) -> bool:
        for node in self._play.world.nodes:
            shards = node.broker.transactions._shards.led if node.broker is not None else ()
            for shard in shards:
                with suppress(SparklogError):
                    return bool(shard.ready().summary(self._name).state == "Ongoing")
        return False


@pytest.mark.parametrize("hours_ms", HOURS_MS)
@pytest.mark.parametrize("set_on", [(1,), BROKERS])
def test_a_transaction_times_out_by_no_clock_that_is_set(play: Play, hours_ms: int, set_on: tuple[int, ...]) -> None:
    committed, left = Transaction(play, "committed"), Transaction(play, "left")
    elections = play.world.elections
    for i in set_on:
        play[i].machine.clock.offset_ms += hours_ms
    play.pass_time(TIMEOUT_MS / 4_000)
    committed.commit()
    assert left.is_open
    play.until(lambda: not left.is_open)
    assert play.world.elections == elections, "no session has ended, no replica lags"
    play.acknowledged(at_ms=STARTED_MS - 2 * max(HOURS_MS))  # no record may be far ahead of the broker's clock
    play.come_to_rest()


@pytest.mark.parametrize("hours_ms", HOURS_MS)
def test_a_transaction_outlives_a_coordinator_with_another_clock(play: Play, hours_ms: int) -> None:
    """Times written by one broker are compared with the next one's clock."""
    leader = play.world.controller_image().topics["__transaction_state"].partitions  # type: ignore[union-attr]
    open_one = Transaction(play, "open")
    for i in BROKERS:
        if i != leader[0].leader:
            play[i].machine.clock.offset_ms += hours_ms
    play[leader[0].leader].kill()
    play.until(lambda: open_one.is_open)
    play.pass_time(TIMEOUT_MS / 4_000)
    open_one.commit()
    play[leader[0].leader].start()
    play.come_to_rest()
