"""Defaults of a client's cluster and security, from the environment.

SPARKLOG_BOOTSTRAP_SERVERS has addresses. SPARKLOG_COMMAND_CONFIG has the path of a file of Java properties, as Kafka's
tools take it with --command-config: `bootstrap.servers`, `security.protocol`, … The file's security is for the
addresses of the environment: a client with given addresses gets no password for others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from sparklog.client.net.addresses import BOOTSTRAP_VARIABLE, resolve_bootstrap
from sparklog.security.client_security import ClientSecurity, Security, client_security, read_client_file

COMMAND_CONFIG_VARIABLE = "SPARKLOG_COMMAND_CONFIG"


def resolve_client(
    bootstrap_servers: str | Sequence[str] | None = None, security: Security = None
) -> tuple[str, ClientSecurity]:
    """Return the addresses and the security of a client.

    Addresses: the given ones, else SPARKLOG_BOOTSTRAP_SERVERS, else those in the file that `security` or else
    SPARKLOG_COMMAND_CONFIG names, else 127.0.0.1:9292. Security: the given one; else, if no addresses are given, that
    of SPARKLOG_COMMAND_CONFIG; else plaintext. Raises InvalidConfigError.
    """
    path = security if isinstance(security, str | os.PathLike) else None
    if security is None and not bootstrap_servers:
        path = os.environ.get(COMMAND_CONFIG_VARIABLE) or None
    if path is None:
        return resolve_bootstrap(bootstrap_servers), client_security(security)
    file = read_client_file(os.fspath(path))
    servers = bootstrap_servers or os.environ.get(BOOTSTRAP_VARIABLE) or file.bootstrap_servers
    return resolve_bootstrap(servers), file.security.resolve()
