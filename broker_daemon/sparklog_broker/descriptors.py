"""How the process's file descriptors are shared out between segment files, connections and everything else."""

from __future__ import annotations

import contextlib
import resource

from msgspec import Struct

from sparklog_broker.config import BrokerConfig

STORE_MAX = 128
"""For the metadata store, indexes and checkpoints being written, compaction and recovery, the event loop."""
STORE_PART = 8
"""At most this part (one in STORE_PART) of few descriptors."""
REFUSALS_MAX = 100
"""Connections above the limit that are kept long enough to tell them so."""
REFUSALS_PART = 10


class Descriptors(Struct, frozen=True):
    """What each may have open at once."""

    files: int
    connections: int
    refusals: int


def raise_limit() -> None:
    """Connections and segments each take a descriptor; the usual soft limit of 1024 is for programs with few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems refuse an unlimited number: the old limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def of_process(config: BrokerConfig) -> Descriptors:
    """As the limit of this process is now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = None if soft == resource.RLIM_INFINITY else soft
    return share_out(limit, config.log_open_files_max, config.max_connections)


def share_out(limit: int | None, files_wanted: int, connections_wanted: int) -> Descriptors:
    """Of `limit` descriptors (None: any number) at most half for segment files, and of the rest what the store leaves
    for connections: they must never take the one that an append needs."""
    if limit is None:
        return Descriptors(files_wanted, connections_wanted, REFUSALS_MAX)
    files = min(files_wanted, limit // 2)
    room = limit - files - min(STORE_MAX, limit // STORE_PART)
    refusals = min(REFUSALS_MAX, room // REFUSALS_PART)
    return Descriptors(files, max(1, min(connections_wanted, room - refusals)), refusals)
