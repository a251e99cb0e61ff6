"""Checks of brokers and partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sparklog.cli.doctor.facts import Facts
from sparklog.cli.doctor.findings import Check, Finding, Severity, is_loopback, named, quoted
from sparklog.client.cluster_view import is_under_min_insync, offline_error
from sparklog.errors import LeaderNotAvailableError
from sparklog.log.directories.room import FREE_BYTES_MAX, FREE_SHARE, is_enough
from sparklog.replication.cluster_image import INTERNAL_REPLICAS
from sparklog.types import INTERNAL_TOPICS

if TYPE_CHECKING:
    from sparklog.client.admin.admin import PartitionDescription

NO_LEADER = LeaderNotAvailableError().name
CLOCK_WARNING_MS = 5_000
CLOCK_ERROR_MS = 3_600_000
"""The default of `message.timestamp.after.max.ms`: brokers refuse records with later timestamps."""


def down(facts: Facts) -> Iterator[Finding]:
    """Yield brokers that have replicas and are not registered. Other checks leave out the faults that follow from such
    a broker."""
    if facts.cluster is None:
        return
    silent = [b.address for b in facts.cluster.brokers if b.problem and b.broker_id < 0]
    for broker_id in sorted(facts.cluster.down_brokers):
        mine = [(t, p) for t in facts.cluster.topics for p in t.partition_details if broker_id in p.replicas]
        topics = list(dict.fromkeys(t.name for t, _ in mine))
        offline = [f"{t.name}-{p.partition}" for t, p in mine if offline_error(p) == NO_LEADER]
        refused = [f"{t.name}-{p.partition}" for t, p in mine if is_under_min_insync(t, p)]
        where = f"; no broker answers at {named(silent)}" if silent else ""
        why = "Another failure can make partitions unavailable, or lose acknowledged records."
        if refused:
            why = (
                f"{len(refused)} partitions refuse records with acks=all (min.insync.replicas): {named(refused)}. {why}"
            )
        if offline:
            why = f"{len(offline)} partitions can neither be read nor written: {named(offline)}. {why}"
        yield Finding(
            Severity.error,
            f"broker {broker_id} is down: it keeps {len(mine)} partition{'' if len(mine) == 1 else 's'} of "
            f"{len(topics)} topic{'' if len(topics) == 1 else 's'} ({named(topics)}){where}",
            why,
            "Start the broker with its old data directory; the end of its log (stderr) has the reason for its end. If the "
            f"broker never comes back, `sparklog broker decommission {broker_id}` gives its partitions to the others.",
            "sparklog cluster describe",
        )


def unreachable(facts: Facts) -> Iterator[Finding]:
    cluster = facts.cluster
    if cluster is None:
        return
    if cluster.problem and cluster.is_refused:
        yield Finding(
            Severity.error,
            f"{cluster.bootstrap_servers} admits no connection with these client settings: {cluster.problem}",
            "This report lacks all faults of the cluster.",
            "Name the client's settings with --command-config: security.protocol as the listener has it, the user and the "
            "password. The broker's log has the reason of the refusal.",
            "sparklog config client",
        )
    elif cluster.problem:
        yield Finding(
            Severity.error,
            f"no broker answers at {cluster.bootstrap_servers}: {cluster.problem}",
            "No record can be written or read.",
            "Start the broker, or name the right address; the broker's log (stderr) has the reason for its end.",
            "sparklog broker --config broker.toml",
        )
    for broker in cluster.brokers:
        if broker.problem and broker.broker_id >= 0:
            yield Finding(
                Severity.error,
                f"broker {broker.broker_id} does not answer at {broker.address}: {broker.problem}",
                "Clients connect to this address for the partitions that the broker leads.",
                "Is the broker running, and can this machine reach the address? A broker behind NAT or in a container gives "
                "clients the address that they have connected to.",
            )
        elif broker.problem and not cluster.problem and not cluster.down_brokers:
            yield Finding(
                Severity.warning,
                f"no broker answers at {broker.address}, one of the bootstrap addresses: {broker.problem}",
                "Clients with this list wait for an answer before they try the next address.",
                "Remove the address from `bootstrap.servers`, or start the broker there.",
            )


def no_controller(facts: Facts) -> Iterator[Finding]:
    if facts.cluster is not None and not facts.cluster.problem and not facts.cluster.has_controller:
        yield Finding(
            Severity.error,
            "there is no controller",
            "No broker can be elected controller: ZooKeeper is down, the brokers cannot reach it, or its data are older than "
            "the brokers' copies. Records are read and written as before, but no leader can be replaced, and no topic can "
            "be changed.",
            "Bring ZooKeeper back; the brokers continue by themselves. If the brokers' logs report older data in ZooKeeper: "
            "sparklog cluster restore-metadata.",
            "sparklog cluster describe",
        )


def not_looked_at(facts: Facts) -> Iterator[Finding]:
    for unknown in () if facts.cluster is None else facts.cluster.unknown:
        yield Finding(
            Severity.warning,
            f"could not be checked: {unknown}",
            "This report lacks faults of that part.",
            "Run the command again; `--timeout` gives a slow broker more time.",
        )


def versions(facts: Facts) -> Iterator[Finding]:
    if facts.cluster is None:
        return
    brokers = [b for b in facts.cluster.brokers if b.version]
    different = [b for b in brokers if b.version != facts.cluster.client_version]
    if different:
        listed = named([f"{b.address} has {b.version}" for b in different])
        yield Finding(
            Severity.warning,
            f"this client has version {facts.cluster.client_version}, {listed}",
            "Neighbouring releases work together, but the older one refuses the new features of the newer one.",
            "Upgrade brokers first, then clients, until all have the same version.",
            "pip install --upgrade sparklog",
        )


def clocks(facts: Facts) -> Iterator[Finding]:
    if facts.clock is None or abs(facts.clock.ahead_ms) < CLOCK_WARNING_MS:
        return
    ahead_ms = facts.clock.ahead_ms
    way = "ahead of" if ahead_ms > 0 else "behind"
    least = "at least " if facts.clock.at_least else ""
    yield Finding(
        Severity.error if abs(ahead_ms) >= CLOCK_ERROR_MS else Severity.warning,
        f"the broker's clock is {least}{abs(ahead_ms) / 1000:,.1f} s {way} this machine's",
        "Retention, look-ups by time and timeouts of transactions use these clocks; records from more than "
        "message.timestamp.after.max.ms (an hour) ahead are refused.",
        "Synchronize both machines by NTP.",
        "timedatectl status",
    )


def offline(facts: Facts) -> Iterator[Finding]:
    for topic, bad in _partitions(
        facts, lambda p, down: bool(p.error_code) and not (down and offline_error(p) == NO_LEADER)
    ):
        yield Finding(
            Severity.error,
            f"topic {topic}: partition {named([p.partition for p in bad])} offline: {offline_error(bad[0])}",
            "Its records cannot be read, and no record can be written.",
            "The broker's log has the reason. A failed disk: mount or replace it and restart the broker. Damaged files: list "
            "them with `sparklog log verify`, keep the intact batches with `sparklog log repair`.",
            "sparklog log verify DATA_DIR",
        )


def unwritable(facts: Facts) -> Iterator[Finding]:
    for topic, bad in _partitions(facts, lambda p, _: bool(p.write_error) and not p.error_code):
        yield Finding(
            Severity.error,
            f"topic {topic}: partition {named([p.partition for p in bad])} did not take its last append: "
            f"{bad[0].write_error}",
            "Producers get errors; stored records can be read.",
            "Free space on the broker's disk, or raise its limit of open files, as the message says; appends then succeed "
            "again.",
            "df -h DATA_DIR",
        )


def full_disks(facts: Facts) -> Iterator[Finding]:
    """Yield disks with less free space than a broker needs to lead partitions."""
    for disk in facts.cluster.disks if facts.cluster else ():
        if disk.size_bytes <= 0 or disk.free_bytes < 0 or is_enough(disk.size_bytes, disk.free_bytes):
            continue
        yield Finding(
            Severity.error,
            f"the disk of broker {disk.broker_id} is full, or nearly: {disk.free_bytes / (1 << 20):,.1f} MiB of "
            f"{disk.size_bytes / (1 << 20):,.1f} MiB are free at {disk.path}",
            "Nothing can be appended when it is full: other brokers lead its partitions if they have replicas in sync, and "
            "its own replicas are not in sync.",
            f"Free space on that machine, {FREE_SHARE:.0%} of the disk or {FREE_BYTES_MAX >> 30} GiB: the broker goes on by "
            "itself.",
            quoted("df", "-h", disk.path),
        )


def put_aside(facts: Facts) -> Iterator[Finding]:
    """Yield log directories in which a broker has put partitions aside."""
    for disk in facts.cluster.disks if facts.cluster else ():
        if disk.put_aside:
            yield Finding(
                Severity.warning,
                f"broker {disk.broker_id} has put aside {disk.put_aside:,} partition "
                f"director{'y' if disk.put_aside == 1 else 'ies'} in {disk.path}",
                "The cluster's metadata lack their topics: ZooKeeper has lost them, or they were deleted while the broker "
                "was down. The records are kept, and take space; nobody can read them.",
                "Run this command on the broker's machine: it names the topics. `sparklog cluster restore-metadata` brings "
                "them back; delete the -stray directories that you do not need.",
                quoted("sparklog", "doctor", "--data-dir", disk.path),
            )


def under_replicated(facts: Facts) -> Iterator[Finding]:
    for topic, bad in _partitions(facts, lambda p, down: len(p.isr) + down < len(p.replicas) and not p.error_code):
        yield Finding(
            Severity.warning,
            f"topic {topic}: partition {named([p.partition for p in bad])} under-replicated "
            f"({len(bad[0].isr)} of {len(bad[0].replicas)} replicas in sync)",
            "Another failure can make the partition unavailable, or lose acknowledged records.",
            "The brokers are up: their logs have the reason why the replicas make no progress.",
            quoted("sparklog", "topic", "describe", topic),
        )


def internal_replicas(facts: Facts) -> Iterator[Finding]:
    """Yield internal topics with too few replicas, because the cluster had fewer brokers at their creation."""
    brokers = {b.broker_id for b in (facts.cluster.brokers if facts.cluster else ()) if b.broker_id >= 0}
    needed = min(INTERNAL_REPLICAS, len(brokers))
    bad = [(t, ps) for t, ps in _partitions(facts, lambda p, _: len(p.replicas) < needed) if t in INTERNAL_TOPICS]
    for topic, partitions in bad:
        fewest = min(len(p.replicas) for p in partitions)
        yield Finding(
            Severity.warning,
            f"topic {topic} has {fewest} replica{'' if fewest == 1 else 's'} of a partition, with {len(brokers)} brokers",
            "While the broker of a single replica is away, groups or transactions stand still. The loss of its disk loses "
            "their state.",
            "Add replicas: write the plan, then execute it.",
            quoted("sparklog", "reassign", "plan", "--topics", topic, "--replication-factor", str(needed)),
        )


def listening_openly(facts: Facts) -> Iterator[Finding]:
    hosts = [
        b.address for b in (facts.cluster.brokers if facts.cluster else ()) if b.version and not is_loopback(b.host)
    ]
    if facts.config is not None and not facts.config.problem and not is_loopback(facts.config.listen_host):
        hosts.append(f"{facts.config.listen_host} (listen in {facts.config.path})")
    if hosts:
        yield Finding(
            Severity.warning,
            f"every client that reaches {named(hosts)} can read, write and delete everything without a password",
            "The broker has no authentication on this listener.",
            "Listen on 127.0.0.1, or only inside a network you trust, behind a firewall.",
            "sparklog broker --listen 127.0.0.1:9292",
        )


def _partitions(
    facts: Facts, is_bad: Callable[[PartitionDescription, int], bool]
) -> Iterator[tuple[str, list[PartitionDescription]]]:
    """Yield the topics that have partitions with the fault `is_bad`, each with these partitions. `is_bad` gets a
    partition, and the number of its replicas at brokers that are down."""
    if facts.cluster is None:
        return
    for topic in facts.cluster.topics:
        down = facts.cluster.down_brokers
        bad = [p for p in topic.partition_details if is_bad(p, len(down.intersection(p.replicas)))]
        if bad:
            yield topic.name, bad


CHECKS = (
    Check("broker-down", down),
    Check("unreachable", unreachable),
    Check("no-controller", no_controller),
    Check("not-looked-at", not_looked_at),
    Check("versions", versions),
    Check("clocks", clocks),
    Check("offline-partitions", offline),
    Check("unwritable-partitions", unwritable),
    Check("full-disk", full_disks),
    Check("put-aside", put_aside),
    Check("under-replicated", under_replicated),
    Check("internal-replicas", internal_replicas),
    Check("open-listener", listening_openly),
)
