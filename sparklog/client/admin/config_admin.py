"""Functions that describe and change the settings of running brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparklog.client.admin.changes import change
from sparklog.client.admin.cluster_admin import describe_cluster
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.retry import RetryPolicy, request_until
from sparklog.errors import InvalidRequestError
from sparklog.protocol.apis import Api
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


def describe_broker(cluster: Cluster, broker_id: int | None, timeout_ms: int) -> dict[str, BrokerSetting]:
    """Describe a broker's settings; see `Admin.describe_broker`."""
    if broker_id is None:
        policy = RetryPolicy.within(timeout_ms)
        request = DescribeBrokerConfigsRequest(ALL_BROKERS)
        answer = request_until(cluster, Api.DESCRIBE_BROKER_CONFIGS, request, DescribeBrokerConfigsResponse, policy)
    else:
        deadline = Deadline(timeout_ms)
        brokers = {b.broker_id: b for b in describe_cluster(cluster, timeout_ms).brokers}
        if broker_id not in brokers:
            raise InvalidRequestError(f"broker {broker_id} is not running; the running brokers are {sorted(brokers)}")
        request = DescribeBrokerConfigsRequest(broker_id)
        cluster.own_changes.name(request)
        answer = cluster.request(
            Api.DESCRIBE_BROKER_CONFIGS,
            request,
            DescribeBrokerConfigsResponse,
            endpoint=Endpoint(brokers[broker_id].host, brokers[broker_id].port),
            timeout_ms=deadline.left_ms(),
        )
    return {e.name: BrokerSetting(e.name, e.value, _SOURCES[Source(e.source)], e.is_dynamic) for e in answer.configs}


def alter_broker(
    cluster: Cluster,
    broker_id: int | None,
    configs: Mapping[str, object | None],
    *,
    validate_only: bool,
    timeout_ms: int,
) -> None:
    """Change a broker's settings; see `Admin.alter_broker`."""
    number = ALL_BROKERS if broker_id is None else broker_id
    altered_configs({}, number, configs)  # raises for a mistake before any request
    values: dict[str, Value | None] = {
        name: value if value is None or isinstance(value, str | int | float | bool) else str(value)
        for name, value in configs.items()
    }
    request = AlterBrokerConfigsRequest(number, values, validate_only)
    change(cluster, Api.ALTER_BROKER_CONFIGS, request, AlterBrokerConfigsResponse, timeout_ms)
