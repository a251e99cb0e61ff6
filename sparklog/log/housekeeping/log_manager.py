"""All logs of a broker: their log directories, start, and stop.

Order of a start: `LogManager(...)` takes the locks, the caller opens the metadata store, and `load` opens the logs of
the partitions in the store. When a log directory fails (at the start or later), its partitions go offline, and the
partitions of the remaining directories continue.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from sparklog.environment.clock import Clock, MachineClock, SystemClock
from sparklog.environment.files import FileSystem, OddFileError, RealFiles
from sparklog.errors import SparklogError
from sparklog.format.checkpoint import META_FILE
from sparklog.log.directories.directory_set import DirectorySet
from sparklog.log.directories.log_directory import LogDirectory
from sparklog.log.directories.placement import place_of_registered
from sparklog.log.directories.remembered import RememberedDirectories
from sparklog.log.directories.strays import put_others_aside, take_back_strays
from sparklog.log.housekeeping.checkpoints import Checkpoints
from sparklog.log.housekeeping.directory_failures import DirectoryFailures
from sparklog.log.housekeeping.expiry_clock import ExpiryClock
from sparklog.log.housekeeping.log_opener import LogOpener, PartitionSpec
from sparklog.log.housekeeping.log_table import LogTable
from sparklog.log.housekeeping.partition_creation import PartitionCreation
from sparklog.log.housekeeping.partition_removal import PartitionRemoval
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.log.segments.slices import HandleCache
from sparklog.log.tiering.partition_tier import NO_ACCESS
from sparklog.log.tiering.remote_segment import RemoteAccess

__all__ = ["LogManager"]

logger = logging.getLogger(__name__)


class LogManager:
    """The logs of all log directories. It opens and closes them; its parts have one job each, and share `table`, the
    partitions, and `directories`."""

    def __init__(
        self,
        data_dir: Path,
        *,
        log_dirs: Sequence[Path] = (),
        files: FileSystem | None = None,
        clock: MachineClock | None = None,
        expiry_rate: int | None = None,
        broker_id: int = 0,
        handles: HandleCache | None = None,
        inflated: InflatedMemory | None = None,
        remote: RemoteAccess = NO_ACCESS,
    ) -> None:
        """Create the directories that do not exist, and lock all of them.

        `log_dirs` hold the partitions; if it is empty, `data_dir` does. A log directory that cannot be used counts as
        failed. `expiry_rate`: rate of the expiry clock (`housekeeping/expiry_clock.py`); None: ages are measured with
        `clock`.

        Raises DataDirLockedError, and StorageError if no log directory can be used, or if `data_dir` is not one of them
        and cannot be used.
        """
        self.data_dir = data_dir.absolute()
        self.broker_id = broker_id
        self.remote = remote
        files, clock = files or RealFiles(), clock or SystemClock()
        self._loaded = False
        self._remembered_directories = RememberedDirectories(files, self.data_dir)
        paths = [path.absolute() for path in log_dirs] or [self.data_dir]
        self.directories = DirectorySet(self.data_dir, paths, files, broker_id)
        self.was_used = any(map(_has_meta, self.directories.live))
        """True if a usable log directory was used before: it has a meta.json."""
        self.expiry_clock: Clock = clock
        if expiry_rate is not None:
            try:
                self.expiry_clock = ExpiryClock(
                    clock, files, self.data_dir, rate=expiry_rate, uptime_ms=clock.uptime_ms
                )
            except SparklogError:
                self.directories.unlock()
                raise
        self._opener = LogOpener(
            clock,
            self.expiry_clock,
            HandleCache() if handles is None else handles,
            InflatedMemory() if inflated is None else inflated,
            remote,
        )
        self.table = table = LogTable()
        self.failures = DirectoryFailures(table, self.directories)
        self.checkpoints = Checkpoints(table, self.directories)
        self.creation = PartitionCreation(table, self.directories, self.checkpoints, self._opener)
        self.removal = PartitionRemoval(table, self.directories, self.checkpoints)

    # --- start ---

    def load(
        self,
        cluster_id: str,
        specs: Iterable[PartitionSpec],
        deleted: Collection[str] = (),
        *,
        puts_aside: bool = False,
    ) -> None:
        """Open the logs of `specs`. A log that cannot be opened goes offline with its error, and loading continues.
        Directories of the `deleted` topics (ids) are moved aside, and `PartitionRemoval.purge` unlinks them. With
        `puts_aside`, a directory that belongs to another topic of the same name is put aside, and a directory that was
        put aside is taken back if its topic is in `specs`. Without, a directory of another topic takes the partition
        offline.

        Raises StorageError if a directory belongs to another broker or cluster, or if no directory can be used.
        """
        self._load_directories(cluster_id)
        present = self.directories.by_id()
        self._remembered_directories.compare(present)
        places = self.directories.with_partitions()
        if deleted:
            places = self.directories.without_deleted(places, deleted)
        specs = list(specs)
        if puts_aside:
            put_others_aside(places, [spec.owner for spec in specs])
            missing = [spec.owner for spec in specs if spec.owner.directory_name not in places]
            restored = take_back_strays(self.directories.live, missing)
            places |= {name: [directory] for name, directory in restored.items()}
        for spec in specs:
            self._load_partition(spec, places.pop(spec.owner.directory_name, []))
        for name, directories in places.items():
            for directory in directories:
                logger.warning("%s belongs to no topic and is left unchanged", directory.path / name)
        self._loaded = True
        placed = self.table.partition_counts().total() == len(specs) and not self.directories.failed
        self._remembered_directories.remember(present, is_complete=placed)
        self.checkpoints.note_boots()
        self.failures.settle()
        self.directories.require_one()
        self.save_expiry_clock()  # the machine can crash before the first flush, and start again with another time

    def _load_directories(self, cluster_id: str) -> None:
        for directory in self.directories.live:
            try:
                directory.load(cluster_id)
            except OddFileError as e:
                directory.health.fail(e)  # no readable file says which broker it belongs to
            except SparklogError:
                if directory.failure is None:
                    raise
        self.directories.require_one()

    def _load_partition(self, spec: PartitionSpec, candidates: list[LogDirectory]) -> None:
        tp, was_created = spec.owner.topic_partition, spec.was_created
        if was_created is None:
            was_created = any(d.points_of(spec.owner) is not None for d in self.directories.live)
        try:
            directory = place_of_registered(
                spec.owner,
                candidates,
                self.directories.all,
                self._remembered_directories,
                lambda: self.table.by_partitions(self.directories.live),
                was_created=was_created,
            )
            self.table.place(tp, directory)
            self.table.add(tp, directory, self._opener.load(spec, directory, was_created=was_created))
        except SparklogError as e:
            logger.error("partition %s is offline: %s", tp, e)  # noqa: TRY400  (its message says it all)
            self.table.take_offline(tp, e)

    # --- present state ---

    @property
    def has_all_directories(self) -> bool:
        """True if every log directory in the setting or in log-dirs.json is present and usable. Valid after `load`."""
        return not self.directories.failed and not self._remembered_directories.has_absent

    @property
    def directories_away(self) -> frozenset[str]:
        """Ids of the known log directories that have failed or are absent, and can come back. Valid after `load`."""
        return self._remembered_directories.ids - {d.data_dir_id for d in self.directories.live}

    @property
    def started_clean(self) -> bool:
        """True if the last stop of every directory was clean."""
        return all(d.started_clean for d in self.directories.all)

    def save_expiry_clock(self) -> None:
        """Save the expiry clock, so that a restart does not trust a wall clock that has jumped. Raises StorageError if
        the data directory is not the locked one any more."""
        if isinstance(self.expiry_clock, ExpiryClock) and self.data_dir not in self.directories.failed:
            self.directories.look_at_data_dir()
            self.expiry_clock.save()

    # --- stop ---

    def close(self) -> bool:
        """Seal and fsync all logs, write the checkpoints and the clean-shutdown marks, and unlock the directories.

        Returns True if everything succeeded. Failures are logged, and the next start scans the logs concerned. If
        `load` has not succeeded, no checkpoints and no marks are written.
        """
        unclean = set(self.table.offline)
        try:
            for tp, log in self.table.logs.items():
                try:
                    log.close()
                except SparklogError as e:
                    logger.error("partition %s could not be closed cleanly: %s", tp, e)  # noqa: TRY400
                    unclean.add(tp)
            if self._loaded:
                self.checkpoints.write()
                self.checkpoints.write_clean_marks(unclean)
        except SparklogError as e:
            logger.error("%s could not be closed cleanly: %s", self.data_dir, e)  # noqa: TRY400
            return False
        finally:
            self.directories.unlock()
        return not unclean and not self.directories.failed


def _has_meta(directory: LogDirectory) -> bool:
    try:
        return directory.files.exists(directory.path / META_FILE)
    except OddFileError:
        return True  # something is there
