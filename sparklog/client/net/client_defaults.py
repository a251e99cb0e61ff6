"""Defaults of a client's cluster and security, from the environment.

SPARKLOG_BOOTSTRAP_SERVERS has addresses. SPARKLOG_COMMAND_CONFIG has the path of a file of Java properties, as Kafka's
tools take it with --command-config: `bootstrap.servers`, `security.protocol`, … SPARKLOG_PROFILE has the name of such a
file (`security.profiles`), and comes before both: the profile's addresses belong to its security. A file's security is
for the addresses of the environment: a client with given addresses gets no password for others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from sparklog.client.net.addresses import BOOTSTRAP_VARIABLE, resolve_bootstrap
from sparklog.security.client_security import ClientSecurity, Security, client_security, read_client_file
from sparklog.security.profiles import PROFILE_VARIABLE, profile, profile_directory

COMMAND_CONFIG_VARIABLE = "SPARKLOG_COMMAND_CONFIG"


def resolve_client(
    bootstrap_servers: str | Sequence[str] | None = None, security: Security = None
) -> tuple[str, ClientSecurity]:
    """Return the addresses and the security of a client.

    Addresses: the given ones, else those of the profile that SPARKLOG_PROFILE names, else SPARKLOG_BOOTSTRAP_SERVERS,
    else those in the file that `security` or else SPARKLOG_COMMAND_CONFIG names, else 127.0.0.1:9292. If that file is a
    profile, its addresses come before SPARKLOG_BOOTSTRAP_SERVERS. Security: the given one; else, if no addresses are
    given, that of the profile or of SPARKLOG_COMMAND_CONFIG; else plaintext. Raises InvalidConfigError.
    """
    if isinstance(bootstrap_servers, Iterable) and not isinstance(bootstrap_servers, str):
        bootstrap_servers = list(bootstrap_servers)  # a NumPy array has no truth value
    path = security if isinstance(security, str | os.PathLike) else None
    if security is None and not bootstrap_servers:
        name = os.environ.get(PROFILE_VARIABLE)
        if name:
            file = read_client_file(profile(name))
            return resolve_bootstrap(
                file.bootstrap_servers or os.environ.get(BOOTSTRAP_VARIABLE)
            ), file.security.resolve()
        path = os.environ.get(COMMAND_CONFIG_VARIABLE) or None
    if path is None:
        return resolve_bootstrap(bootstrap_servers), client_security(security)
    file = read_client_file(os.fspath(path))
    is_profile = Path(os.fspath(path)).parent == profile_directory(os.environ)
    named = (file.bootstrap_servers, os.environ.get(BOOTSTRAP_VARIABLE))
    servers = bootstrap_servers or next((s for s in (named if is_profile else named[::-1]) if s), None)
    return resolve_bootstrap(servers), file.security.resolve()
