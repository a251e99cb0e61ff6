"""The types of schemas, AVRO, JSON and PROTOBUF, behind one interface, and the levels of compatibility."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from sparklog.kafka.schemas.avro import AvroSchema, compare_avro, parse_avro
from sparklog.kafka.schemas.comparison import Comparison
from sparklog.kafka.schemas.errors import invalid_schema
from sparklog.kafka.schemas.json_schema import JsonSchema, compare_json, parse_json_schema
from sparklog.kafka.schemas.protobuf import ProtobufSchema, compare_protobuf, parse_protobuf

Parsed = AvroSchema | JsonSchema | ProtobufSchema
P = TypeVar("P")


class SchemaType(StrEnum):
    """Type of a schema, as clients name it."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


class Level(StrEnum):
    """Compatibility of a subject's new version with its earlier ones."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """True if all earlier versions count; False if only the latest does."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def is_backward(self) -> bool:
        """True if the new version has to read values of the earlier ones."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def is_forward(self) -> bool:
        """True if the earlier versions have to read values of the new one."""
        return self.value.startswith(("FORWARD", "FULL"))


def parse(kind: SchemaType, text: str, references: Mapping[str, Parsed], compiled: bytes = b"") -> Parsed:
    """Parse a schema. `references`: schemas by the names under which the text has them. `compiled`: descriptor of a
    Protobuf schema that was parsed before. Raises RegistryError; InvalidConfigError if a library is missing."""
    if kind is SchemaType.AVRO:
        return parse_avro(text, _only(AvroSchema, references))
    if kind is SchemaType.JSON:
        return parse_json_schema(text, _only(JsonSchema, references))
    if compiled:
        return ProtobufSchema(text, compiled, _only(ProtobufSchema, references))
    return parse_protobuf(text, _only(ProtobufSchema, references))


def _only(kind: type[P], references: Mapping[str, Parsed]) -> dict[str, P]:
    own: dict[str, P] = {}
    for name, one in references.items():
        if not isinstance(one, kind):
            raise invalid_schema(f"the reference {name[:200]!r} is a schema of another type")
        own[name] = one
    return own


def text_of(schema: Parsed, *, normalize: bool = False) -> str:
    """Return the text that is stored."""
    return schema.normal_text if normalize and not isinstance(schema, ProtobufSchema) else schema.text


def differences(reader: Parsed, writer: Parsed) -> list[str]:
    """Return the reasons for which the reader cannot read values of the writer. Raises RegistryError if the schemas are
    too large to compare."""
    comparison = Comparison()
    try:
        match reader, writer:
            case AvroSchema(), AvroSchema():
                compare_avro(reader, writer, comparison)
            case JsonSchema(), JsonSchema():
                compare_json(reader, writer, comparison)
            case ProtobufSchema(), ProtobufSchema():
                compare_protobuf(reader, writer, comparison)
            case _:
                comparison.report("SCHEMA_TYPE_CHANGED", "", "the schemas are of different types")
    except (RecursionError, OverflowError):
        raise invalid_schema("its types refer to one another too deep to be compared") from None
    return comparison.differences


def incompatibilities(level: Level, schema: Parsed, earlier: Sequence[Parsed]) -> list[str]:
    """Return the reasons for which a new version is not compatible. `earlier`: the versions, the latest last. Raises
    RegistryError if the schemas are too large to compare."""
    reasons: list[str] = []
    for former in reversed(earlier if level.is_transitive else earlier[-1:]):
        if level.is_backward:
            reasons += differences(schema, former)
        if level.is_forward:
            reasons += differences(former, schema)
        if reasons:
            break
    return reasons
