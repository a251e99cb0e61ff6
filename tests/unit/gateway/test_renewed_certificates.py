"""Renewed certificates and authorities apply to new connections, also to those that resume a TLS session."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sparklog.gateway import listening
from sparklog.gateway.gateway import Gateway
from sparklog.gateway.registry import served_apis
from sparklog.gateway.server import GatewayServer
from sparklog.gateway.stream import ClientStream
from sparklog.security.authority import Authority
from sparklog.security.listeners import Listener, SecurityProtocol
from sparklog.security.tls import RenewedContext, server_context
from sparklog.settings import Scope, settings_of
from tests.system.secure_broker import now, write_identity

CONNECTIONS = 50
VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)


class Client:
    """A client that resumes its TLS 1.2 session in later connections."""

    def __init__(self, authority: Authority, identity: dict[str, str]) -> None:
        self._context = ssl.create_default_context(cadata=authority.identity.certificate)
        self._context.check_hostname = False
        self._context.maximum_version = ssl.TLSVersion.TLSv1_2
        self._context.load_cert_chain(*identity.values())
        self._session: Any = None

    def is_served(self, address: tuple[str, int]) -> bool:
        """Return True if a request on a new connection is answered."""
        try:
            with (
                socket.create_connection(address, 30) as plain,
                self._context.wrap_socket(plain, session=self._session) as sock,
            ):
                sock.sendall(VERSIONS)
                answered = len(sock.recv(4)) == 4
                self._session = sock.session
                return answered
        except OSError:
            return False


class World:
    """A gateway's listener with TLS, without a broker."""

    def __init__(self, directory: Path) -> None:
        self.first, self.second = Authority("first", now()), Authority("second", now())
        self.trusted = directory / "clients.pem"
        self.trusted.write_text(self.first.identity.certificate)
        own = write_identity(directory, "gateway", self.first.issue("gateway", ["localhost"], now(), 1, broker=True))
        self.robot = write_identity(directory, "robot", self.first.issue("robot", (), now(), 1, broker=False))
        settings = {name: setting.default for name, setting in settings_of(Scope.BROKER).items()}
        settings |= own | {"ssl.ca.location": str(self.trusted), "ssl.client.auth": "required"}
        self.renewed = RenewedContext(server_context, settings)
        self.sock = socket.create_server(("127.0.0.1", 0))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        listener = Listener("L", "127.0.0.1", 0, SecurityProtocol.SSL)
        gateway = Gateway()
        server = GatewayServer(gateway, served_apis(), [(listener, self.sock)], {"L": self.renewed})
        server.start()
        yield
        await server.stop()
        gateway.close()

    async def is_served(self, client: Client) -> bool:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, client.is_served, self.sock.getsockname())


def test_a_withdrawn_authority_ends_the_sessions_that_it_has_let_in(tmp_path: Path) -> None:
    world = World(tmp_path)
    client = Client(world.first, world.robot)

    async def main() -> None:
        async with world.serving():
            assert await world.is_served(client)
            assert not world.renewed.renew()
            assert await world.is_served(client), "an unchanged certificate changes nothing"
            world.trusted.write_text(world.second.identity.certificate)
            assert world.renewed.renew()
            assert not await world.is_served(client)
            world.trusted.write_text(world.first.identity.certificate + world.second.identity.certificate)
            assert world.renewed.renew()
            assert await world.is_served(client)

    asyncio.run(main())


def test_connections_are_served_while_certificates_change(tmp_path: Path) -> None:
    """Certificates change in the same turns of the event loop in which connections are accepted."""
    world = World(tmp_path)
    both = world.first.identity.certificate + world.second.identity.certificate

    async def main() -> None:
        async with world.serving():
            clients = [
                asyncio.ensure_future(world.is_served(Client(world.first, world.robot))) for _ in range(CONNECTIONS)
            ]
            while not all(client.done() for client in clients):
                world.trusted.write_text(both if len(world.trusted.read_text()) < len(both) else both + "\n")
                world.renewed.renew()
                await asyncio.sleep(0)
            assert [client.result() for client in clients] == [True] * CONNECTIONS

    asyncio.run(main())


class WithoutDescriptors(socket.socket):
    """A listening socket that has no free descriptor for its first connection."""

    failures = 1

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_accepting_goes_on_after_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "RETRY_S", 0.001)

    async def main() -> None:
        streams: asyncio.Queue[ClientStream] = asyncio.Queue()
        with WithoutDescriptors() as sock:
            sock.bind(("127.0.0.1", 0))
            listener = listening.ListeningSocket(sock, partial(ClientStream, streams.put_nowait))
            _, writer = await asyncio.open_connection(*sock.getsockname())
            (await streams.get()).close()
            listener.close()
            writer.close()

    asyncio.run(asyncio.wait_for(main(), 30))
