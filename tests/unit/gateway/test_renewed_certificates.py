"""Renewed certificates and authorities apply to new connections, also to those that resume a TLS session."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

from sparklog.gateway.gateway import Gateway
from sparklog.gateway.registry import served_apis
from sparklog.gateway.server import GatewayServer
from sparklog.security.authority import Authority
from sparklog.security.listeners import Listener, SecurityProtocol
from sparklog.security.tls import RenewedContext, server_context
from sparklog.settings import Scope, settings_of
from tests.system.secure_broker import now, write_identity

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


def test_a_withdrawn_authority_ends_the_sessions_that_it_has_let_in(tmp_path: Path) -> None:
    first, second = Authority("first", now()), Authority("second", now())
    trusted = tmp_path / "clients.pem"
    trusted.write_text(first.identity.certificate)
    own = write_identity(tmp_path, "gateway", first.issue("gateway", ["localhost"], now(), 1, broker=True))
    robot = write_identity(tmp_path, "robot", first.issue("robot", (), now(), 1, broker=False))
    settings = {name: setting.default for name, setting in settings_of(Scope.BROKER).items()}
    settings |= own | {"ssl.ca.location": str(trusted), "ssl.client.auth": "required"}
    renewed = RenewedContext(server_context, settings)

    async def main() -> None:
        listener = Listener("L", "127.0.0.1", 0, SecurityProtocol.SSL)
        sock = socket.create_server(("127.0.0.1", 0))
        gateway = Gateway()
        server = GatewayServer(gateway, served_apis(), [(listener, sock)], {"L": renewed})
        await server.start()
        client = Client(first, robot)
        loop = asyncio.get_running_loop()

        async def is_served() -> bool:
            return await loop.run_in_executor(None, client.is_served, sock.getsockname())

        assert await is_served()
        await server.renew()
        assert await is_served(), "an unchanged certificate changes nothing"
        trusted.write_text(second.identity.certificate)
        assert renewed.renew()
        await server.renew()
        assert not await is_served()
        trusted.write_text(first.identity.certificate + second.identity.certificate)
        assert renewed.renew()
        await server.renew()
        assert await is_served()
        await server.stop()
        gateway.close()

    asyncio.run(main())
