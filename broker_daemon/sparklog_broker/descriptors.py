"""Division of the process's file descriptors between segment files, connections, and other uses."""

from __future__ import annotations

import contextlib
import resource

from msgspec import Struct

from sparklog_broker.config import BrokerConfig

STORE_MAX = 128
"""Descriptors for other uses: the metadata store, files being written, compaction, recovery, and the event loop."""
STORE_PART = 8
"""At most 1/STORE_PART of the process's limit is for other uses, if that is less than STORE_MAX."""
REFUSALS_MAX = 100
"""Largest number of connections above the limit that stay open until they have received the error."""
REFUSALS_PART = 10


class Descriptors(Struct, frozen=True):
    """Largest numbers of open segment files, of connections, and of refused connections."""

    files: int
    connections: int
    refusals: int


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit: the usual 1024 is too low for connections and segments."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems refuse an unlimited number; keep the old limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def of_process(config: BrokerConfig) -> Descriptors:
    """Return the shares of this process's present limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = None if soft == resource.RLIM_INFINITY else soft
    return share_out(limit, config.log_open_files_max, config.max_connections)


def share_out(limit: int | None, files_max: int, connections_max: int) -> Descriptors:
    """Return the shares of `limit` descriptors; None if unlimited. Segment files get at most half. Connections get the
    rest, without the share of other uses, so that they never take a descriptor that an append needs.
    """
    if limit is None:
        return Descriptors(files_max, connections_max, REFUSALS_MAX)
    files = min(files_max, limit // 2)
    room = limit - files - min(STORE_MAX, limit // STORE_PART)
    refusals = min(REFUSALS_MAX, room // REFUSALS_PART)
    return Descriptors(files, max(1, min(connections_max, room - refusals)), refusals)
