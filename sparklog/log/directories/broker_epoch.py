"""broker-epoch.json, in each log directory of a broker of a cluster: the broker's lives in which its logs were written.

A life of a broker lasts from one registration with the controller to the next; its broker epoch numbers it. The file is
``{"clean": [n, …], "flushed": [n, …], "boot_id": s, "registers": false, "newest": {s: n, …}}``. `clean` and `flushed`
are broker epochs, the newest first; `boot_id` is the machine's boot; `newest` has the newest life of each log
directory, by `data_dir_id`.

The broker writes the file, atomically and durably, after each registration, and before it leads or copies a partition
in that life. All data that were fsynced in a life in `flushed` still exist. All data written in a life in `clean` still
exist: since then the broker has always been stopped cleanly, or killed on a machine that ran on
(docs/internals/decisions/0018-killed-is-not-crashed.md). If the machine has restarted after an unclean stop, `clean` is
emptied in the file when the logs are opened. The broker keeps its place in ISR and ELR (KIP-966) if the
file names the life that the controller knows. The file can name lives that no controller has seen: those that ended
while the cluster had no controller.

`registers` is true from before a registration until the new life is noted in the file. It says that nothing was written
to the directory in lives after the newest named life. An old copy of a directory lacks this mark, so its missing lives
do not count as lives without writes. The mark stays true in a directory whose disk fails while the life is noted: the
broker then stops using the directory, so nothing was written to it in that life either.

A directory that cannot be used takes no part in a life: the lives of the remaining directories count without it, and
the controller learns that its partitions are offline. The remaining directories keep its last life in `newest`. If the
directory returns and this life is the newest in its own file, nothing was written to it since. If it never returns and
is removed from log-dirs.json (`known.py`), its partitions begin empty, and the broker counts as having lost all data. A
directory that is not yet in `newest` was added to the broker, and had nothing to lose.

If a directory in `newest` has no file, its data count as lost, and so do all data of the broker: the broker copies the
missing records and joins again. The file has no checksum: an unreadable file counts as lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sparklog.environment.files import FileSystem, read_hint, read_whole
from sparklog.format.checkpoint import CLUSTER_IMAGE_FILE, META_FILE, DataDirMeta, decode, encode
from sparklog.log.directories.log_directory import LogDirectory

BROKER_EPOCH_FILE = "broker-epoch.json"
NO_EPOCH = -1
EPOCHS_KEPT = 20
"""Length limit of the lists: the life that the controller knows can be older than the newest life in the file."""


class Lives(NamedTuple):
    """Broker epochs, the newest first; the module describes `clean` and `flushed`. In lives after `last_written`
    nothing was written; NO_EPOCH: the last life with writes is not known."""

    clean: tuple[int, ...] = ()
    flushed: tuple[int, ...] = ()
    last_written: int = NO_EPOCH

    def then(self, broker_epoch: int) -> Lives:
        """Return the lives with `broker_epoch` as the newest, clean and flushed: nothing is lost in it so far."""
        clean = (broker_epoch, *(e for e in self.clean if e != broker_epoch))
        flushed = (broker_epoch, *(e for e in self.flushed if e != broker_epoch))
        return Lives(clean[:EPOCHS_KEPT], flushed[:EPOCHS_KEPT])


class _Content(Struct, frozen=True):
    clean: tuple[int, ...] = ()
    flushed: tuple[int, ...] = ()
    boot_id: str = ""
    registers: bool = False
    newest: dict[str, int] = {}

    @property
    def life(self) -> int:
        """The newest life in the file."""
        return self.flushed[0] if self.flushed else NO_EPOCH

    def was_without(self, data_dir_id: str, content: _Content) -> bool:
        """Return True if the directory `data_dir_id`, whose own file has `content`, has taken no part in any life after
        its own newest, up to the newest in this file."""
        return content.life < self.life and self.newest.get(data_dir_id) == content.life


def noted_lives(directories: Iterable[LogDirectory], *, is_whole: bool = True) -> Lives:
    """Return the lives whose data exist in all usable directories. `is_whole`: log-dirs.json names no absent directory.
    Then a directory of the last life that is missing is gone for good, and no life is returned. Raises StorageError."""
    contents = {d.data_dir_id: _read(d) for d in directories if d.failure is None}
    latest = max(contents.values(), key=lambda content: content.life, default=_Content())
    lost = [i for i in latest.newest if i not in contents or not contents[i].flushed]
    if is_whole and any(i not in contents for i in lost):
        return Lives()
    if latest.newest and not lost:
        contents = {i: content for i, content in contents.items() if content.flushed}  # the rest were added
    noted = [_lives(content, was_away=latest.was_without(i, content)) for i, content in contents.items()]
    last = [lives.last_written for lives in noted]
    return Lives(
        _common([lives.clean for lives in noted], last),
        _common([lives.flushed for lives in noted], last),
        max(last) if last and min(last) != NO_EPOCH else NO_EPOCH,
    )


def _common(lists: list[tuple[int, ...]], last_written: list[int]) -> tuple[int, ...]:
    """Return the epochs whose data each directory has: its list names the epoch, or nothing was written to the
    directory after an older epoch that its list names."""
    return tuple(
        epoch
        for epoch in sorted({epoch for named in lists for epoch in named}, reverse=True)
        if all(
            epoch in named or (last in named and epoch > last) for named, last in zip(lists, last_written, strict=True)
        )
    )[:EPOCHS_KEPT]


def _lives(content: _Content, *, was_away: bool) -> Lives:
    return Lives(content.clean, content.flushed, content.life if content.registers or was_away else NO_EPOCH)


def _read(directory: LogDirectory) -> _Content:
    """Return the content of a usable directory's file; an empty content if the file cannot be read. `clean` is emptied
    if the last stop was unclean and the machine has restarted. Raises StorageError."""
    data = read_hint(directory.files, directory.path / BROKER_EPOCH_FILE)
    content = (None if data is None else decode(data, _Content)) or _Content()
    same_boot = directory.same_boot and content.boot_id == directory.files.boot_id()
    return content if directory.started_clean or same_boot else replace(content, clean=())


def note_losses(directory: LogDirectory) -> None:
    """Empty `clean` in the directory's file if data of these lives can be lost, so that a clean stop before the next
    registration does not vouch for them. Raises StorageFullError, StorageError."""
    content = _read(directory)
    if content.flushed and not content.clean:
        _write(directory, content)


def member_of_cluster(files: FileSystem, directory: Path) -> DataDirMeta | None:
    """Return meta.json (broker and cluster) of a data directory whose metadata is in ZooKeeper. Returns None for any
    other directory, or if meta.json is missing or cannot be decoded. Raises StorageError."""
    if not files.exists(directory / CLUSTER_IMAGE_FILE):
        return None
    data = read_whole(files, directory / META_FILE)
    return None if data is None else decode(data, DataDirMeta)


def newest_life(files: FileSystem, directory: Path) -> int:
    """Return the newest broker epoch in a directory's file; NO_EPOCH without one. Raises StorageError."""
    data = read_whole(files, directory / BROKER_EPOCH_FILE)
    content = None if data is None else decode(data, _Content)
    return NO_EPOCH if content is None else max((*content.clean, *content.flushed), default=NO_EPOCH)


def note_registration(directories: Iterable[LogDirectory]) -> None:
    """Set the mark `registers`, which the module describes, in every directory with a life, before the broker
    registers. Raises StorageFullError, StorageError."""
    for directory in directories:
        content = _read(directory)
        if content.flushed:
            _write(directory, replace(content, boot_id=directory.files.boot_id(), registers=True))


def note_lives(directories: Iterable[LogDirectory], lives: Lives, away: Collection[str] = ()) -> None:
    """Write `lives` into the file of each of `directories`, which take part in the newest life. The last lives of the
    directories `away` (data_dir_ids), which take no part, stay in `newest`. Raises StorageFullError, StorageError."""
    taking_part = list(directories)
    newest: dict[str, int] = {}
    for directory in taking_part:
        for data_dir_id, life in _read(directory).newest.items():
            if data_dir_id in away:
                newest[data_dir_id] = max(life, newest.get(data_dir_id, NO_EPOCH))
    newest |= {directory.data_dir_id: lives.flushed[0] for directory in taking_part}
    for directory in taking_part:
        _write(directory, _Content(lives.clean, lives.flushed, directory.files.boot_id(), newest=newest))


def _write(directory: LogDirectory, content: _Content) -> None:
    directory.files.write_atomic(directory.path / BROKER_EPOCH_FILE, encode(content))
