"""The table of the registry's paths: the operation of each, and the permission that it needs.

A permission on a subject is one on the topic that the subject names: `orders-value` and `orders-key` name the topic
`orders`, another subject names the topic that is called like it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple
from urllib.parse import unquote
from uuid import UUID

from sparklog.gateway.schemas import operations as schema
from sparklog.gateway.schemas import settings_operations as setting
from sparklog.gateway.schemas.operations import DEFAULT_CONTEXT, NUMBER_MAX, Outcome, Request
from sparklog.gateway.schemas.parsed_schemas import ParsedSchemas
from sparklog.gateway.schemas.state import RegistryState
from sparklog.kafka.schemas.errors import RegistryError
from sparklog.security.acls import Operation

Run = Callable[[RegistryState, ParsedSchemas, Request], Outcome]


class Scope(Enum):
    """The resources on which a request needs a permission."""

    SUBJECT = "the topic of the path's subject"
    CLUSTER = "the cluster"
    VISIBLE = "none; the answer has the subjects that can be described"
    NONE = "none"


class Route(NamedTuple):
    """One path with a method. Parts in braces are parameters."""

    method: str
    path: str
    run: Run
    scope: Scope
    operation: Operation = Operation.DESCRIBE

    @property
    def has_schema(self) -> bool:
        """True if the request's body has a schema, whose parsing can take long."""
        return self.method == "POST"


_S, _C, _V = Scope.SUBJECT, Scope.CLUSTER, Scope.VISIBLE
_DELETE, _SHOW, _ALTER = Operation.DELETE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
ROUTES = (
    Route("GET", "/", lambda state, schemas, request: Outcome({}), Scope.NONE),
    Route("GET", "/contexts", lambda state, schemas, request: Outcome(["."]), Scope.NONE),
    Route("GET", "/v1/metadata/id", schema.show_cluster, Scope.NONE),
    Route("GET", "/v1/metadata/version", schema.show_release, Scope.NONE),
    Route("GET", "/schemas", schema.list_schemas, _V),
    Route("GET", "/schemas/types", schema.list_types, Scope.NONE),
    Route("GET", "/schemas/ids/{id}", schema.show_schema, _V),
    Route("GET", "/schemas/ids/{id}/schema", schema.show_schema_text, _V),
    Route("GET", "/schemas/ids/{id}/subjects", schema.list_schema_subjects, _V),
    Route("GET", "/schemas/ids/{id}/versions", schema.list_schema_versions, _V),
    Route("GET", "/schemas/guids/{guid}", schema.show_schema_of_guid, _V),
    Route("GET", "/schemas/guids/{guid}/ids", schema.list_ids_of_guid, _V),
    Route("GET", "/subjects", schema.list_subjects, _V),
    Route("POST", "/subjects/{subject}", schema.look_up, _S),
    Route("DELETE", "/subjects/{subject}", schema.delete_subject, _S, _DELETE),
    Route("GET", "/subjects/{subject}/versions", schema.list_versions, _S),
    Route("POST", "/subjects/{subject}/versions", schema.register, _S, Operation.WRITE),
    Route("GET", "/subjects/{subject}/versions/{version}", schema.show_version, _S),
    Route("DELETE", "/subjects/{subject}/versions/{version}", schema.delete_version, _S, _DELETE),
    Route("GET", "/subjects/{subject}/versions/{version}/schema", schema.show_version_text, _S),
    Route("GET", "/subjects/{subject}/versions/{version}/referencedby", schema.list_referrers, _S),
    Route("POST", "/compatibility/subjects/{subject}/versions", schema.check_compatibility, _S),
    Route("POST", "/compatibility/subjects/{subject}/versions/{version}", schema.check_compatibility, _S),
    Route("GET", "/config", setting.show_level, _C, _SHOW),
    Route("PUT", "/config", setting.set_level, _C, _ALTER),
    Route("DELETE", "/config", setting.delete_level, _C, _ALTER),
    Route("GET", "/config/{subject}", setting.show_level, _S, _SHOW),
    Route("PUT", "/config/{subject}", setting.set_level, _S, _ALTER),
    Route("DELETE", "/config/{subject}", setting.delete_level, _S, _ALTER),
    Route("GET", "/mode", setting.show_mode, _C, _SHOW),
    Route("PUT", "/mode", setting.set_mode, _C, _ALTER),
    Route("DELETE", "/mode", setting.delete_mode, _C, _ALTER),
    Route("GET", "/mode/{subject}", setting.show_mode, _S, _SHOW),
    Route("PUT", "/mode/{subject}", setting.set_mode, _S, _ALTER),
    Route("DELETE", "/mode/{subject}", setting.delete_mode, _S, _ALTER),
)


UNSUPPORTED = {
    "exporters": ": the registry has no exporters; move schemas with the mode IMPORT",
    "contexts": ": the registry has the default context only",
    "dek-registry": ": the registry keeps no keys for encryption",
    "catalog": ": the registry has no catalog",
}
"""Reasons for the refusal of paths that Confluent's registry has, by their first parts."""
_WITH_PARTS = [(route.path.rstrip("/").split("/"), route) for route in ROUTES]


def find_route(method: str, raw_path: str) -> tuple[Route, Request]:
    """Return the route of a request, and the request with the parameters of its path. Raises RegistryError."""
    try:
        parts = [unquote(part, errors="strict") for part in raw_path.partition("?")[0].rstrip("/").split("/")]
    except UnicodeDecodeError:
        raise RegistryError(400, "the path is not UTF-8") from None
    methods = []
    for names, route in _WITH_PARTS:
        if len(names) == len(parts) and all(n.startswith("{") or n == p for n, p in zip(names, parts, strict=True)):
            methods.append(route.method)
            if route.method == method:
                return route, _request(dict(zip(names, parts, strict=True)))
    if methods:
        raise RegistryError(405, f"HTTP 405 Method Not Allowed: use {', '.join(methods)}")
    reason = UNSUPPORTED.get(parts[1] if len(parts) > 1 else "", "")
    raise RegistryError(404, f"HTTP 404 Not Found{reason}")


def _request(parameters: dict[str, str]) -> Request:
    schema_id = parameters.get("{id}", "0")
    if not (schema_id.isascii() and schema_id.isdigit() and len(schema_id) < 11 and int(schema_id) <= NUMBER_MAX):
        raise RegistryError(404, "HTTP 404 Not Found")
    subject = parameters.get("{subject}", "").removeprefix(DEFAULT_CONTEXT)
    guid = _guid(parameters["{guid}"]) if "{guid}" in parameters else None
    return Request(subject, parameters.get("{version}", ""), int(schema_id), guid=guid)


def _guid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise RegistryError(404, "HTTP 404 Not Found") from None
