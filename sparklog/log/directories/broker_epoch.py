"""broker-epoch.json, in each log directory of a broker of a cluster: in which lives its logs were written to.

``{"clean": [n, …], "flushed": [n, …], "boot_id": s, "registers": false}``, broker epochs, the newest first, and the
machine's boot, is written, atomically and durably, after each registration and before anything is led or copied in
that life. Of a life in `flushed` everything is there that was fsynced; of one in `clean` everything: since then the
broker has always been stopped cleanly, or killed on a machine that ran on
(docs/internals/decisions/0018-killed-is-not-crashed.md). The broker keeps its place in ISR and ELR (KIP-966) if the
life that the controller knows of is named. A life may be missing there: the controller knows of none that ended before
there was one.

`registers` is true from before a registration until the life is noted: in lives after the newest one that is named
nothing was written. An old copy of a directory does not say so, so nobody takes it for a life that wrote nothing. It
stays true in a directory whose disk fails while the life is noted: the broker gives up then, in that life too nothing
was written anywhere.

A directory without the file has lost everything, and with it the broker: it copies what it lacks and joins again.
No checksum: what cannot be read counts as lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from sparklog.environment.files import FileSystem, read_whole
from sparklog.format.checkpoint import META_FILE, DataDirMeta, decode, encode
from sparklog.log.directories.log_directory import LogDirectory

BROKER_EPOCH_FILE = "broker-epoch.json"
NO_EPOCH = -1
EPOCHS_KEPT = 20
"""Lives between two controllers that have seen the broker."""


class Lives(NamedTuple):
    """Broker epochs, the newest first; see the module. In lives after `last_written` nothing was written; NO_EPOCH:
    that is not known."""

    clean: tuple[int, ...] = ()
    flushed: tuple[int, ...] = ()
    last_written: int = NO_EPOCH

    def then(self, broker_epoch: int) -> Lives:
        """With one life more, in which nothing was lost so far."""
        clean = (broker_epoch, *(e for e in self.clean if e != broker_epoch))
        flushed = (broker_epoch, *(e for e in self.flushed if e != broker_epoch))
        return Lives(clean[:EPOCHS_KEPT], flushed[:EPOCHS_KEPT])


class _Content(Struct, frozen=True):
    clean: tuple[int, ...]
    flushed: tuple[int, ...]
    boot_id: str = ""
    registers: bool = False


def noted_lives(directories: Iterable[LogDirectory]) -> Lives:
    """What all directories agree on; nothing if one has failed. Raises StorageError."""
    noted = [_noted(directory) for directory in directories]
    last = [lives.last_written for lives in noted]
    return Lives(
        _common([lives.clean for lives in noted], last),
        _common([lives.flushed for lives in noted], last),
        max(last) if last and min(last) != NO_EPOCH else NO_EPOCH,
    )


def _common(lists: list[tuple[int, ...]], last_written: list[int]) -> tuple[int, ...]:
    """The epochs of which each directory has everything: they are named there, or nothing was written to it since one
    that is."""
    return tuple(
        epoch
        for epoch in sorted({epoch for named in lists for epoch in named}, reverse=True)
        if all(
            epoch in named or (last in named and epoch > last) for named, last in zip(lists, last_written, strict=True)
        )
    )[:EPOCHS_KEPT]


def _noted(directory: LogDirectory) -> Lives:
    if directory.failure is not None:
        return Lives()
    data = read_whole(directory.files, directory.path / BROKER_EPOCH_FILE)
    content = None if data is None else decode(data, _Content)
    if content is None:
        return Lives()
    same_boot = directory.same_boot and content.boot_id == directory.files.boot_id()
    last_written = content.flushed[0] if content.registers and content.flushed else NO_EPOCH
    return Lives(content.clean if directory.started_clean or same_boot else (), content.flushed, last_written)


def member_of_cluster(files: FileSystem, directory: Path) -> DataDirMeta | None:
    """Whose directory it is, if it is one of a cluster's broker. Raises StorageError."""
    if not files.exists(directory / BROKER_EPOCH_FILE):
        return None
    data = read_whole(files, directory / META_FILE)
    return None if data is None else decode(data, DataDirMeta)


def note_registration(directories: Iterable[LogDirectory]) -> None:
    """A life is about to begin, in which nothing is written before it is noted. Raises StorageFullError,
    StorageError."""
    for directory in directories:
        lives = _noted(directory)
        if lives.flushed:
            _write(directory, lives, registers=True)


def note_lives(directories: Iterable[LogDirectory], lives: Lives) -> None:
    """Raises StorageFullError, StorageError."""
    for directory in directories:
        _write(directory, lives, registers=False)


def _write(directory: LogDirectory, lives: Lives, *, registers: bool) -> None:
    content = _Content(lives.clean, lives.flushed, directory.files.boot_id(), registers)
    directory.files.write_atomic(directory.path / BROKER_EPOCH_FILE, encode(content))
