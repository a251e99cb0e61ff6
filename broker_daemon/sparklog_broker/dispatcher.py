"""Passes requests to handlers: decodes the frame, and turns every error into an error frame."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct, structs
from msgspec import field as struct_field

from sparklog.errors import (
    BrokerNotAvailableError,
    IllegalSaslStateError,
    InvalidConfigError,
    InvalidRequestError,
    NotControllerError,
    SaslAuthenticationFailedError,
    SparklogError,
    TooManyConnectionsError,
    UnknownServerError,
    UnsupportedApiError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)
from sparklog.protocol import denials, visibility
from sparklog.protocol import messages as m
from sparklog.protocol.act_details import act_detail
from sparklog.protocol.base import NO_VERSION, Message
from sparklog.protocol.cluster_messages import FORWARDED_BYTES_MAX, ForwardRequest, ForwardResponse
from sparklog.protocol.frames import RequestPrefix
from sparklog.protocol.group_messages import OffsetCommitResponse, OffsetResult, TxnOffsetCommitResponse
from sparklog.protocol.messages import APIS, Api, decode_request, encode, older_version
from sparklog.protocol.permissions import ADMINISTRATIVE, PERMISSIONS, Verdict, resources_of
from sparklog.replication.cluster_image import Version
from sparklog.security.acls import CLUSTER, Operation, Resource, ResourceType
from sparklog.security.client_ids import CLIENT_ID_CHARS_MAX, is_client_id
from sparklog.security.principals import ANONYMOUS, Principal, parse_principal
from sparklog_broker.broker import Broker
from sparklog_broker.counters.requests import RequestCounters, RequestTimes
from sparklog_broker.network.connection import Connection
from sparklog_broker.network.long_answers import one_by_one
from sparklog_broker.network.reply import Reply, Response, error_reply, frame_response, header_parts
from sparklog_broker.security.access import Access, peer_of
from sparklog_broker.security.audit_log import AuditLog
from sparklog_broker.security.authenticator import SASL_APIS, Authenticator
from sparklog_broker.security.throttling import Throttling, TimedRequest

log = logging.getLogger(__name__)

T = TypeVar("T")

HEADER_BYTES_MAX = FORWARDED_BYTES_MAX
"""Largest header of a request, in bytes, except for APIs that can name many partitions."""
_LONG_REQUESTS = frozenset(
    {
        Api.PRODUCE,
        Api.FETCH,
        Api.LIST_OFFSETS,
        Api.OFFSETS_FOR_LEADER_EPOCH,
        Api.DELETE_RECORDS,
        Api.OFFSET_COMMIT,
        Api.TXN_OFFSET_COMMIT,
        Api.FORWARD,
    }
)
LONG_HEADER_BYTES = 32 * 1024
"""Size in bytes above which a header is decoded only in a turn of `LongRequests`, and after `Pace.begin`."""
AMONG_BROKERS = frozenset(
    api for api, rules in PERMISSIONS.items() if rules and all(r.operation is Operation.CLUSTER_ACTION for r in rules)
)
"""APIs of requests that only brokers send."""
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
"""APIs that only the controller answers. Other brokers forward their requests. They have no payload, and no results
that depend on a principal's permission for single items."""
ABOUT_THE_CLUSTER = AT_CONTROLLER | {
    Api.METADATA,
    Api.FORWARD,
    Api.DESCRIBE_CLUSTER,
    Api.DESCRIBE_BROKER_CONFIGS,
    Api.DESCRIBE_ACLS,
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS,
    Api.DESCRIBE_CLIENT_QUOTAS,
}
"""APIs whose answers come from the cluster's image. A client can ask for an image as new as its last change."""
BEFORE_THE_JOIN = SASL_APIS | {Api.HANDSHAKE}
"""APIs that a broker answers before it has joined its cluster. Until then clients ask other brokers, or try again."""
NOTHING = memoryview(b"")
BEHIND_S = 5.0
"""Longest wait, in s, until this broker's image has the change that a client has made."""
RESULTS_INLINE_MAX = 1_000
ERROR_TEXTS_CHARS_MAX = 1024 * 1024
RESULT_LISTS: Mapping[type[Any], str] = {
    m.ProduceResponse: "results",
    m.FetchResponse: "results",
    m.ListOffsetsResponse: "results",
    m.OffsetsForLeaderEpochResponse: "results",
    m.DeleteRecordsResponse: "results",
    OffsetCommitResponse: "results",
    TxnOffsetCommitResponse: "results",
}
"""Responses with one result for each partition of the request."""
_Result = (
    m.ProduceResult | m.FetchResult | m.ListOffsetsResult | m.EpochEndOffset | m.DeleteRecordsResult | OffsetResult
)


May = Callable[[Operation, ResourceType, str], bool]
"""Returns True if the peer is allowed to do an operation on the resource with this type and name."""
_NOTHING_DENIED: Mapping[str, SparklogError] = {}


def _may_everything(operation: Operation, resource_type: ResourceType, name: str) -> bool:
    return True


class RequestContext(Struct, frozen=True):
    """The context of a request: the broker, and the peer with its connection."""

    broker: Broker
    local_address: tuple[str, int]
    peer_host: str
    peer_name: str = ""
    older_version: int | None = None
    """Version of the request and its answer; None for the newest."""
    times: RequestTimes = struct_field(default_factory=RequestTimes)
    """Collects the time that a handler waits for other events."""
    principal: Principal = ANONYMOUS
    """The peer's principal."""
    listener: str = ""
    """Name of the peer's listener; "" if there are no listeners, as in a simulation."""
    local_socket: str = ""
    """Name of the Unix socket that a peer on this host can use in place of TCP; "" if there is none."""
    authenticate: Callable[[Any], Awaitable[Response]] | None = None
    """Handles a SASL message; None for other requests, and if the connection has no SASL."""
    denied: Mapping[str, SparklogError] = _NOTHING_DENIED
    """The errors for denied resources of the request, by the resource's name."""
    may: May = _may_everything
    client_id: str = ""
    """The name that the client gives itself."""
    header: memoryview = NOTHING
    """The encoded request."""
    ask_controller: Callable[[Api, Message, RequestContext], Awaitable[Response]] | None = None
    """Sends another request to the controller, with the peer's principal. None outside of a dispatcher."""
    request_id: str = ""
    """Random id of a request to the controller, the same in all attempts."""
    is_repeated: bool = False
    """True if an earlier attempt of a request to the controller may have taken effect."""

    def shown(self, api: Api, pieces: Iterable[T]) -> Iterable[T]:
        """Return the pieces of an answer, reduced to the parts that the peer is allowed to see
        (`sparklog.protocol.visibility`).
        """
        if self.may is _may_everything:
            return pieces
        return visibility.shown(api, pieces, partial(self.may, Operation.DESCRIBE))

    def note_denial(
        self, api: Api, error: SparklogError, operation: Operation | None, resource: Resource | None
    ) -> None:
        """Write a denial to the audit log, if there is one."""
        if self.broker.audit is not None:
            about = operation, resource, self.client_id
            self.broker.audit.denial(api, self.principal, self.peer_host, self.listener, error, *about)

    def note_act(self, api: Api, resources: Iterable[str], error_code: int, detail: str = "") -> None:
        """Write an administrative act, successful or not, to the audit log, if there is one."""
        if self.broker.audit is not None:
            about = resources, error_code, self.client_id, detail
            self.broker.audit.act(api, self.principal, self.peer_host, self.listener, *about)


Handler = Callable[[Any, memoryview, RequestContext], Awaitable[Response]]
"""async def handle(request, payload, context) -> Response. `payload` is writable, and valid while it is referenced."""


class Dispatcher:
    """Passes requests to its handlers, and returns replies."""

    def __init__(
        self,
        broker: Broker,
        handlers: Mapping[Api, Handler],
        requests: RequestCounters | None = None,
        access: Access | None = None,
        authenticator: Authenticator | None = None,
        throttling: Throttling | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """`requests`: counters of errors. `access` None: every principal has all permissions. `authenticator` None: no
        peer must authenticate. `throttling` None: there are no quotas.
        """
        self._broker = broker
        self._access = access
        self._authenticator = authenticator
        self._throttling = throttling
        self._audit = audit
        self._requests = RequestCounters() if requests is None else requests
        self._handlers: dict[int, Handler] = {int(api): handler for api, handler in handlers.items()}
        self._handlers[Api.FORWARD] = self._forwarded

    async def answer(self, prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply | None:
        """Return the reply to one request; None for a request without a reply. Errors become replies, so only a
        cancellation is raised."""
        try:
            return await self._answered(prefix, body, connection)
        except Exception as e:  # noqa: BLE001 - every error becomes a reply
            error, close = _error_answer(e, prefix.api, connection.peer_name)
            self._requests.failed(prefix.api, (error.code,))
            return error_reply(prefix.api, prefix.correlation_id, error, close=close, throttle_ms=connection.mute_ms)

    async def _answered(self, prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply | None:
        authenticate = None
        if connection.authentication is not None and self._authenticator is not None:
            if prefix.api in SASL_APIS:
                authenticate = partial(self._authenticator.answer, connection)
            else:
                await self._authenticator.judge(prefix.api, connection)
        if prefix.header_bytes <= LONG_HEADER_BYTES:
            return await self._decoded(prefix, body, connection, authenticate)
        check_header_size(prefix.api, prefix.header_bytes)
        async with self._broker.long_requests.turn(_kind_of(prefix.api), prefix.header_bytes):
            await self._broker.pace.begin()
            return await self._decoded(prefix, body, connection, authenticate)

    async def _decoded(
        self,
        prefix: RequestPrefix,
        body: memoryview,
        connection: Connection,
        authenticate: Callable[[Any], Awaitable[Response]] | None,
    ) -> Reply | None:
        throttling = self._throttling
        if throttling is not None and (not throttling.is_needed or self._is_broker(prefix.api, connection)):
            throttling = None
        begun = None if throttling is None else throttling.begin(connection.principal, connection.client_id)
        try:
            request = decode_request(prefix.api, prefix.version, body[: prefix.header_bytes])
        except Exception:
            if throttling is not None and begun is not None:
                connection.mute(throttling.end(begun, None, None, 0, 0, 0.0))
            raise
        if isinstance(request, m.HandshakeRequest):
            connection.client_id = client_id_of(request)
        older = older_version(prefix.api, prefix.version)
        context = RequestContext(
            self._broker,
            connection.local_address,
            connection.peer_host,
            connection.peer_name,
            older,
            connection.times,
            connection.principal,
            connection.listener,
            connection.local_socket if connection.is_known else "",
            authenticate,
            client_id=connection.client_id,
            header=body[: prefix.header_bytes],
            ask_controller=self._in_its_name,
        )
        payload = body[prefix.header_bytes :]
        if throttling is None or begun is None:
            response = await self._allowed(prefix.api, request, payload, context)
        else:
            response = await self._metered(throttling, begun, prefix.api, request, payload, context, connection)
        field = RESULT_LISTS.get(type(response.message))
        if field is not None:
            results = getattr(response.message, field)
            self._requests.failed(prefix.api, [r.error_code for r in results if r.error_code])
            if len(results) > RESULTS_INLINE_MAX:
                await self._encode_long(response, field, older)
        return frame_response(prefix.api, prefix.correlation_id, response, older)

    def _is_broker(self, api: int, connection: Connection) -> bool:
        """True for a request of a broker, which has no quotas: on the inter-broker listener, or with an API of brokers.
        With an authorizer, the principal also needs the permission ClusterAction."""
        assert self._throttling is not None
        if api not in AMONG_BROKERS and connection.listener != self._throttling.protected_listener:
            return False
        if self._access is None:
            return True
        return self._access.may(peer_of(connection.principal, connection.peer_host), Operation.CLUSTER_ACTION, *CLUSTER)

    async def _metered(
        self,
        throttling: Throttling,
        begun: TimedRequest,
        api: int,
        request: Message,
        payload: memoryview,
        context: RequestContext,
        connection: Connection,
    ) -> Response:
        """Charge the request to its user, even if it fails, and mute the connection if a quota is exceeded."""
        request, begun = throttling.fitted(request, begun)
        answer, given_bytes = None, 0
        try:
            response = await self._allowed(api, request, payload, context)
            answer, given_bytes = response.message, sum(part.length_bytes for part in response.payload)
        finally:
            throttle_ms = throttling.end(begun, request, answer, len(payload), given_bytes, context.times.wait_s)
            if throttle_ms:
                connection.mute(throttle_ms)
        return response

    async def _allowed(self, api: int, request: Message, payload: memoryview, context: RequestContext) -> Response:
        if self._access is None:
            return await self._run(api, request, payload, context)
        return await self._guarded(self._access, Api(api), request, payload, context)

    async def _guarded(
        self, access: Access, api: Api, request: Message, payload: memoryview, context: RequestContext
    ) -> Response:
        """Handle the parts of a request that are allowed. If permissions change while a fetch waits, the fetch is
        checked again."""
        peer = peer_of(context.principal, context.peer_host)
        context = structs.replace(context, may=partial(access.may, peer))
        is_noted = False
        while True:
            version = access.version
            verdict = access.judge(api, request, peer)
            error = verdict.error or verdict.item_error
            if error is not None and not is_noted:
                context.note_denial(api, error, verdict.operation, verdict.resource)
                is_noted = True
            if verdict.error is not None:
                raise verdict.error
            response = await self._handled(api, request, payload, context, verdict)
            if api is not Api.FETCH or access.version == version:
                return response
            if access.judge(api, request, peer) == verdict:
                return response
            response.release()

    async def _handled(
        self, api: Api, request: Message, payload: memoryview, context: RequestContext, verdict: Verdict
    ) -> Response:
        error = verdict.item_error
        if error is None:
            return await self._run(api, request, payload, context)
        if not denials.has_results_per_item(api):
            context = structs.replace(context, denied=dict.fromkeys(verdict.denied_names, error))
            return await self._run(api, request, payload, context)
        rest, payload = denials.without(api, request, payload, verdict.denied_items)
        response = Response(None) if rest is None else await self._run(api, rest, payload, context)
        if isinstance(request, m.ProduceRequest) and request.acks == 0:
            response.close = True  # without a reply, only closing shows the error
            return response
        response.message = denials.with_denials(api, request, response.message, verdict.denied_items, error)
        return response

    async def _run(self, number: int, request: Message, payload: memoryview, context: RequestContext) -> Response:
        cluster = self._broker.cluster
        if number not in BEFORE_THE_JOIN and not cluster.has_joined:
            raise BrokerNotAvailableError("this broker is still joining its cluster: try again, or ask another broker")
        if number not in ABOUT_THE_CLUSTER:
            return await self._noted(number, request, payload, context)
        await cluster.as_new_as(Version(*getattr(request, "at_least", NO_VERSION)), BEHIND_S)
        response = await self._noted(number, request, payload, context)
        if (message := response.message) is not None and hasattr(message, "metadata_version"):
            message.metadata_version = cluster.image.version
        return response

    async def _noted(self, number: int, request: Message, payload: memoryview, context: RequestContext) -> Response:
        """Return the handler's response. Administrative acts that were not denied are written to the audit log,
        successful or not.
        """
        if self._audit is None or number not in ADMINISTRATIVE:
            return await self._handle(number, request, payload, context)
        api, code = Api(number), UnknownServerError.code
        try:
            response = await self._handle(number, request, payload, context)
            code = 0
        except SparklogError as e:
            code = e.code
            raise
        finally:
            context.note_act(api, resources_of(api, request), code, act_detail(api, request))
        return response

    async def _in_its_name(self, api: Api, request: Message, context: RequestContext) -> Response:
        return await self._ask_controller(api, request, encode(request), structs.replace(context, older_version=None))

    async def _handle(self, number: int, request: Message, payload: memoryview, context: RequestContext) -> Response:
        if number not in AT_CONTROLLER:
            return await self._handlers[number](request, payload, context)
        return await self._ask_controller(Api(number), request, bytes(context.header), context)

    async def _ask_controller(self, api: Api, request: Message, header: bytes, context: RequestContext) -> Response:
        """Return the controller's response when this broker's image has the change. The request is repeated while the
        controller is being replaced. Raises the controller's error, NotControllerError, BrokerNotAvailableError,
        RequestTimedOutError (the request may have taken effect)."""
        cluster, request_id = self._broker.cluster, self._broker.environment.randomness.new_id()
        version = APIS[api].version_max if context.older_version is None else context.older_version
        forward = ForwardRequest(api, version, header, str(context.principal), request_id)

        async def ask() -> Response:
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

        return await cluster.controller.while_it_moves(ask)

    async def _decided(
        self, api: Api, request: Message, context: RequestContext, request_id: str, is_repeated: bool
    ) -> tuple[Response | SparklogError, Version]:
        """Handle a request on the controller. Returns the response or error, and the image's version with the
        change.
        """
        outcome: Response | SparklogError
        context = structs.replace(context, request_id=request_id, is_repeated=is_repeated)
        try:
            outcome = await self._handlers[api](request, NOTHING, context)
        except SparklogError as e:
            outcome = e
        return outcome, self._broker.cluster.membership.version

    async def _forwarded(self, forward: ForwardRequest, payload: memoryview, context: RequestContext) -> Response:
        """Answer a request that another broker has forwarded after it checked the permissions. It is not forwarded
        again. Raises InvalidRequestError, UnsupportedVersionError, NotControllerError, BrokerNotAvailableError."""
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

    async def _encode_long(self, response: Response, field: str, older: int | None) -> None:
        """Encode a long list of results in pieces. On failure the response's slices are released."""
        message = response.message
        assert message is not None
        results = getattr(message, field)
        setattr(message, field, [])
        items = one_by_one(_shortened(results), older)
        try:
            built = await self._broker.long_answers.build(
                message, field, items, paged=False, remedy="name fewer partitions", version=older
            )
        except BaseException:
            response.release()
            raise
        response.header = built.header


def _error_answer(error: Exception, api: int, peer: str) -> tuple[SparklogError, bool]:
    """Return the error for the peer, and True if the connection must then be closed. Internal errors are logged."""
    match error:
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


def _kind_of(api: int) -> str:
    """Return the kind of turns (`LongRequests`) for long requests of an API."""
    if api in AMONG_BROKERS:
        return "brokers"
    return "waiting" if api in (Api.FETCH, Api.PRODUCE) else "others"


def check_header_size(api: int, header_bytes: int) -> None:
    """Check the size of a header, which is decoded as a whole. The limit is small for APIs without long lists. Raises
    InvalidRequestError.
    """
    if header_bytes > HEADER_BYTES_MAX and api not in _LONG_REQUESTS:
        raise InvalidRequestError(f"a request header of {header_bytes} bytes; this API takes {HEADER_BYTES_MAX}")


def _shortened(results: Iterable[_Result]) -> Iterator[_Result]:
    """Yield results with the texts of errors up to a limit in total. Later errors have only their code."""
    left = ERROR_TEXTS_CHARS_MAX
    for result in results:
        if result.message:
            left -= len(result.message)
            if left < 0:
                result.message = ""
        yield result
