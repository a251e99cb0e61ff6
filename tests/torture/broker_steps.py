"""The steps of a broker at which a campaign with transactions kills it: those where a crash would be worst."""

from __future__ import annotations

BROKER_STEPS = (
    "txn.before-decision",
    "txn.after-decision",
    "txn.between-markers",
    "txn.before-completion",
    "txn.after-completion",
    "log.before-append",
    "log.after-append",
)
