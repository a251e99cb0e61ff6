"""Writes the cluster's metadata back into ZooKeeper, from the copies in the brokers' data directories.

| step | state after a crash that follows this step |
|---|---|
| read the copies and the store, and decide the changes (`replication/restoration.py`) | nothing has changed |
| skip ids of producers and schemas that may have been issued since the copy | the next run skips more ids |
| write the topics, then all other records, each write fenced | brokers still refuse; the next run writes the rest |
| raise the cluster's generation and the controller epoch, in one write | brokers use the store again |
| delete `/controller` | a controller that still works is fenced at its next write |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from sparklog.environment.files import FileSystem
from sparklog.errors import AdoptionRefusedError, StorageUnavailableError
from sparklog.format.checkpoint import CLUSTER_IMAGE_FILE
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.cluster_znodes import PRODUCER_IDS, SCHEMA_IDS
from sparklog.metadata.coordination import (
    BadVersionError,
    Coordination,
    CoordinationError,
    Create,
    NoNodeError,
    Op,
    SetData,
)
from sparklog.metadata.image_copy import ImageCopy, read_copy
from sparklog.metadata.image_store import IdBlocks
from sparklog.metadata.local_store import run_steps, wait_for
from sparklog.metadata.store import ENVELOPE_SCHEMA_ID
from sparklog.metadata.store_history import StoreMark, older, read_mark
from sparklog.replication.cluster_image import ClusterDelta, ClusterImage, TopicImage, Version
from sparklog.replication.restoration import EPOCHS_SKIPPED, Restoration, difference, restore

TRIES_MAX = 20
PRODUCER_IDS_SKIPPED = 100_000_000
SCHEMA_IDS_SKIPPED = 10_000
RECORDS_PER_WRITE = 200


class Plan(NamedTuple):
    """The changes that a restoration writes into ZooKeeper."""

    copy: ImageCopy
    """The newest copy of the metadata in the brokers' data directories."""
    why: str
    """The reason why the store is older than the copy; "" if the store only lacks topics."""
    mark: StoreMark
    """The store's point in its history."""
    fence: int
    """Version of `/controller_epoch` that the first write requires."""
    stored: ClusterImage
    """The image in the store before the restoration."""
    decided: Restoration

    @property
    def is_needed(self) -> bool:
        """True if the store is older than the copy or lacks topics."""
        return bool(self.why or self.decided.restored)


def newest_copy(files: FileSystem, data_dirs: Sequence[Path]) -> ImageCopy:
    """Read the copies of several brokers, and return the newest one with the topics that any broker has put aside.
    Raises AdoptionRefusedError: There is no copy, or the copies are of several clusters; StorageError."""
    copies = [copy for path in data_dirs if (copy := read_copy(files, path)) is not None]
    if not copies:
        raise AdoptionRefusedError(
            f"no intact {CLUSTER_IMAGE_FILE} found in {', '.join(map(str, data_dirs))}: name data directories of brokers "
            f"that have been in the cluster"
        )
    clusters = sorted({copy.cluster_id for copy in copies})
    if len(clusters) > 1:
        raise AdoptionRefusedError(
            f"the directories belong to several clusters ({', '.join(clusters)}): name the directories of one cluster"
        )
    newest = max(copies, key=lambda copy: (copy.image.generation, copy.image.version))
    put_aside: Mapping[str, TopicImage] = {i: topic for copy in copies for i, topic in copy.put_aside.items()}
    return replace(newest, put_aside=put_aside)


def plan(coordination: Coordination, copy: ImageCopy) -> Plan:
    """Decide the changes to the store. The base nodes are created if ZooKeeper lacks them; nothing else is written.
    Raises AdoptionRefusedError and StorageUnavailableError."""
    try:
        mark = run_steps(read_mark(coordination))
        if mark.cluster_id and mark.cluster_id != copy.cluster_id:
            raise AdoptionRefusedError(
                f"ZooKeeper has cluster {mark.cluster_id}, the copy is of cluster {copy.cluster_id}: name another path "
                f"behind --zookeeper, or other data directories"
            )
        why = older(mark, copy.mark)
        run_steps(znodes.make_base(coordination))
        epoch = wait_for(coordination.get(znodes.CONTROLLER_EPOCH))
        stored = run_steps(znodes.load_image(coordination, int(epoch.data), epoch.mzxid, epoch.version))
    except (CoordinationError, TimeoutError, msgspec.DecodeError) as e:
        raise StorageUnavailableError(f"ZooKeeper cannot be reached or read: {e!r}; run the command again") from e
    decided = restore(stored, copy.image, copy.put_aside, is_older=bool(why))
    return Plan(copy, why, mark, epoch.version, stored, decided)


def write_back(coordination: Coordination, copy: ImageCopy) -> Plan:
    """Write the changes that `plan` decides, and return the plan. If it is not needed, write nothing. Blocks. Raises
    AdoptionRefusedError; StorageUnavailableError: ZooKeeper cannot be reached or read, or a controller wrote during
    every attempt."""
    for _ in range(TRIES_MAX):
        planned = plan(coordination, copy)
        if not planned.is_needed:
            return planned
        try:
            _write(coordination, planned)
        except BadVersionError:
            continue  # a controller was elected or has written: plan again
        except (CoordinationError, TimeoutError) as e:
            raise StorageUnavailableError(f"ZooKeeper cannot be reached: {e!r}; run the command again") from e
        return planned
    raise StorageUnavailableError("the controller keeps changing; run the command again")


def _write(coordination: Coordination, planned: Plan) -> None:
    ids = IdBlocks(coordination)
    if planned.why:
        ids.take(PRODUCER_IDS, PRODUCER_IDS_SKIPPED, 0)
    schema_ids = [i for t in planned.decided.after.topics.values() for i in t.schemas]
    ids.take(SCHEMA_IDS, 0, max(schema_ids, default=ENVELOPE_SCHEMA_ID) + SCHEMA_IDS_SKIPPED)
    image, fence = planned.stored, planned.fence
    epoch = b"%d" % image.version.controller_epoch
    for delta in _parts(difference(image, planned.decided.after)):
        after = image.apply(delta, Version(image.version.controller_epoch, image.version.zxid + 1))
        ops = znodes.write_ops(delta, image, after)
        wait_for(coordination.transaction([SetData(znodes.CONTROLLER_EPOCH, epoch, fence), *ops]))
        image, fence = after, fence + 1
    wait_for(coordination.transaction(_last_ops(planned, fence)))
    try:
        wait_for(coordination.delete(znodes.CONTROLLER))
    except NoNodeError:
        return


def _last_ops(planned: Plan, fence: int) -> list[Op]:
    generation = max(planned.mark.generation, planned.copy.image.generation) + 1
    epoch = max(planned.stored.version.controller_epoch, planned.copy.image.version.controller_epoch) + EPOCHS_SKIPPED
    cluster = znodes.encode(znodes.ClusterNode(planned.copy.cluster_id, generation=generation))
    return [
        SetData(znodes.CONTROLLER_EPOCH, b"%d" % epoch, fence),
        SetData(znodes.CLUSTER, cluster) if planned.mark.cluster_id else Create(znodes.CLUSTER, cluster),
    ]


def _parts(delta: ClusterDelta) -> Iterator[ClusterDelta]:
    """Split a delta into writes: one for each topic, and one for each RECORDS_PER_WRITE other records."""
    for name, topic in sorted(delta.topics.items()):
        yield ClusterDelta(topics={name: topic})
    if delta.known or delta.configs:
        yield ClusterDelta(known=delta.known, configs=delta.configs)
    for security in _pieces(delta.security.items()):
        yield ClusterDelta(security=security)
    for deleted in _pieces(delta.deleted.items()):
        yield ClusterDelta(deleted=deleted)


def _pieces(items: Iterable[tuple[Any, Any]]) -> Iterator[dict[Any, Any]]:
    rest = iter(items)
    while piece := dict(islice(rest, RECORDS_PER_WRITE)):
        yield piece
