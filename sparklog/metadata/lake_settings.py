"""Rules of a topic's lake settings, which `sparklog lake enable` sets and every other change of settings keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sparklog.errors import InvalidConfigError
from sparklog.settings import LAKE_PREFIX, PARTITIONS_ADDED, Scope, settings_of

LOCATION = "lake.location"
MODE = "lake.mode"
FIXED = (LOCATION, MODE, "lake.partition.by")
"""Settings that are as the topic's table is, and so stay as long as the topic has a table."""
FORBIDDEN_CHARACTERS = " ,;{}()\n\t="
"""Characters that Delta refuses in names of columns without column mapping."""


def check_lake_settings(
    name: str, key_columns: Sequence[str], before: Mapping[str, object], after: Mapping[str, object]
) -> None:
    """Check a topic's settings after a change. `before`: settings before the change; those of a new topic for a new
    topic. Raises InvalidConfigError: The change is one that the topic's Delta table cannot follow, or the topic has no
    key or moved keys for an upserted table, or the change is of a setting that only the broker sets."""
    if _value(before, PARTITIONS_ADDED) != _value(after, PARTITIONS_ADDED):
        raise InvalidConfigError(f"topic {name!r}: {PARTITIONS_ADDED} is set by the broker and cannot be changed")
    if _value(before, LOCATION) and _value(after, LOCATION):
        for setting in FIXED:
            if _value(before, setting) != _value(after, setting):
                raise InvalidConfigError(
                    f"topic {name!r}: {setting} = {_value(after, setting)!r} does not fit its Delta table, which was made "
                    f"with {_value(before, setting)!r}; use 'sparklog lake disable {name}', then 'sparklog lake enable' "
                    "with another location"
                )
    elif _value(before, LOCATION) and any(setting.startswith(LAKE_PREFIX) for setting in after):
        raise InvalidConfigError(
            f"topic {name!r}: {LOCATION} cannot be removed alone; 'sparklog lake disable {name}' removes all settings of the "
            "Delta table"
        )
    if _value(after, MODE) != "upsert":
        return
    if not key_columns:
        raise InvalidConfigError(
            f"topic {name!r}: {MODE} = upsert keeps the newest row of each key, but the topic has no key columns; use "
            "append, or a topic that is created with --key-columns"
        )
    if _value(after, LOCATION) and _value(after, PARTITIONS_ADDED):
        raise InvalidConfigError(moved_keys(name))


def check_new_columns(name: str, configs: Mapping[str, object], before: pa.Schema, after: pa.Schema) -> None:
    """Raise InvalidConfigError if a topic with a Delta table gets columns that the table cannot have: a topic cannot
    lose them again. `before`, `after`: the topic's columns."""
    problems = column_problems(pa.schema([f for f in after if f.name not in before.names]))
    if problems and _value(configs, LOCATION):
        raise InvalidConfigError(
            f"topic {name!r} has a Delta table, which cannot have the new columns: {'; '.join(problems)}; use another type "
            f"or another name, or first 'sparklog lake disable {name}'"
        )


def column_problems(schema: pa.Schema) -> list[str]:
    """Return the reasons why a Delta table cannot have some columns."""
    return [problem for f in schema for problem in _problems(f.name, f.name, f.type)]


def _problems(path: str, name: str, t: Any) -> Iterator[str]:
    forbidden = [c for c in FORBIDDEN_CHARACTERS if c in name]
    if forbidden:
        yield f"Delta allows no {', '.join(map(repr, forbidden))} in the name of column {path!r}"
    if pa.types.is_duration(t):
        yield f"Delta has no type for column {path!r} ({t}: an interval)"
    elif pa.types.is_list(t):
        yield from _problems(f"{path}.element", "element", t.value_type)
    elif pa.types.is_map(t):
        yield from _problems(f"{path}.key", "key", t.key_type)
        yield from _problems(f"{path}.value", "value", t.item_type)
    elif pa.types.is_struct(t):
        if not t.num_fields:
            yield f"Delta has no type for column {path!r} (a struct without fields)"
        for f in t:
            yield from _problems(f"{path}.{f.name}", f.name, f.type)


def moved_keys(name: str) -> str:
    """Return the text of the refusal of an upserted table for a topic whose keys can be in several partitions."""
    return (
        f"topic {name!r} got partitions after its creation, so that rows of one key can be in several partitions, and an "
        f"upserted table would bring deleted rows back: use {MODE} = append with read_table(latest=True), or copy the "
        "records into a new topic"
    )


def _value(configs: Mapping[str, object], name: str) -> object:
    """Return a setting or its default; a directory in its form without `file://`."""
    value = configs.get(name, settings_of(Scope.TOPIC)[name].default)
    return str(value).removeprefix("file://").rstrip("/") if name == LOCATION else value
