"""Clients of a hostile server, called in a child: for any answer, they end in time, with a result or a typed error."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import sparklog
from sparklog.client.net.cluster import forget
from sparklog.errors import SparklogError
from sparklog.types import TopicPartition

TIMEOUT_MS = 1500
CALL_S_MAX = 45.0
"""Limit of a call: calls without a timeout of their own wait for 30 s; the target looks for one that waits forever."""
TP = TopicPartition("envelope", 0)


def clients(address: str) -> list[str]:
    """Uses an Admin, a Producer, Consumers and `read_table`; the typed errors there were."""
    errors: list[str] = []

    def tried(use: Callable[[str], Any]) -> None:
        started = time.monotonic()
        try:
            use(address)
        except SparklogError as e:
            errors.append(f"{type(e).__name__}: {str(e)[:200]}")
        took = time.monotonic() - started
        assert took < CALL_S_MAX, f"{use.__name__} took {took:.1f} s; errors so far: {errors}"

    for use in (_admin, _produce, _transaction, _consume_socket, _consume_files, _consume_group, _read_table):
        tried(use)
    forget(address)
    return errors


def _admin(address: str) -> None:
    with sparklog.Admin(address) as admin:
        admin.list_topics()
        admin.describe_topic("envelope")
        admin.list_offsets({TP: "latest"})
        admin.list_groups()
        admin.list_transactions()


def _produce(address: str) -> None:
    with sparklog.Producer(
        address, request_timeout_ms=TIMEOUT_MS, delivery_timeout_ms=2 * TIMEOUT_MS, max_block_ms=2 * TIMEOUT_MS
    ) as producer:
        futures = [producer.send("envelope", value=b"v%d" % i, partition=0) for i in range(3)]
        for future in futures:
            future.result(4 * TIMEOUT_MS / 1000)


def _transaction(address: str) -> None:
    producer = sparklog.Producer(
        address,
        transactional_id="fuzz",
        request_timeout_ms=TIMEOUT_MS,
        delivery_timeout_ms=2 * TIMEOUT_MS,
        max_block_ms=2 * TIMEOUT_MS,
    )
    with producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("envelope", value=b"t", partition=0)


def _consume(address: str, local: str) -> None:
    with sparklog.Consumer(
        address, request_timeout_ms=TIMEOUT_MS, default_api_timeout_ms=2 * TIMEOUT_MS, local_read=local
    ) as consumer:
        consumer.assign([TP])
        consumer.seek(TP, 0)
        for _ in range(3):
            consumer.poll(timeout_ms=200)


def _consume_socket(address: str) -> None:
    _consume(address, "off")


def _consume_files(address: str) -> None:
    _consume(address, "auto")


def _consume_group(address: str) -> None:
    with sparklog.Consumer(
        address,
        group_id="group",
        auto_offset_reset="earliest",
        request_timeout_ms=TIMEOUT_MS,
        default_api_timeout_ms=2 * TIMEOUT_MS,
    ) as consumer:
        consumer.subscribe(["envelope"])
        for _ in range(3):
            consumer.poll(timeout_ms=300)
        consumer.commit()


def _read_table(address: str) -> None:
    sparklog.read_table(address, "envelope", end={0: 3})
