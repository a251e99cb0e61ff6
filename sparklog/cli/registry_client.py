"""Requests to a schema registry over HTTP, with the user and the authorities of `--command-config`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparklog.debezium.avro_events import RegisteredSchema

ANSWER_BYTES_MAX = 64 * 1024 * 1024


def ask(
    url: str, method: str, path: list[str], query: dict[str, str] | None = None, body: dict[str, Any] | None = None
) -> Any:
    """Send a request to the registry and return its answer. Raises SparklogError."""
    import base64
    import json
    import ssl
    import urllib.error
    import urllib.request
    from http import HTTPStatus
    from urllib.parse import quote, urlencode

    from sparklog import errors
    from sparklog.cli.client_command import client_security
    from sparklog.security.tls import client_context

    if not url.startswith(("http://", "https://")):
        raise errors.InvalidConfigError(
            f"{url}: write the address of a schema registry as http://HOST:PORT or https://HOST:PORT"
        )
    security = client_security()
    target = f"{url.rstrip('/')}/{'/'.join(quote(part, safe='') for part in path)}"
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    if security is not None and security.username:
        pair = f"{security.username}:{security.password.reveal()}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{target}?{urlencode(query or {})}", data, headers, method=method)
    context: ssl.SSLContext | None = None
    if url.startswith("https://"):
        context = client_context(dict(security.tls)) if security is not None else ssl.create_default_context()
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return json.loads(answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as e:
        with e:
            text = e.read(ANSWER_BYTES_MAX)
        try:
            message = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            message = text[:200].decode(errors="replace")
        denials: dict[int, type[errors.SparklogError]] = {
            HTTPStatus.UNAUTHORIZED: errors.SaslAuthenticationFailedError,
            HTTPStatus.FORBIDDEN: errors.TopicAuthorizationFailedError,
        }
        raise denials.get(e.code, errors.InvalidRequestError)(f"{message} (HTTP {e.code})") from None
    except (OSError, ValueError) as e:
        reason = getattr(e, "reason", e)
        raise errors.BrokerNotAvailableError(f"no schema registry answers at {url}: {reason}") from None


def schema_of(url: str, schema_id: int) -> RegisteredSchema:
    """Return the schema with an id. Raises SparklogError: The registry does not have it, or uses other schemas in
    it."""
    from sparklog.debezium.avro_events import RegisteredSchema
    from sparklog.errors import DeserializationError

    answer = ask(url, "GET", ["schemas", "ids", str(schema_id)])
    if answer.get("references"):
        raise DeserializationError(f"schema {schema_id} uses other schemas: write the types into one schema")
    return RegisteredSchema(answer.get("schemaType", "AVRO"), answer["schema"])
