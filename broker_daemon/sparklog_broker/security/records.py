"""The broker's copy of the security records, with durable changes and watchers by kind."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from sparklog.security.records import RecordChanges, RecordId, RecordKind, Records, of_kind

log = logging.getLogger(__name__)

Watcher = Callable[[Mapping[str, bytes | None]], None]
"""Called with the changed records of one kind, by key; None for a deleted record."""


class SecurityRecords:
    """The present security records. Each image updates them through `follow`. Event-loop thread only."""

    def __init__(self, records: Records, change: Callable[[RecordChanges], Awaitable[None]]) -> None:
        """`records`: the records at the broker's start. `change`: see the attribute."""
        self._records = records
        self._watchers: list[tuple[RecordKind, Watcher]] = []
        self.change = change
        """Makes all changes or none, on the controller. When it returns, they are stored and in effect on this broker.
        Raises InvalidConfigError, PolicyViolationError (too many records), StorageError, NotControllerError,
        RequestTimedOutError (the changes may have been made)."""

    def of_kind(self, kind: RecordKind) -> dict[str, bytes]:
        """Return the records of one kind, by key."""
        return of_kind(self._records, kind)

    def watch(self, kind: RecordKind, watcher: Watcher) -> None:
        """Call `watcher` now if there are records of `kind`, and with each later change before `change` returns."""
        self._watchers.append((kind, watcher))
        if present := self.of_kind(kind):
            self._notify(watcher, kind, present)

    def follow(self, records: Records) -> None:
        """Apply the records of a new image."""
        before, self._records = self._records, records
        if before is records:
            return
        names = {*before, *records}
        changed = {name: records.get(name) for name in names if before.get(name) != records.get(name)}
        for kind, watcher in self._watchers:
            if of_it := _of_kind(changed, kind):
                self._notify(watcher, kind, of_it)

    def _notify(self, watcher: Watcher, kind: RecordKind, changes: Mapping[str, bytes | None]) -> None:
        try:
            watcher(changes)
        except Exception:
            log.exception("a change of %s records is not in effect", kind)


def _of_kind(changes: Mapping[RecordId, bytes | None], kind: RecordKind) -> dict[str, bytes | None]:
    return {name.key: value for name, value in changes.items() if name.kind == kind}
