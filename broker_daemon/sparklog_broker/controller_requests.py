"""Requests that only the controller answers: other brokers forward them, and wait for the change (KIP-590)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from sparklog.errors import InvalidConfigError, InvalidRequestError, NotControllerError, SparklogError
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.cluster_messages import ForwardRequest, ForwardResponse
from sparklog.protocol.codec import decode_request, encode, older_version
from sparklog.replication.cluster_image import Version
from sparklog.security.principals import parse_principal
from sparklog_broker.broker import Broker
from sparklog_broker.network.reply import Response, header_parts
from sparklog_broker.request_context import EMPTY, Handler, RequestContext

IMAGE_CATCH_UP_TIMEOUT_S = 5.0
"""Longest wait, in s, until this broker's image has the change that a client has made."""


class ControllerRequests:
    """Answers requests of this broker's clients at the controller, and requests that other brokers forward to it."""

    def __init__(self, broker: Broker, handlers: Mapping[Api, Handler]) -> None:
        self._broker = broker
        self._handlers = handlers

    async def ask_as_peer(self, api: Api, request: Message, context: RequestContext) -> Response:
        """Send a request of a handler to the controller, with the principal of the context."""
        return await self.ask(api, request, encode(request), structs.replace(context, older_version=None))

    async def ask(self, api: Api, request: Message, header: bytes, context: RequestContext) -> Response:
        """Return the controller's response when this broker's image has the change. The request is repeated while the
        controller is being replaced. Raises the controller's error, NotControllerError, BrokerNotAvailableError,
        RequestTimedOutError (the request may have taken effect)."""
        cluster, request_id = self._broker.cluster, self._broker.environment.randomness.new_id()
        version = APIS[api].version_max if context.older_version is None else context.older_version
        forward = ForwardRequest(api, version, header, str(context.principal), request_id)

        async def ask() -> Response:
            if await cluster.images.decides():
                is_repeated, forward.is_repeated = forward.is_repeated, True
                outcome, reached = await self._handle_as_controller(api, request, context, request_id, is_repeated)
            else:
                answer, reached = await cluster.controller.forward(forward, request)
                outcome = Response(answer) if isinstance(answer, Message) else answer
            if isinstance(outcome, SparklogError):
                await cluster.as_new_as(reached, IMAGE_CATCH_UP_TIMEOUT_S)
                raise outcome
            await cluster.images.reach(reached)
            return outcome

        return await cluster.controller.while_it_moves(ask)

    async def _handle_as_controller(
        self, api: Api, request: Message, context: RequestContext, request_id: str, is_repeated: bool
    ) -> tuple[Response | SparklogError, Version]:
        """Handle a request on the controller. Returns the response or error, and the image's version with the
        change.
        """
        outcome: Response | SparklogError
        context = structs.replace(context, request_id=request_id, is_repeated=is_repeated)
        try:
            outcome = await self._handlers[api](request, EMPTY, context)
        except SparklogError as e:
            outcome = e
        return outcome, self._broker.cluster.membership.version

    async def answer_forwarded(self, forward: ForwardRequest, payload: memoryview, context: RequestContext) -> Response:
        """Answer a request that another broker has forwarded after it checked the permissions. It is not forwarded
        again. Raises InvalidRequestError, UnsupportedVersionError, NotControllerError, BrokerNotAvailableError."""
        spec = APIS.get(forward.api)  # type: ignore[call-overload]
        if spec is None or not spec.is_at_controller:
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
        outcome, reached = await self._handle_as_controller(
            api, request, context, forward.request_id, forward.is_repeated
        )
        if isinstance(outcome, SparklogError):
            return Response(ForwardResponse(*reached, b"", outcome.code, str(outcome)))
        return Response(ForwardResponse(*reached, b"".join(header_parts(outcome, older))))
