"""The registry's operations on schemas and subjects, as functions of the state and a request.

An operation returns the answer's body, and the records that the request adds to the log. It changes nothing itself. The
answers are those of Confluent's registry. `settings_operations` has the operations on levels and modes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Struct

from sparklog.client.net.registry_reader import REFERENCES_MAX
from sparklog.format.decoders import convert
from sparklog.gateway.schemas.parsed_schemas import ParsedSchemas
from sparklog.gateway.schemas.state import (
    Record,
    Reference,
    RegistryState,
    StoredSchema,
    Version,
    level_record,
    mode_record,
    next_record,
    schema_record,
    version_record,
)
from sparklog.kafka.schemas import errors as e
from sparklog.kafka.schemas.errors import RegistryError
from sparklog.kafka.schemas.protobuf import ProtobufSchema
from sparklog.kafka.schemas.schema_types import Level, Parsed, SchemaType, incompatibilities, text_of
from sparklog.version import __version__

SCHEMA_BYTES_MAX = 512 * 1024
SUBJECT_BYTES_MAX = 16 * 1024 * 1024
"""Largest size in bytes of the texts of one subject, which a transitive check reads."""
REGISTRY_BYTES_MAX = 256 * 1024 * 1024
SUBJECTS_MAX = 20_000
VERSIONS_MAX = 1_000
SUBJECT_CHARS_MAX = 255
NUMBER_MAX = 2**31 - 1
LIST_BYTES_MAX = 16 * 1024 * 1024
"""Largest size in bytes of the schemas in one answer."""
_ENTRY_BYTES = 200
"""Size in bytes that a schema in a list has beside its text."""
REGISTRY_ID = "schema-registry"
LATEST = "latest"
EFFECTS = "effects"
"""Parameter of a check that Confluent's registry does not have: it asks for the effects on the topic."""
ALL_CONTEXTS, DEFAULT_CONTEXT = ":*:", ":.:"
"""Beginnings of a subject's name with a context. There is the default context only."""
DEFAULT_LEVEL, DEFAULT_MODE = Level.BACKWARD, "READWRITE"
READWRITE, READONLY, IMPORT = "READWRITE", "READONLY", "IMPORT"


class Request(NamedTuple):
    """One request of a client."""

    subject: str = ""
    version: str = ""
    schema_id: int = 0
    query: Mapping[str, str] = {}
    body: Mapping[str, Any] = {}
    visible: Collection[str] | None = None
    """Subjects that the client may describe; None for all. For requests whose subject is not in the path."""
    cluster_id: str = ""
    guid: UUID | None = None
    """GUID of a schema, in place of its id."""

    def flag(self, name: str) -> bool:
        """Return a flag of the query."""
        return self.query.get(name, "").lower() == "true"

    def sees(self, subject: str) -> bool:
        """Return True if the client may describe a subject."""
        return self.visible is None or subject in self.visible


class Outcome(NamedTuple):
    """The answer to a request, and its records."""

    body: Any
    records: list[Record] = []  # noqa: RUF012  never changed
    schema: Parsed | None = None
    """The schema of a new version, or of the newest one that is registered again."""
    number: int = 0
    """Number of the version."""
    is_registered: bool = False
    """True if the version is there before the request."""
    is_check: bool = False
    """True if the version is not registered: the request asks what would happen."""


class SchemaBody(Struct):
    """The schema in a request."""

    schema: str
    schemaType: SchemaType | None = None  # noqa: N815  Confluent's name
    references: list[dict[str, Any]] | None = None
    id: int | None = None
    version: int | None = None
    metadata: Any = None
    ruleSet: Any = None  # noqa: N815


class Candidate(NamedTuple):
    """A schema of a request, parsed."""

    parsed: Parsed
    stored: StoredSchema
    schema_id: int | None
    version: int | None


# -- the schema of a request


def candidate(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Candidate:
    """Parse the schema of a request. Raises RegistryError; InvalidConfigError if a library is missing."""
    try:
        body = convert(dict(request.body), SchemaBody)
        references = tuple(convert([r["name"], r["subject"], r["version"]], Reference) for r in body.references or ())
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise e.invalid_schema(f"the request's body is not valid: {error}") from None
    if body.metadata or body.ruleSet:
        raise e.invalid_schema("metadata and rule sets are not supported: register the schema without them")
    if not body.schema.strip():
        raise RegistryError(e.INVALID_SCHEMA, "Empty schema")
    size = len(body.schema.encode(errors="replace"))
    if size > SCHEMA_BYTES_MAX:
        raise e.invalid_schema(f"its text has {size} bytes; at most {SCHEMA_BYTES_MAX} are allowed")
    if len(references) > REFERENCES_MAX:
        raise e.invalid_schema(f"it has {len(references)} references; at most {REFERENCES_MAX} are allowed")
    kind = body.schemaType or SchemaType.AVRO
    parsed = schemas.parse(state, kind, body.schema, references)
    compiled = parsed.compiled if isinstance(parsed, ProtobufSchema) else b""
    text = text_of(parsed, normalize=request.flag("normalize"))
    references = tuple(sorted(references, key=lambda r: r.name)) if request.flag("normalize") else references
    schema_id = None if body.id is None or body.id < 0 else body.id
    version = None if body.version is None or body.version < 0 else body.version
    return Candidate(parsed, StoredSchema(kind, text, references, compiled), schema_id, version)


def _number_of(state: RegistryState, subject: str, schema: StoredSchema, *, deleted: bool = False) -> int | None:
    """Return the version of a subject that has the schema; None if it has none."""
    schema_id = state.ids.get(schema.content)
    versions = state.subjects.get(subject, {}) if deleted else state.active(subject)
    numbers = [number for number, version in versions.items() if version.schema_id == schema_id]
    return max(numbers, default=None)


def referenced_subjects(body: Mapping[str, Any]) -> list[str]:
    """Return the subjects that the schema of a request refers to, as far as they are texts."""
    references = body.get("references")
    entries = references[: REFERENCES_MAX + 1] if isinstance(references, list) else []
    names = [entry.get("subject") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str)]


# -- registration


def register(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Register a schema as the newest version of a subject. The answer lacks the schema, as Confluent's does: clients
    take one for the schema in their own form. Raises RegistryError."""
    subject = check_subject(request.subject)
    new = candidate(state, schemas, request)
    number = _number_of(state, subject, new.stored)
    if number is not None and new.schema_id in (None, state.subjects[subject][number].schema_id):
        schema_id = state.subjects[subject][number].schema_id
        body = {"id": schema_id, "version": number, "guid": str(new.stored.guid)}
        is_newest = number == max(state.active(subject))
        return Outcome(body, schema=new.parsed if is_newest else None, number=number, is_registered=True)
    mode = mode_of(state, subject)
    if mode == READONLY:
        raise RegistryError(e.OPERATION_NOT_PERMITTED, f"Subject {subject} is in read-only mode")
    if (mode == IMPORT) != (new.schema_id is not None):
        reason = "is not in import mode" if mode != IMPORT else "is in import mode: name an id"
        raise RegistryError(e.OPERATION_NOT_PERMITTED, f"Subject {subject} {reason}")
    _check_size(state, subject, new.stored)
    if mode != IMPORT:
        _check_compatible(state, schemas, subject, new.parsed)
    schema_id, records = _identify(state, new)
    number = _next_number(state, subject, new)
    records.append(version_record(subject, number, Version(schema_id)))
    return Outcome({"id": schema_id, "version": number, "guid": str(new.stored.guid)}, records, new.parsed, number)


def _check_compatible(state: RegistryState, schemas: ParsedSchemas, subject: str, parsed: Parsed) -> None:
    earlier = [one.schema_id for one in state.active(subject).values()]
    reasons = _reasons(state, schemas, level_of(state, subject), parsed, earlier)
    if reasons:
        text = f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: '
        raise RegistryError(e.INCOMPATIBLE, text + "; ".join(reasons)[:4000])


def _reasons(
    state: RegistryState, schemas: ParsedSchemas, level: Level, parsed: Parsed, earlier: list[int]
) -> list[str]:
    if level is Level.NONE:
        return []
    ids = earlier if level.is_transitive else earlier[-1:]
    return incompatibilities(level, parsed, [schemas.stored(state, one) for one in ids])


def _check_size(state: RegistryState, subject: str, schema: StoredSchema) -> None:
    """Raise RegistryError if the registry or the subject is full."""
    versions = state.subjects.get(subject, {})
    subject_bytes = sum(len(state.schemas[one.schema_id].text) for one in versions.values()) + len(schema.text)
    for size, limit, name in (
        (len(state.subjects) + (not versions), SUBJECTS_MAX, "subjects in the registry"),
        (len(versions) + 1, VERSIONS_MAX, f"versions of subject {subject}"),
        (subject_bytes, SUBJECT_BYTES_MAX, f"bytes of schemas of subject {subject}"),
        (state.text_bytes + len(schema.text), REGISTRY_BYTES_MAX, "bytes of schemas in the registry"),
    ):
        if size > limit:
            reason = f"at most {limit} {name} are allowed: delete some permanently"
            raise RegistryError(e.OPERATION_NOT_PERMITTED, reason)


def _identify(state: RegistryState, new: Candidate) -> tuple[int, list[Record]]:
    """Return the id of a schema, and the records of a new id."""
    existing = state.ids.get(new.stored.content)
    if new.schema_id is None:
        if existing is not None:
            return existing, []
        schema_id = state.next_id
    else:
        schema_id = new.schema_id
        if existing == schema_id:
            return schema_id, []
        if existing is not None:
            reason = f"Schema already registered with id {existing} instead of input id {schema_id}"
            raise RegistryError(e.ID_DOES_NOT_MATCH, reason)
        if schema_id in state.schemas:
            reason = f"Overwrite new schema with id {schema_id} is not permitted."
            raise RegistryError(e.OPERATION_NOT_PERMITTED, reason)
    if not 0 < schema_id < NUMBER_MAX:
        raise RegistryError(e.OPERATION_NOT_PERMITTED, f"id {schema_id} is not between 1 and {NUMBER_MAX - 1}")
    return schema_id, [next_record(max(state.next_id, schema_id + 1)), schema_record(schema_id, new.stored)]


def _next_number(state: RegistryState, subject: str, new: Candidate) -> int:
    versions = state.subjects.get(subject, {})
    number = max(versions, default=0) + 1
    if new.schema_id is not None and new.version:
        number = new.version
        if number in state.active(subject):
            reason = f"Version {number} of subject {subject} exists with another schema"
            raise RegistryError(e.OPERATION_NOT_PERMITTED, reason)
    if number > NUMBER_MAX:
        raise RegistryError(e.OPERATION_NOT_PERMITTED, f"version {number} is above {NUMBER_MAX}")
    return number


def look_up(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the version of a subject that has the schema. Raises RegistryError."""
    versions = visible_versions(state, request)
    number = _number_of(
        state, request.subject, candidate(state, schemas, request).stored, deleted=request.flag("deleted")
    )
    if number is None:
        raise e.missing_schema()
    return Outcome(_version_body(state, request.subject, number, versions[number], request.query.get("format", "")))


def check_compatibility(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Compare a schema with a version, or without one with those of the subject's level. A version that its topic would
    refuse is not compatible either. Raises RegistryError."""
    subject = request.subject
    level, versions = level_of(state, subject), state.active(subject)
    if request.version:
        number = resolve_version(visible_versions(state, request), request.version)
        versions = {number: state.subjects[subject][number]}
    new = candidate(state, schemas, request)
    reasons = _reasons(state, schemas, level, new.parsed, [one.schema_id for one in versions.values()])
    body: dict[str, Any] = {"is_compatible": True}
    body |= {"messages": []} if request.flag("verbose") else {}
    body |= {"effects": []} if request.flag(EFFECTS) else {}
    own_number = _number_of(state, subject, new.stored)
    is_newest = own_number is None or own_number == max(state.active(subject))
    number = max(state.subjects.get(subject, {}), default=0) + 1 if own_number is None else own_number
    schema = new.parsed if is_newest else None
    answer = with_verdict(body, reasons, [])
    return Outcome(answer, schema=schema, number=number, is_registered=own_number is not None, is_check=True)


def with_verdict(body: Mapping[str, Any], reasons: list[str], effects: list[str]) -> dict[str, Any]:
    """Return the answer to a check with more reasons against a schema, or with the effects of its registration, as far
    as the client asks for them."""
    is_compatible = body["is_compatible"] and not reasons
    answer = {**body, "is_compatible": is_compatible}
    if "messages" in body:
        answer["messages"] = [*body["messages"], *reasons]
    if "effects" in body:
        answer["effects"] = effects if is_compatible else []
    return answer


# -- reading


def _described(schema: StoredSchema, form: str = "") -> dict[str, Any]:
    """Return the fields of a schema in an answer. `form`: serialized for a Protobuf schema as a descriptor."""
    text = schema.text
    if form == "serialized" and schema.compiled:
        text = ProtobufSchema(text, schema.compiled, {}).serialized
    body: dict[str, Any] = {} if schema.kind is SchemaType.AVRO else {"schemaType": schema.kind.value}
    if schema.references:
        fields = ("name", "subject", "version")
        body["references"] = [{name: getattr(one, name) for name in fields} for one in schema.references]
    return body | {"schema": text, "guid": str(schema.guid)}


def _version_body(state: RegistryState, subject: str, number: int, version: Version, form: str = "") -> dict[str, Any]:
    schema = _described(state.schemas[version.schema_id], form)
    return {"subject": subject, "version": number, "id": version.schema_id, **schema}


def list_subjects(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the names of the subjects. Raises RegistryError."""
    names = _subjects(state, request)
    if request.flag("deletedOnly"):
        names = [name for name in names if not state.active(name)]
    elif not request.flag("deleted"):
        names = [name for name in names if state.active(name)]
    return Outcome(page(names, request))


def _subjects(state: RegistryState, request: Request) -> list[str]:
    """Return the subjects that begin with the request's prefix, deleted ones included."""
    prefix = request.query.get("subjectPrefix", "").removeprefix(ALL_CONTEXTS).removeprefix(DEFAULT_CONTEXT)
    return sorted(name for name in state.subjects if name.startswith(prefix) and request.sees(name))


def list_schemas(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the versions of subjects with their schemas. Raises RegistryError."""
    places = page(
        [
            (subject, number)
            for subject in _subjects(state, request)
            for number in _selected_versions(state.subjects[subject], request)[
                -1 if request.flag("latestOnly") else 0 :
            ]
        ],
        request,
    )
    size = sum(_ENTRY_BYTES + len(state.schemas[state.subjects[s][n].schema_id].text) for s, n in places)
    if size > LIST_BYTES_MAX:
        reason = f"the list has {size} bytes; at most {LIST_BYTES_MAX} are sent: use subjectPrefix, offset and limit"
        raise RegistryError(e.OPERATION_NOT_PERMITTED, reason)
    form = request.query.get("format", "")
    return Outcome([_version_body(state, s, n, state.subjects[s][n], form) for s, n in places])


def _selected_versions(versions: Mapping[int, Version], request: Request) -> list[int]:
    only, deleted = request.flag("deletedOnly"), request.flag("deleted") or request.flag("deletedOnly")
    return [n for n, one in versions.items() if (one.is_deleted or not only) and (deleted or not one.is_deleted)]


def list_versions(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the version numbers of a subject. Raises RegistryError."""
    versions = _selected_versions(state.subjects.get(request.subject, {}), request)
    if not versions:
        raise e.missing_subject(request.subject)
    return Outcome(page(versions, request))


def show_version(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return one version of a subject. Raises RegistryError."""
    versions = visible_versions(state, request)
    number = resolve_version(versions, request.version)
    return Outcome(_version_body(state, request.subject, number, versions[number], request.query.get("format", "")))


def show_version_text(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the text of one version. Raises RegistryError."""
    return Outcome(show_version(state, schemas, request).body["schema"])


def list_referrers(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the ids of the schemas that refer to a version. Raises RegistryError."""
    number = resolve_version(visible_versions(state, request), request.version)
    versions = _referring(state, {(request.subject, number)}, deleted=request.flag("deleted"))
    return Outcome(sorted({version.schema_id for version in versions}))


def show_schema(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the schema of an id. Raises RegistryError."""
    if not _visible_users(state, request):
        raise e.missing_schema(request.schema_id)
    body = _described(state.schemas[request.schema_id], request.query.get("format", ""))
    return Outcome(body | ({"maxId": state.next_id - 1} if request.flag("fetchMaxId") else {}))


def show_schema_text(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the text of an id's schema. Raises RegistryError."""
    return Outcome(show_schema(state, schemas, request).body["schema"])


def with_id(state: RegistryState, request: Request) -> Request:
    """Return a request with the id of the schema that its GUID names. Raises RegistryError."""
    if request.guid is None:
        return request
    schema_id = state.guids.get(request.guid)
    if schema_id is None:
        raise e.missing_schema()
    return request._replace(schema_id=schema_id)


def show_schema_of_guid(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the schema of a GUID, with its id. Raises RegistryError."""
    request = with_id(state, request)
    body = show_schema(state, schemas, request).body
    return Outcome({"id": request.schema_id, **body})


def list_ids_of_guid(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the id of a GUID. Raises RegistryError."""
    request = with_id(state, request)
    show_schema(state, schemas, request)
    return Outcome([{"context": ".", "id": request.schema_id}])


def list_schema_subjects(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the subjects that have an id's schema. Raises RegistryError."""
    return Outcome(page(sorted({subject for subject, _ in _schema_versions(state, request)}), request))


def list_schema_versions(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the subjects and versions that have an id's schema. Raises RegistryError."""
    versions = [{"subject": subject, "version": number} for subject, number in _schema_versions(state, request)]
    return Outcome(page(versions, request))


def _schema_versions(state: RegistryState, request: Request) -> list[tuple[str, int]]:
    users = _visible_users(state, request)
    if not users:
        raise e.missing_schema(request.schema_id)
    return sorted((s, n) for s, n, version in users if request.flag("deleted") or not version.is_deleted)


def list_types(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the types of schemas."""
    return Outcome([SchemaType.JSON.value, SchemaType.PROTOBUF.value, SchemaType.AVRO.value])


def show_cluster(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the id of the cluster."""
    clusters = {"kafka-cluster": request.cluster_id, "schema-registry-cluster": REGISTRY_ID}
    return Outcome({"id": "", "scope": {"path": [], "clusters": clusters}})


def show_release(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Return the version of sparklog."""
    return Outcome({"version": __version__, "commitId": ""})


def _visible_users(state: RegistryState, request: Request) -> list[tuple[str, int, Version]]:
    return [one for one in state.users(request.schema_id) if request.sees(one[0])]


def page(entries: list[Any], request: Request) -> list[Any]:
    """Return the part of a list that `offset` and `limit` name. Raises RegistryError."""
    try:
        offset, limit = (int(request.query.get(name, default)) for name, default in (("offset", "0"), ("limit", "-1")))
    except ValueError:
        raise RegistryError(400, "offset and limit are whole numbers") from None
    return entries[max(offset, 0) :][: limit if limit >= 0 else None]


def visible_versions(state: RegistryState, request: Request) -> Mapping[int, Version]:
    """Return the versions of the request's subject, with deleted ones if it asks for them. Raises RegistryError."""
    subject = request.subject
    versions = state.subjects.get(subject, {}) if request.flag("deleted") else state.active(subject)
    if not versions:
        raise e.missing_subject(subject)
    return versions


def resolve_version(versions: Mapping[int, Version], text: str) -> int:
    """Return the number of a version, which can be "latest" or -1. Raises RegistryError."""
    if text in (LATEST, "-1"):
        return max(versions)
    if not (text.isascii() and text.isdigit() and len(text) < 11 and 0 < int(text) <= NUMBER_MAX):
        allowed = 'Allowed values are between [1, 2^31-1] and the string "latest"'
        raise RegistryError(e.INVALID_VERSION, f"The specified version '{text}' is not a valid version id. {allowed}")
    if int(text) not in versions:
        raise e.missing_version(text)
    return int(text)


# -- deletion


def delete_subject(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Delete all versions of a subject: softly, or permanently those that are deleted softly. Raises RegistryError."""
    subject, versions = request.subject, state.subjects.get(request.subject, {})
    if not versions:
        raise e.missing_subject(subject)
    active = state.active(subject)
    if request.flag("permanent"):
        if active:
            reason = f"Subject '{subject}' was not deleted first before being permanently deleted"
            raise RegistryError(e.SUBJECT_NOT_SOFT_DELETED, reason)
        return Outcome(list(versions), _deletion(state, subject, versions, permanent=True))
    if not active:
        reason = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
        raise RegistryError(e.SUBJECT_SOFT_DELETED, reason)
    records = _deletion(state, subject, active, permanent=False)
    records += [level_record(subject, None)] if subject in state.levels else []
    records += [mode_record(subject, None)] if subject in state.modes else []
    return Outcome(list(active), records)


def delete_version(state: RegistryState, schemas: ParsedSchemas, request: Request) -> Outcome:
    """Delete one version: softly, or permanently if it is deleted softly. Raises RegistryError."""
    subject, versions, permanent = request.subject, state.subjects.get(request.subject, {}), request.flag("permanent")
    active = state.active(subject)
    if not versions:
        raise e.missing_subject(subject)
    if request.version in (LATEST, "-1") and not permanent and not active:
        raise e.missing_version(request.version)
    is_latest = request.version in (LATEST, "-1") and not permanent
    number = resolve_version(active if is_latest else versions, request.version)
    prefix = f"Subject '{subject}' Version {number} was"
    if permanent and not versions[number].is_deleted:
        reason = f"{prefix} not deleted first before being permanently deleted"
        raise RegistryError(e.VERSION_NOT_SOFT_DELETED, reason)
    if not permanent and versions[number].is_deleted:
        reason = f"{prefix} soft deleted. Set permanent=true to delete permanently"
        raise RegistryError(e.VERSION_SOFT_DELETED, reason)
    return Outcome(number, _deletion(state, subject, {number: versions[number]}, permanent=permanent))


def _deletion(state: RegistryState, subject: str, versions: Mapping[int, Version], *, permanent: bool) -> list[Record]:
    """Return the records of a deletion. Raises RegistryError if others refer to the versions."""
    check_writable(state, subject)
    places = {(subject, number) for number in versions}
    if _referring(state, places, deleted=permanent):
        reason = f"One or more references exist to the versions {sorted(versions)} of subject {subject}"
        raise RegistryError(e.REFERENCE_EXISTS, reason)
    if not permanent:
        return [version_record(subject, n, Version(v.schema_id, True)) for n, v in versions.items()]
    records = [version_record(subject, number, None) for number in versions]
    for schema_id in {version.schema_id for version in versions.values()}:
        if all((other, number) in places for other, number, _ in state.users(schema_id)):
            records.append(schema_record(schema_id, None))
    return records


def _referring(state: RegistryState, places: Collection[tuple[str, int]], *, deleted: bool) -> list[Version]:
    """Return the other versions whose schemas refer to the versions in `places`. `deleted`: with softly deleted
    ones."""
    ids = {
        schema_id
        for schema_id, schema in state.schemas.items()
        if any((one.subject, one.version) in places for one in schema.references)
    }
    users: Iterable[tuple[str, int, Version]] = [user for schema_id in ids for user in state.users(schema_id)]
    return [v for subject, number, v in users if (subject, number) not in places and (deleted or not v.is_deleted)]


# -- rules that several operations share


def check_subject(subject: str) -> str:
    """Return the name of a subject. Raises RegistryError if no subject can have it."""
    if not subject or len(subject) > SUBJECT_CHARS_MAX or not subject.isprintable() or subject.startswith(":."):
        reason = f"a subject has 1 to {SUBJECT_CHARS_MAX} printable characters, and does not begin with ':.'"
        raise RegistryError(e.INVALID_SUBJECT, f"The specified subject '{subject[:300]}' is not a valid: {reason}")
    return subject


def check_writable(state: RegistryState, subject: str) -> None:
    """Raise RegistryError if the subject is in the mode READONLY."""
    if mode_of(state, subject) == READONLY:
        raise RegistryError(e.OPERATION_NOT_PERMITTED, f"Subject {subject} is in read-only mode")


def level_of(state: RegistryState, subject: str) -> Level:
    """Return the level of compatibility in effect for a subject; "" for the default."""
    return Level(state.levels.get(subject) or state.levels.get("") or DEFAULT_LEVEL)


def mode_of(state: RegistryState, subject: str) -> str:
    """Return the mode in effect for a subject; "" for the default."""
    return state.modes.get(subject) or state.modes.get("") or DEFAULT_MODE
