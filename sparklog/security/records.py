"""Security records: the cluster's users, ACLs, quotas and secrets, as bytes under a kind and a key.

The metadata store keeps the records without knowledge of their content, which the module of each kind defines. A change
is a set of records that are stored together or not at all. The module of a kind chooses the keys: a user's name, or a
digest if names can be long.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from sparklog.errors import InvalidConfigError, PolicyViolationError

KEY_CHARS_MAX = 1_024
VALUE_BYTES_MAX = 65_536
RECORDS_MAX = 20_000
BYTES_MAX = 4 * 1024 * 1024
"""Largest size of all records together, in bytes. A broker that joins gets them with the cluster's image, in one
answer."""
CHANGES_MAX = 1_000
CHANGE_BYTES_MAX = 512 * 1024
"""Largest size of one change in bytes. ZooKeeper accepts about a megabyte in one transaction."""


class RecordKind(StrEnum):
    """Kinds of security records. The records of a kind can be watched separately."""

    USERS = "users"
    ACLS = "acls"
    QUOTAS = "quotas"
    SECRETS = "secrets"


class RecordId(NamedTuple):
    """The id of a security record. `kind` is the text of a `RecordKind`."""

    kind: str
    key: str


Records = Mapping[RecordId, bytes]
RecordChanges = Mapping[RecordId, bytes | None]
"""New values of records by their ids. None removes the record; removing a missing record is no error."""


def of_kind(records: Records, kind: RecordKind) -> dict[str, bytes]:
    """Return the records of one kind, by their keys."""
    return {name.key: value for name, value in records.items() if name.kind == kind}


def size_of(changes: Records | RecordChanges) -> int:
    """Return the size in bytes of keys and values, which the limits count."""
    return sum(len(name.key.encode("utf-8", "surrogatepass")) + len(value or b"") for name, value in changes.items())


def settled(before: Records, changes: RecordChanges) -> RecordChanges:
    """Return the changes without new values for secrets that are stored already. So if several brokers create a secret
    at the same time, the first value is kept, and values derived from it stay valid."""
    return {
        name: value
        for name, value in changes.items()
        if value is None or name.kind != RecordKind.SECRETS or name not in before
    }


def check_changes(before: Records, changes: RecordChanges) -> None:
    """Check changes to the records `before`. Raises InvalidConfigError for an impossible record, PolicyViolationError
    if the change or the result would be too large."""
    if len(changes) > CHANGES_MAX or size_of(changes) > CHANGE_BYTES_MAX:
        raise PolicyViolationError(
            f"{len(changes)} security records with {size_of(changes)} bytes at once; change at most {CHANGES_MAX} with "
            f"{CHANGE_BYTES_MAX} bytes at a time"
        )
    kinds = set(RecordKind)
    for name, value in changes.items():
        if name.kind not in kinds:
            raise InvalidConfigError(f"unknown kind of security record {name.kind[:64]!r}; use {', '.join(kinds)}")
        if not name.key or len(name.key) > KEY_CHARS_MAX or not name.key.isprintable():
            raise InvalidConfigError(f"a security record's key is 1 to {KEY_CHARS_MAX} printable characters")
        if value is not None and len(value) > VALUE_BYTES_MAX:
            raise InvalidConfigError(f"a security record of {len(value)} bytes; at most {VALUE_BYTES_MAX} are kept")
    if any(value is not None for value in changes.values()):
        after = {name: value for name, value in {**before, **changes}.items() if value is not None}
        if len(after) > RECORDS_MAX or size_of(after) > BYTES_MAX:
            raise PolicyViolationError(
                f"{len(after)} security records with {size_of(after)} bytes; {RECORDS_MAX} with {BYTES_MAX} bytes are "
                "kept: remove some, or replace several by one (prefixed ACLs, quotas of the default user)"
            )
