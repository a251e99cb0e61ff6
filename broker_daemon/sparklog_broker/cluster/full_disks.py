"""Reports of full log directories to the controller.

| event | the broker | the controller |
|---|---|---|
| a directory is full | copies nothing into it, so its replicas join no ISR | elects leaders that have room |
| it has room again | copies the missing records, and reports the directory | elects the preferred leaders again |

The controller keeps the reports only in memory. The broker repeats its report every RETRY_S, because another
broker may have become the controller, or another replica may have joined an ISR.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

from sparklog.environment.clock import MachineClock
from sparklog.errors import SparklogError
from sparklog.log.directories.log_directory import LogDirectory
from sparklog.log.directories.room import Room
from sparklog.protocol.apis import Api
from sparklog.protocol.base import PARTITIONS_PER_REQUEST_MAX
from sparklog.protocol.cluster_messages import DirectoryFailedRequest, DirectoryFailedResponse, OfflinePartition
from sparklog.replication.cluster_image import NO_EPOCH
from sparklog.replication.controller.model import DirectoryFull
from sparklog.types import TopicPartition
from sparklog_broker.cluster.controller_client import ControllerClient
from sparklog_broker.cluster.membership import Membership
from sparklog_broker.cluster.replicas import Replicas
from sparklog_broker.partitions.storage import Storage

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0
RETRY_S = 5.0
TIMEOUT_S = 10.0


class FullDisks:
    """Finds full log directories and reports them. Event-loop thread only."""

    def __init__(
        self,
        broker_id: int,
        clock: MachineClock,
        storage: Storage,
        replicas: Replicas,
        membership: Membership,
        controller: ControllerClient,
    ) -> None:
        self._broker_id = broker_id
        self._clock = clock
        self._storage = storage
        self._replicas = replicas
        self._membership = membership
        self._controller = controller
        self._rooms: dict[Path, Room] = {}
        self._reported: frozenset[TopicPartition] = frozenset()
        """Partitions that the last report named as being on full directories."""
        self._next_report_s = 0.0

    async def run(self) -> None:
        """Check the directories every POLL_INTERVAL_S, and report changes, until cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            try:
                await self._look()
                await self._report()
            except SparklogError as e:
                log.info("the full disks of this broker are not reported to the controller yet: %s", e)

    async def _look(self) -> None:
        before = {path for path, room in self._rooms.items() if room.is_full}
        for directory in self._storage.logs.directories.live:
            now_s = self._clock.monotonic_s()
            room = self._rooms.get(directory.path, Room()).look(directory.health.shortages, now_s)
            if room.wants_space(now_s):
                size_bytes, free_bytes = await self._storage.run(partial(_space_of, directory))
                room = room.measure(size_bytes, free_bytes, now_s)
            self._rooms[directory.path] = room
        full = {path for path, room in self._rooms.items() if room.is_full}
        for path in full - before:
            log.error(
                "%s is full: replicas in it are not copied until space is free, and other in-sync replicas take over its leaders",
                path,
            )
        for path in before - full:
            log.info("%s has room again", path)
        if full != before:
            self._next_report_s = 0.0
            self._replicas.full = self._partitions_in(full)
            self._replicas.follow_image(self._replicas.image)

    def _partitions_in(self, paths: set[Path]) -> frozenset[TopicPartition]:
        return frozenset(self._storage.logs.table.partitions_in(paths)) if paths else frozenset()

    async def _report(self) -> None:
        full = self._partitions_in({path for path, room in self._rooms.items() if room.is_full})
        self._replicas.full = full
        now_s = self._clock.monotonic_s()
        if (not full and not self._reported) or now_s < self._next_report_s:
            return
        epoch = self._membership.registration.broker_epoch
        if epoch == NO_EPOCH:
            return
        self._next_report_s = now_s + RETRY_S
        await self._report_batch(epoch, sorted(self._reported - full), is_full=False)
        await self._report_batch(epoch, sorted(full), is_full=True)
        self._reported = full

    async def _report_batch(self, epoch: int, keys: list[TopicPartition], *, is_full: bool) -> None:
        moved = 0
        for first in range(0, len(keys), PARTITIONS_PER_REQUEST_MAX):
            part = tuple(keys[first : first + PARTITIONS_PER_REQUEST_MAX])
            if await self._controller.find():
                make = partial(_directory_full, self._broker_id, epoch, part, is_full)
                moved += await self._membership.ask(make)
            else:
                named = [OfflinePartition(*key) for key in part]
                request = DirectoryFailedRequest(self._broker_id, epoch, named, 1 if is_full else 2)
                answer = await self._controller.request(
                    "full disks", Api.DIRECTORY_FAILED, request, DirectoryFailedResponse, timeout_s=TIMEOUT_S
                )
                moved += answer.moved
        if moved:
            log.warning("%d partitions have moved their leader away from this broker, because its disk is full", moved)


def _directory_full(
    broker_id: int, epoch: int, keys: tuple[TopicPartition, ...], is_full: bool, token: int
) -> DirectoryFull:
    return DirectoryFull(token, broker_id, epoch, keys, is_full)


def _space_of(directory: LogDirectory) -> tuple[int, int]:
    return directory.files.space(directory.path)
