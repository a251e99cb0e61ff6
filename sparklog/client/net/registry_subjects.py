"""Subjects of a schema registry, with their versions and settings, as typed answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from sparklog.client.net.registry_client import RegistryClient
from sparklog.errors import BrokerNotAvailableError, InvalidRequestError
from sparklog.format.decoders import convert

LATEST = "latest"

T = TypeVar("T")


class SchemaReference(Struct, frozen=True):
    """A schema that another one uses."""

    name: str
    subject: str
    version: int


def parse_reference(text: str) -> SchemaReference:
    """Return the reference in a text NAME=SUBJECT:VERSION. Raises InvalidRequestError."""
    name, equals, target = text.partition("=")
    subject, colon, version = target.rpartition(":")
    if not (equals and colon and name and subject) or not (version.isascii() and version.isdecimal()):
        raise InvalidRequestError(f"{text!r}: a reference is NAME=SUBJECT:VERSION")
    return SchemaReference(name, subject, int(version[:20]))


class SubjectVersion(Struct, frozen=True):
    """A version of a subject."""

    subject: str
    version: int
    id: int
    schema: str
    schemaType: str = "AVRO"  # noqa: N815  Confluent's name
    references: list[SchemaReference] = []
    guid: str = ""
    ts: int | None = None
    """Time of the registration in ms; None if the registry does not tell it."""


class RegisteredVersion(Struct, frozen=True):
    """The answer to a registration."""

    id: int
    version: int = -1
    """-1: the registry does not tell it."""


class Compatibility(Struct, frozen=True):
    """The answer to a check of a schema."""

    is_compatible: bool
    messages: list[str] = []
    effects: list[str] = []
    """Changes of the topic that the registration would make; other registries tell none."""


def schema_body(text: str, kind: str, references: Iterable[SchemaReference]) -> dict[str, Any]:
    """Return the body of a request with a schema. `kind`: AVRO, JSON or PROTOBUF."""
    return {"schema": text, "schemaType": kind, "references": list(references)}


class _Level(Struct):
    compatibilityLevel: str  # noqa: N815  Confluent's name


class _Mode(Struct):
    mode: str


class RegistrySubjects:
    """The subjects of a registry, for any thread. All methods raise SparklogError."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client

    def names(self, prefix: str = "", *, deleted: bool = False) -> list[str]:
        """Return the names of the subjects that begin with `prefix`. `deleted`: also those that are deleted softly."""
        query = {"subjectPrefix": prefix} if prefix else {}
        names = self._as(list[str], self._client.ask("GET", ["subjects"], query | _deleted(deleted)))
        return sorted(name for name in names if name.startswith(prefix))  # an older registry has no subjectPrefix

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the numbers of a subject's versions; an empty list if it does not exist."""
        answer = self._client.find(["subjects", subject, "versions"], _deleted(deleted))
        return [] if answer is None else sorted(self._as(list[int], answer))

    def version(self, subject: str, version: str) -> SubjectVersion:
        """Return a version by its number, or by `latest`. A version that does not exist is an error."""
        return self._as(SubjectVersion, self._client.ask("GET", ["subjects", subject, "versions", version]))

    def find(self, subject: str, version: str) -> SubjectVersion | None:
        """Return a version by its number, or by `latest`; None if it does not exist."""
        answer = self._client.find(["subjects", subject, "versions", version])
        return None if answer is None else self._as(SubjectVersion, answer)

    def referrers(self, subject: str, version: int) -> list[int]:
        """Return the ids of the schemas that use a version."""
        answer = self._client.find(["subjects", subject, "versions", str(version), "referencedby"])
        return [] if answer is None else self._as(list[int], answer)

    def level(self, subject: str = "") -> str:
        """Return the level of compatibility in effect for a subject; "": the default of all subjects."""
        path, query = (["config", subject], {"defaultToGlobal": "true"}) if subject else (["config"], {})
        return self._as(_Level, self._client.ask("GET", path, query)).compatibilityLevel

    def mode(self, subject: str = "") -> str:
        """Return the mode in effect for a subject; "": the default of all subjects."""
        path, query = (["mode", subject], {"defaultToGlobal": "true"}) if subject else (["mode"], {})
        return self._as(_Mode, self._client.ask("GET", path, query)).mode

    def register(self, subject: str, schema: dict[str, Any]) -> RegisteredVersion:
        """Register a schema as the newest version of a subject."""
        answer = self._client.ask("POST", ["subjects", subject, "versions"], body=schema)
        registered = self._as(RegisteredVersion, answer)
        if registered.version >= 0:
            return registered
        version = self._as(SubjectVersion, self._client.ask("POST", ["subjects", subject], body=schema))
        return RegisteredVersion(version.id, version.version)

    def check(self, subject: str, schema: dict[str, Any]) -> Compatibility:
        """Check a schema by the subject's level and its topic's columns, without registering it."""
        path, query = ["compatibility", "subjects", subject, "versions"], {"verbose": "true", "effects": "true"}
        return self._as(Compatibility, self._client.ask("POST", path, query, schema))

    def delete(self, subject: str, version: str | None, *, permanent: bool) -> None:
        """Delete a subject, or one of its versions."""
        path = ["subjects", subject] if version is None else ["subjects", subject, "versions", version]
        self._client.ask("DELETE", path, {"permanent": str(permanent).lower()})

    def _as(self, kind: type[T], answer: object) -> T:
        try:
            return convert(answer, kind)
        except msgspec.ValidationError as e:
            raise BrokerNotAvailableError(f"the server at {self._client.url} is no schema registry: {e}") from None


def _deleted(is_included: bool) -> dict[str, str]:
    return {"deleted": "true"} if is_included else {}
