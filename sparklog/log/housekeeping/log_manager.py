"""All logs of a broker: their log directories, start, checkpoints, failing disks, and stop.

Order of a start: `LogManager(...)` takes the locks, the caller opens the metadata store, and `load` opens the logs of
the partitions in the store. When a log directory fails (at the start or later), its partitions go offline, and the
partitions of the remaining directories continue.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from sparklog.environment.clock import Clock, MachineClock, SystemClock
from sparklog.environment.files import FileSystem, OddFileError, RealFiles, read_whole
from sparklog.errors import (
    SparklogError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.checkpoint import META_FILE, PartitionMeta, PartitionPoints
from sparklog.format.topic_record import TOPIC_FILE
from sparklog.log.directories.broker_epoch import note_losses
from sparklog.log.directories.directory_set import DirectorySet
from sparklog.log.directories.log_directory import (
    DELETED_ENDING,
    REMOVED_ENDING,
    STRAY_ENDING,
    LogDirectory,
    make_new_partitions,
)
from sparklog.log.directories.placement import place_of_registered, places_for_new
from sparklog.log.directories.remembered import RememberedDirectories
from sparklog.log.housekeeping.expiry_clock import ExpiryClock
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog
from sparklog.log.segments.slices import HandleCache
from sparklog.log.segments.stored_schema import SchemaOf
from sparklog.log.tiering.partition_tier import NO_ACCESS
from sparklog.log.tiering.remote_segment import RemoteAccess
from sparklog.types import TopicPartition

__all__ = ["DirectoryFailure", "LogManager", "PartitionSpec"]

logger = logging.getLogger(__name__)


class PartitionSpec(Struct, frozen=True):
    """A partition that should have a log here. `schema_of` gives the topic's schema for an id (KeyError: unknown)."""

    owner: LogOwner
    config: LogConfig
    schema_of: SchemaOf
    newest_schema_id: int = 1
    was_created: bool | None = False
    """True if the partition's directory was created before: a missing directory is then a loss, and is not created
    again. None: as True if a checkpoint names the partition, else as False."""


class DirectoryFailure(Struct, frozen=True):
    """A log directory that has failed, its error, and the partitions that are offline because of the failure."""

    path: Path
    error: StorageError
    partitions: tuple[TopicPartition, ...]


class LogManager:
    """The logs of all log directories. Methods that change something must be called by only one thread at a time."""

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
        self._files = files or RealFiles()
        self._clock: MachineClock = clock or SystemClock()
        self._handles = HandleCache() if handles is None else handles
        self._inflated = InflatedMemory() if inflated is None else inflated
        self._remote = self.remote = remote
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._offline: dict[TopicPartition, SparklogError] = {}
        self._place: dict[TopicPartition, LogDirectory] = {}
        self._checkpoint_lock = threading.Lock()
        self._loaded = False
        self._without_mark: set[Path] = set()
        """Directories without room to note that data of earlier lives can be lost; they get no mark of a clean stop."""
        self._settled: set[Path] = set()
        """Failed directories whose partitions have been taken offline."""
        self.on_directory_failure: Callable[[], None] = lambda: None
        """Called when a directory has failed, by the thread that notices the failure. It must not wait; it makes
        another thread call `settle_failures`."""
        self._remembered_directories = RememberedDirectories(self._files, self.data_dir)
        paths = [path.absolute() for path in log_dirs] or [self.data_dir]
        self.directories = DirectorySet(
            self.data_dir, paths, self._files, broker_id, lambda: self.on_directory_failure()
        )
        self.was_used = any(map(_has_meta, self.directories.live))
        """True if a usable log directory was used before: it has a meta.json."""
        self.expiry_clock: Clock = self._clock
        if expiry_rate is not None:
            try:
                self.expiry_clock = ExpiryClock(
                    self._clock, self._files, self.data_dir, rate=expiry_rate, uptime_ms=self._clock.uptime_ms
                )
            except SparklogError:
                self.directories.unlock()
                raise

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
        Directories of the `deleted` topics (ids) are moved aside, and `purge_deleted` unlinks them. With `puts_aside`,
        a directory that belongs to another topic of the same name is put aside, and a directory that was put aside is
        taken back if its topic is in `specs`. Without, a directory of another topic takes the partition offline.

        Raises StorageError if a directory belongs to another broker or cluster, or if no directory can be used.
        """
        for directory in self.directories.live:
            try:
                directory.load(cluster_id)
            except OddFileError as e:
                directory.health.fail(e)  # no readable file says which broker it belongs to
            except SparklogError:
                if directory.failure is None:
                    raise
        self.directories.require_one()
        present = self.directories.by_id()
        self._remembered_directories.compare(present)
        places = self.directories.with_partitions()
        if deleted:
            places = self.directories.without_deleted(places, deleted)
        specs = list(specs)
        if puts_aside:
            self._put_others_aside(places, specs)
            for directory, spec in self._take_back(spec for spec in specs if spec.owner.directory_name not in places):
                places[spec.owner.directory_name] = [directory]
        for spec in specs:
            self._load_partition(spec, places.pop(spec.owner.directory_name, []))
        for name, directories in places.items():
            for directory in directories:
                logger.warning("%s belongs to no topic and is left unchanged", directory.path / name)
        self._loaded = True
        placed = len(self._place) == len(specs) and not self.directories.failed
        self._remembered_directories.remember(present, is_complete=placed)
        self.directories.in_each(self._note_boot)
        self.settle_failures()
        self.directories.require_one()
        self.save_expiry_clock()  # the machine can crash before the first flush, and start again with another time

    def _put_others_aside(self, places: dict[str, list[LogDirectory]], specs: Iterable[PartitionSpec]) -> None:
        for spec in specs:
            name = spec.owner.directory_name
            for directory in list(places.get(name, ())):
                if directory.is_clean(name) and directory.points_of(spec.owner) is not None:
                    continue  # the checkpoint of the stop knows it, and saves reading a file of each partition
                owner = directory.owner_of(name)
                if owner is not None and owner.topic_id != spec.owner.topic_id:
                    logger.warning(
                        "%s belongs to another topic (id %s) and is put aside", directory.path / name, owner.topic_id
                    )
                    directory.move_aside(name, STRAY_ENDING)
                    places[name].remove(directory)
            if name in places and not places[name]:
                del places[name]

    def _take_back(self, specs: Iterable[PartitionSpec]) -> Iterator[tuple[LogDirectory, PartitionSpec]]:
        """Rename directories that were put aside back to their names, if they belong to `specs`. Yields each log
        directory with its spec."""
        strays = [(directory, directory.strays()) for directory in self.directories.live]
        if not any(its for _, its in strays):
            return
        for spec in specs:
            key = spec.owner.topic_id, spec.owner.partition
            place = next(((directory, its[key]) for directory, its in strays if key in its), None)
            if place is not None:
                place[0].take_back(spec.owner, place[1])
                yield place[0], spec

    @property
    def put_aside(self) -> int:
        """Number of partition directories that are put aside, in all usable log directories. Raises StorageError."""
        return sum(directory.count_strays() for directory in self.directories.live)

    def _note_boot(self, directory: LogDirectory) -> None:
        if directory.same_boot:
            return
        self._without_mark.add(directory.path)
        try:
            note_losses(directory)
            self._without_mark.remove(directory.path)
            with self._checkpoint_lock:
                self._checkpoint(directory)
            directory.note_boot()
        except StorageFullError as e:
            logger.warning("%s: the time of the machine's start could not be stored: %s", directory.path, e)

    @property
    def has_all_directories(self) -> bool:
        """True if every log directory in the setting or in log-dirs.json is present and usable. Valid after `load`."""
        return not self.directories.failed and not self._remembered_directories.has_absent

    @property
    def directories_away(self) -> frozenset[str]:
        """Ids of the known log directories that have failed or are absent, and can come back. Valid after `load`."""
        return self._remembered_directories.ids - {d.data_dir_id for d in self.directories.live}

    def _load_partition(self, spec: PartitionSpec, candidates: list[LogDirectory]) -> None:
        tp, was_created = spec.owner.topic_partition, spec.was_created
        if was_created is None:
            was_created = any(d.failure is None and d.points_of(spec.owner) is not None for d in self.directories.all)
        try:
            directory = place_of_registered(
                spec.owner,
                candidates,
                self.directories.all,
                self._remembered_directories,
                self._by_partitions,
                was_created=was_created,
            )
            self._place[tp] = directory
            self._logs[tp] = self._open(spec, directory, was_created=was_created)
        except SparklogError as e:
            logger.error("partition %s is offline: %s", tp, e)  # noqa: TRY400  (its message says it all)
            self._offline[tp] = e

    def _by_partitions(self) -> list[LogDirectory]:
        """Return the usable log directories, sorted by their numbers of partitions, then in the order of the
        setting."""
        counts = self._partition_counts()
        return sorted(self.directories.live, key=lambda d: counts[d.path])

    def _partition_counts(self) -> Counter[Path]:
        return Counter(d.path for d in self._place.values())

    def _open(self, spec: PartitionSpec, directory: LogDirectory, *, was_created: bool) -> PartitionLog:
        registered = directory.points_of(spec.owner)
        points = registered or PartitionPoints(spec.owner.topic_id, 0, 0, 0)
        return PartitionLog.open(
            directory.path / spec.owner.directory_name,
            spec.owner,
            spec.config,
            spec.schema_of,
            files=directory.files,
            clock=self._clock,
            expiry_clock=self.expiry_clock,
            clean=directory.is_clean(spec.owner.directory_name),
            log_start_offset=points.log_start_offset,
            high_watermark=points.high_watermark,
            recovery_point=points.recovery_point,
            handles=self._handles,
            inflated=self._inflated,
            newest_schema_id=spec.newest_schema_id,
            remote=self._remote,
            was_created=was_created,
            same_boot=directory.same_boot,
            checkpointed=registered is not None,
        )

    # --- present state ---

    @property
    def data_dir_id(self) -> str:
        """The id of the first log directory. Known after `load`."""
        return self.directories.all[0].data_dir_id

    @property
    def log_dirs(self) -> list[Path]:
        """The log directories, failed ones too, in the order of the setting."""
        return [d.path for d in self.directories.all]

    @property
    def started_clean(self) -> bool:
        """True if the last stop of every directory was clean."""
        return all(d.started_clean for d in self.directories.all)

    @property
    def logs(self) -> dict[TopicPartition, PartitionLog]:
        """The logs that are open (a copy)."""
        return dict(self._logs)

    @property
    def offline(self) -> dict[TopicPartition, SparklogError]:
        """The partitions that could not be opened, or whose directory has failed, with the reason (a copy)."""
        return dict(self._offline)

    def get(self, tp: TopicPartition) -> PartitionLog:
        """Return the partition's log. Raises UnknownTopicOrPartitionError, or the error that took the partition
        offline."""
        log = self._logs.get(tp)
        if log is None:
            offline = self._offline.get(tp)
            if offline is not None:
                raise type(offline)(str(offline))
            raise UnknownTopicOrPartitionError(f"no partition {tp} here")
        return log

    def location_of(self, tp: TopicPartition) -> tuple[Path, str]:
        """Return the log directory the partition is in, and that directory's id. Raises
        UnknownTopicOrPartitionError."""
        directory = self._place.get(tp)
        if directory is None:
            raise UnknownTopicOrPartitionError(f"no partition {tp} here")
        return directory.path, directory.data_dir_id

    def partitions_in(self, paths: Collection[Path]) -> list[TopicPartition]:
        """Return the partitions whose log is in one of the log directories."""
        return [tp for tp, directory in self._place.copy().items() if directory.path in paths]

    def expire_producers(self, expiration_ms: int) -> int:
        """Make every log forget the producers that have written nothing for `expiration_ms`, and return their
        number."""
        now_ms = self.expiry_clock.now_ms()
        return sum(log.appender.expire_producers(now_ms, expiration_ms) for log in self.logs.values())

    # --- topics ---

    def create_partitions(self, specs: Iterable[PartitionSpec], *, take_back: bool = False) -> None:
        """Create the partitions like `create_partition`. Their directories are created together, which takes far fewer
        fsyncs; if that fails, one after the other. `take_back`: a partition whose directory was put aside gets this
        directory back.

        Raises StorageFullError, StorageError, LogCorruptError.
        """
        specs = [spec for spec in specs if spec.owner.topic_partition not in self._logs]
        self.directories.in_each(self._forget_stale_points)
        if take_back:
            list(self._take_back(specs))
        places = make_new_partitions(self.directories.live, self._partition_counts(), [spec.owner for spec in specs])
        for spec in specs:
            directory = places.get(spec.owner.directory_name)
            if directory is None:
                self.create_partition(spec)
            else:
                others = [d for d in self.directories.live if d is not directory]
                self._create_in_one_of([directory, *others], spec)

    def create_partition(self, spec: PartitionSpec) -> PartitionLog:
        """Create an empty log in the log directory with the fewest partitions; if that fails, in the next. Returns the
        log that is open already, if there is one. A directory that an earlier attempt left is used. A directory of
        another topic of the same name is moved aside, not deleted.

        Raises StorageFullError, StorageError, LogCorruptError.
        """
        tp = spec.owner.topic_partition
        if tp in self._logs:
            return self._logs[tp]
        return self._create_in_one_of(places_for_new(spec.owner, self._by_partitions()), spec)

    def _create_in_one_of(self, directories: list[LogDirectory], spec: PartitionSpec) -> PartitionLog:
        tp = spec.owner.topic_partition
        error: SparklogError = StorageError("no log directory can be used")
        for directory in directories:
            try:
                log = self._create_in(directory, spec)
            except (StorageError, StorageFullError) as e:
                logger.warning("partition %s cannot be created in %s: %s", tp, directory.path, e)
                error = e
            else:
                self._place[tp], self._logs[tp] = directory, log
                self._offline.pop(tp, None)
                return log
        raise type(error)(str(error)) from error

    def _create_in(self, directory: LogDirectory, spec: PartitionSpec) -> PartitionLog:
        """Create a partition in a log directory. After a failure, the partition's directory is removed, unless it has
        segments or the disk has failed."""
        path = directory.path / spec.owner.directory_name
        self._forget_stale_points(directory)
        registered = directory.points_of(spec.owner) if directory.files.exists(path) else None
        points = registered or PartitionPoints(spec.owner.topic_id, 0, 0, 0)
        try:
            log = PartitionLog.open(
                path,
                spec.owner,
                spec.config,
                spec.schema_of,
                files=directory.files,
                clock=self._clock,
                expiry_clock=self.expiry_clock,
                clean=directory.is_clean(path.name) if registered else not directory.was_put_aside(path.name),
                log_start_offset=points.log_start_offset,
                high_watermark=points.high_watermark,
                recovery_point=points.recovery_point,
                handles=self._handles,
                inflated=self._inflated,
                newest_schema_id=spec.newest_schema_id,
                remote=self._remote,
            )
        except (StorageError, StorageFullError):
            if directory.failure is None and directory.files.exists(path) and not directory.has_segments(path.name):
                directory.files.remove_tree(path)
            raise
        return log

    def write_topic_record(self, tp: TopicPartition, content: bytes) -> None:
        """Write topic.json (`format/topic_record.py`) beside the segments of partition `tp`, unless the file has that
        content already. Does nothing for an offline partition. Raises StorageFullError, StorageError."""
        directory = self._place.get(tp)
        if directory is None or tp not in self._logs:
            return
        path = directory.path / str(tp) / TOPIC_FILE
        if read_whole(directory.files, path) != content:
            directory.files.write_atomic(path, content)

    def delete_partition(self, tp: TopicPartition) -> None:
        """Close the partition's log and move its directory aside; the next `purge_deleted` unlinks the files. An
        unknown partition is ignored. Files in a failed log directory stay; when the disk returns, they belong to no
        topic. Raises StorageError.
        """
        log = self._logs.pop(tp, None)
        self._offline.pop(tp, None)
        self._place.pop(tp, None)
        if log is not None:
            log.mark_deleted()
        for directory in self.directories.live:
            if directory.files.exists(directory.path / str(tp)):
                directory.move_aside(str(tp), DELETED_ENDING)
            directory.points.pop(str(tp), None)

    def remove_replica(self, owner: LogOwner, error: SparklogError, ending: str = REMOVED_ENDING) -> None:
        """Remove a partition that other brokers have now; users of its log get `error`. Its objects in the object store
        stay, because they belong to those brokers. The next `purge_deleted` unlinks its files, unless `ending` is
        STRAY_ENDING, which puts them aside. An unknown partition is ignored. Raises StorageError."""
        tp = owner.topic_partition
        log = self._logs.pop(tp, None)
        self._offline.pop(tp, None)
        place = self._place.pop(tp, None)
        if log is not None:
            if place is not None:
                place.points[owner.directory_name] = _points_of(log)
            log.mark_deleted(error)
        self.remove_replicas(
            lambda candidate, _: candidate.topic_id == owner.topic_id, [owner.directory_name], ending=ending
        )

    def remove_replicas(
        self,
        is_elsewhere: Callable[[PartitionMeta, int], bool],
        names: Iterable[str] | None = None,
        *,
        ending: str = REMOVED_ENDING,
    ) -> int:
        """Move aside the partition directories for which `is_elsewhere` returns True, and return their number. Only
        directories of `names` count (None: all), and none whose partition has a log here, open or offline.
        `is_elsewhere` gets the owner and the leader epoch of the newest records (-1: unknown). `purge_deleted` unlinks
        the directories, unless `ending` is STRAY_ENDING. Raises StorageError."""
        open_here = {str(tp) for tp in [*self._logs, *self._offline]}
        chosen = None if names is None else set(names)
        count = 0
        for directory in self.directories.live:
            for name in directory.entries() if chosen is None else chosen:
                if name in open_here or not directory.files.exists(directory.path / name):
                    continue
                owner = directory.owner_of(name)
                if owner is not None and is_elsewhere(owner, directory.newest_epoch_of(name)):
                    directory.move_aside(name, ending)
                    count += 1
        return count

    def purge_deleted(self) -> int:
        """Unlink the files of deleted partitions and removed replicas, and return the number of directories. Raises
        StorageFullError, StorageError."""
        self.directories.in_each(self._forget_stale_points)
        return sum(self.directories.in_each(LogDirectory.purge_deleted))

    def _forget_stale_points(self, directory: LogDirectory) -> None:
        if directory.has_stale_points:
            with self._checkpoint_lock:
                self._checkpoint(directory)

    def deleted_in_tier(self) -> list[tuple[FileSystem, Path]]:
        """Return the directories of deleted partitions that still have objects in the object store, each with its file
        system. Raises StorageError."""
        return [(d.files, path) for d in self.directories.live for path in d.deleted_in_tier()]

    # --- while running, and stop ---

    def look(self, path: Path) -> None:
        """Check that the log directory `path`, and each of its files that was appended to since the last call, is in
        place. If it is gone or was replaced, the log directory fails: writes to the open files would succeed and be
        lost. Any thread can call this, but only one thread at a time for a directory."""
        directory = next(d for d in self.directories.all if d.path == path)
        if directory.failure is not None or not directory.health.look():
            return
        for tp, log in self._logs.copy().items():  # a copy, because another thread can add a log meanwhile
            if self._place.get(tp) is directory:
                try:
                    log.flusher.look()
                except StorageError:
                    if directory not in self.directories.live:  # the reason is there
                        return

    def settle_failures(self) -> list[DirectoryFailure]:
        """Take the partitions of the log directories that have failed since the last call offline, and return these
        failures."""
        settled = []
        for directory in self.directories.all:
            error = directory.failure
            if error is None or directory.path in self._settled:
                continue
            self._settled.add(directory.path)
            directory.forget_boot()
            lost = tuple(tp for tp, place in self._place.items() if place is directory)
            for tp in lost:
                log = self._logs.pop(tp, None)
                self._offline[tp] = error
                if log is not None:
                    log.take_offline(error)
            settled.append(DirectoryFailure(directory.path, error, lost))
        return settled

    @property
    def has_unsettled_failures(self) -> bool:
        """True if `settle_failures` has work to do."""
        return any(d.failure is not None and d.path not in self._settled for d in self.directories.all)

    def flush(self) -> None:
        """Fsync the appended data of all logs. A log whose disk fails is logged and accepts no more appends; a log
        whose files cannot be opened at the moment is tried again by the next call."""

        def flush(log: PartitionLog) -> bool:
            if log.write_error is None or log.write_error.retriable:
                log.flusher.flush()
            return True

        self._of_each_log("flushed", flush)

    def flush_due(self) -> bool:
        """Fsync rolled segments, and data that have waited for `flush.ms`. Returns True if there were any. Failures are
        handled as in `flush`."""
        return self._of_each_log("flushed", lambda log: log.flusher.flush_if_due())

    def recover_writes(self) -> None:
        """Remove the remains of failed appends from all logs, so that they accept appends again."""

        def recover(log: PartitionLog) -> bool:
            log.flusher.recover_writes()
            return False

        self._of_each_log("written to", recover)

    def _of_each_log(self, done: str, job: Callable[[PartitionLog], bool]) -> bool:
        """Call `job` for every log; return True if a call returned True. Failures are logged, with the participle
        `done` in the text. Logs whose storage is unavailable for the moment share one line. Errors of closed logs are
        ignored."""
        did = False
        short: list[TopicPartition] = []
        last: SparklogError | None = None
        for tp, log in self._logs.copy().items():
            try:
                did |= job(log)
            except StorageUnavailableError as e:
                if not log.is_closed:
                    short.append(tp)
                    last = e
            except SparklogError as e:
                if not log.is_closed:
                    logger.error("partition %s cannot be %s: %s", tp, done, e)  # noqa: TRY400
        if short:
            logger.warning("%d partitions cannot be %s now and will be retried: %s", len(short), done, last)
        return did

    def save_expiry_clock(self) -> None:
        """Save the expiry clock, so that a restart does not trust a wall clock that has jumped. Raises StorageError if
        the data directory is not the locked one any more."""
        if isinstance(self.expiry_clock, ExpiryClock) and self.data_dir not in self.directories.failed:
            self.directories.look_at_data_dir()
            self.expiry_clock.save()

    def checkpoint(self) -> None:
        """Write recovery-points.json in every usable log directory. Raises StorageFullError, StorageError, after every
        directory was tried."""
        with self._checkpoint_lock:
            self.directories.in_each(self._checkpoint)

    def _checkpoint(self, directory: LogDirectory) -> None:
        is_stale, directory.has_stale_points = directory.has_stale_points, False  # a later removal sets it again
        try:
            self._write_points(directory)
        except SparklogError:
            directory.has_stale_points |= is_stale
            raise

    def _write_points(self, directory: LogDirectory) -> None:
        logs = [(tp, log) for tp, log in self._logs.copy().items() if self._place.get(tp) is directory]
        counts = [log.truncation.count for _, log in logs]
        points = self._points(directory)
        directory.write_points(points)
        for (tp, log), count in zip(logs, counts, strict=True):
            if not log.is_closed and str(tp) in points:
                log.truncation.forget(count)
                log.retention.note_checkpoint(points[str(tp)].log_start_offset)

    def _points(self, directory: LogDirectory) -> dict[str, PartitionPoints]:
        """Return the points of the directory's partitions for the checkpoint. A partition without an open log (offline,
        put aside, or of a topic that the metadata do not name now) keeps its points of the last checkpoint."""
        logs = {str(tp): _points_of(log) for tp, log in self._logs.copy().items() if self._place.get(tp) is directory}
        offline = set(map(str, list(self._offline)))
        rest = {n: p for n, p in directory.points.copy().items() if n not in logs}
        return {n: p for n, p in rest.items() if n in offline or directory.files.exists(directory.path / n)} | logs

    def close(self) -> bool:
        """Seal and fsync all logs, write the checkpoints and the clean-shutdown marks, and unlock the directories.

        Returns True if everything succeeded. Failures are logged, and the next start scans the logs concerned. If
        `load` has not succeeded, no checkpoints and no marks are written.
        """
        unclean = set(self._offline)
        try:
            for tp, log in self._logs.items():
                try:
                    log.close()
                except SparklogError as e:
                    logger.error("partition %s could not be closed cleanly: %s", tp, e)  # noqa: TRY400
                    unclean.add(tp)
            if self._loaded:
                self.checkpoint()
                self.directories.in_each(lambda d: self._write_clean_mark(d, unclean))
        except SparklogError as e:
            logger.error("%s could not be closed cleanly: %s", self.data_dir, e)  # noqa: TRY400
            return False
        finally:
            self.directories.unlock()
        return not unclean and not self.directories.failed

    def _write_clean_mark(self, directory: LogDirectory, unclean: Collection[TopicPartition]) -> None:
        if directory.path not in self._without_mark:
            directory.write_clean_mark(str(tp) for tp in unclean if self._place.get(tp) in (directory, None))


def _has_meta(directory: LogDirectory) -> bool:
    try:
        return directory.files.exists(directory.path / META_FILE)
    except OddFileError:
        return True  # something is there


def _points_of(log: PartitionLog) -> PartitionPoints:
    return PartitionPoints(log.owner.topic_id, log.log_start_offset, log.recovery_point, log.high_watermark)
