"""The schema registry of a command: `--url`, or else the registry of the brokers, with the user and the authorities of
`--command-config`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.client_command import client_security
from sparklog.cli.options import timeout_ms

if TYPE_CHECKING:
    from sparklog.client.net.registry_client import RegistryClient
    from sparklog.debezium.avro_events import RegisteredSchema

ENV_URL = "SPARKLOG_SCHEMA_REGISTRY_URL"

RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        "--registry",
        envvar=ENV_URL,
        metavar="URL",
        help="Address of the schema registry (default: that of the brokers).",
    ),
]


def open_registry(url: str | None, bootstrap_servers: str, *, idle_max: int = 0) -> RegistryClient:
    """Return a client of the registry at `url`; of the registry in the brokers' gateways without `url`. `idle_max`:
    connections that are kept until the client's `close`. Raises SparklogError."""
    from sparklog.client.net.registry_client import RegistryClient
    from sparklog.errors import InvalidConfigError

    security = client_security()
    if url is None:
        from sparklog.client.net.registry_address import registry_url

        url = registry_url(bootstrap_servers, security, timeout_ms=timeout_ms())
        if not url:
            raise InvalidConfigError(
                f"the brokers at {bootstrap_servers} name no schema registry: set schema.registry.listeners in their "
                "configuration, or name a registry with --url (see `sparklog schema --help`)"
            )
    return RegistryClient(url, security, timeout_s=timeout_ms() / 1000, idle_max=idle_max)


def schema_of(client: RegistryClient, schema_id: int) -> RegisteredSchema:
    """Return the schema with an id. Raises SparklogError: The registry does not have it, or uses other schemas in
    it."""
    from sparklog.debezium.avro_events import RegisteredSchema
    from sparklog.errors import BrokerNotAvailableError, DeserializationError

    answer = client.ask("GET", ["schemas", "ids", str(schema_id)])
    if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
        raise BrokerNotAvailableError(f"the server at {client.url} is no schema registry: its answer has no schema")
    if answer.get("references"):
        raise DeserializationError(f"schema {schema_id} uses other schemas: write the types into one schema")
    return RegisteredSchema(str(answer.get("schemaType", "AVRO")), answer["schema"])
