"""A substitute for `network.Network` if network namespaces are not permitted: relays on loopback in front of all
servers.

The client's port identifies it: one of the brokers' processes, else a client. Cut traffic is held back until it is
healed, as by a network that loses packets, which TCP then sends again. The only difference: a connection itself can be
opened meanwhile, and is then silent.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence

import psutil

CHUNK_BYTES = 1 << 16
CONNECT_S = 5.0


class ProxiedNetwork:
    """Nodes by their names; `default` is the node of those that are none of the campaign's brokers. A broker's node is
    in its command line (`/<node>/`)."""

    def __init__(self, nodes: Sequence[str], default: str) -> None:
        self.addresses = dict.fromkeys(nodes, "127.0.0.1")
        self.default = default
        self._nodes = nodes
        self._relays: list[_Relay] = []
        self._cuts: set[tuple[str, str]] = set()
        self.changed = threading.Condition()

    def reached(self, name: str, address: str) -> str:
        """Return the address under which others reach the server of that node, which listens at `address`."""
        relay = _Relay(self, name, address)
        self._relays.append(relay)
        return relay.address

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Everybody is on this host."""
        yield

    def node_of_port(self, port: int) -> str:
        """Return the node that has connected from there."""
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                found = next((n for n in self._nodes if f"/{n}/" in line), None)
                if found and any(c.laddr.port == port for c in process.net_connections("tcp")):
                    return found
        return self.default

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def cut(self, source: str, target: str) -> None:
        """As `Network.cut`."""
        with self.changed:
            self._cuts.add((source, target))

    def cut_both(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        with self.changed:
            self._cuts.clear()
            self.changed.notify_all()

    def close(self) -> None:
        for relay in self._relays:
            relay.close()
        self.heal()


class _Relay:
    """In front of one server."""

    def __init__(self, network: ProxiedNetwork, node: str, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._network = network
        self._node = node
        self._upstream = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closed = True
        for one in (self._listener, *list(self._open)):
            _shut(one)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, (_, port) = self._listener.accept()
                threading.Thread(target=self._serve, args=(client, port), daemon=True).start()

    def _serve(self, client: socket.socket, port: int) -> None:
        with client, contextlib.suppress(OSError):
            who = self._network.node_of_port(port)
            with socket.create_connection(self._upstream, CONNECT_S) as server:
                server.settimeout(None)
                pair = {client, server}
                self._open |= pair
                answers = threading.Thread(target=self._pump, args=(server, client, self._node, who), daemon=True)
                answers.start()
                self._pump(client, server, who, self._node)
                answers.join()
                self._open -= pair

    def _pump(self, source: socket.socket, target: socket.socket, sender: str, receiver: str) -> None:
        network = self._network
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                with network.changed:
                    network.changed.wait_for(lambda: self._closed or not network.is_cut(sender, receiver))
                target.sendall(data)
        with network.changed:  # that it has ended is not heard either
            network.changed.wait_for(lambda: self._closed or not network.is_cut(sender, receiver))
        _shut(source)
        _shut(target)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
