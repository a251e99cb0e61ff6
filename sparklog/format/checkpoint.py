"""The small JSON files of a data directory. Each is written whole: temporary file, fsync, rename, fsync of the
directory.

===========================  ================================================================================
file                         content
===========================  ================================================================================
meta.json                    `DataDirMeta`: cluster and broker of the directory; written once
<topic>-<n>/partition.json   `PartitionMeta`: the partition that the directory holds; written once
recovery-points.json         `RecoveryPoints`: per partition log start, recovery point and high watermark
clean-shutdown               `CleanShutdown`: written at a clean stop, removed before the next start loads a log
log-dirs.json                `RememberedLogDirs`: the broker's log directories, in the data directory only
===========================  ================================================================================

If recovery-points.json is lost or unreadable, log starts come from the first segments, recovery points are 0 and high
watermarks are computed again. If clean-shutdown is lost, the newest segments are scanned. Either loss costs time, but
no record.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from sparklog.format.decoders import json_decoder

META_FILE = "meta.json"
PARTITION_FILE = "partition.json"
RECOVERY_POINTS_FILE = "recovery-points.json"
CLEAN_SHUTDOWN_FILE = "clean-shutdown"
LOG_DIRS_FILE = "log-dirs.json"
CLUSTER_IMAGE_FILE = "cluster-image.bin"


class DataDirMeta(Struct, frozen=True):
    """Identity of a data directory. `format` is the version of its layout."""

    data_dir_id: str
    cluster_id: str
    broker_id: int
    format: int = 1


class PartitionMeta(Struct, frozen=True):
    """Identity of a partition's directory."""

    topic: str
    topic_id: str
    partition: int


class PartitionPoints(Struct, frozen=True):
    """The remembered state of one partition. All records below `recovery_point` are known to be on the disk."""

    topic_id: str
    log_start_offset: int
    recovery_point: int
    high_watermark: int


class RecoveryPoints(Struct, frozen=True):
    """The remembered states of partitions, by the name of the partition's directory (``<topic>-<partition>``)."""

    partitions: dict[str, PartitionPoints]
    version: int = 1


class CleanShutdown(Struct, frozen=True):
    """The mark of a clean stop. `unclean`: names of the partition directories that were offline at the stop. For these
    the mark does not hold."""

    broker_id: int
    unclean: list[str]
    version: int = 1


class RememberedLogDirs(Struct, frozen=True):
    """The last known path of each log directory, by its `data_dir_id`."""

    directories: dict[str, str]
    version: int = 1


S = TypeVar("S", bound=Struct)


def encode(content: Struct) -> bytes:
    """Return the file's bytes: JSON, indented for people."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def decode(data: bytes, content_type: type[S]) -> S | None:
    """Return the content of a file, or None if it cannot be read as `content_type`."""
    try:
        return json_decoder(content_type).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
