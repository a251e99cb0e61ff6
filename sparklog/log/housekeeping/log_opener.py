"""The opening of logs, with the resources that all logs of a broker share."""

from __future__ import annotations

from msgspec import Struct

from sparklog.environment.clock import Clock
from sparklog.format.checkpoint import PartitionPoints
from sparklog.log.directories.log_directory import LogDirectory
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog
from sparklog.log.segments.slices import HandleCache
from sparklog.log.segments.stored_schema import SchemaOf
from sparklog.log.tiering.remote_segment import RemoteAccess

__all__ = ["LogOpener", "PartitionSpec"]


class PartitionSpec(Struct, frozen=True):
    """A partition that should have a log here. `schema_of` gives the topic's schema for an id (KeyError: unknown)."""

    owner: LogOwner
    config: LogConfig
    schema_of: SchemaOf
    newest_schema_id: int = 1
    was_created: bool | None = False
    """True if the partition's directory was created before: a missing directory is then a loss, and is not created
    again. None: as True if a checkpoint names the partition, else as False."""


class LogOpener(Struct, frozen=True):
    """Opens logs. The fields are the resources that all logs of a broker share."""

    clock: Clock
    expiry_clock: Clock
    handles: HandleCache
    inflated: InflatedMemory
    remote: RemoteAccess

    def load(self, spec: PartitionSpec, directory: LogDirectory, *, was_created: bool) -> PartitionLog:
        """Open a partition's log at the broker's start. Raises LogCorruptError, StorageError, StorageFullError."""
        registered = directory.points_of(spec.owner)
        return self._open(
            spec,
            directory,
            registered,
            clean=directory.is_clean(spec.owner.directory_name),
            was_created=was_created,
            same_boot=directory.same_boot,
            checkpointed=registered is not None,
        )

    def create(self, spec: PartitionSpec, directory: LogDirectory) -> PartitionLog:
        """Open the log of a new partition. A partition directory that exists is used. Raises LogCorruptError,
        StorageError, StorageFullError."""
        name = spec.owner.directory_name
        registered = directory.points_of(spec.owner) if directory.files.exists(directory.path / name) else None
        clean = directory.is_clean(name) if registered else not directory.was_put_aside(name)
        return self._open(spec, directory, registered, clean=clean)

    def _open(
        self,
        spec: PartitionSpec,
        directory: LogDirectory,
        registered: PartitionPoints | None,
        *,
        clean: bool,
        was_created: bool = False,
        same_boot: bool = False,
        checkpointed: bool = False,
    ) -> PartitionLog:
        points = registered or PartitionPoints(spec.owner.topic_id, 0, 0, 0)
        return PartitionLog.open(
            directory.path / spec.owner.directory_name,
            spec.owner,
            spec.config,
            spec.schema_of,
            files=directory.files,
            clock=self.clock,
            expiry_clock=self.expiry_clock,
            clean=clean,
            log_start_offset=points.log_start_offset,
            high_watermark=points.high_watermark,
            recovery_point=points.recovery_point,
            handles=self.handles,
            inflated=self.inflated,
            newest_schema_id=spec.newest_schema_id,
            remote=self.remote,
            was_created=was_created,
            same_boot=same_boot,
            checkpointed=checkpointed,
        )
