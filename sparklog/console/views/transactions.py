"""The content of the transaction pages: rows for transactional ids and for applications, such as Spark queries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sparklog.protocol.transaction_messages import TransactionSummary
from sparklog.types import SHARED_PREFIX, UNNAMED_APP_PREFIX

STATES = ("any", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Empty")
SHARED = "shared"


class TransactionRow(NamedTuple):
    """A transaction as a line of the table."""

    transactional_id: str
    name: str
    """The transactional id, or the application's name."""
    kind: str
    state: str
    version: int | None
    producer: str
    """Producer id and epoch; empty: unknown."""
    open_ms: int | None
    """Time since the transaction's beginning; None if it is not open."""
    timeout_ms: int | None
    """None without a timeout."""
    is_late: bool
    """True if the transaction is open for more than half of its timeout."""


def transaction_rows(summaries: Iterable[TransactionSummary], now_ms: int, search: str = "") -> list[TransactionRow]:
    """Return the transactions whose id contains `search`, regardless of case. Open transactions come first, the oldest
    of them at the top."""
    needle = search.lower()
    rows = [transaction_row(t, now_ms) for t in summaries if needle in t.transactional_id.lower()]
    return sorted(rows, key=lambda r: (-1 if r.open_ms is None else r.open_ms) * -1)


def transaction_row(t: TransactionSummary, now_ms: int) -> TransactionRow:
    open_ms = None if t.started_ms < 0 else max(0, now_ms - t.started_ms)
    timeout_ms = None if t.timeout_ms < 0 else t.timeout_ms
    return TransactionRow(
        t.transactional_id,
        application_of(t.transactional_id) if t.kind == SHARED else t.transactional_id,
        t.kind,
        t.state,
        None if t.version < 0 else t.version,
        "" if t.producer_id < 0 else f"{t.producer_id}, epoch {t.producer_epoch}",
        open_ms,
        timeout_ms,
        open_ms is not None and timeout_ms is not None and open_ms > timeout_ms / 2,
    )


def application_of(transactional_id: str) -> str:
    """Return the name of the application whose shared transactions have this id."""
    name = transactional_id.removeprefix(SHARED_PREFIX)
    return f"{name.removeprefix(UNNAMED_APP_PREFIX)} (unnamed)" if name.startswith(UNNAMED_APP_PREFIX) else name
