"""The address of the cluster's schema registry, as the brokers announce it."""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.client.net.addresses import parse_bootstrap
from sparklog.client.net.cluster import cluster
from sparklog.client.net.registry_client import parse_registry_url
from sparklog.errors import InvalidConfigError
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse
from sparklog.security.client_security import PLAINTEXT, ClientSecurity
from sparklog.security.listeners import is_local


def registry_url(bootstrap_servers: str, security: ClientSecurity | None = None, *, timeout_ms: int = 30_000) -> str:
    """Return the addresses of the schema registry in the brokers' gateways, separated by commas; "" if there is none.
    Raises InvalidConfigError for an address that may be forged, and the errors of METADATA."""
    request = MetadataRequest([], with_schemas=False, with_partitions=False, with_registries=True)
    brokers = cluster(bootstrap_servers, security)
    response = brokers.request(Api.METADATA, request, MetadataResponse, timeout_ms=timeout_ms)
    urls = reachable_registries(response.registries, parse_bootstrap(bootstrap_servers)[0].host)
    check_trusted(urls, security or PLAINTEXT)
    return ",".join(urls)


def reachable_registries(announced: Sequence[str], broker_host: str) -> list[str]:
    """Return the announced addresses that a client of a broker's host can reach. An address without a host is one of
    the broker's host. Addresses of localhost count for a client on the broker's host alone."""
    urls = []
    for one in announced:
        scheme, _, place = one.partition("://")
        host = f"[{broker_host}]" if ":" in broker_host else broker_host
        url = f"{scheme}://{host}{place}" if place.startswith(":") else one
        if is_local(broker_host) or not is_local(parse_registry_url(url)[0].host):
            urls.append(url)
    return urls


def check_trusted(urls: Sequence[str], security: ClientSecurity) -> None:
    """Raise InvalidConfigError if the user's password would be sent to an address that came without encryption, and can
    be forged."""
    for url in urls:
        if security.mechanism and not security.protocol.tls and not is_local(parse_registry_url(url)[0].host):
            raise InvalidConfigError(
                f"the brokers announce the schema registry {url} over a connection without encryption, so it is not "
                "trusted with a password: name the address of the registry yourself"
            )
