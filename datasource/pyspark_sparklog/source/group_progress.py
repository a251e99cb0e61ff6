"""A query's progress as the offsets of a consumer group, so that `sparklog group describe` shows the query's lag.

The offsets are only for display: a query reads from the positions in Spark's checkpoint, and a failure here never fails
it. The published offsets are the end of the last micro-batch that the checkpoint has committed.
"""

from __future__ import annotations

import logging

from pyspark_sparklog.offsets import Positions
from pyspark_sparklog.options.cluster_address import ClusterAddress
from sparklog.client.group.group_offsets import commit_offsets
from sparklog.client.net.retry import RetryPolicy
from sparklog.errors import SparklogError
from sparklog.types import GroupMetadata

log = logging.getLogger("pyspark_sparklog")

ONE_ATTEMPT = RetryPolicy.one_attempt(5_000)
"""A single attempt, because the next micro-batch publishes newer positions anyway."""


class GroupProgress:
    """Publisher of a query's positions as offsets of `group_id`; it publishes nothing if `group_id` is None."""

    def __init__(self, address: ClusterAddress, group_id: str | None) -> None:
        self._address = address
        self._group_id = group_id
        self._published_positions: Positions = {}
        self._failure = ""

    def publish(self, positions: Positions) -> None:
        """Commit the positions that have changed since the last success. A failure is logged if its text differs from
        the last failure's; the next call tries again."""
        changed = {tp: o for tp, o in positions.items() if self._published_positions.get(tp) != o}
        if self._group_id is None or not changed:
            return
        try:
            commit_offsets(self._address.connect(), GroupMetadata(self._group_id), changed, policy=ONE_ATTEMPT)
        except SparklogError as e:
            if str(e) != self._failure:
                self._failure = str(e)
                log.warning("the query's progress cannot be published to group %r: %s", self._group_id, e)
            return
        self._failure = ""
        self._published_positions = dict(positions)
