"""A request's way through the broker, as a list of named stages.

| stage | task |
|---|---|
| `_authenticate` | passes SASL messages to the authenticator, and refuses other requests before the peer is known |
| `_take_turn` | lets long requests wait for their turn, and refuses headers that are too long |
| `_encode_results` | counts the errors of the results, and encodes long lists of results in pieces |
| `_apply_quota` | charges the request to its user and client id, and mutes the connection if a quota is exceeded |
| `_decode` | decodes the header, and creates the handler's context |
| `faults.inject` | strikes requests with the faults that a test has ordered |
| `_authorize` | checks the peer's permissions; items that are denied are taken out |
| `_await_image` | refuses requests before the join, and waits for an image that has the client's last change |
| `_audit` | writes administrative acts to the audit log |
| `_handle` | calls the API's handler, on this broker or on the controller |

A stage passes the request on to the next stage, or raises the error that becomes the answer. A broker without
permissions, authentication, quotas, audit log or faults has a list without the stage.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from sparklog.errors import (
    BrokerNotAvailableError,
    IllegalSaslStateError,
    InvalidRequestError,
    SaslAuthenticationFailedError,
    SparklogError,
    TooManyConnectionsError,
    UnknownServerError,
    UnsupportedApiError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)
from sparklog.protocol import messages as m
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.audit_details import audit_detail
from sparklog.protocol.base import NO_VERSION, Message
from sparklog.protocol.cluster_messages import FORWARDED_BYTES_MAX
from sparklog.protocol.codec import decode_request, older_version
from sparklog.protocol.frames import RequestPrefix
from sparklog.protocol.group_messages import OffsetResult
from sparklog.protocol.permissions import Verdict, resources_of
from sparklog.replication.cluster_image import Version
from sparklog.security.acls import CLUSTER, Operation
from sparklog.security.client_ids import CLIENT_ID_CHARS_MAX, is_client_id
from sparklog_broker.broker import Broker
from sparklog_broker.controller_requests import IMAGE_CATCH_UP_TIMEOUT_S, ControllerRequests
from sparklog_broker.counters.requests import RequestCounters
from sparklog_broker.network.connection import Connection
from sparklog_broker.network.gateway_claim import GatewayClaim
from sparklog_broker.network.large_responses import one_by_one
from sparklog_broker.network.reply import Reply, Response, error_reply, frame_response
from sparklog_broker.request_context import Handler, RequestContext
from sparklog_broker.security.access import Access, peer_of
from sparklog_broker.security.authenticator import Authenticator
from sparklog_broker.security.throttling import Throttling, TimedRequest

if TYPE_CHECKING:
    from sparklog_broker.testing.stage import FaultStage

log = logging.getLogger(__name__)

HEADER_BYTES_MAX = FORWARDED_BYTES_MAX
"""Largest header of a request, in bytes, except for APIs that can name many partitions."""
_WITH_LONG_HEADERS = frozenset(a for a, spec in APIS.items() if spec.has_long_header or spec.item_results is not None)
LONG_HEADER_BYTES = 32 * 1024
"""Size in bytes above which a header is decoded only in a turn of `LongRequests`, and after `LoopTimeSlices.begin`."""
AMONG_BROKERS = frozenset(api for api, spec in APIS.items() if spec.is_among_brokers)
_AT_CONTROLLER = frozenset(api for api, spec in APIS.items() if spec.is_at_controller)
_FROM_IMAGE = _AT_CONTROLLER | {api for api, spec in APIS.items() if spec.is_from_image}
_BEFORE_JOIN = frozenset(api for api, spec in APIS.items() if spec.is_before_join)
_AUDITED = frozenset(api for api, spec in APIS.items() if spec.is_audited)
RESULTS_INLINE_MAX = 1_000
ERROR_TEXTS_CHARS_MAX = 1024 * 1024
_Result = (
    m.ProduceResult | m.FetchResult | m.ListOffsetsResult | m.EpochEndOffset | m.DeleteRecordsResult | OffsetResult
)


class Call(Struct):
    """A decoded request."""

    api: Api
    request: Message
    payload: memoryview
    context: RequestContext
    sent_bytes_max: int | None = None
    """Number of bytes of the response after which the connection ends, as a test has ordered; None: all."""


class Received(Struct):
    """A request as it has come, and its state in the stages before and after the handler."""

    prefix: RequestPrefix
    body: memoryview
    connection: Connection
    authenticate: Callable[[Message], Awaitable[Response]] | None = None
    """Handles a SASL message; None for other requests, and if the connection has no SASL."""
    timed: TimedRequest | None = None
    """Start and limits of a request that has a quota; None without one."""
    call: Call | None = None
    """The decoded request; None before `_decode`."""

    @property
    def older_version(self) -> int | None:
        """Version of the request and its answer; None for the newest."""
        return None if self.call is None else self.call.context.older_version


Receive = Callable[[Received], Awaitable[Response]]
"""The stages that follow, for a request that is not decoded."""
Proceed = Callable[[Call], Awaitable[Response]]
"""The stages that follow, for a decoded request."""


class Pipeline:
    """Passes requests through its stages to the handlers, and returns replies."""

    def __init__(
        self,
        broker: Broker,
        handlers: Mapping[Api, Handler],
        requests: RequestCounters | None = None,
        access: Access | None = None,
        authenticator: Authenticator | None = None,
        throttling: Throttling | None = None,
        gateways: GatewayClaim | None = None,
        faults: FaultStage | None = None,
    ) -> None:
        """`requests`: counters of errors. `access` None: every principal has all permissions. `authenticator` None: no
        peer must authenticate. `throttling` None: there are no quotas. `gateways` None: the broker has no gateway of
        its own. `faults` None: the broker runs without the switch of tests.
        """
        self._broker = broker
        self._faults = faults
        self._gateways = gateways or GatewayClaim(broker.environment.clock.monotonic_s)
        self._requests = RequestCounters() if requests is None else requests
        self._handlers: dict[Api, Handler] = dict(handlers)
        self._controller = ControllerRequests(broker, self._handlers)
        self._handlers[Api.FORWARD] = self._controller.answer_forwarded
        on_call: list[Callable[[Proceed, Call], Awaitable[Response]]] = [
            *([faults.inject] if faults is not None else []),
            *([partial(self._authorize, access)] if access is not None else []),
            self._await_image,
            self._audit,
        ]
        proceed: Proceed = self._handle
        for stage in reversed(on_call):
            proceed = partial(stage, proceed)
        on_received: list[Callable[[Receive, Received], Awaitable[Response]]] = [
            *([partial(self._authenticate, authenticator)] if authenticator is not None else []),
            self._take_turn,
            self._encode_results,
            *([partial(self._apply_quota, throttling, access)] if throttling is not None else []),
        ]
        receive: Receive = partial(self._decode, throttling, proceed)
        for received_stage in reversed(on_received):
            receive = partial(received_stage, receive)
        self._receive = receive

    async def answer(self, prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply | None:
        """Return the reply to one request; None for a request without a reply. Errors become replies, so only a
        cancellation is raised."""
        try:
            received = Received(prefix, body, connection)
            response = await self._receive(received)
            reply = frame_response(prefix.api, prefix.correlation_id, response, received.older_version)
            return reply if self._faults is None else self._faults.cut(received.call, reply)
        except Exception as e:  # noqa: BLE001 - every error becomes a reply
            error, close = _error_answer(e, prefix.api, connection)
            self._requests.failed(prefix.api, (error.code,))
            return error_reply(prefix.api, prefix.correlation_id, error, close=close, throttle_ms=connection.mute_ms)

    async def _authenticate(self, authenticator: Authenticator, proceed: Receive, received: Received) -> Response:
        connection, spec = received.connection, APIS.get(received.prefix.api)  # type: ignore[call-overload]
        if connection.authentication is not None:
            if spec is not None and spec.is_sasl:
                received.authenticate = partial(authenticator.answer, connection)
            else:
                await authenticator.judge(received.prefix.api, connection)
        return await proceed(received)

    async def _take_turn(self, proceed: Receive, received: Received) -> Response:
        api, header_bytes = received.prefix.api, received.prefix.header_bytes
        if header_bytes <= LONG_HEADER_BYTES:
            return await proceed(received)
        check_header_size(api, header_bytes)
        async with self._broker.long_requests.turn(_kind_of(api), header_bytes):
            await self._broker.time_slices.begin()
            return await proceed(received)

    async def _encode_results(self, proceed: Receive, received: Received) -> Response:
        """Count the errors of a response's results, and encode a long list of results in pieces."""
        response = await proceed(received)
        message = response.message
        if received.call is not None and message is not None and APIS[received.call.api].item_results is not None:
            results = message.results  # type: ignore[attr-defined]
            self._requests.failed(received.prefix.api, [r.error_code for r in results if r.error_code])
            if len(results) > RESULTS_INLINE_MAX:
                await self._encode_long(response, message, received.older_version)
        return response

    async def _apply_quota(
        self, throttling: Throttling, access: Access | None, proceed: Receive, received: Received
    ) -> Response:
        """Charge the request to its user, even if it fails, and mute the connection if a quota is exceeded."""
        connection = received.connection
        if not throttling.is_needed or _is_broker(received.prefix.api, connection, throttling, access):
            return await proceed(received)
        received.timed = throttling.begin(connection.principal, connection.client_id)
        answer, answer_bytes = None, 0
        try:
            response = await proceed(received)
            answer, answer_bytes = response.message, response.payload_bytes
        finally:
            call = received.call
            if call is None:
                throttle_ms = throttling.end(received.timed, None, None, 0, 0, 0.0)
            else:
                wait_s = call.context.times.wait_s
                throttle_ms = throttling.end(
                    received.timed, call.request, answer, len(call.payload), answer_bytes, wait_s
                )
            if throttle_ms:
                connection.mute(throttle_ms)
        return response

    async def _decode(self, throttling: Throttling | None, proceed: Proceed, received: Received) -> Response:
        prefix, connection = received.prefix, received.connection
        header, payload = received.body[: prefix.header_bytes], received.body[prefix.header_bytes :]
        request = decode_request(prefix.api, prefix.version, header)
        if isinstance(request, m.HandshakeRequest):
            connection.client_id, connection.gateway = client_id_of(request), request.gateway
        if connection.gateway:
            self._gateways.check(connection)
        context = RequestContext(
            self._broker,
            connection.local_address,
            connection.peer_host,
            connection.peer_name,
            older_version(prefix.api, prefix.version),
            connection.times,
            connection.principal,
            connection.listener,
            connection.local_socket if connection.is_identified else "",
            received.authenticate,
            is_gateway=connection.is_gateway,
            client_id=connection.client_id,
            header=header,
            ask_controller=self._controller.ask_as_peer,
        )
        if throttling is not None and received.timed is not None:
            request, received.timed = throttling.fitted(request, received.timed)
        received.call = Call(Api(prefix.api), request, payload, context)
        return await proceed(received.call)

    async def _authorize(self, access: Access, proceed: Proceed, call: Call) -> Response:
        """Handle the parts of a request that are allowed. If permissions change while a fetch waits, the fetch is
        checked again."""
        peer = peer_of(call.context.principal, call.context.peer_host)
        call = structs.replace(call, context=structs.replace(call.context, may=partial(access.may, peer)))
        is_noted = False
        while True:
            version = access.version
            verdict = access.judge(call.api, call.request, peer)
            error = verdict.error or verdict.item_error
            if error is not None and not is_noted:
                call.context.note_denial(call.api, error, verdict.operation, verdict.resource)
                is_noted = True
            if verdict.error is not None:
                raise verdict.error
            response = await self._handle_allowed_items(proceed, call, verdict)
            if call.api is not Api.FETCH or access.version == version:
                return response
            if access.judge(call.api, call.request, peer) == verdict:
                return response
            response.release()

    async def _handle_allowed_items(self, proceed: Proceed, call: Call, verdict: Verdict) -> Response:
        error = verdict.item_error
        if error is None:
            return await proceed(call)
        spec = APIS[call.api]
        if spec.item_results is None:
            denied = dict.fromkeys(verdict.denied_names, error)
            return await proceed(structs.replace(call, context=structs.replace(call.context, denied=denied)))
        rest, payload = spec.item_results.without(call.request, call.payload, verdict.denied_items)
        response = Response(None)
        if rest is not None:
            response = await proceed(structs.replace(call, request=rest, payload=payload))
        if isinstance(call.request, m.ProduceRequest) and call.request.acks == 0:
            response.close = True  # without a reply, only closing shows the error
            return response
        results = spec.item_results.with_denials(call.request, response.message, verdict.denied_items, error)
        response.message = spec.response(results)
        return response

    async def _await_image(self, proceed: Proceed, call: Call) -> Response:
        cluster = self._broker.cluster
        if call.api not in _BEFORE_JOIN and not cluster.has_joined:
            raise BrokerNotAvailableError("this broker is still joining its cluster: try again, or ask another broker")
        if call.api not in _FROM_IMAGE:
            return await proceed(call)
        at_least = Version(*getattr(call.request, "at_least", NO_VERSION))
        await cluster.as_new_as(at_least, IMAGE_CATCH_UP_TIMEOUT_S)
        response = await proceed(call)
        if (message := response.message) is not None and hasattr(message, "metadata_version"):
            message.metadata_version = cluster.image.version
        return response

    async def _audit(self, proceed: Proceed, call: Call) -> Response:
        """Return the handler's response. Administrative acts that were not denied are written to the audit log,
        successful or not. A request with `validate_only` is no act.
        """
        is_act = call.api in _AUDITED and not getattr(call.request, "validate_only", False)
        if not is_act or self._broker.audit is None:
            return await proceed(call)
        code = UnknownServerError.code
        try:
            response = await proceed(call)
            code = 0
        except SparklogError as e:
            code = e.code
            raise
        finally:
            detail = audit_detail(APIS[call.api].audit_detail, call.request)
            call.context.note_act(call.api, resources_of(call.api, call.request), code, detail)
        return response

    async def _handle(self, call: Call) -> Response:
        if call.api not in _AT_CONTROLLER:
            return await self._handlers[call.api](call.request, call.payload, call.context)
        return await self._controller.ask(call.api, call.request, bytes(call.context.header), call.context)

    async def _encode_long(self, response: Response, message: Message, older: int | None) -> None:
        """Encode a long list of results in pieces. On failure the response's slices are released."""
        results, message.results = message.results, []  # type: ignore[attr-defined]
        items = one_by_one(_shortened(results), older)
        try:
            built = await self._broker.large_responses.build(
                message, "results", items, paged=False, remedy="name fewer partitions", version=older
            )
        except BaseException:
            response.release()
            raise
        response.header = built.header


def _error_answer(error: Exception, api: int, connection: Connection) -> tuple[SparklogError, bool]:
    """Return the error for the peer, and True if the connection must then be closed. Internal errors are logged.

    A gateway's connection stays open after a refused request: the gateway passes the error on to its client, which has
    authenticated through this connection.
    """
    peer = connection.peer_name
    match error:
        case InvalidRequestError() if connection.is_gateway and api != Api.HANDSHAKE:
            log.info("%s: %s", peer, error)
            return error, False
        case UnsupportedVersionError():
            is_handshake = api == Api.HANDSHAKE  # a newer client will retry with an older version
            log.info("%s: %s%s", peer, error, "" if is_handshake else "; disconnecting")
            return error, not is_handshake
        case SaslAuthenticationFailedError() | UnsupportedSaslMechanismError() | IllegalSaslStateError():
            return error, True  # the authenticator has logged it
        case InvalidRequestError() | UnsupportedApiError() | TooManyConnectionsError():
            log.info("%s: %s; disconnecting", peer, error)
            return error, True
        case SparklogError():
            return error, False
        case MemoryError():
            log.error("%s: out of memory for a request of API %d; disconnecting", peer, api)
            return UnknownServerError("the broker has no memory for the request: ask for less"), True
        case _:
            log.error("%s: request of API %d failed", peer, api, exc_info=error)
            return UnknownServerError("the broker failed to process the request; its log has the details"), False


def _kind_of(api: int) -> str:
    """Return the kind of turns (`LongRequests`) for long requests of an API."""
    if api in AMONG_BROKERS:
        return "brokers"
    return "waiting" if api in (Api.FETCH, Api.PRODUCE) else "others"


def check_header_size(api: int, header_bytes: int) -> None:
    """Check the size of a header, which is decoded as a whole. The limit is small for APIs without long lists. Raises
    InvalidRequestError.
    """
    if header_bytes > HEADER_BYTES_MAX and api not in _WITH_LONG_HEADERS:
        raise InvalidRequestError(f"a request header of {header_bytes} bytes; this API takes {HEADER_BYTES_MAX}")


def _shortened(results: Iterable[_Result]) -> Iterator[_Result]:
    """Yield results with the texts of errors up to a limit in total. Later errors have only their code."""
    remaining = ERROR_TEXTS_CHARS_MAX
    for result in results:
        if result.message:
            remaining -= len(result.message)
            if remaining < 0:
                result.message = ""
        yield result


def _is_broker(api: int, connection: Connection, throttling: Throttling, access: Access | None) -> bool:
    """True for a request of a broker, which has no quotas: on the inter-broker listener, or with an API of brokers.
    With an authorizer, the principal also needs the permission ClusterAction."""
    if api not in AMONG_BROKERS and connection.listener != throttling.protected_listener:
        return False
    if access is None:
        return True
    return access.may(peer_of(connection.principal, connection.peer_host), Operation.CLUSTER_ACTION, *CLUSTER)


def client_id_of(hello: m.HandshakeRequest) -> str:
    """Return the client's name for quotas and the audit log: its `client.id`, otherwise the name of its library. Raises
    InvalidRequestError for a name that is too long or has unprintable characters.
    """
    name = hello.client_id or hello.client_name
    if not is_client_id(name):
        raise InvalidRequestError(
            f"client id {name[:40]!r}: at most {CLIENT_ID_CHARS_MAX} characters, all of them printable"
        )
    return name
