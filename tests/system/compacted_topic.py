"""A topic that a real broker compacts: its records, and a check of the compaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparklog import Producer
from tests.system.broker_process import BrokerProcess

SETTINGS = "log.cleaner.backoff.ms = 20\nlog.cleaner.threads = 2\n"
COMPACT: dict[str, Any] = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "segment.bytes": 16384}
KEYS, ROUNDS = 50, 40


def address(broker: BrokerProcess) -> str:
    return f"{broker.host}:{broker.port}"


def write(broker: BrokerProcess, topic: str = "state") -> None:
    """Every key in every round; in the last round the keys 0 to 9 are deleted."""
    with Producer(address(broker)) as producer:
        for i in range(ROUNDS):
            dead = 10 if i == ROUNDS - 1 else 0
            values = [None if k < dead else b"%d" % i for k in range(KEYS)]
            keys = [b"key-%d" % k for k in range(KEYS)]
            producer.send_batch(topic, {"key": keys, "value": values}, partition=0).result(60)


def compacted(data_dir: Path, topic: str = "state") -> int:
    """The number of segments with an offset column."""
    found = 0
    for path in (data_dir / f"{topic}-0").glob("*.arrow"):
        try:
            with path.open("rb") as file:
                found += b"__offset" in file.read(4096)
        except FileNotFoundError:  # it is being replaced
            continue
    return found
