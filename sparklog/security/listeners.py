"""The listeners of a broker: their addresses, their security, and their advertised addresses.

- `listeners` is a list of NAME://HOST:PORT. An empty host, or 0.0.0.0, stands for all addresses.
- `listener.security.protocol.map` has the security protocol of each listener name. A listener that is named like one of
  the four protocols has that protocol.
- `advertised.listeners` are the addresses for clients.
- `inter.broker.listener.name` is the listener for connections between brokers (KIP-103).

A setting for one listener alone has the prefix `listener.name.<name in lower case>.`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from sparklog.environment.host_names import host_refusal
from sparklog.errors import InvalidConfigError

LISTENERS_MAX = 100
GATEWAY_PREFIX = "kafka."
"""Prefix of the name of a gateway's listener, where it stands among a broker's own listeners."""
REGISTRY_NAMES = ("http", "https")
"""Names of the schema registry's listeners, among those of a gateway."""
LOCALHOST = "localhost"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_ADDRESS = re.compile(r"([^:/\s]+)://(?:\[([^\]\s]*)\]|([^:\s\[\]]*)):(\d{1,5})")


class SecurityProtocol(StrEnum):
    """Encryption and authentication of a listener."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def tls(self) -> bool:
        """True if connections are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def sasl(self) -> bool:
        """True if peers authenticate with SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class Listener(NamedTuple):
    """One listener. `host`: address to listen on; "" or "::" (with IPv6): all addresses. `port` 0: any free port."""

    name: str
    host: str
    port: int
    protocol: SecurityProtocol

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class Listeners(NamedTuple):
    """All listeners of a broker, in the order of the setting. `advertised`: listeners with their addresses for clients;
    those that are not advertised are missing."""

    bound: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    inter_broker: Listener


def parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    """Parse `listener.security.protocol.map`: pairs NAME:PROTOCOL, separated by commas. Returns the protocol of each
    name, the four protocols' own names included. Raises InvalidConfigError."""
    protocols = {p.value: p for p in SecurityProtocol}
    for part in _parts(text):
        name, colon, protocol = part.partition(":")
        if not colon or not _NAME.fullmatch(name) or protocol not in SecurityProtocol.__members__:
            possible = ", ".join(SecurityProtocol)
            raise InvalidConfigError(
                f"listener.security.protocol.map: {part!r} is not NAME:PROTOCOL, with one of {possible}"
            )
        parsed = SecurityProtocol(protocol)
        if name in SecurityProtocol.__members__ and name != protocol:
            raise InvalidConfigError(f"listener.security.protocol.map: {name} can only be {name}")
        protocols[name] = parsed
    return protocols


def parse_listeners(
    listeners: str,
    protocol_map: str = "",
    advertised: str = "",
    inter_broker_name: str = "",
    own_host: str = "localhost",
) -> Listeners:
    """Return a broker's listeners from the values of its settings. `own_host`: name of this host for clients; it is
    advertised for a listener on all addresses if `advertised` is empty.

    Raises InvalidConfigError, which names the setting.
    """
    protocols = parse_protocol_map(protocol_map)
    bound = _parse(listeners, protocols, "listeners")
    if not bound:
        raise InvalidConfigError("listeners: at least one NAME://HOST:PORT is needed")
    _check_distinct(bound)
    announced = _parse(advertised, protocols, "advertised.listeners") or tuple(
        one._replace(host=own_host) if is_any_address(one.host) else one for one in bound
    )
    names = {one.name: one for one in bound}
    for one in announced:
        if one.name not in names:
            raise InvalidConfigError(f"advertised.listeners: {one.name} is not one of the listeners {', '.join(names)}")
        if is_any_address(one.host):
            raise InvalidConfigError(
                f"advertised.listeners: no client can connect to {one}: name the address for clients"
            )
    if len({one.name for one in announced}) != len(announced):
        raise InvalidConfigError("advertised.listeners: a name occurs twice")
    inner = inter_broker_name or bound[0].name
    if inner not in names:
        raise InvalidConfigError(
            f"inter.broker.listener.name: {inner!r} is not one of the listeners {', '.join(names)}"
        )
    return Listeners(bound, announced, names[inner])


def _parse(text: str, protocols: Mapping[str, SecurityProtocol], setting: str) -> tuple[Listener, ...]:
    parts = _parts(text)
    if len(parts) > LISTENERS_MAX:
        raise InvalidConfigError(f"{setting}: {len(parts)} listeners; at most {LISTENERS_MAX}")
    return tuple(_parse_one(part, protocols, setting) for part in parts)


def _parse_one(text: str, protocols: Mapping[str, SecurityProtocol], setting: str) -> Listener:
    match = _ADDRESS.fullmatch(text)
    if match is None or not _NAME.fullmatch(match[1]) or int(match[4]) > 65_535:
        raise InvalidConfigError(f"{setting}: {text!r} is not of the form NAME://HOST:PORT")
    name, host, port = match[1], match[2] if match[2] is not None else match[3], int(match[4])
    if name not in protocols:
        raise InvalidConfigError(f"{setting}: listener.security.protocol.map has no protocol for {name}")
    if match[2] is not None:
        try:
            ipaddress.IPv6Address(host)
        except ValueError as e:
            raise InvalidConfigError(f"{setting}: {host!r} is no IPv6 address") from e
    elif host and (reason := host_refusal(host)):
        raise InvalidConfigError(f"{setting}: {host!r} is no name of a host: {reason}")
    return Listener(name, "" if host == "0.0.0.0" else host, port, protocols[name])


def _check_distinct(bound: tuple[Listener, ...]) -> None:
    """Raise InvalidConfigError if a name or an address occurs twice. Port 0 may occur several times."""
    if len({one.name for one in bound}) != len(bound):
        raise InvalidConfigError("listeners: a name occurs twice")
    if len({one.name.lower() for one in bound}) != len(bound):
        raise InvalidConfigError(
            "listeners: two names differ only in case; settings of listeners have names in lower case"
        )
    places = [(one.host, one.port) for one in bound if one.port]
    if len(set(places)) != len(places):
        raise InvalidConfigError("listeners: an address occurs twice")


def _parts(text: str) -> list[str]:
    return [part for raw in text.split(",") if (part := raw.strip())]


def is_any_address(host: str) -> bool:
    """Return True if a listener on `host` accepts connections on all addresses."""
    return host in ("", "::") or _ip_says(host, lambda ip: ip.is_unspecified)


def is_local(host: str) -> bool:
    """Return True if only processes of this host can reach a listener on `host`. Of host names only localhost counts,
    because the address of any other name can change."""
    return host == LOCALHOST or _ip_says(host, lambda ip: ip.is_loopback)


def _ip_says(host: str, question: Callable[[ipaddress.IPv4Address | ipaddress.IPv6Address], bool]) -> bool:
    try:
        return question(ipaddress.ip_address(host))
    except ValueError:
        return False


def registered_endpoints(
    listeners: Listeners,
    own: Mapping[str, tuple[str, int]],
    *,
    explicit: bool,
    gateways: Mapping[str, tuple[str, int]] | None = None,
) -> tuple[str, ...]:
    """Return the addresses that a broker registers in the cluster.

    The first is `HOST:PORT` of the listener for other brokers. If the broker has several listeners, or gateways, each
    advertised address follows as `NAME://HOST:PORT`.

    `own`: bound address of each listener, by its name. `explicit`: True if `advertised.listeners` is set: only the
    listeners in it are advertised, with its addresses. False: all listeners are, with the addresses of `own`.
    `gateways`: addresses of this broker's gateways for clients of other protocols, by the listeners' names."""
    announced = {one.name: (one.host, one.port) for one in listeners.advertised} if explicit else dict(own)
    inner = announced.get(listeners.inter_broker.name) or own[listeners.inter_broker.name]
    others = dict(gateways or {})
    every = [f"{name}://{_address(*where)}" for name, where in (announced | others).items()]
    every = every if len(listeners.bound) > 1 or others else []
    return (_address(*inner), *every)


def endpoint_for(endpoints: Sequence[str], listener: str = "") -> str:
    """Return the address of a broker, as `HOST:PORT`, for a peer that is connected through `listener`; "" if the broker
    advertises none for it. `endpoints`: addresses from `registered_endpoints`. `listener` "": the peer is another
    broker."""
    named = [one for one in endpoints if "://" in one]
    if not listener or (not named and not listener.startswith(GATEWAY_PREFIX)):
        return next((one for one in endpoints if "://" not in one), "")
    return next((one.partition("://")[2] for one in named if one.startswith(f"{listener}://")), "")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listener_settings(settings: Mapping[str, object], name: str) -> dict[str, object]:
    """Return the settings of one listener. `listener.name.<name>.x` replaces `x`; those of other listeners are left
    out."""
    prefix = f"listener.name.{name.lower()}."
    common = {key: value for key, value in settings.items() if not key.startswith("listener.name.")}
    return common | {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}


def insecurity(listener: Listener, client_auth: str) -> str:
    """Return the reason why the listener accepts clients without authentication; "" if it does not. `client_auth`:
    value of its `ssl.client.auth`."""
    if listener.protocol is SecurityProtocol.PLAINTEXT:
        return "it neither encrypts nor authenticates"
    if listener.protocol is SecurityProtocol.SSL and client_auth != "required":
        return "it encrypts, but does not authenticate clients: use SASL_SSL, or ssl.client.auth=required"
    return ""


def check_exposure(
    listeners: Listeners, client_auth_of: Callable[[Listener], str], allow_insecure: bool
) -> tuple[str, ...]:
    """Check the listeners that other hosts can reach. Returns warnings, to be logged at every start.

    Raises InvalidConfigError if such a listener accepts clients without authentication, unless `allow_insecure` is
    True.
    """
    warnings = []
    for listener in listeners.bound:
        if is_local(listener.host):
            continue
        why = insecurity(listener, client_auth_of(listener))
        if why and not allow_insecure:
            raise InvalidConfigError(
                f"listener {listener} can be reached from other hosts, and {why}; listen on localhost, "
                "make it secure (`sparklog broker --secure-setup DIR`), or set allow.insecure = true"
            )
        if why:
            warnings.append(f"allow.insecure: every client that reaches {listener} has access: {why}")
        elif not listener.protocol.tls:
            warnings.append(f"{listener} does not encrypt: third parties on the network can read and change the data")
    return tuple(warnings)
