"""The context in which a handler answers a request: the broker, the peer, and the peer's permissions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from msgspec import field as struct_field

from sparklog.errors import SparklogError
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.security.acls import Operation, Resource, ResourceType
from sparklog.security.principals import ANONYMOUS, Principal
from sparklog_broker.broker import Broker
from sparklog_broker.counters.requests import RequestTimes
from sparklog_broker.network.reply import Response

T = TypeVar("T")

EMPTY = memoryview(b"")
May = Callable[[Operation, ResourceType, str], bool]
"""Returns True if the peer is allowed to do an operation on the resource with this type and name."""
_NO_DENIALS: Mapping[str, SparklogError] = {}


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
    denied: Mapping[str, SparklogError] = _NO_DENIALS
    """The errors for denied resources of the request, by the resource's name."""
    may: May = _may_everything
    client_id: str = ""
    """The name that the client gives itself."""
    is_gateway: bool = False
    """True if this broker's gateway sends the request for its client."""
    header: memoryview = EMPTY
    """The encoded request."""
    ask_controller: Callable[[Api, Message, RequestContext], Awaitable[Response]] | None = None
    """Sends another request to the controller, with the peer's principal. None outside of a pipeline."""
    request_id: str = ""
    """Random id of a request to the controller, the same in all attempts."""
    is_repeated: bool = False
    """True if an earlier attempt of a request to the controller may have taken effect."""

    def shown(self, api: Api, pieces: Iterable[T]) -> Iterable[T]:
        """Return the pieces of an answer, reduced to the parts that the peer is allowed to see
        (`sparklog.protocol.visibility`).
        """
        answer_filter = APIS[api].filter
        if self.may is _may_everything or answer_filter is None:
            return pieces
        return answer_filter.visible(pieces, partial(self.may, Operation.DESCRIBE))

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
