"""ALTER_BROKER_CONFIGS and DESCRIBE_BROKER_CONFIGS."""

from __future__ import annotations

from collections.abc import Iterator

from sparklog.errors import InvalidRequestError
from sparklog.protocol.operation_messages import (
    AlterBrokerConfigsRequest,
    AlterBrokerConfigsResponse,
    BrokerConfigEntry,
    DescribeBrokerConfigsRequest,
    DescribeBrokerConfigsResponse,
)
from sparklog.replication.controller.model import AlterConfig
from sparklog.replication.dynamic_settings import ALL_BROKERS, Source, altered_configs
from sparklog.replication.group_settings import altered_group, settings_by_name
from sparklog.replication.groups import check_group_id
from sparklog_broker.coordinators.groups import Groups
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def alter_broker_configs(
    request: AlterBrokerConfigsRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer when the change is stored. Brokers apply it with their next image."""
    membership = context.broker.cluster.membership
    image = membership.controller_image()
    if request.group_id:
        config = context.broker.groups.config
        changes = altered_group(image.configs, config, _checked_group(request), request.configs)
    elif request.broker_id != ALL_BROKERS and request.broker_id not in image.known:
        raise InvalidRequestError(f"broker {request.broker_id} has never been in this cluster")
    else:
        changes = altered_configs(image.configs, request.broker_id, request.configs)
    if not request.validate_only:
        await membership.ask(lambda token: AlterConfig(token, None, changes))
    return Response(AlterBrokerConfigsResponse())


async def describe_broker_configs(
    request: DescribeBrokerConfigsRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer with the settings of this broker, without secrets."""
    broker = context.broker
    if request.group_id:
        return Response(DescribeBrokerConfigsResponse(list(_of_group(broker.groups, _checked_group(request)))))
    if request.broker_id not in (ALL_BROKERS, broker.config.broker_id):
        raise InvalidRequestError(
            f"this is broker {broker.config.broker_id}: send the request for broker {request.broker_id}'s settings to "
            f"broker {request.broker_id}"
        )
    groups = sorted(broker.groups.settings) if request.broker_id == ALL_BROKERS else []
    return Response(DescribeBrokerConfigsResponse(list(broker.dynamic.describe(request.broker_id)), groups=groups))


def _checked_group(request: AlterBrokerConfigsRequest | DescribeBrokerConfigsRequest) -> str:
    """Return the group of a request about a group's settings. Raises InvalidRequestError and InvalidGroupIdError."""
    if request.broker_id != ALL_BROKERS:
        raise InvalidRequestError(f"broker {request.broker_id} with a group: name {ALL_BROKERS} for a group's settings")
    check_group_id(request.group_id)
    return request.group_id


def _of_group(groups: Groups, group_id: str) -> Iterator[BrokerConfigEntry]:
    """Yield the settings of a group, with the values in effect."""
    stored = groups.settings.get(group_id, {})
    of_broker = {
        "consumer.session.timeout.ms": groups.config.session_timeout_ms,
        "consumer.heartbeat.interval.ms": groups.config.heartbeat_interval_ms,
    }
    for name in settings_by_name():
        source = Source.GROUP if name in stored else Source.DEFAULT
        yield BrokerConfigEntry(name, str(stored.get(name, of_broker[name])), source, is_dynamic=True)
