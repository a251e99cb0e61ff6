"""Requests that only the controller answers: answered here if this broker is it, otherwise sent to it with the client's
principal (KIP-590)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from sparklog.errors import InvalidConfigError, InvalidRequestError, NotControllerError, SparklogError
from sparklog.protocol.base import Message
from sparklog.protocol.cluster_messages import ForwardRequest, ForwardResponse
from sparklog.protocol.messages import APIS, Api, decode_request, older_version
from sparklog.replication.cluster_image import Version
from sparklog.security.principals import parse_principal
from sparklog_broker.broker import Broker
from sparklog_broker.network.reply import Response, header_parts
from sparklog_broker.request_context import NOTHING, Handler, RequestContext

AT_CONTROLLER = frozenset(
    {
        Api.CREATE_TOPIC,
        Api.CREATE_PARTITIONS,
        Api.DELETE_TOPIC,
        Api.ALTER_TOPIC,
        Api.ALTER_SCHEMA,
        Api.ALTER_PARTITION_REASSIGNMENTS,
        Api.LIST_PARTITION_REASSIGNMENTS,
        Api.ELECT_LEADERS,
        Api.CORDON_BROKER,
        Api.ALTER_BROKER_CONFIGS,
        Api.CREATE_ACLS,
        Api.DELETE_ACLS,
        Api.ALTER_USER_SCRAM_CREDENTIALS,
        Api.ALTER_CLIENT_QUOTAS,
        Api.ALTER_SECURITY_RECORDS,
    }
)
"""APIs that only the controller answers. Other brokers forward the requests; none of them has a payload, or results per
item for principals with a part of the permissions."""
BEHIND_S = 5.0
"""Longest wait of a client whose change this broker does not know yet."""


class Forwarding:
    """Has the controller answer requests. Event-loop thread only."""

    def __init__(self, broker: Broker, handlers: Mapping[int, Handler]) -> None:
        self._broker = broker
        self._handlers = handlers

    async def ask(self, api: Api, request: Message, header: bytes, context: RequestContext) -> Response:
        """Return the controller's response, when this broker's image has reached it. The request is repeated while the
        controller is being replaced. Raises the controller's error, NotControllerError, BrokerNotAvailableError,
        RequestTimedOutError (it may have taken effect)."""
        cluster, request_id = self._broker.cluster, self._broker.environment.randomness.new_id()
        version = APIS[api].version_max if context.older_version is None else context.older_version
        forward = ForwardRequest(api, version, header, str(context.principal), request_id)

        async def attempt() -> Response:
            if await cluster.images.decides():
                is_repeated, forward.is_repeated = forward.is_repeated, True
                outcome, reached = await self._decided(api, request, context, request_id, is_repeated)
            else:
                answer, reached = await cluster.controller.forward(forward, request)
                outcome = Response(answer) if isinstance(answer, Message) else answer
            if isinstance(outcome, SparklogError):
                await cluster.as_new_as(reached, BEHIND_S)
                raise outcome
            await cluster.images.reach(reached)
            return outcome

        return await cluster.controller.while_it_moves(attempt)

    async def _decided(
        self, api: Api, request: Message, context: RequestContext, request_id: str, is_repeated: bool
    ) -> tuple[Response | SparklogError, Version]:
        """Return the outcome of a request on the controller, and the version of the image that has it."""
        outcome: Response | SparklogError
        context = structs.replace(context, request_id=request_id, is_repeated=is_repeated)
        try:
            outcome = await self._handlers[api](request, NOTHING, context)
        except SparklogError as e:
            outcome = e
        return outcome, self._broker.cluster.membership.version

    async def answer(self, forward: ForwardRequest, payload: memoryview, context: RequestContext) -> Response:
        """Answer a request that a broker has forwarded, and checked the permissions of; it is forwarded no further.
        Raises InvalidRequestError, UnsupportedVersionError, NotControllerError, BrokerNotAvailableError."""
        if forward.api not in AT_CONTROLLER:
            raise InvalidRequestError(f"brokers do not forward API {forward.api} to the controller")
        api = Api(forward.api)
        request = decode_request(api, forward.version, forward.request)
        try:
            principal = parse_principal(forward.principal)
        except InvalidConfigError as e:
            raise InvalidRequestError(f"the forwarded {api.name} request names no valid principal: {e}") from e
        if not await self._broker.cluster.images.decides():
            raise NotControllerError("this broker is not the controller, and a request is forwarded only once")
        older = older_version(api, forward.version)
        context = structs.replace(context, principal=principal, older_version=older)
        outcome, reached = await self._decided(api, request, context, forward.request_id, forward.is_repeated)
        if isinstance(outcome, SparklogError):
            return Response(ForwardResponse(*reached, b"", outcome.code, str(outcome)))
        return Response(ForwardResponse(*reached, b"".join(header_parts(outcome, older))))
