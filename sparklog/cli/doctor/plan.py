"""Computes the partitions, disk, memory and descriptors that a load needs, with reasons. Pure.

The measured figures are medians of rows of `docs/benchmarks.md`. Each need is of one broker; the load is spread evenly
over all brokers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sparklog.settings import Scope, settings_of

MEASURED: Mapping[str, float] = {
    "produce-1k-acksall": 1_500_000,
    "disk-100b-none": 104,
    "disk-100b-lz4": 56.8,
    "disk-100b-zstd": 16.9,
    "memory-loaded": 109,
    "partitions-1000": 153,
    "produce-100b-acksall": 118,
    "growth-connections": 153,
}
"""Medians by row: `produce-1k-acksall` in records/s, `disk-…` in bytes on disk of a record of 100 bytes, and the others
in MB of the broker's resident memory."""
STORED_1K_BYTES: Mapping[str, int] = {"none": 1_029, "lz4": 523, "zstd": 337}
"""Bytes of a record of 1 KiB on disk (`produce-1k-acksall`, `produce-1k-lz4`, `produce-1k-zstd`)."""
PROCESSORS_MIN = 2
"""Smallest planned number of processors. The benchmarks ran on two, one for the broker's event loop."""
RESERVE = 4
"""A plan counts on 1/RESERVE of a measured speed."""
DISK_USED_MAX = 0.8
"""Largest used share of a planned disk. Brokers copy no replicas to a disk with less than 5 % of free space."""
CACHE_S = 300
"""Time in s whose records fit into the planned page cache, so that readers with a small lag read no disk."""
DESCRIPTORS_MIN = 65_536
MB = 1_000_000


class Load(NamedTuple):
    """The planned load of a cluster."""

    rows_per_s: int
    """Rows a second of all producers, averaged over the busiest hour."""
    row_bytes: int
    """Bytes of a row before compression."""
    retention_ms: int
    """Time that rows are kept."""
    replicas: int = 1
    """Replicas of each partition."""
    brokers: int = 1
    """Number of brokers."""
    partitions: int = 0
    """Partitions of all topics; 0: the plan chooses."""
    readers: int = 1
    """Largest number of tasks or consumers of one group."""
    groups: int = 1
    """Number of groups and queries that read all rows."""
    connections: int = 100
    """Client connections of one broker."""
    compression: str = "none"
    """Compression of the producers."""


class Machine(NamedTuple):
    """The resources of a machine; -1: unknown."""

    disk_bytes: int = -1
    memory_bytes: int = -1
    descriptors: int = -1
    processors: int = -1


class Need(NamedTuple):
    """One line of a plan."""

    name: str
    """Name of the resource."""
    amount: int
    """Amount in the unit of `unit`."""
    unit: str
    """ "", "bytes" or "bytes/s"."""
    reason: str
    """The computation."""
    source: str
    """Rows of `docs/benchmarks.md`, or settings, that the computation uses."""
    here: int = -1
    """Amount of this machine; -1: unknown, or not a resource of a machine."""

    @property
    def is_met(self) -> bool:
        """True if the machine has the amount, or if its amount is unknown."""
        return self.here < 0 or self.here >= self.amount


def plan(load: Load, machine: Machine, smallest_limit: Callable[[int, int], int]) -> list[Need]:
    """Compute the needs of one broker. `smallest_limit`: returns the smallest `ulimit -n` for a number of segment files
    and a number of connections. Returns the needs, in a fixed order."""
    written = load.rows_per_s * load.row_bytes
    partitions = _partitions(load, written)
    held = math.ceil(partitions.amount * load.replicas / load.brokers)
    stored, factor = _stored_bytes_per_s(load)
    return [
        partitions,
        _network("network in", stored * load.replicas, load, f"{load.replicas} replicas"),
        _network("network out", stored * (load.replicas - 1 + load.groups), load, f"{load.replicas - 1} followers + {load.groups} readers of everything"),
        _disk(load, stored, factor, held, machine),
        *_memory(load, stored, held, machine),
        _descriptors(load, held, machine, smallest_limit),
        _processors(load, written, machine),
    ]  # fmt: skip


def _partitions(load: Load, written: int) -> Need:
    per_partition = _measured_bytes_per_s() // RESERVE
    by_speed = math.ceil(written / per_partition)
    chosen = load.partitions or max(load.brokers, load.readers, by_speed)
    reason = (
        f"the largest of {load.brokers} brokers (each leads one), {load.readers} readers at once, and {by_speed} for the "
        f"speed: {written:,} bytes/s at {per_partition:,} a partition"
    )
    reason = f"as given; the plan would choose {reason}" if load.partitions else reason
    return Need("partitions of all topics", chosen, "", reason, "produce-1k-acksall")


def _measured_bytes_per_s() -> int:
    return round(MEASURED["produce-1k-acksall"] * 1_024)


def _stored_bytes_per_s(load: Load) -> tuple[float, float]:
    """Return the stored bytes a second of one replica of all partitions, and the compressed share of the bytes."""
    small = MEASURED[f"disk-100b-{load.compression}"] / MEASURED["disk-100b-none"]
    large = STORED_1K_BYTES[load.compression] / STORED_1K_BYTES["none"]
    factor = max(small, large)  # the ratio depends on the content: plan with the worse of both
    overhead = MEASURED["disk-100b-none"] - 100
    return load.rows_per_s * (load.row_bytes + overhead) * factor, factor


def _network(name: str, bytes_per_s: float, load: Load, copies: str) -> Need:
    return Need(name, math.ceil(bytes_per_s / load.brokers), "bytes/s", f"stored bytes a second × ({copies}) / {load.brokers} brokers", "")  # fmt: skip


def _disk(load: Load, stored: float, factor: float, held: int, machine: Machine) -> Need:
    topic = settings_of(Scope.TOPIC)
    kept = stored * load.retention_ms / 1_000 * load.replicas / load.brokers
    per_partition = stored * load.replicas / load.brokers / max(1, held)
    segment = min(int(topic["segment.bytes"].default), per_partition * int(topic["segment.ms"].default) / 1_000)
    unlinked = stored * load.replicas / load.brokers * int(topic["file.delete.delay.ms"].default) / 1_000
    amount = math.ceil((kept + segment * held + unlinked) / DISK_USED_MAX)
    reason = (
        f"{kept:,.0f} bytes of records ({factor:.0%} after {load.compression}), an open segment of {segment:,.0f} for each of "
        f"{held} replicas, deleted files of a minute; the disk at most {DISK_USED_MAX:.0%} full"
    )
    source = f"disk-100b-{load.compression}, segment.bytes, file.delete.delay.ms"
    return Need("disk", amount, "bytes", reason, source, machine.disk_bytes)


def _memory(load: Load, stored: float, held: int, machine: Machine) -> list[Need]:
    broker = settings_of(Scope.BROKER)
    per_partition = (MEASURED["partitions-1000"] - MEASURED["produce-100b-acksall"]) / 1_000
    per_connection = (MEASURED["growth-connections"] - MEASURED["produce-100b-acksall"]) / 5_000
    resident = MEASURED["memory-loaded"] + held * per_partition + load.connections * per_connection
    names = ["queued.max.request.bytes", "queued.max.inflated.bytes", "log.cleaner.dedupe.buffer.bytes"]
    limits = sum(int(broker[name].default) for name in names)
    process = math.ceil(resident * MB) + limits
    cache = math.ceil(stored * load.replicas / load.brokers * CACHE_S)
    return [
        Need(
            "memory, process",
            process,
            "bytes",
            f"{resident:,.0f} MB resident ({held} replicas, {load.connections} connections), and {limits:,} bytes that the "
            "settings allow under load: lower them for a small container",
            "memory-loaded, partitions-1000, growth-connections, " + ", ".join(names),
            machine.memory_bytes,
        ),
        Need(
            "memory, with cache",
            process + cache,
            "bytes",
            f"the process, and the records of {CACHE_S} s: readers within that time never touch the disk",
            "",
            machine.memory_bytes,
        ),
    ]


def _descriptors(load: Load, held: int, machine: Machine, smallest_limit: Callable[[int, int], int]) -> Need:
    files = min(held, int(settings_of(Scope.BROKER)["log.open.files.max"].default))
    exact = smallest_limit(files, load.connections)
    reason = f"{files:,} segments open at once and {load.connections} connections; set {DESCRIPTORS_MIN:,} or more, which costs nothing"
    return Need("descriptors", exact, "", reason, "log.open.files.max, max.connections", machine.descriptors)  # fmt: skip


def _processors(load: Load, written: int, machine: Machine) -> Need:
    per_core = _measured_bytes_per_s() // RESERVE
    moved = written * (2 * load.replicas - 1 + load.groups) / load.brokers
    amount = max(PROCESSORS_MIN, math.ceil(moved / per_core))
    reason = f"{moved:,.0f} bytes/s in and out, at {per_core:,} a core; at least {PROCESSORS_MIN}: encryption and compaction have threads of their own"
    return Need("processors", amount, "", reason, "produce-1k-acksall", machine.processors)


def shown(amount: int, unit: str) -> str:
    """Return an amount with three digits and a decimal prefix: `1.2 TB`, `35 MB/s`; without a unit as `65,536`."""
    if not unit:
        return f"{amount:,}"
    value, prefix = float(amount), ""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 1_000 or prefix == "P":
            break
        value /= 1_000
    return f"{value:,.3g} {prefix}B{unit.removeprefix('bytes')}"


def as_lines(needs: Sequence[Need], brokers: int) -> list[str]:
    """Return the plan as lines of text: a table of the needs, then the reason of each need."""
    width = max(len(need.name) for need in needs)
    lines = [f"needs of {'each of ' * (brokers > 1)}{brokers} broker{'s' * (brokers > 1)}", ""]
    for need in needs:
        here = (
            "" if need.here < 0 else f"   here {shown(need.here, need.unit)}" + ("" if need.is_met else ": TOO LITTLE")
        )
        lines.append(f"{need.name:<{width}}  {shown(need.amount, need.unit):>12}{here}".rstrip())
    lines += ["", "reasons"]
    lines += [f"{need.name:<{width}}  {need.reason}" + (f" [{need.source}]" if need.source else "") for need in needs]
    return lines
