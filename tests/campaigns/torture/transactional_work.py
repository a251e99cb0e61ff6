"""The clients in campaigns with transactions, and settings of a broker that notices dead clients soon."""

from __future__ import annotations

TRANSACTIONS = {
    "producer": 1,
    "shared": 1,
    "transactional": 2,
    "pipeline": 2,
    "member": 2,
    "assigned": 1,
    "uncommitted": 1,
}
SHORT = {
    "group.consumer.session.timeout.ms": 4000,
    "group.consumer.heartbeat.interval.ms": 300,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}
