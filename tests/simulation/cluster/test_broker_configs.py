"""Dynamic settings in a cluster: asked of any broker, in effect on all, also on those that start later."""

from __future__ import annotations

from typing import Any

import pytest

from sparklog.errors import InvalidConfigError
from sparklog.protocol.apis import Api
from sparklog.protocol.operation_messages import (
    AlterBrokerConfigsRequest,
    AlterBrokerConfigsResponse,
    DescribeBrokerConfigsRequest,
    DescribeBrokerConfigsResponse,
)
from sparklog.replication.dynamic_settings import ALL_BROKERS
from sparklog.testing._sim_client import SimClient
from tests.simulation.cluster.play import PATIENCE_S, TP, Play


class Operator:
    """Asks each of the brokers."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._loop = play.simulation.loop("operator")

    def _ask(self, broker: int, api: Api, request: Any, response: Any) -> Any:
        client = SimClient(self._loop, self._play.world.net, "operator", self._play[broker].host)
        return self._play.simulation.complete(self._loop, client.ask(api, request, response), limit_s=PATIENCE_S)[0]

    def alter(self, at: int, broker_id: int, **configs: Any) -> None:
        named = {name.replace("__", "."): value for name, value in configs.items()}
        request = AlterBrokerConfigsRequest(broker_id, named)
        self._ask(at, Api.ALTER_BROKER_CONFIGS, request, AlterBrokerConfigsResponse)

    def described(self, broker: int) -> dict[str, str | None]:
        request = DescribeBrokerConfigsRequest(broker)
        answer = self._ask(broker, Api.DESCRIBE_BROKER_CONFIGS, request, DescribeBrokerConfigsResponse)
        return {entry.name: entry.value for entry in answer.configs}


def in_effect(play: Play, broker: int) -> tuple[int, int]:
    """`num.partitions`, and the retention of a log."""
    node = play[broker]
    assert node.broker is not None
    return node.broker.config.num_partitions, play.log(broker).config.retention.retention_ms


def test_a_change_by_any_broker_is_in_effect_on_all_and_stays(play: Play) -> None:
    operator = Operator(play)
    controller = play.world.controller()
    assert controller is not None
    other = next(i for i in (1, 2, 3) if i != controller.id)
    before = in_effect(play, 1)
    operator.alter(other, ALL_BROKERS, num__partitions=4, topic__retention__ms="1h")
    assert in_effect(play, other) == (4, 3_600_000), "the broker that has answered has it"
    play.until(lambda: all(in_effect(play, i) == (4, 3_600_000) for i in (1, 2, 3)))
    operator.alter(controller.id, other, num__partitions=6)
    play.until(lambda: in_effect(play, other) == (6, 3_600_000))
    assert operator.described(other)["num.partitions"] == "6"
    with pytest.raises(InvalidConfigError, match="restart"):
        operator.alter(other, ALL_BROKERS, num__partitions=9, num__io__threads=3)
    node = play[other]
    node.kill()
    play.until(lambda: other not in play.state.isr)
    operator.alter(controller.id, ALL_BROKERS, topic__retention__ms=None)
    node.start()
    play.until(lambda: node.broker is not None and node.has_joined and node.broker.partitions.find(TP) is not None)
    play.until(lambda: in_effect(play, other) == (6, before[1]))
    play.until(lambda: in_effect(play, controller.id) == (4, before[1]))
    play.come_to_rest()
