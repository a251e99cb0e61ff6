"""Functions that describe and change the settings of running brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparklog.client.admin.call import Call
from sparklog.client.admin.cluster_admin import describe_cluster
from sparklog.client.net.addresses import Endpoint
from sparklog.errors import InvalidRequestError
from sparklog.protocol.operation_messages import (
    AlterBrokerConfigsRequest,
    AlterBrokerConfigsResponse,
    DescribeBrokerConfigsRequest,
    DescribeBrokerConfigsResponse,
)
from sparklog.replication.dynamic_settings import ALL_BROKERS, Source, altered_configs
from sparklog.settings import Value

_SOURCES = {Source.BROKER: "broker", Source.ALL_BROKERS: "all-brokers", Source.FILE: "file", Source.DEFAULT: "default"}


class BrokerSetting(NamedTuple):
    """A setting of a running broker."""

    name: str
    """Dotted name; defaults of topic settings have the prefix `topic.`."""
    value: str | None
    """Value in effect; None for a secret."""
    source: str
    """Origin of the value: "broker" (stored for this broker), "all-brokers" (stored for all), "file", "default"."""
    is_dynamic: bool
    """True if `Admin.alter_broker` changes it; other settings need a restart."""


def describe_broker(call: Call, broker_id: int | None) -> dict[str, BrokerSetting]:
    """Describe a broker's settings; see `Admin.describe_broker`."""
    if broker_id is None:
        answer = call.ask(DescribeBrokerConfigsRequest(ALL_BROKERS), DescribeBrokerConfigsResponse)
    else:
        brokers = {b.broker_id: b for b in describe_cluster(call).brokers}
        if broker_id not in brokers:
            raise InvalidRequestError(f"broker {broker_id} is not running; the running brokers are {sorted(brokers)}")
        request = DescribeBrokerConfigsRequest(broker_id)
        call.cluster.own_changes.name(request)
        endpoint = Endpoint(brokers[broker_id].host, brokers[broker_id].port)
        answer = call.ask_broker(endpoint, request, DescribeBrokerConfigsResponse)
    return {e.name: BrokerSetting(e.name, e.value, _SOURCES[Source(e.source)], e.is_dynamic) for e in answer.configs}


def alter_broker(
    call: Call, broker_id: int | None, configs: Mapping[str, object | None], *, validate_only: bool
) -> None:
    """Change a broker's settings; see `Admin.alter_broker`."""
    number = ALL_BROKERS if broker_id is None else broker_id
    altered_configs({}, number, configs)  # raises for a mistake before any request
    values: dict[str, Value | None] = {
        name: value if value is None or isinstance(value, str | int | float | bool) else str(value)
        for name, value in configs.items()
    }
    call.change(AlterBrokerConfigsRequest(number, values, validate_only), AlterBrokerConfigsResponse)
