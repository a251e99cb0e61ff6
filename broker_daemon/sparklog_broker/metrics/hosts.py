"""Protection of the metrics pages against DNS rebinding. A foreign page in a browser can point its own host name at
this machine, and then read the broker's answers. Its requests have that name in the `Host` header. Requests are
therefore answered only for addresses and for known names of this host.
"""

from __future__ import annotations

import ipaddress

from sparklog_broker.config import BrokerConfig, parse_address

LOOPBACK = "localhost"
ANY = "*"


def allowed_names(config: BrokerConfig) -> frozenset[str]:
    """Return the allowed host names, in lower case: localhost, the hosts of `metrics.listen` and of all listeners, and
    the names of `metrics.allowed.hosts`."""
    listeners = config.security.listeners
    listening = parse_address(config.metrics_listen, "metrics.listen")[0] if config.metrics_listen else ""
    more = (name.strip() for name in config.metrics_allowed_hosts.split(","))
    names = (LOOPBACK, listening, *(one.host for one in (*listeners.bound, *listeners.advertised)), *more)
    return frozenset(_plain(name) for name in names if name)


def is_allowed(host: str | None, names: frozenset[str]) -> bool:
    """True if a request with this `Host` header is allowed: an address, one of `names`, or any host if `names` has
    ANY. A request without the header (None) is allowed, because browsers always send one.
    """
    if host is None or ANY in names:
        return True
    name = _plain(_without_port(host))
    return name in names or _is_address(name)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _plain(name: str) -> str:
    return name.lower().strip("[]").rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
