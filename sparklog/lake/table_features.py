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
NAMED_FEATURES_FROM = 7
"""First writer version of Delta's protocol that names the features which a writer must have. Earlier versions require
all features of their version; later ones do not exist yet."""
_LEGACY_FEATURES = {6: ("identityColumns",)}
"""Features outside of WRITER_FEATURES that an earlier writer version requires."""
_INVARIANTS = "delta.invariants"
_GENERATED = "delta.generationExpression"
_CONSTRAINT = "delta.constraints."
_MOVE = "impossible with Delta 4.4: 'sparklog lake disable', then enable the lake at another location"
_UNREADABLE_VECTORS = frozenset({"deletionVectors", "typeWidening"})
_VECTORS = (
    "deletionVectors together with typeWidening, and deltalake cannot read the vectors of such a table (use only one of "
    "the two features; to leave this table: 'sparklog lake disable', then enable the lake at another location)"
)
_ADVICE = {
    "clustering": _MOVE,
    "identityColumns": _MOVE,
    "inCommitTimestamp": "set delta.enableInCommitTimestamps = false, then DROP FEATURE inCommitTimestamp",
    "rowTracking": "set delta.enableRowTracking = false, then DROP FEATURE rowTracking and domainMetadata",
    "domainMetadata": "DROP FEATURE domainMetadata, after the features that need it",
    "typeWidening": "DROP FEATURE typeWidening TRUNCATE HISTORY",
    "vacuumProtocolCheck": "DROP FEATURE vacuumProtocolCheck",
}
"""SQL that drops a feature from a table."""


def required_features(writer_version: int, named: Collection[str]) -> set[str]:
    """Return the features that a table requires of its writers, without those of WRITER_FEATURES in a protocol before
    NAMED_FEATURES_FROM. `named`: the features that the protocol names."""
    unknown = {f"writer version {writer_version}"} if writer_version > NAMED_FEATURES_FROM else set()
    return {*named, *_LEGACY_FEATURES.get(writer_version, ()), *unknown}


def check_vectors(features: Collection[str]) -> None:
    """Check that the deletion vectors of a table can be read. `features`: features of the table. Raises
    LakePausedError."""
    if _UNREADABLE_VECTORS.issubset(features):
        raise LakePausedError(f"the table has {_VECTORS}")


def unsupported(
    features: Collection[str],
    configuration: Mapping[str, str | None],
    fields: Sequence[Any],
    *,
    rewrites: str = "",
    is_directory: bool = True,
) -> list[str]:
    """Return the features and properties that a worker cannot keep, in words. `rewrites`: the mode or command that
    replaces files with rows; empty if files are only added. `is_directory`: True if the table is in a directory, where
    a worker can commit by itself."""
    accepted = WRITER_FEATURES | (OWN_COMMIT_FEATURES if is_directory else set())
    wrong = [
        f"{name} (to drop: {_ADVICE[name]})" if name in _ADVICE else name for name in sorted(set(features) - accepted)
    ]
    if rewrites and _UNREADABLE_VECTORS.issubset(features):
        wrong.append(_VECTORS)
    if (configuration.get("delta.columnMapping.mode") or "none") != "none":
        wrong.append("column mapping")
    wrong += [f"the constraint {k.removeprefix(_CONSTRAINT)}" for k in configuration if k.startswith(_CONSTRAINT)]
    if rewrites and _is_true(configuration, "delta.appendOnly"):
        wrong.append(f"delta.appendOnly, which {rewrites} cannot keep (set it to false)")
    if rewrites and _is_true(configuration, "delta.enableChangeDataFeed"):
        wrong.append(
            f"delta.enableChangeDataFeed with {rewrites} (every row of a rewritten file would be a deletion and an "
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
    rewrites: str,
    is_directory: bool,
) -> None:
    """Check that a worker can commit to a table; see `unsupported`. Raises LakePausedError."""
    wrong = unsupported(features, configuration, fields, rewrites=rewrites, is_directory=is_directory)
    if wrong:
        raise LakePausedError(
            f"the table has features that the lake worker does not support: {', '.join(wrong)}; drop them, then use "
            "'sparklog lake resume', or 'sparklog lake rebuild' again"
        )
