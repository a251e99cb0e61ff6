"""Figures of the metadata of large clusters, on one machine: size and time of each structure by brokers and partitions.

    python -m tests.campaigns.benchmarks.growth_figures [BROKERS:PARTITIONS …]

Prints the table of docs/how-far-it-goes.md. The rules are those of the product: the controller's state machine, the
codec of images, the writes to ZooKeeper. There are no processes and no network. Each topic has TOPIC_PARTITIONS
partitions with three replicas.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from sparklog.metadata.cluster_znodes import write_ops
from sparklog.metadata.coordination import Create, SetData
from sparklog.replication.cluster_image import BrokerImage, ClusterImage, PartitionImage, TopicImage, Version
from sparklog.replication.controller.controller import Controller
from sparklog.replication.controller.model import (
    BrokersChanged,
    ControllerConfig,
    ElectionResult,
    Event,
    Tick,
    Write,
    WriteOutcome,
    WriteResult,
)
from sparklog.replication.image_codec import decode_image, encode, pack_image

TOPIC_PARTITIONS = 20
REPLICAS = 3
SIZES = ((3, 6_000), (3, 20_000), (10, 20_000), (30, 60_000), (100, 200_000))
HEADERS = (
    "brokers", "partitions", "metadata, MB", "sent to a starting broker, MB", "memory in each broker, MB",
    "failover: decision, ms", "writes to ZooKeeper", "largest write, kB", "change sent to each broker, kB", "applied there, ms",
    "a tick (every second), ms", "rebalance (every 5 minutes), ms",
)  # fmt: skip

T = TypeVar("T")


class Failover(NamedTuple):
    """The work of the controller for one broker that is gone."""

    decide_ms: float
    writes: list[Write]
    largest_bytes: int
    """Data of the largest write to ZooKeeper."""
    delta_bytes: int
    """Encoded deltas, which each broker gets."""


def image_of(brokers: int, partitions: int) -> ClusterImage:
    """Return an image with leaders and replicas spread evenly."""
    random = Random(brokers)  # topic ids that compress as badly as real ones
    topics = {}
    for number in range(partitions // TOPIC_PARTITIONS):
        states = []
        for i in range(TOPIC_PARTITIONS):
            at = number * TOPIC_PARTITIONS + i
            shift = 1 + at // brokers % (brokers - 2)
            replicas = (at % brokers, (at + shift) % brokers, (at + shift + 1) % brokers)
            states.append(PartitionImage(replicas, replicas[0], 4, 9, replicas))
        name = f"topic-{number:05}"
        topics[name] = TopicImage(name, random.randbytes(16).hex(), tuple(states), configs={"retention.ms": 86_400_000})
    return ClusterImage(Version(1, 1), members(brokers), {b: 1_000 + b for b in range(brokers)}, topics)


def members(brokers: int) -> dict[int, BrokerImage]:
    return {b: BrokerImage(b, 1_000 + b, endpoints=(f"host-{b}:9292",)) for b in range(brokers)}


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return a result and its processor time in ms."""
    gc.collect()
    began = time.process_time()
    result = work()
    return result, (time.process_time() - began) * 1_000


def writes_of(controller: Controller, event: Event) -> tuple[list[Write], float]:
    """Let the controller handle an event, with a store that accepts each write. Returns the writes and the time."""
    writes: list[Write] = []
    effects, spent_ms = timed(lambda: controller.handle(event, 0))
    while (write := next((e for e in effects if isinstance(e, Write)), None)) is not None:
        writes.append(write)
        result = WriteResult(write.tag, WriteOutcome.OK, write.after.version)
        effects, more_ms = timed(lambda r=result: controller.handle(r, 0))  # type: ignore[misc]
        spent_ms += more_ms
    return writes, spent_ms


def failover(image: ClusterImage, brokers: int) -> Failover:
    controller = Controller()
    writes_of(controller, ElectionResult(image))
    writes_of(controller, BrokersChanged(members(brokers)))
    before = controller.image
    assert before is not None
    alive = {b: one for b, one in members(brokers).items() if b}
    writes, decide_ms = writes_of(controller, BrokersChanged(alive))
    largest = 0
    for write in writes:
        ops = write_ops(write.delta, before, write.after)
        largest = max(largest, sum(len(op.data) for op in ops if isinstance(op, Create | SetData)))
        before = write.after
    assert all(p.leader for t in before.topics.values() for p in t.partitions), "broker 0 leads nothing"
    return Failover(decide_ms, writes, largest, sum(len(encode(w.delta)) for w in writes))


def row(brokers: int, partitions: int) -> list[float]:
    image = image_of(brokers, partitions)
    data = encode(image)
    tracemalloc.start()
    decoded = decode_image(data)
    memory_mb = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    gone = failover(image, brokers)
    _, apply_ms = timed(lambda: applied(decoded, gone.writes))
    controller = Controller()
    writes_of(controller, ElectionResult(image))
    writes_of(controller, BrokersChanged(members(brokers)))
    _, tick_ms = writes_of(controller, Tick())
    rebalanced = Controller(ControllerConfig(rebalance_interval_ms=0))
    writes_of(rebalanced, ElectionResult(image))
    writes_of(rebalanced, BrokersChanged(members(brokers)))
    _, rebalance_ms = writes_of(rebalanced, Tick())
    return [
        brokers, partitions, len(data) / 1e6, len(pack_image(image).data) / 1e6, memory_mb, gone.decide_ms, len(gone.writes),
        gone.largest_bytes / 1e3, gone.delta_bytes / 1e3, apply_ms, tick_ms, rebalance_ms,
    ]  # fmt: skip


def applied(image: ClusterImage, writes: list[Write]) -> ClusterImage:
    """Return the image of a broker after it has received the controller's changes."""
    for write in writes:
        image = image.apply(write.delta, write.after.version)
    return image


def size_of(text: str) -> tuple[int, int]:
    """Parse BROKERS:PARTITIONS. Raises argparse.ArgumentTypeError."""
    brokers, _, partitions = text.partition(":")
    if not (brokers.isdecimal() and partitions.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not BROKERS:PARTITIONS, such as 10:20000")
    if int(brokers) < REPLICAS or int(partitions) < max(TOPIC_PARTITIONS, int(brokers)):
        raise argparse.ArgumentTypeError(
            f"{text!r}: at least {REPLICAS} brokers, {TOPIC_PARTITIONS} partitions, and a partition for each broker"
        )
    return int(brokers), int(partitions)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="tests.campaigns.benchmarks.growth_figures",
        description="Prints sizes and processor times of the metadata of large clusters.",
    )
    parser.add_argument(
        "sizes",
        nargs="*",
        type=size_of,
        metavar="BROKERS:PARTITIONS",
        help="default: " + " ".join(f"{b}:{p}" for b, p in SIZES),
    )
    given = parser.parse_args(arguments)
    print(f"| {' | '.join(HEADERS)} |\n{'|---' * len(HEADERS)}|")
    for brokers, partitions in given.sizes or SIZES:
        print(f"| {' | '.join(map(shown, row(brokers, partitions)))} |", flush=True)


def shown(value: float) -> str:
    """Two significant digits below 10."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


if __name__ == "__main__":
    main()
