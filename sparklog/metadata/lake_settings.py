"""Rules of a topic's lake settings, which `sparklog lake enable` sets and every other change of settings keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparklog.errors import InvalidConfigError
from sparklog.settings import PARTITIONS_ADDED, Scope, settings_of

LOCATION = "lake.location"
MODE = "lake.mode"
FIXED = (LOCATION, MODE, "lake.partition.by")
"""Settings that are as the topic's table is, and so stay as long as the topic has a table."""


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
    if _value(after, MODE) != "upsert":
        return
    if not key_columns:
        raise InvalidConfigError(
            f"topic {name!r}: {MODE} = upsert keeps the newest row of each key, but the topic has no key columns; use "
            "append, or a topic that is created with --key-columns"
        )
    if _value(after, LOCATION) and _value(after, PARTITIONS_ADDED):
        raise InvalidConfigError(moved_keys(name))


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
