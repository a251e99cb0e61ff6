"""Generates the types of the gateway's messages (`sparklog/kafka/wire/requests.py` and `responses.py`) from the table
of messages: `python -m tests.support.kafka_types`.

A key is required if every served version has the field; in a response only if the field also has no default. The
decoder leaves out the fields of other versions, and the encoder writes the defaults of missing keys. Equal structures
are one type with several names, so that messages can share code.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sparklog.kafka.wire.schema import REQUEST, RESPONSE, Field, Versions, messages

FOLDER = Path(__file__).parents[2] / "sparklog/kafka/wire"
FILES = {REQUEST: FOLDER / "requests.py", RESPONSE: FOLDER / "responses.py"}
_SIMPLE = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "uint16": "int",
    "int32": "int",
    "int64": "int",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "uuid": "UUID",
}
_RECORDS = {REQUEST: "memoryview", RESPONSE: "Sequence[Part]"}
_HEADS = {
    REQUEST: '''"""The types of Kafka's requests, as the decoders return them. Generated from `messages.txt` by
`python -m tests.support.kafka_types`; do not edit.

The keys that not every served version has are `NotRequired`. Types of nested structures are named after the message and
the field.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict
from uuid import UUID
''',
    RESPONSE: '''"""The types of Kafka's responses, as the encoders take them. Generated from `messages.txt` by
`python -m tests.support.kafka_types`; do not edit.

A key is `NotRequired` if the field has a default, or if not every served version has it. Types of nested structures are
named after the message and the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict
from uuid import UUID

from sparklog.kafka.wire.codec import Part
''',
}


def source(kind: str) -> str:
    """Return the formatted source of all types of requests or of responses."""
    types = _Types(kind)
    for message in messages().values():
        if message.kind == kind:
            types.add(message.name, message.fields, message.served)
    classes = [f"class {name}(TypedDict):\n{body}\n" for body, name in types.names.items()]
    text = "\n\n".join([_HEADS[kind], *classes, "\n".join(types.aliases)])
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FILES[kind]), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


class _Types:
    """The types of one kind of messages. `names`: the name of each class by its body. `aliases`: lines that give
    classes further names."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.names: dict[str, str] = {}
        self.aliases: list[str] = []

    def add(self, name: str, fields: tuple[Field, ...], versions: Versions) -> str:
        """Add the type `name`, after those of its nested structures. `versions`: the served versions that have the
        structure. Returns the name of the class."""
        served = [field for field in fields if _common(field.versions, versions) is not None]
        body = "\n".join(f"    {field.name}: {self._type_of(name, field, versions)}" for field in served)
        if body in self.names:
            self.aliases.append(f"{name} = {self.names[body]}")
        return self.names.setdefault(body, name)

    def _type_of(self, parent: str, field: Field, versions: Versions) -> str:
        if field.fields:
            nested = _common(field.versions, versions)
            assert nested is not None
            element = self.add(_nested_name(parent, field), field.fields, nested)
        else:
            element = _SIMPLE.get(field.type) or _RECORDS[self._kind]
        text = f"list[{element}]" if field.is_list else element
        is_empty_uuid = self._kind == RESPONSE and field.type == "uuid"  # the encoder writes zeros for None
        if (field.null is not None and _common(field.null, versions) is not None) or is_empty_uuid:
            text += " | None"
        is_in_all = field.versions.first <= versions.first and field.versions.last >= versions.last
        is_required = is_in_all and not (self._kind == RESPONSE and field.has_default)
        return text if is_required else f"NotRequired[{text}]"


def _common(one: Versions, other: Versions) -> Versions | None:
    """Return the versions that are in both; None: there are none."""
    common = Versions(max(one.first, other.first), min(one.last, other.last))
    return common if common.first <= common.last else None


def _nested_name(parent: str, field: Field) -> str:
    words = field.name.split("_")
    if field.is_list and words[-1] != "data":
        words[-1] = words[-1].removesuffix("s")
    return parent + "".join(word.capitalize() for word in words)


def write() -> None:
    """Write both modules."""
    for kind, path in FILES.items():
        path.write_text(source(kind), encoding="utf-8")


if __name__ == "__main__":
    write()
