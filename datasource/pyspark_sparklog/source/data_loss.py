"""The handling of records that were lost before they were read."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pyspark_sparklog.source.planning import UNSUBSCRIBED, Loss
from sparklog.errors import DataLossError

log = logging.getLogger("pyspark_sparklog")

REMEMBERED_MAX = 10_000
LISTED_MAX = 20


class LossReporter:
    """Reporter of losses: raises DataLossError, or with failOnDataLoss=false (`fail` False) logs each loss once."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._reported_losses: set[Loss] = set()

    def report(self, losses: Iterable[Loss]) -> None:
        fresh = [loss for loss in losses if self._fail or loss not in self._reported_losses]
        if not fresh:
            return
        listed = "; ".join(loss.describe() for loss in fresh[:LISTED_MAX])
        if len(fresh) > LISTED_MAX:
            listed += f"; and {len(fresh) - LISTED_MAX} more"
        if self._fail and all(loss.reason == UNSUBSCRIBED for loss in fresh):
            raise DataLossError(
                f"topics were removed from the subscription: {listed}. Subscribe to them again; or, to continue "
                "without "
                'their unread records, restart the query with .option("failOnDataLoss", "false")'
            )
        if self._fail:
            raise DataLossError(
                f"unread records are gone: {listed}. To continue with the existing records, restart the query "
                'with .option("failOnDataLoss", "false"); to read everything again, use a new checkpoint location with '
                '.option("startingOffsets", "earliest")'
            )
        log.warning("unread records are gone, continuing without them: %s", listed)
        if len(self._reported_losses) + len(fresh) > REMEMBERED_MAX:
            self._reported_losses.clear()
        self._reported_losses.update(fresh)
