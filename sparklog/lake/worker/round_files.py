"""Files of a round that are not part of the table yet, and their removal after a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

import pyarrow as pa

from sparklog.lake.delta_commit import DeltaCommitter
from sparklog.lake.delta_snapshot import DeltaSnapshot
from sparklog.lake.parquet_files import DataFile, DataFileWriter


class RoundFiles:
    """The files of one round."""

    def __init__(self, committer: DeltaCommitter) -> None:
        """Create an empty set of files. `committer`: writes and removes the files."""
        self._committer = committer
        self.complete: list[DataFile] = []
        """Files that are complete."""
        self.has_tried = False
        """True after an attempt to commit the files."""
        self._open: DataFileWriter | None = None

    @contextmanager
    def writer(self, schema: pa.Schema, file_bytes: int, name: str) -> Iterator[DataFileWriter]:
        """Yield a writer of further files; see `DeltaCommitter.writer`. The files are complete at the end of the block.
        After an error in the block they stay open."""
        self._open = self._committer.writer(schema, file_bytes, name)
        yield self._open
        self.complete += self._open.close()
        self._open = None

    def abandon(self) -> None:
        """Delete the files of this round. It must not be called after an attempt to commit them."""
        paths = [f.path for f in self.complete]
        if self._open is not None:
            paths += self._open.abandon()
        self._committer.remove_files(paths)
        self.complete, self._open = [], None

    def close(self) -> None:
        """Delete the files after an error. After an attempt to commit them complete files stay, because a commit of
        unknown outcome has perhaps added them to the table."""
        if not self.has_tried:
            self.abandon()
        elif self._open is not None:
            self._committer.remove_files(self._open.abandon())
            self._open = None

    def discard(self, newest: DeltaSnapshot) -> None:
        """Delete the files of a commit that the library has refused, unless the newest version has them all the
        same."""
        if not self.are_in(newest):
            self.has_tried = False
            self.abandon()

    def replace_after_conflict(self, winner: DeltaSnapshot | None) -> None:
        """Forget the files, so that the next attempt writes others. `winner`: the version that another writer has made
        instead of this round; None if there is none. Without the files it proves that no version will ever have them,
        and they are deleted."""
        is_void = winner is not None and not self.are_in(winner)
        if is_void:
            self._committer.remove_files([f.path for f in self.complete])
        self.complete, self.has_tried = [], not is_void

    def are_in(self, table: DeltaSnapshot) -> bool:
        """Return True if a version of the table has a file of this round."""
        return not {unquote(f.path) for f in table.files()}.isdisjoint(f.path for f in self.complete)
