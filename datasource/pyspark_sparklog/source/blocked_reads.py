"""Warnings for a reader with read_committed that an open transaction stops. They name the transaction, its age, and the
command that aborts it if its producer has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from pyspark_sparklog.source.catalog import Catalog
from pyspark_sparklog.source.planning import Extent
from sparklog.client.admin.call import Call
from sparklog.client.admin.transaction_admin import describe_producers, describe_transaction
from sparklog.errors import SparklogError
from sparklog.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition

log = logging.getLogger("pyspark_sparklog")

CHECK_INTERVAL_S = 30.0
"""Interval in s between two checks of a query, and age in s from which an open transaction is reported."""
AGAIN_S = 600.0
"""Pause in s between two warnings about the same transaction."""
WARNED_MAX = 1_000
TIMEOUT_MS = 5_000


class BlockedReads:
    """Search for open transactions that stop one reader. An error of the cluster here does not fail the read."""

    def __init__(self, catalog: Catalog, clock: Callable[[], float] = time.time) -> None:
        self._catalog = Catalog(catalog.address, 0, READ_UNCOMMITTED)
        self._on = catalog.isolation == READ_COMMITTED
        self._clock = clock
        self._checked_s = -float("inf")
        self._warned_at: dict[str, float] = {}

    def check(self, extents: Mapping[TopicPartition, Extent]) -> None:
        """Warn if records lie beyond `extents` because a transaction before them has been open for CHECK_INTERVAL_S or
        longer. A call within CHECK_INTERVAL_S of the last check does nothing."""
        now_s = self._clock()
        if not self._on or now_s - self._checked_s < CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        try:
            ends = self._catalog.extents(extents)
            behind = [tp for tp, e in extents.items() if tp in ends and ends[tp].end > e.end]
            if behind:
                self._warn(min(behind), len(behind), now_s)
        except SparklogError as e:
            log.info("the open transaction that stops readers cannot be determined: %s", e)

    def _warn(self, tp: TopicPartition, count: int, now_s: float) -> None:
        connections = self._catalog.address.connect()
        producers = describe_producers(Call(connections, TIMEOUT_MS), tp).producers
        oldest = min(
            (p for p in producers if p.transaction_first_offset >= 0),
            key=lambda p: p.transaction_first_offset,
            default=None,
        )
        if oldest is None:
            return
        if oldest.transactional_id is None:
            subject, since_ms = (
                f"a transaction of producer {oldest.producer_id}, unknown to all coordinators,",
                oldest.last_timestamp_ms,
            )
            remedy = f"sparklog transaction abort --topic {tp.topic} --partition {tp.partition} --producer-id {oldest.producer_id}"
        else:
            summary = describe_transaction(Call(connections, TIMEOUT_MS), oldest.transactional_id).summary
            subject, since_ms = (
                f"the transaction of {oldest.transactional_id}",
                -1 if summary is None else summary.started_ms,
            )
            remedy = f"sparklog transaction abort {oldest.transactional_id}"
        open_s = now_s - since_ms / 1000
        if since_ms < 0 or open_s < CHECK_INTERVAL_S or now_s - self._warned_at.get(subject, -AGAIN_S) < AGAIN_S:
            return
        if len(self._warned_at) >= WARNED_MAX:
            self._warned_at.clear()
        self._warned_at[subject] = now_s
        log.warning(
            "%s%s: records from offset %d on are not visible, because %s has been open for %d s. If its producer has "
            "ended: `%s --bootstrap-servers %s`",
            tp,
            f" and {count - 1} more partitions" if count > 1 else "",
            oldest.transaction_first_offset,
            subject,
            open_s,
            remedy,
            self._catalog.address,
        )
