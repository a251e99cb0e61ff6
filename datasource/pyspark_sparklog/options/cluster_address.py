"""The address of a cluster and the security settings of its connections, in the form that Spark sends to its tasks.

Spark pickles both into its messages to executors, over its own connections. References (`${file:/path}`,
`${env:NAME}`) are sent unchanged, and each process that connects resolves them. A secret that an option holds literally
is sent in clear. The `repr` shows no secret, nor do the names of partitions, plans or errors.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_sparklog.options.option_table import BOOTSTRAP_ENVIRONMENT
from sparklog.client.net.client_defaults import COMMAND_CONFIG_VARIABLE
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.errors import InvalidConfigError
from sparklog.security.client_security import SecuritySettings, is_about_security, read_client_file

NO_BOOTSTRAP = (
    "Option 'kafka.bootstrap.servers' must be specified (sparklog.bootstrap.servers is the same), as host:port,…; "
    f"or set the environment variable {BOOTSTRAP_ENVIRONMENT}"
)


@dataclass(frozen=True)
class ClusterAddress:
    """The bootstrap servers, and the security settings with unresolved references."""

    bootstrap_servers: str
    security: SecuritySettings = field(default_factory=SecuritySettings)

    def connect(self, client_id: str = "") -> Cluster:
        """Return this process's `Cluster` for the address, without connecting. Raises InvalidConfigError. Its text
        names this host, because a reference can be unresolvable here and right on the driver's host."""
        try:
            return cluster(self.bootstrap_servers, self.security.resolve(), client_id)
        except InvalidConfigError as e:
            if not self.security:
                raise
            raise InvalidConfigError(f"{e} (on {socket.gethostname()})") from None

    def __str__(self) -> str:
        return self.bootstrap_servers


def address_of(options: Mapping[str, str], no_options: str) -> ClusterAddress:
    """Return the address that the options name, else the one that the environment names.

    `options`: options by their names in lower case. `no_options`: the error's text if `options` is empty. The file of
    SPARKLOG_COMMAND_CONFIG is read only if the options name neither servers nor security. Raises InvalidConfigError.
    """
    prefix = "sparklog."
    named = {
        name.removeprefix(prefix): value
        for name, value in options.items()
        if name.startswith(prefix) and is_about_security(name.removeprefix(prefix))
    }
    security, servers = SecuritySettings(named), options.get("sparklog.bootstrap.servers")
    path = os.environ.get(COMMAND_CONFIG_VARIABLE)
    if not servers:
        servers = os.environ.get(BOOTSTRAP_ENVIRONMENT)
        if path and not security:
            file = read_client_file(path)
            servers, security = servers or file.bootstrap_servers, file.security
    if not servers:
        raise InvalidConfigError(NO_BOOTSTRAP if options else no_options)
    security.resolve()  # a mistake is told before anything is planned
    return ClusterAddress(servers, security)
