"""From a frame to a handler and back: decodes the request, turns every error into an error frame."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sparklog.errors import (
    InvalidRequestError,
    SparklogError,
    UnknownServerError,
    UnsupportedApiError,
    UnsupportedVersionError,
)
from sparklog.protocol.frames import RequestPrefix
from sparklog.protocol.messages import Api, decode_request
from sparklog_broker.connection import Connection
from sparklog_broker.reply import Reply, Response, error_reply, frame_response

if TYPE_CHECKING:
    from sparklog_broker.broker import Broker

log = logging.getLogger(__name__)


class RequestContext(Struct, frozen=True):
    """What a handler may know besides the request: the broker, and who is connected to which of its addresses."""

    broker: Broker
    local_address: tuple[str, int]
    peer_host: str
    peer_name: str = ""


Handler = Callable[[Any, memoryview, RequestContext], Awaitable[Response]]
"""async def handle(request, payload, context) -> Response. `payload` is writable and stays valid while referenced."""


class Dispatcher:
    """Answers requests with the handlers it is given."""

    def __init__(self, broker: Broker, handlers: Mapping[Api, Handler]) -> None:
        self._broker = broker
        self._handlers: dict[int, Handler] = {int(api): handler for api, handler in handlers.items()}

    async def answer(self, prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply | None:
        """The reply to one request; it never raises but for cancellation."""
        try:
            request = decode_request(prefix.api, prefix.version, body[: prefix.header_bytes])
            context = RequestContext(self._broker, connection.local_address, connection.peer_host, connection.peer_name)
            response = await self._handlers[prefix.api](request, body[prefix.header_bytes :], context)
            return frame_response(prefix.api, prefix.correlation_id, response)
        except (InvalidRequestError, UnsupportedApiError, UnsupportedVersionError) as e:
            log.info("%s: %s; disconnecting", connection.peer_name, e)
            return error_reply(prefix.api, prefix.correlation_id, e, close=True)
        except SparklogError as e:
            return error_reply(prefix.api, prefix.correlation_id, e)
        except Exception:
            log.exception("%s: request of API %d failed", connection.peer_name, prefix.api)
            error = UnknownServerError("the broker failed to process the request; its log has the details")
            return error_reply(prefix.api, prefix.correlation_id, error)
