"""Changes of a topic's settings by Kafka's clients."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.gateway.handlers import configs
from sparklog.protocol import topic_messages as t
from sparklog.protocol.apis import Api

LAKE = {"lake.location": "/lake", "lake.table.id": "id", "lake.hold.retention": True, "partitions.added": True}


def test_a_replacement_of_all_settings_keeps_the_delta_table() -> None:
    """Clients that do not know the settings of the lake replace all settings: kafka-python, Terraform."""
    changes: list[dict[str, Any]] = []
    state = t.TopicState(0, "t", configs={**LAKE, "segment.bytes": 8192, "retention.ms": 5})

    async def ask(api: Api, message: Any, response: type) -> Any:
        if api is Api.ALTER_TOPIC:
            changes.append(message.configs)
            return t.AlterTopicResponse(state)
        return t.MetadataResponse("c", 0, [], [state])

    async def broker() -> Any:
        return SimpleNamespace(ask=ask)

    topics = SimpleNamespace(forget=lambda _: None)
    session: Any = SimpleNamespace(broker=broker, gateway=SimpleNamespace(topics=topics))
    for given, expected in (
        ({"retention.ms": "7"}, {"segment.bytes": None, "retention.ms": 7}),
        ({"lake.paused": "now"}, {"segment.bytes": None, "retention.ms": None, "lake.paused": "now"}),
    ):
        entries = [{"name": name, "value": value} for name, value in given.items()]
        resource: Any = {"resource_type": configs.TOPIC, "resource_name": "t", "configs": entries}
        answer = asyncio.run(configs.alter_configs(session, {"resources": [resource], "validate_only": False}, 1))
        assert answer["responses"][0]["error_code"] == 0
        assert changes.pop() == expected


def test_a_broker_is_named_by_a_number_of_few_digits() -> None:
    """Python converts no text of more than 4,300 digits, and the protocol has no numbers above 64 bits."""
    for name in ("9" * 11, "9" * 5_000, "-1", "１"):
        with pytest.raises(InvalidRequestError, match="the number of a broker is needed"):
            configs._broker_id(name)
    assert configs._broker_id("2147483647") == 2**31 - 1
