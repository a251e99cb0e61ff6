"""The steps of a broker at which it is killed: those where a crash would be worst."""

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

ADD_PARTITIONS_STEPS = ("partitions.made", "partitions.stored")
