"""ALTER_BROKER_CONFIGS and DESCRIBE_BROKER_CONFIGS."""

from __future__ import annotations

from sparklog.errors import InvalidRequestError, RequestTimedOutError
from sparklog.protocol.messages import Api
from sparklog.protocol.operation_messages import (
    AlterBrokerConfigsRequest,
    AlterBrokerConfigsResponse,
    DescribeBrokerConfigsRequest,
    DescribeBrokerConfigsResponse,
)
from sparklog.replication.cluster_image import Version
from sparklog.replication.controller.model import AlterConfig
from sparklog.replication.dynamic_settings import ALL_BROKERS, altered_configs
from sparklog_broker.dispatcher import RequestContext
from sparklog_broker.handlers.operations import ANSWER_S, at_controller
from sparklog_broker.network.reply import Response


async def alter_broker_configs(
    request: AlterBrokerConfigsRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer when the change is stored and in effect here. Other brokers take it over with the next image."""
    cluster = context.broker.cluster

    async def decide() -> AlterBrokerConfigsResponse:
        image = cluster.membership.controller_image()
        if request.broker_id != ALL_BROKERS and request.broker_id not in image.known:
            raise InvalidRequestError(f"there has never been a broker {request.broker_id} in this cluster")
        changes = altered_configs(image.configs, request.broker_id, request.configs)
        if not request.validate_only:
            await cluster.membership.ask(lambda token: AlterConfig(token, None, changes))
        return AlterBrokerConfigsResponse(metadata_version=cluster.membership.version)

    api = Api.ALTER_BROKER_CONFIGS
    response = await at_controller(cluster, api, request, AlterBrokerConfigsResponse, decide)
    if not await cluster.as_new_as(Version(*response.message.metadata_version), ANSWER_S):  # type: ignore[union-attr]
        raise RequestTimedOutError("the change is made, but this broker does not have it yet")
    return response


async def describe_broker_configs(
    request: DescribeBrokerConfigsRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer with the settings of this broker, without secrets."""
    broker = context.broker
    if request.broker_id not in (ALL_BROKERS, broker.config.broker_id):
        raise InvalidRequestError(
            f"this is broker {broker.config.broker_id}: ask broker {request.broker_id} for its settings itself"
        )
    return Response(DescribeBrokerConfigsResponse(list(broker.dynamic.describe(request.broker_id))))
