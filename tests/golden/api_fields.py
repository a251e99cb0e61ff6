"""The fields of each API in each version, as text: `tests/golden/fields/<api>-v<version>.txt`.

    python tests/golden/api_fields.py    writes the missing files; existing ones stay unchanged

Clients and brokers of other versions rely on these files, so a file never changes. A change of fields gives the API a
new version. A change without effect for a peer is recorded with its reason in `fields/changes.toml`, with the hash of
the new text.
"""

from __future__ import annotations

import hashlib
import sys
import tomllib
from pathlib import Path

from msgspec import inspect

from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.versions import field_names

FIELDS = Path(__file__).parent / "fields"
CHANGES = FIELDS / "changes.toml"


def versions() -> list[tuple[Api, int]]:
    """Every API in every version that is spoken."""
    return [(api, v) for api, spec in APIS.items() for v in range(spec.version_min, spec.version_max + 1)]


def name_of(api: Api, version: int) -> str:
    return f"{api.name.lower().replace('_', '-')}-v{version}"


def described(api: Api, version: int) -> str:
    """The request's and the response's fields, then those of the messages in them."""
    spec = APIS[api]
    blocks: dict[str, str] = {}
    for kind, message in (("request", spec.request), ("response", spec.response)):
        blocks[kind] = f"{kind}\n"
        _describe(message, version, blocks, kind)
    return "\n".join(blocks.values())


def _describe(message: type[Message], version: int, blocks: dict[str, str], key: str) -> None:
    shape = inspect.type_info(message)
    assert isinstance(shape, inspect.StructType) and shape.array_like
    found: list[type[Message]] = []
    spoken = field_names(message, version)
    for field in shape.fields:
        if field.name in spoken:
            default = "" if field.required else f" = {_default(field)!r}"
            blocks[key] += f"  {field.name}: {_spelt(field.type, found)}{default}\n"
    for part in found:
        if part.__name__ not in blocks:
            blocks[part.__name__] = f"{part.__name__}\n"
            _describe(part, version, blocks, part.__name__)


def _default(field: inspect.Field) -> object:
    return field.default_factory() if callable(field.default_factory) else field.default


def _spelt(shape: inspect.Type, found: list[type[Message]]) -> str:
    """A field's type with its bounds; the messages in it go into `found`."""
    if isinstance(shape, inspect.Metadata):
        return _spelt(shape.type, found)
    if isinstance(shape, inspect.StructType):
        assert issubclass(shape.cls, Message)
        found.append(shape.cls)
        return shape.cls.__name__
    if isinstance(shape, inspect.UnionType):
        return " | ".join(_spelt(t, found) for t in shape.types)
    name = type(shape).__name__.removesuffix("Type").lower()
    bounds = [
        f"{b} {v}" for b in ("ge", "le", "min_length", "max_length") if (v := getattr(shape, b, None)) is not None
    ]
    inner: list[str] = []
    if isinstance(shape, inspect.ListType):
        inner = [_spelt(shape.item_type, found)]
    elif isinstance(shape, inspect.DictType):
        inner = [_spelt(shape.key_type, found), _spelt(shape.value_type, found)]
    elif isinstance(shape, inspect.TupleType):
        inner = [_spelt(item, found) for item in shape.item_types]
    return name + (f"[{', '.join(inner)}]" if inner else "") + (f"({', '.join(bounds)})" if bounds else "")


def recorded_changes() -> dict[str, str]:
    """By name of an API in a version, the hash of its newest recorded text. Raises ValueError for one without a
    reason."""
    newest: dict[str, str] = {}
    for change in tomllib.loads(CHANGES.read_text()).get("change", []):
        if len(str(change["reason"]).split()) < 5:
            raise ValueError(f"{CHANGES.name}: the change of {change['fields']} needs a reason, in a sentence")
        newest[str(change["fields"])] = str(change["sha256"])
    return newest


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def differences() -> list[str]:
    """Return the changes of an API without a new version or a recorded reason."""
    newest = recorded_changes()
    found: list[str] = []
    known = {name_of(*v) for v in versions()}
    for api, version in versions():
        name, text = name_of(api, version), described(api, version)
        path = FIELDS / f"{name}.txt"
        if not path.exists():
            found.append(f"{name}: not kept yet, run tests/golden/api_fields.py")
        elif name in newest:
            if digest(text) != newest[name]:
                found.append(f"{name}: its fields are not those of the newest entry in {CHANGES.name} ({digest(text)})")
        elif path.read_text() != text:
            found.append(
                f"{name}: its fields have changed: give the API a new version, or record why not ({digest(text)})"
            )
    oldest = {api.name.lower().replace("_", "-"): spec.version_min for api, spec in APIS.items()}
    for path in sorted(FIELDS.glob("*.txt")):
        api_name, _, number = path.stem.rpartition("-v")
        if path.stem not in known and not int(number) < oldest.get(api_name, 0):
            found.append(f"{path.stem}: the table of APIs does not have it any more")
    found += [f"{name}: in {CHANGES.name}, but not in the table of APIs" for name in newest if name not in known]
    return found


def main() -> int:
    for api, version in versions():
        path = FIELDS / f"{name_of(api, version)}.txt"
        if not path.exists():
            path.write_text(described(api, version))
            print(f"wrote {path.name}")
    found = differences()
    print("\n".join(found) or "no API has changed without a new version or a recorded reason")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
