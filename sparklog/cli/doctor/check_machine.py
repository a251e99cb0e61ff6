"""Checks of a broker's process, its machine and its configuration."""

from __future__ import annotations

from collections.abc import Iterator

from sparklog.cli.doctor.facts import Facts
from sparklog.cli.doctor.findings import Check, Finding, Severity, is_loopback, named, quoted

DESCRIPTORS_WARNING, DESCRIPTORS_ERROR = 0.8, 0.95
DESCRIPTORS_MIN = 4_096
"""Smallest limit without a warning: half of the descriptors are for segment files, half for connections."""
MEMORY_SHARE = 0.9
SWAPPED_BYTES_MIN = 32 << 20
OVERCOMMIT_NEVER = 2
RAISE_LIMIT = "systemctl edit sparklog   # [Service] LimitNOFILE=1048576"


def metrics_page(facts: Facts) -> Iterator[Finding]:
    page = facts.page
    if page is None:
        return
    if page.problem:
        yield Finding(
            Severity.warning,
            page.problem,
            "Prometheus cannot read the page either, and this report lacks the broker's own numbers.",
            "Is metrics.listen set, and is the address right?",
            quoted("curl", "-s", page.url),
        )
    elif not page.ready:
        yield Finding(
            Severity.error,
            f"the broker of {page.url} is not ready",
            "The broker recovers its logs, or is about to stop: no record can be written or read.",
            "Wait; the broker's log shows its progress.",
            quoted("curl", "-s", page.url.removesuffix("/metrics") + "/health/ready"),
        )


def open_metrics(facts: Facts) -> Iterator[Finding]:
    hosts = []
    if facts.page is not None and not facts.page.problem and not is_loopback(facts.page.host):
        hosts.append(facts.page.url)
    config = facts.config
    if config is not None and not config.problem and config.metrics_host and not is_loopback(config.metrics_host):
        hosts.append(f"{config.metrics_host} (metrics.listen in {config.path})")
    if hosts:
        yield Finding(
            Severity.warning,
            f"every client that reaches {named(hosts)} sees the names of topics and groups without a password",
            "The metrics page has no authentication.",
            "Set metrics.listen = \"127.0.0.1:9293\", or let a firewall admit Prometheus only.",
        )  # fmt: skip


def descriptors(facts: Facts) -> Iterator[Finding]:
    holder = facts.data_dir.holder if facts.data_dir is not None else None
    measured = [
        (used, limit, whose)
        for used, limit, whose in (
            (facts.page.open_files, facts.page.open_files_max, facts.page.url) if facts.page else (-1, -1, ""),
            (holder.open_files, holder.open_files_max, f"process {holder.pid}") if holder else (-1, -1, ""),
        )
        if limit > 0
    ]
    if not measured and facts.data_dir is not None and facts.host.descriptors_max > 0:
        measured = [(-1, facts.host.descriptors_max, "a broker started from this shell")]
    for used, limit, whose in measured[:1]:
        share = used / limit
        if share >= DESCRIPTORS_WARNING:
            yield Finding(
                Severity.error if share >= DESCRIPTORS_ERROR else Severity.warning,
                f"the broker ({whose}) has {used:,} of {limit:,} files and connections open",
                "Without descriptors the broker refuses connections, and appends that need a new file fail.",
                "Raise the broker's limit of open files and restart the broker; idle connections are closed after "
                "connections.max.idle.ms.",
                RAISE_LIMIT,
            )
        elif limit < DESCRIPTORS_MIN:
            yield Finding(
                Severity.warning,
                f"the broker ({whose}) may open {limit:,} files and connections at once",
                "Half of them are segment files, the rest connections. With many partitions the broker opens and closes files "
                "all the time, and refuses clients early.",
                "Raise the broker's limit of open files and restart the broker.",
                RAISE_LIMIT,
            )


def request_memory(facts: Facts) -> Iterator[Finding]:
    page = facts.page
    if page is None or page.memory_limit_bytes <= 0:
        return
    share = page.memory_used_bytes / page.memory_limit_bytes
    if share >= MEMORY_SHARE and page.memory_waiting:
        yield Finding(
            Severity.warning,
            f"requests and unread answers take {share:.0%} of the broker's memory for them; {page.memory_waiting:,} "
            "connections wait",
            "Beyond the limit the broker reads from no socket: every client waits.",
            "See sparklog_unread_answer_bytes: the cause is clients that do not read, or a slow disk. Or raise "
            "queued.max.request.bytes.",
        )


def refused_connections(facts: Facts) -> Iterator[Finding]:
    if facts.page is not None and facts.page.refused_connections:
        yield Finding(
            Severity.warning,
            f"the broker has refused {facts.page.refused_connections:,} connections since its start",
            "Clients get TOO_MANY_CONNECTIONS.",
            "Close unused clients, or raise max.connections, max.connections.per.ip and the limit of open files.",
        )


def failing_disks(facts: Facts) -> Iterator[Finding]:
    page = facts.page
    if page is not None and (page.failed_directories or page.fsync_failures):
        failed = named(page.failed_directories) or "none yet"
        yield Finding(
            Severity.error,
            f"the broker's disks fail: {page.fsync_failures:,} fsyncs failed, directories out of use: {failed}",
            "Partitions in a directory that is out of use are offline; after a failed fsync the content of the disk is unknown.",
            "Replace the disk, then restart the broker.",
            "dmesg --level err,warn | tail -50",
        )


def older_store(facts: Facts) -> Iterator[Finding]:
    page = facts.page
    command = "sparklog cluster restore-metadata --data-dir DIR --zookeeper HOST:PORT/PATH"
    if page is not None and page.has_older_store:
        yield Finding(
            Severity.error,
            "ZooKeeper's data are older than what the broker has seen, or another cluster's",
            "The broker refuses these data: it continues to lead and copy its partitions, and deletes nothing. There is no "
            "controller, and the broker would not start again.",
            "Restore a newer copy of ZooKeeper's data, or write back the metadata of the brokers' copies.",
            command,
        )
    if page is not None and page.put_aside:
        yield Finding(
            Severity.error,
            f"the broker has put aside the files of {page.put_aside:,} topics that the cluster's metadata lack",
            "ZooKeeper has lost these topics, or its data were replaced by older ones. No record is lost.",
            "Write the topics back into ZooKeeper: their files become theirs again. The broker's log names the topics.",
            command,
        )


def failing_background(facts: Facts) -> Iterator[Finding]:
    page = facts.page
    for count, noun, why in (
        (
            page.cleaner_failing if page else 0,
            "logs cannot be compacted",
            "The logs grow, and old values of keys stay.",
        ),
        (
            page.tier_failing if page else 0,
            "partitions cannot be tiered",
            "Their segments stay on the disk, which fills up.",
        ),
    ):
        if count:
            yield Finding(
                Severity.warning,
                f"{count:,} {noun}",
                why,
                "The broker's log has the names and the reason.",
            )


def swapped(facts: Facts) -> Iterator[Finding]:
    holder = facts.data_dir.holder if facts.data_dir is not None else None
    if holder is not None and holder.swapped_bytes >= SWAPPED_BYTES_MIN:
        yield Finding(
            Severity.warning,
            f"{holder.swapped_bytes / (1 << 20):,.0f} MiB of the broker's memory are swapped out",
            "Requests wait for the disk at unexpected places.",
            "Give the machine more memory, or reduce the broker's load; forbid the broker's swapping.",
            "systemctl edit sparklog   # [Service] MemorySwapMax=0",
        )


def overcommit(facts: Facts) -> Iterator[Finding]:
    if facts.data_dir is not None and facts.host.overcommit == OVERCOMMIT_NEVER:
        yield Finding(
            Severity.warning,
            "this machine never overcommits memory (vm.overcommit_memory = 2)",
            "Spark, DuckDB and Arrow reserve more memory than they use: they fail here although memory is free.",
            "Allow overcommitting, unless the setting has a reason.",
            "sysctl vm.overcommit_memory=0",
        )


def configuration(facts: Facts) -> Iterator[Finding]:
    config = facts.config
    if config is None:
        return
    if config.problem:
        yield Finding(
            Severity.error,
            config.problem,
            "A broker does not start with this configuration.",
            "Correct the file; this command lists every setting with its bounds:",
            "sparklog config broker",
        )
        return
    if config.readable_secrets:
        yield Finding(
            Severity.warning,
            f"{config.path} holds remote.log.storage.options, and every user of this machine can read it",
            "These options may have access keys of the object store.",
            "Let only the broker's user read the file, or name another file that only this user can read.",
            quoted("chmod", "600", "--", config.path),
        )
    if config.max_message_bytes >= config.socket_request_max_bytes > 0:
        yield Finding(
            Severity.warning,
            f"topics take batches of {config.max_message_bytes:,} bytes, the broker frames of "
            f"{config.socket_request_max_bytes:,} bytes",
            "The broker refuses the largest batches with FRAME_TOO_LARGE, and closes the connection.",
            "Set socket.request.max.bytes above max.message.bytes.",
        )
    if 0 < config.queued_max_request_bytes < config.socket_request_max_bytes:
        yield Finding(
            Severity.warning,
            f"one frame may have {config.socket_request_max_bytes:,} bytes, all requests together "
            f"{config.queued_max_request_bytes:,}",
            "Frames beyond the memory for requests are read one at a time, while other requests wait.",
            "Set queued.max.request.bytes to several times socket.request.max.bytes.",
        )


CHECKS = (
    Check("metrics-page", metrics_page),
    Check("open-metrics", open_metrics),
    Check("descriptors", descriptors),
    Check("request-memory", request_memory),
    Check("refused-connections", refused_connections),
    Check("failing-disks", failing_disks),
    Check("older-store", older_store),
    Check("failing-background", failing_background),
    Check("swapped", swapped),
    Check("overcommit", overcommit),
    Check("configuration", configuration),
)
