"""ALTER_BROKER_CONFIGS and DESCRIBE_BROKER_CONFIGS."""

from __future__ import annotations

from sparklog.errors import InvalidRequestError
from sparklog.protocol.operation_messages import (
    AlterBrokerConfigsRequest,
    AlterBrokerConfigsResponse,
    DescribeBrokerConfigsRequest,
    DescribeBrokerConfigsResponse,
)
from sparklog.replication.controller.model import AlterConfig
from sparklog.replication.dynamic_settings import ALL_BROKERS, altered_configs
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def alter_broker_configs(
    request: AlterBrokerConfigsRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer when the change is stored. Brokers apply it with their next image."""
    membership = context.broker.cluster.membership
    image = membership.controller_image()
    if request.broker_id != ALL_BROKERS and request.broker_id not in image.known:
        raise InvalidRequestError(f"broker {request.broker_id} has never been in this cluster")
    changes = altered_configs(image.configs, request.broker_id, request.configs)
    if not request.validate_only:
        await membership.ask(lambda token: AlterConfig(token, None, changes))
    return Response(AlterBrokerConfigsResponse())


async def describe_broker_configs(
    request: DescribeBrokerConfigsRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer with the settings of this broker, without secrets."""
    broker = context.broker
    if request.broker_id not in (ALL_BROKERS, broker.config.broker_id):
        raise InvalidRequestError(
            f"this is broker {broker.config.broker_id}: send the request for broker {request.broker_id}'s settings to "
            f"broker {request.broker_id}"
        )
    return Response(DescribeBrokerConfigsResponse(list(broker.dynamic.describe(request.broker_id))))
