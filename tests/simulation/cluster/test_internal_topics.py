"""State of groups and transactions is on two brokers before it is acknowledged."""

from __future__ import annotations

import pytest

from sparklog.protocol.apis import Api
from sparklog.protocol.transaction_messages import InitProducerIdRequest, InitProducerIdResponse
from sparklog.testing._sim_loop import Simulation
from sparklog.types import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from tests.simulation.plans import INPUT, OUTPUT, SAFE, Plan
from tests.simulation.world import World

PLAN = Plan({}, {}, topics={INPUT: SAFE, OUTPUT: SAFE}, internal={}, brokers=(3,), has_zookeeper=True, slow_share=0.0)
NAME = "transactions-of-one"
PATIENCE_S = 60.0


@pytest.mark.parametrize(("brokers", "min_insync"), [(2, None), (3, 2)])
def test_two_of_three_replicas_have_to_be_in_sync(brokers: int, min_insync: int | None) -> None:
    with Simulation(1) as simulation:
        world = World(1, PLAN._replace(topics={}, brokers=(brokers,)), simulation)
        world._begin()
        image = world.controller_image()
        assert image is not None
        for name in (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC):
            assert image.topics[name].configs.get("min.insync.replicas") == min_insync, name


def test_transactions_go_on_without_one_broker_and_wait_without_two() -> None:
    with Simulation(1) as simulation:
        world = World(1, PLAN, simulation)
        world._begin()
        client = world.connected(simulation.loop("client"), "client")

        def begun() -> object:
            request = InitProducerIdRequest(NAME, 10_000)
            asked = client.ask_until(Api.INIT_PRODUCER_ID, request, InitProducerIdResponse, deadline_s=PATIENCE_S)
            return client.loop.create_task(asked)

        def epoch_of(task: object, limit_s: float = PATIENCE_S) -> int:
            assert simulation.run(task.done, limit_s=simulation.now_s + limit_s)  # type: ignore[attr-defined]
            return int(task.result().producer_epoch)  # type: ignore[attr-defined]

        assert epoch_of(begun()) == 0
        leader = _leader(world)
        one, two = (n for n in world.nodes if n.id != leader)
        one.kill()
        assert epoch_of(begun()) == 1
        two.kill()
        waiting = begun()
        world.pass_time(PATIENCE_S / 3)
        assert not waiting.done()  # type: ignore[attr-defined]
        one.start()
        assert epoch_of(waiting) >= 2
        two.start()
        world._come_to_rest()


def _leader(world: World) -> int:
    image, broker = world.controller_image(), world.nodes[0].broker
    assert image is not None and broker is not None
    number = broker.transactions.topic.partition_for(NAME)
    found = image.partition(TopicPartition(TRANSACTION_STATE_TOPIC, number))
    assert found is not None
    return found.leader
