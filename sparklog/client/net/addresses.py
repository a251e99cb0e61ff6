"""Bootstrap addresses: `host:port,host:port`, IPv6 in brackets."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparklog.environment.host_names import host_refusal
from sparklog.errors import InvalidConfigError

BOOTSTRAP_VARIABLE = "SPARKLOG_BOOTSTRAP_SERVERS"
BOOTSTRAP_DEFAULT = "127.0.0.1:9292"
PORT_DEFAULT = 9292


class Endpoint(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def resolve_bootstrap(servers: str | Sequence[str] | None) -> str:
    """Return the bootstrap servers as one text: `servers`, or SPARKLOG_BOOTSTRAP_SERVERS, or 127.0.0.1:9292. Raises
    InvalidConfigError."""
    if servers is None or servers == "":
        servers = os.environ.get(BOOTSTRAP_VARIABLE) or BOOTSTRAP_DEFAULT
    parts = [servers] if isinstance(servers, str) else list(servers) if isinstance(servers, Iterable) else [servers]
    if not all(isinstance(part, str) for part in parts):
        raise InvalidConfigError(
            f"bootstrap servers {servers!r:.200}: give host:port, or a list of them, for example {BOOTSTRAP_DEFAULT}"
        )
    text = ",".join(parts)
    return ",".join(str(e) for e in parse_bootstrap(text))


def parse_bootstrap(text: str) -> list[Endpoint]:
    """Return the addresses of a comma-separated list, in its order. Raises InvalidConfigError."""
    endpoints = [_parse_endpoint(part.strip(), text) for part in text.split(",") if part.strip()]
    if not endpoints:
        raise InvalidConfigError(f"bootstrap servers {text!r}: give host:port, for example {BOOTSTRAP_DEFAULT}")
    return endpoints


def _parse_endpoint(part: str, whole: str) -> Endpoint:
    if "://" in part:
        raise InvalidConfigError(
            f"bootstrap server {part!r:.200}: give host:port, without {part.partition('://')[0]}://"
        )
    if part.startswith("["):
        host, closed, rest = part[1:].partition("]")
        good = bool(closed) and (rest == "" or rest.startswith(":"))
        port = rest[1:]
    elif part.count(":") > 1:
        raise InvalidConfigError(
            f"bootstrap server {part!r}: write an IPv6 address in brackets, as [::1]:{PORT_DEFAULT}"
        )
    else:
        host, colon, port = part.partition(":")
        good = not (colon and not port)
    if port == "" and good:
        port = str(PORT_DEFAULT)
    if not good or not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise InvalidConfigError(
            f"bootstrap servers {whole!r:.200}: {part!r:.200} is not host:port, with a port of 1 to 65535"
        )
    reason = _host_refusal(host, in_brackets=part.startswith("["))
    if reason:
        raise InvalidConfigError(f"bootstrap servers {whole!r:.200}: {host!r:.200} is no name of a host: {reason}")
    return Endpoint(host, int(port))


def endpoint_of(host: str, port: int) -> Endpoint | None:
    """Return the address that another broker names; None if no connection to it is possible."""
    if not host or not 1 <= port <= 65_535 or _host_refusal(host, in_brackets=":" in host):
        return None
    return Endpoint(host, port)


def _host_refusal(host: str, *, in_brackets: bool) -> str:
    """Return the reason why no look-up can ever find `host`; "" if one can find it. Without this check a client would
    try until its timeout."""
    if in_brackets:
        try:
            ipaddress.IPv6Address(host)
        except ValueError as e:
            return f"write an IPv6 address in the brackets, as [::1]:{PORT_DEFAULT} ({e})"
        return ""
    return host_refusal(host)
