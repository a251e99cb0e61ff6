"""Features and properties of a Delta table that decide whether a lake worker can commit to the table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sparklog.errors import LakePausedError
from sparklog.lake.log_entry import OWN_COMMIT_FEATURES

WRITER_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
    }
)
"""Table features with which deltalake commits plain files. Features that also need work of a writer are refused by the
properties that turn the work on, see `unsupported`."""
_INVARIANTS = "delta.invariants"
_GENERATED = "delta.generationExpression"
_CONSTRAINT = "delta.constraints."
_ADVICE = {
    "clustering": "ALTER TABLE … CLUSTER BY NONE, then DROP FEATURE clustering and domainMetadata",
    "domainMetadata": "DROP FEATURE domainMetadata, after the features that need it",
    "typeWidening": "DROP FEATURE typeWidening TRUNCATE HISTORY",
    "vacuumProtocolCheck": "DROP FEATURE vacuumProtocolCheck",
}
"""SQL that drops a feature from a table."""


def unsupported(
    features: Collection[str],
    configuration: Mapping[str, str | None],
    fields: Sequence[Any],
    *,
    is_upsert: bool,
    is_directory: bool = True,
) -> list[str]:
    """Return the features and properties that a worker cannot keep, in words. `is_directory`: True if the table is in a
    directory, where a worker can commit by itself."""
    accepted = WRITER_FEATURES | (OWN_COMMIT_FEATURES if is_directory else set())
    wrong = [
        f"{name} (to drop: {_ADVICE[name]})" if name in _ADVICE else name for name in sorted(set(features) - accepted)
    ]
    if (configuration.get("delta.columnMapping.mode") or "none") != "none":
        wrong.append("column mapping")
    wrong += [f"the constraint {k.removeprefix(_CONSTRAINT)}" for k in configuration if k.startswith(_CONSTRAINT)]
    if is_upsert and _is_true(configuration, "delta.appendOnly"):
        wrong.append("delta.appendOnly, which lake.mode=upsert cannot keep")
    if is_upsert and _is_true(configuration, "delta.enableChangeDataFeed"):
        wrong.append(
            "delta.enableChangeDataFeed with lake.mode=upsert (every key of a rewritten file would be a deletion and an "
            "insertion in the feed; set it to false, or read the changes from the topic)"
        )
    names = {_INVARIANTS: "a column with an invariant", _GENERATED: "generated columns"}
    marks = {mark for field in fields for mark in (field.metadata or {})}
    wrong += [text for mark, text in names.items() if mark in marks]
    return wrong


def _is_true(configuration: Mapping[str, str | None], name: str) -> bool:
    return (configuration.get(name) or "false").lower() == "true"


def check_features(
    features: Collection[str],
    configuration: Mapping[str, str | None],
    fields: Sequence[Any],
    *,
    is_upsert: bool,
    is_directory: bool,
) -> None:
    """Check that a worker can commit to a table; see `unsupported`. Raises LakePausedError."""
    wrong = unsupported(features, configuration, fields, is_upsert=is_upsert, is_directory=is_directory)
    if wrong:
        raise LakePausedError(
            f"the table has features that the lake worker does not support: {', '.join(wrong)}; drop them, then use "
            "'sparklog lake resume'"
        )
