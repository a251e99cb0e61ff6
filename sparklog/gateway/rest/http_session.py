"""One HTTP connection of the schema registry. The library `h11` parses requests.

A connection has its own connection to the broker, with the client's address, certificate and user, from its first
request on. Another `Authorization` in a later request opens another one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from contextlib import suppress

import h11
import msgspec

from sparklog.errors import SparklogError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.gateway import Gateway
from sparklog.gateway.rest.authentication import authenticate
from sparklog.gateway.rest.service import Answer, SchemaService, error_answer
from sparklog.kafka.schemas.errors import STORE_FAILED, UNAUTHORIZED, RegistryError
from sparklog.protocol.gateway import OnBehalf
from sparklog.security.listeners import Listener
from sparklog.security.sasl_client import renewed_after_s

log = logging.getLogger(__name__)

CONTENT_TYPE = b"application/vnd.schemaregistry.v1+json"
TOKEN_HEADER = b"authorization"
HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 4 * 1024 * 1024
READ_BYTES = 64 * 1024
IDLE_S = 60.0
"""Longest time in s until a request has arrived completely, or the next one begins."""
WRITE_S = 30.0
CLIENT_NAME = "schema-registry"


class HttpSession:
    """The session of one connection; `run` serves it to its end. Event-loop thread only."""

    def __init__(
        self,
        gateway: Gateway,
        service: SchemaService,
        listener: Listener,
        bodies: asyncio.Semaphore,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """`bodies`: shared by all sessions; limits the bodies that are received at once."""
        self._gateway = gateway
        self._service = service
        self._listener = listener
        self._bodies = bodies
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._broker: BrokerConnection | None = None
        self._authorization: bytes | None = None
        """The header by which `_broker` was authenticated."""
        self._renewal_s = math.inf
        """Time on the monotonic clock from which on `_broker` gets no more requests."""
        peer, own = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        client, local = peer or ("", 0), own or ("localhost", listener.port)  # "": the client has gone
        addresses = str(client[0])[:255], int(client[1]), str(local[0])[:255], int(local[1])
        self._client = OnBehalf(*addresses, certificate or b"")

    @property
    def peer_host(self) -> str:
        """The client's address."""
        return self._client.client_host

    async def run(self) -> None:
        """Serve the connection to its end."""
        try:
            while await self._serve_one():
                self._http.start_next_cycle()
        except (OSError, TimeoutError, ssl.SSLError):
            pass  # the client has gone, or sends too slowly
        finally:
            if self._broker is not None:
                self._broker.close()
            self._writer.transport.abort()

    async def _serve_one(self) -> bool:
        """Serve one request, and return True if the connection can have another one."""
        try:
            async with asyncio.timeout(IDLE_S):
                request = await self._next_event()
        except h11.RemoteProtocolError as e:
            await self._send_refusal(e.error_status_hint, f"the request is not valid HTTP: {e}")
            return False
        if not isinstance(request, h11.Request):
            return False
        try:
            answer = await self._answer(request)
        except OSError:  # of the client's connection
            raise
        except Exception:
            log.exception("%s: a request to the schema registry failed", self.peer_host)
            answer = error_answer(RegistryError(STORE_FAILED, "the registry failed; the gateway's log has the reason"))
        is_last = self._http.their_state is not h11.DONE  # the rest of the body is not read
        await self._send(answer, is_last=is_last, has_body=request.method != b"HEAD")
        return not is_last and self._http.our_state is h11.DONE

    async def _answer(self, request: h11.Request) -> Answer:
        try:
            broker = await self._authenticated(_header(request, TOKEN_HEADER))
            large = int(_header(request, b"content-length") or READ_BYTES) >= READ_BYTES
            if _header(request, b"transfer-encoding") or large:
                async with self._bodies:
                    body = await self._body()
            else:
                body = await self._body()
        except RegistryError as e:
            return error_answer(e)
        except h11.RemoteProtocolError as e:
            return error_answer(RegistryError(400, f"the request is not valid HTTP: {e}"))
        except SparklogError as e:
            return error_answer(RegistryError(STORE_FAILED, f"the broker does not answer: {e}"))
        return await self._service.answer(broker, request.method.decode(), request.target.decode("ascii"), body)

    async def _authenticated(self, authorization: bytes) -> BrokerConnection:
        """Return the connection to the broker with the client's user. Raises RegistryError, SparklogError."""
        if self._broker is not None:
            is_current = authorization == self._authorization and time.monotonic() < self._renewal_s
            if is_current and not self._broker.closed:
                return self._broker
            self._broker.close()
            self._broker = None
        if self._listener.protocol.sasl and not authorization:
            raise RegistryError(UNAUTHORIZED, "Unauthorized: send a name and a password, or a token")
        broker = await self._gateway.connect(CLIENT_NAME, self._listener.name, self._client)
        begun_s, lifetime_ms = time.monotonic(), 0
        try:
            if self._listener.protocol.sasl:
                lifetime_ms = await authenticate(broker, authorization)
        except BaseException:
            broker.close()
            raise
        self._broker, self._authorization = broker, authorization
        self._renewal_s = begun_s + renewed_after_s(lifetime_ms) if lifetime_ms else math.inf
        return broker

    # -- reading and writing

    async def _body(self) -> bytes:
        """Receive the body. Raises RegistryError beyond BODY_BYTES_MAX, h11.RemoteProtocolError, OSError."""
        if self._http.they_are_waiting_for_100_continue:
            self._writer.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        body = bytearray()
        async with asyncio.timeout(IDLE_S):
            while isinstance(event := await self._next_event(), h11.Data):
                body += event.data
                if len(body) > BODY_BYTES_MAX:
                    raise RegistryError(413, f"the request's body has more than {BODY_BYTES_MAX} bytes")
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionError("the client has gone")
        return bytes(body)

    async def _next_event(self) -> object:
        """Return the next event of the client. Raises h11.RemoteProtocolError, OSError."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(READ_BYTES))
        return event

    async def _send_refusal(self, status: int, reason: str) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send(error_answer(RegistryError(status, reason)), is_last=True)

    async def _send(self, answer: Answer, *, is_last: bool, has_body: bool = True) -> None:
        is_text = isinstance(answer.body, str)
        body = answer.body.encode() if is_text else msgspec.json.encode(answer.body)
        headers = [
            (b"Content-Type", CONTENT_TYPE),
            (b"Content-Length", str(len(body)).encode()),
            (b"Cache-Control", b"no-store"),
            (b"X-Content-Type-Options", b"nosniff"),
        ]
        if answer.status == 401:
            headers.append((b"WWW-Authenticate", b'Basic realm="schema registry"'))
        if is_last:
            headers.append((b"Connection", b"close"))
        parts = [
            self._http.send(h11.Response(status_code=answer.status, headers=headers)),
            self._http.send(h11.Data(data=body)) if has_body else b"",
            self._http.send(h11.EndOfMessage()),
        ]
        self._writer.write(b"".join(part or b"" for part in parts))
        async with asyncio.timeout(WRITE_S):
            await self._writer.drain()
        if is_last:
            with suppress(OSError, NotImplementedError):
                self._writer.write_eof()


def _header(request: h11.Request, name: bytes) -> bytes:
    """Return the value of a header; b"" without it."""
    return next((value for key, value in request.headers if key == name), b"")
