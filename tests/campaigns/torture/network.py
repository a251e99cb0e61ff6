"""A network of its own for the processes of a campaign, whose links can be cut in one direction or in both.

Every node has a network namespace and one address; a namespace in the middle routes between them and silently drops cut
traffic, as a broken switch does. The namespaces have no names: they end with the last process in them, so also after a
campaign that was killed. It needs root on Linux, and `ip`; `can_isolate` checks both. Elsewhere `make_network` falls
back to relays on loopback (`proxied_network.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.campaigns.torture.proxied_network import ProxiedNetwork

CLONE_NEWNET = 0x40000000
VARIABLE = "SPARKLOG_CAMPAIGN_NETWORK"
_networks = itertools.count(1)


class Network:
    """Nodes by their names. Children that are started `inside` a node live there."""

    def __init__(self, nodes: Sequence[str]) -> None:
        """Raises OSError or CalledProcessError where namespaces cannot be had."""
        number = next(_networks) % 200  # addresses differ from those of the campaign before: clients remember some
        self.addresses = {name: f"10.77.{number}.{4 * i + 2}" for i, name in enumerate(nodes)}
        self._cuts: set[tuple[str, str]] = set()
        self._spaces: dict[str, int] = {}
        try:
            for name in ("", *nodes):
                self._spaces[name] = _new_namespace()
            with self.inside(""):
                _run("ip link set lo up")
                Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # of this thread's namespace
            for i, name in enumerate(nodes):
                self._connect(name, i, f"10.77.{number}")
        except BaseException:
            self.close()
            raise

    def _connect(self, name: str, i: int, prefix: str) -> None:
        target = f"/proc/{os.getpid()}/fd/{self._spaces[name]}"
        router = f"{prefix}.{4 * i + 1}"
        with self.inside(""):
            _run(f"ip link add v{i} type veth peer name eth0")
            _run(f"ip link set eth0 netns {target}")
            _run(f"ip addr add {router}/30 dev v{i}")
            _run(f"ip link set v{i} up")
        with self.inside(name):
            _run("ip link set lo up")
            _run(f"ip addr add {self.addresses[name]}/30 dev eth0")
            _run("ip link set eth0 up")
            _run(f"ip route add default via {router}")

    def reached(self, name: str, address: str) -> str:
        """Return the address under which others reach the server of that node, which listens at `address`: the same
        one."""
        return address

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """This thread, its new sockets and its children are in that node's namespace."""
        with Path("/proc/thread-self/ns/net").open() as before:
            _enter(self._spaces[name])
            try:
                yield
            finally:
                _enter(before.fileno())

    def cut(self, source: str, target: str) -> None:
        """Drop the traffic from `source` to `target` from now on; the other direction is another cut."""
        if (source, target) not in self._cuts:
            self._cuts.add((source, target))
            with self.inside(""):
                _run(f"ip rule add from {self.addresses[source]} to {self.addresses[target]} blackhole")

    def cut_both(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        """Everything reaches everybody again."""
        with self.inside(""):
            for source, target in self._cuts:
                _run(f"ip rule del from {self.addresses[source]} to {self.addresses[target]} blackhole")
        self._cuts.clear()

    def close(self) -> None:
        for descriptor in self._spaces.values():
            os.close(descriptor)
        self._spaces.clear()


def make_network(nodes: Sequence[str], clients: str) -> Network | ProxiedNetwork:
    """One of namespaces, or where they cannot be had (or `VARIABLE` is "proxy") one of relays."""
    if can_isolate():
        return Network(nodes)
    print("no network namespaces here: links are cut by relays on loopback", flush=True)
    return ProxiedNetwork(nodes, clients)


def can_isolate() -> bool:
    """Return True if namespaces are possible here."""
    if os.environ.get(VARIABLE) == "proxy":
        return False
    if os.name != "posix" or shutil.which("ip") is None or os.geteuid() != 0:
        return False
    try:
        network = Network(["a", "b"])
        network.cut("a", "b")
        network.close()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _new_namespace() -> int:
    """A descriptor of it. A thread makes it and ends, so that nobody else is moved."""
    made: list[int] = []
    errors: list[OSError] = []

    def make() -> None:
        try:
            _call(lambda libc: libc.unshare(CLONE_NEWNET))
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))
        except OSError as e:
            errors.append(e)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return made[0]


def _enter(descriptor: int) -> None:
    _call(lambda libc: libc.setns(descriptor, CLONE_NEWNET))


def _call(function: Callable[[ctypes.CDLL], int]) -> None:
    if function(ctypes.CDLL(None, use_errno=True)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)
