"""broker-epoch.json, in each log directory of a broker of a cluster: in which life its logs were written to last.

``{"broker_epoch": n}`` is written, atomically and durably, after each registration and before anything is led or
copied. Together with the mark of a clean stop it tells the controller whether everything is still there that this life
had: only then the broker keeps its place in ISR and ELR (KIP-966). If the file is lost, the broker counts as crashed:
it copies what it lacks and joins again. No checksum: what cannot be read counts as lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from sparklog.environment.files import read_whole
from sparklog.format.checkpoint import decode, encode
from sparklog.log.directories.log_directory import LogDirectory

BROKER_EPOCH_FILE = "broker-epoch.json"
NO_EPOCH = -1


class _Content(Struct, frozen=True):
    broker_epoch: int


def noted_epoch(directories: Iterable[LogDirectory]) -> int:
    """The epoch that all directories agree on, -1 if they do not, or one has failed. Raises StorageError."""
    found = {_noted(directory) for directory in directories}
    return found.pop() if len(found) == 1 else NO_EPOCH


def _noted(directory: LogDirectory) -> int:
    if directory.failure is not None:
        return NO_EPOCH
    data = read_whole(directory.files, directory.path / BROKER_EPOCH_FILE)
    content = None if data is None else decode(data, _Content)
    return NO_EPOCH if content is None else content.broker_epoch


def note_epoch(directories: Iterable[LogDirectory], broker_epoch: int) -> None:
    """Raises StorageFullError, StorageError."""
    for directory in directories:
        directory.files.write_atomic(directory.path / BROKER_EPOCH_FILE, encode(_Content(broker_epoch)))
