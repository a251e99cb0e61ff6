"""`sparklog broker --secure-setup DIR`: creates certificates, settings and a super user of a new secure cluster."""

from __future__ import annotations

import re
import shlex
import socket
from pathlib import Path

from sparklog.errors import InvalidConfigError

HOST_NAME = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,252}|[0-9A-Fa-f:.]{2,45}")
"""A DNS name, an IPv4 or an IPv6 address."""


def make_secure_setup(
    directory: Path,
    *,
    listen: str | None,
    advertised: str | None,
    hostnames: list[str],
    data_dir: Path | None,
    user: str,
) -> None:
    """Create the directory of a single broker and print the next steps. `listen` None: port 9292 on all addresses.
    `hostnames` empty: this machine's names, or the host of `listen`. Raises InvalidConfigError."""
    import datetime

    from sparklog.security.secure_setup import Place, secure_setup

    host, port = _address(listen or "0.0.0.0:9292", "--listen")
    if advertised:
        hostnames = [*hostnames, _address(advertised, "--advertised-listener")[0]]
    _check_names(hostnames)
    names = hostnames or _own_names(host)
    everywhere = host in ("0.0.0.0", "::")
    place = Place("" if everywhere else host, port, tuple(names), advertised or "", data_dir)
    setup = secure_setup(directory, place, datetime.datetime.now(datetime.UTC), user)
    _print_steps(setup.directory, setup.user, names)


def make_secure_cluster(
    directory: Path,
    brokers: int,
    zookeeper: str,
    *,
    listen: str | None,
    hostnames: list[str],
    data_dir: Path | None,
    user: str,
) -> None:
    """Create the directories of several brokers and print the next steps.

    Broker number n runs on the n-th of `hostnames`. Without host names all brokers run on the address of `listen`, or
    on 127.0.0.1 if `listen` names all addresses. Clients connect to the port of `listen` (None: 9292); each further
    broker on the same host has a port 2 higher, because the port between is for other brokers. `data_dir` gets a
    subdirectory for each of several brokers on one host. Raises InvalidConfigError.
    """
    import datetime

    from sparklog.security.cluster_setup import places, secure_cluster_setup

    host, port = _address(listen or "0.0.0.0:9292", "--listen")
    _check_names(hostnames)
    names = hostnames or ["127.0.0.1" if host in ("0.0.0.0", "::") else host] * brokers
    if len(names) != brokers:
        raise InvalidConfigError(
            f"{len(names)} times --hostname, but {brokers} brokers: name the host of each, in order"
        )
    if "/" not in zookeeper:
        raise InvalidConfigError(f"--zookeeper {zookeeper}: name a path, too, as in {zookeeper}/sparklog")
    where = places(names, port, data_dir)
    paths = secure_cluster_setup(directory, where, zookeeper, datetime.datetime.now(datetime.UTC), user)
    quoted = shlex.quote(str(directory))
    secured = f"--command-config {quoted}/client.properties"
    print(f"made in {directory}: an authority, the super user {user}, and for each broker a directory")
    print("next: take each directory to its machine, to the same path, and start it there")
    for name, place in zip(paths, where, strict=True):
        print(f"  sparklog broker --config {quoted}/{name}/broker.toml   # at {place.name}:{place.port}")
    print(
        f"""then:
  sparklog cluster describe {secured}
  sparklog user add alice {secured}
client.properties holds the only copy of {user}'s password. ca-key.pem signs further certificates (`sparklog certificate
add-broker`): keep it elsewhere."""
    )


def _address(text: str, option: str) -> tuple[str, int]:
    from sparklog_broker.config import parse_address

    host, port = parse_address(text, option)
    if port == 0:
        raise InvalidConfigError(f"{option} {text}: clients have to know the port: choose one, as in {host}:9292")
    return host, port


def _check_names(hostnames: list[str]) -> None:
    for name in hostnames:
        if not HOST_NAME.fullmatch(name):
            raise InvalidConfigError(f"--hostname {name!r}: no name or address of a host, as in broker-1.example.com")


def _own_names(host: str) -> list[str]:
    """Return the host names for clients: this machine's names if the broker listens on all addresses, else `host`."""
    if host not in ("0.0.0.0", "::"):
        return [host]
    return list(dict.fromkeys([socket.gethostname(), socket.getfqdn()]))


def _print_steps(directory: Path, user: str, names: list[str]) -> None:
    quoted = shlex.quote(str(directory))
    secured = f"--command-config {quoted}/client.properties"
    print(
        f"""made in {directory}: an authority, certificates for {", ".join(names)} and localhost, the super user {user}
next:
  sparklog broker --config {quoted}/broker.toml
  sparklog topic list {secured}
  sparklog user add alice {secured}
  sparklog acl add --allow-principal User:alice --operation Read --topic events {secured}
client.properties holds the only copy of {user}'s password. ca-key.pem signs further certificates: keep it elsewhere."""
    )
