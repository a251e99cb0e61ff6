"""The HTTP server through which tests order faults and move the clock of a broker.

| request | effect |
|---|---|
| `GET /faults` | the faults in effect, as a JSON list |
| `POST /faults` | one more fault: JSON, as `{"fault": "refuse", "api": "PRODUCE", "error": "NOT_LEADER"}` |
| `DELETE /faults` | all faults end |
| `POST /clock` | time passes: `{"advance_ms": 691200000}`; the answer comes when the due work is done |

The server runs only in a broker that was started with `--testing`, and only on an address of this machine. It refuses
requests with the header Origin: no web page may reach it.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import NamedTuple

import msgspec
from msgspec import Struct

from sparklog.environment import Environment
from sparklog.environment.clock import SystemClock
from sparklog.errors import InvalidConfigError, InvalidRequestError, SparklogError
from sparklog.format.decoders import json_decoder
from sparklog.security.listeners import is_local
from sparklog_broker.broker import Broker
from sparklog_broker.config import format_address, parse_address
from sparklog_broker.network.listening import bind
from sparklog_broker.testing.faults import Faults, parse_fault, refusal_of
from sparklog_broker.testing.machine import MovedClock, MovedLoop, environment_under_test
from sparklog_broker.testing.stage import FaultStage

OPTION = "--faults-listen"
BODY_BYTES_MAX = 64 * 1024
REQUEST_S = 10.0
"""The longest wait for a part of a request, in s."""
ADVANCE_MS_MAX = 100 * 366 * 24 * 3_600_000


class Advance(Struct, forbid_unknown_fields=True):
    """The body of `POST /clock`."""

    advance_ms: int


class Testing(NamedTuple):
    """The parts of a broker that tests control."""

    clock: MovedClock
    faults: Faults
    stage: FaultStage
    listen: str
    """HOST:PORT of the control server; empty: there is none."""

    @classmethod
    def create(cls, listen: str) -> Testing:
        """Return the parts of a broker that has not started."""
        faults = Faults()
        return cls(MovedClock(SystemClock()), faults, FaultStage(faults), listen)

    def loop(self) -> MovedLoop:
        """Return a new event loop for the broker."""
        return MovedLoop(self.clock)

    def environment(self, machine: Environment) -> Environment:
        """Return the environment for the broker on `machine`."""
        return environment_under_test(machine, self.clock, self.faults)

    def control_server(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> ControlServer | None:
        """Return the server for orders, which has not started; None without an address. Raises ListenError."""
        if not self.listen:
            return None
        thread = broker.environment.executors.daemon("faults")
        return ControlServer(self.listen, _handler(Control(self, broker), loop), thread)


def check_listen(listen: str) -> None:
    """Raise InvalidConfigError unless the address belongs to this machine alone."""
    host, _ = parse_address(listen, OPTION)
    if not is_local(host):
        raise InvalidConfigError(f"{OPTION} = {listen!r}: only an address of this machine is allowed, as 127.0.0.1:0")


class Control:
    """Carries out the orders of tests. Event-loop thread only."""

    def __init__(self, testing: Testing, broker: Broker) -> None:
        self._testing = testing
        self._broker = broker

    async def obey(self, method: str, path: str, body: bytes) -> object:
        """Carry out an order, and return its answer. Raises InvalidRequestError, and the errors of the due work."""
        faults = self._testing.faults
        match method, path:
            case "GET", "/faults":
                return faults.list()
            case "POST", "/faults":
                faults.add(parse_fault(body))
                return {}
            case "DELETE", "/faults":
                faults.clear()
                return {}
            case "POST", "/clock":
                await self._advance(body)
                return {"now_ms": self._testing.clock.now_ms()}
        raise InvalidRequestError(f"{method} {path}: the orders are GET, POST and DELETE /faults, and POST /clock")

    async def _advance(self, body: bytes) -> None:
        try:
            ms = json_decoder(Advance).decode(body).advance_ms
        except (msgspec.MsgspecError, UnicodeDecodeError) as e:
            raise refusal_of(body, e) from e
        if not 0 <= ms <= ADVANCE_MS_MAX:
            raise InvalidRequestError(f"advance_ms = {ms}: 0 to {ADVANCE_MS_MAX} are allowed")
        broker = self._broker
        self._testing.clock.move(ms)
        await broker.groups.pass_time(ms / 1000)
        await broker.transactions.end_overdue()
        await broker.background.retention.run()


class ControlServer:
    """Takes orders on `thread`, from `start` to `stop`. Raises ListenError if the address cannot be bound."""

    def __init__(self, listen: str, handler: type[BaseHTTPRequestHandler], thread: Executor) -> None:
        sock = bind(*parse_address(listen, OPTION), setting=OPTION)
        sock.setblocking(True)
        address = sock.getsockname()
        self.address = format_address(*address[:2])
        """HOST:PORT of the server."""
        self._thread = thread
        self._server = HTTPServer(address[:2], handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = sock
        self._server.server_activate()

    def start(self) -> None:
        """Begin to accept orders."""
        self._thread.submit(self._server.serve_forever)

    def stop(self) -> None:
        """Accept no more orders."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.shutdown(wait=False)


def _handler(control: Control, loop: asyncio.AbstractEventLoop) -> type[BaseHTTPRequestHandler]:
    """Return the class that handles HTTP requests."""

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_S  # for the server has one thread

        def _obey(self) -> None:
            length = self.headers.get("Content-Length", "0")
            is_length = length.isdecimal() and len(length) <= len(str(BODY_BYTES_MAX))
            if "Origin" in self.headers or not is_length or int(length) > BODY_BYTES_MAX:
                self._answer(403, {"error": f"a request of a web page, or of more than {BODY_BYTES_MAX} bytes"})
                return
            try:
                body = self.rfile.read(int(length))
            except TimeoutError:
                self._answer(408, {"error": f"the body has not arrived within {REQUEST_S:.0f} s"})
                return
            work = asyncio.run_coroutine_threadsafe(control.obey(self.command, self.path, body), loop)
            try:
                self._answer(200, work.result())
            except SparklogError as e:
                self._answer(400, {"error": str(e)})

        do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _obey  # noqa: N815  the library's names

        def _answer(self, status: int, answer: object) -> None:
            body = msgspec.json.encode(answer)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: the orders are the test's own."""

    return Handler
