"""Every check: facts with which it fires, and facts beside them with which it does not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparklog.cli.doctor.checks import CHECKS
from sparklog.cli.doctor.facts import (
    BrokerDiskFacts,
    BrokerFacts,
    ClockFacts,
    ClusterFacts,
    ConfigFacts,
    DataDirFacts,
    DirectoryFacts,
    DiskFacts,
    Facts,
    GroupFacts,
    HangingFacts,
    HostFacts,
    LakeFacts,
    MirrorFacts,
    PageFacts,
    ProcessFacts,
    TransactionFacts,
)
from sparklog.cli.doctor.findings import FINDINGS_MAX, Check, Finding, Severity, examine, exit_status, is_loopback
from sparklog.client.cluster_view import GroupPartition
from sparklog.errors import LeaderNotAvailableError, LogCorruptError
from sparklog.types import TopicPartition
from tests.support.cases import for_each
from tests.unit.cli import descriptions

CORRUPT, NO_LEADER = LogCorruptError.code, LeaderNotAvailableError.code
GIB = 1 << 30
T0 = TopicPartition("t", 0)
BROKER = BrokerFacts("127.0.0.1:9292", "127.0.0.1", 0, "0.1.0", 100 << 20)
PARTITION = descriptions.partition(end=10_000, size_bytes=10 << 20)
TOPIC = descriptions.topic(PARTITION)
READER = GroupPartition(T0, 9_990, 0, 10_000, 10 << 20, committed_before=9_000, end_before=9_500)
GROUP = GroupFacts("g", "consumer", 2, (READER,))
CLUSTER = ClusterFacts("127.0.0.1:9292", "", (BROKER,), (TOPIC,), (GROUP,), 6.0, client_version="0.1.0")
DISK = DiskFacts(1000 * GIB, 300 * GIB, 1_000_000, 900_000, False, "ext4", "/")
DIRECTORY = DirectoryFacts("/data", "", ("c", 0, "d1"), DISK, 3, True, owner="sparklog")
HOLDER = ProcessFacts(42, "sparklog broker", "S", 100, 65_536)
DATA_DIR = DataDirFacts("/data", "", (DIRECTORY,), holder=HOLDER)
PAGE = PageFacts("http://127.0.0.1:9293/metrics", "127.0.0.1", open_files=100, open_files_max=65_536,
                 memory_used_bytes=1, memory_limit_bytes=100)  # fmt: skip
CONFIG = ConfigFacts("/etc/broker.toml", "", "127.0.0.1", "127.0.0.1", 100 << 20, 512 << 20, 8 << 20)
WELL = Facts(CLUSTER, PAGE, ClockFacts(4_999), DATA_DIR, CONFIG, HostFacts(0, 1_048_576))
"""All there is, and nothing wrong with it."""


def cluster(**more: object) -> Facts:
    return WELL._replace(cluster=CLUSTER._replace(**more))  # type: ignore[arg-type]


def partition(replicas: int = 1, in_sync: int = 1, *, down: tuple[int, ...] = (), **more: Any) -> Facts:
    """The topic t with one partition: its replicas are at the brokers up to 3."""
    ids = tuple(range(4 - replicas, 4))
    p = descriptions.partition(end=10_000, replicas=ids, isr=ids[:in_sync], **more)
    return cluster(topics=(descriptions.topic(p),), down_brokers=frozenset(down))


def reader(**more: object) -> Facts:
    """The group g, and how far it is."""
    return cluster(groups=(GROUP._replace(partitions=(READER._replace(**more),)),))  # type: ignore[arg-type]


def keeping(retention_ms: int = -1, retention_bytes: int = -1, **more: object) -> Facts:
    topic = replace(TOPIC, configs={"retention.ms": retention_ms, "retention.bytes": retention_bytes})
    group = GROUP._replace(partitions=(READER._replace(**more),))  # type: ignore[arg-type]
    return cluster(topics=(topic,), groups=(group,))


def transaction(state: str, age_s: float, timeout_ms: int) -> Facts:
    return cluster(transactions=(TransactionFacts("shop", state, int(age_s * 1000), timeout_ms, (T0,)),))


def data_dir(**more: object) -> Facts:
    return WELL._replace(data_dir=DATA_DIR._replace(**more))  # type: ignore[arg-type]


def directory(**more: object) -> Facts:
    return data_dir(log_dirs=(DIRECTORY._replace(**more),))  # type: ignore[arg-type]


def disk(**more: object) -> Facts:
    return directory(disk=DISK._replace(**more))  # type: ignore[arg-type]


def page(**more: object) -> Facts:
    return WELL._replace(page=PAGE._replace(**more))  # type: ignore[arg-type]


def config(**more: object) -> Facts:
    return WELL._replace(config=CONFIG._replace(**more))  # type: ignore[arg-type]


def stopped(**more: object) -> Facts:
    """No broker runs, and nobody asks for its page."""
    return directory(**more)._replace(page=None, data_dir=DATA_DIR._replace(
        log_dirs=(DIRECTORY._replace(**more),), holder=None))  # type: ignore[arg-type]  # fmt: skip


def grown(replicas: int, brokers: int) -> Facts:
    """An internal topic in a cluster of so many brokers."""
    ids = tuple(range(replicas))
    topic = descriptions.topic(descriptions.partition(replicas=ids, isr=ids), name="__consumer_offsets")
    return cluster(topics=(topic,), brokers=tuple(BROKER._replace(broker_id=i) for i in range(brokers)))


class Case(NamedTuple):
    """A case of a check. `severity` None: the check has no finding. `words` are in the finding."""

    check: str
    facts: Facts
    severity: Severity | None
    words: str = ""


E, W, N = Severity.error, Severity.warning, Severity.note
AWAY = BrokerFacts("h:1", "h", 3, problem="refused")
SECOND = DIRECTORY._replace(path="/data2", identity=("c", 0, "d2"))
CASES = (
    Case("unreachable", cluster(problem="connection refused"), E, "no broker answers at 127.0.0.1:9292: connection"),
    Case("unreachable", cluster(problem="invalid credentials", is_refused=True), E, "admits no connection with these client"),
    Case("unreachable", cluster(brokers=(BROKER, AWAY)), E, "broker 3 does not answer at h:1"),
    Case("unreachable", cluster(brokers=(BROKER, AWAY._replace(broker_id=-1))), W, "bootstrap addresses"),
    Case("unreachable", WELL, None),
    Case("no-controller", cluster(has_controller=False), E, "there is no controller"),
    Case("no-controller", cluster(has_controller=False, problem="refused"), None),
    Case("no-controller", WELL, None),
    Case("not-looked-at", cluster(unknown=("groups: too slow",)), W, "groups: too slow"),
    Case("not-looked-at", WELL, None),
    Case("versions", cluster(brokers=(BROKER._replace(version="0.2.0"),)), W, "127.0.0.1:9292 has 0.2.0"),
    Case("versions", cluster(brokers=(BROKER, AWAY)), None),
    Case("clocks", WELL._replace(clock=ClockFacts(5_000)), W, "5.0 s ahead of"),
    Case("clocks", WELL._replace(clock=ClockFacts(-7_200_000)), E, "7,200.0 s behind"),
    Case("clocks", WELL._replace(clock=ClockFacts(9_000, at_least=True)), W, "at least 9.0 s"),
    Case("clocks", WELL._replace(clock=ClockFacts(-4_999)), None),
    Case("clocks", WELL._replace(clock=None), None),
    Case("offline-partitions", partition(error_code=CORRUPT), E, "topic t: partition 0 offline: LOG_CORRUPT"),
    Case("offline-partitions", partition(write_error="full"), None),
    Case("unwritable-partitions", partition(write_error="the disk is full"), E, "the disk is full"),
    Case("unwritable-partitions", partition(error_code=CORRUPT, write_error="x"), None),
    Case("full-disk", cluster(disks=(BrokerDiskFacts(2, "/d", 4 << 20, 96 << 20),)), E, "the disk of broker 2 is full"),
    Case("full-disk", cluster(disks=(BrokerDiskFacts(2, "/d", 5 << 20, 96 << 20),)), None),
    Case("full-disk", cluster(disks=(BrokerDiskFacts(2, "/d", (1 << 30) - 1, 1 << 50),)), E, "1,024.0 MiB of 1,073,741,824.0"),
    Case("full-disk", cluster(disks=(BrokerDiskFacts(2, "/d", 1 << 30, 1 << 50),)), None),
    Case("full-disk", cluster(disks=(BrokerDiskFacts(2, "/d", -1, -1),)), None),
    Case("put-aside", cluster(disks=(BrokerDiskFacts(2, "/d", 1 << 30, 1 << 50, 3),)), W,
         "broker 2 has put aside 3 partition directories in /d"),
    Case("put-aside", cluster(disks=(BrokerDiskFacts(2, "/d", 1 << 30, 1 << 50),)), None),
    Case("under-replicated", partition(replicas=3, in_sync=2), W, "2 of 3 replicas in sync"),
    Case("under-replicated", partition(replicas=3, in_sync=3), None),
    Case("under-replicated", partition(replicas=3, in_sync=2, down=(3,)), None),
    Case("under-replicated", partition(replicas=3, in_sync=1, down=(3,)), W, "1 of 3 replicas in sync"),
    Case("broker-down", partition(replicas=3, in_sync=2, down=(3,)), E, "broker 3 is down: it keeps 1 partition of 1"),
    Case("broker-down", partition(replicas=3, in_sync=2), None),
    Case("offline-partitions", partition(error_code=NO_LEADER, down=(3,)), None),
    Case("offline-partitions", partition(error_code=NO_LEADER), E, "LEADER_NOT_AVAILABLE"),
    Case("internal-replicas", grown(1, 3), W, "__consumer_offsets has 1 replica of a partition, with 3 brokers"),
    Case("internal-replicas", grown(1, 2), W, "1 replica of a partition, with 2 brokers"),
    Case("internal-replicas", grown(3, 4), None),
    Case("internal-replicas", grown(1, 1), None),
    Case("internal-replicas", partition(replicas=1), None),
    Case("open-listener", cluster(brokers=(BROKER._replace(host="10.0.0.7", address="10.0.0.7:9292"),)), W, "10.0.0.7"),
    Case("open-listener", config(listen_host="0.0.0.0"), W, "0.0.0.0 (listen in /etc/broker.toml)"),
    Case("open-listener", config(listen_host="::1"), None),
    Case("hanging-transactions", cluster(hanging=(HangingFacts(T0, 4711, 42, 900, 61_000),)), E,
         "producer 4711 has a transaction open in t partition 0 from offset 42 on"),
    Case("hanging-transactions", WELL, None),
    Case("long-open-transactions", transaction("Ongoing", 600, 900_000), W, "open for 10 min 0 s"),
    Case("long-open-transactions", transaction("Ongoing", 121, 60_000), E, "its timeout is 1 min 0 s"),
    Case("long-open-transactions", transaction("Ongoing", 119, 60_000), None),
    Case("long-open-transactions", transaction("PrepareCommit", 9_999, 60_000), None),
    Case("unfinished-transactions", transaction("PrepareCommit", 121, 60_000), E, "its markers are not written in t-0"),
    Case("unfinished-transactions", transaction("PrepareAbort", 119, 60_000), None),
    Case("unfinished-transactions", transaction("Ongoing", 9_999, 60_000), None),
    Case("lost-records", reader(committed=100, log_start=150), E, "has not read 50 offsets of t-0"),
    Case("lost-records", cluster(groups=(GroupFacts("g", "consumer", 0, (GroupPartition(T0, 1, 3, 4),)),)), W, "2 off"),
    Case("lost-records", reader(committed=150, log_start=150), None),
    Case("lag", cluster(groups=(GROUP._replace(members=0, partitions=(READER._replace(committed=9_000),)),)), W,
         "has no members; 1,000 offsets are not read"),
    Case("lag", reader(committed=9_000, committed_before=9_000), W, "committed nothing in 6 s"),
    Case("lag", reader(committed=1_000, committed_before=900, end_before=9_600), W, "reads 17/s of 67/s"),
    Case("lag", reader(committed=1_000, committed_before=900, end_before=9_950), None),
    Case("lag", reader(committed=8_801, committed_before=8_700, end_before=9_600), None),
    Case("lag", reader(committed=9_001, committed_before=9_001), None),
    Case("lag", reader(committed=5_000, committed_before=0, end=2_005_000, end_before=2_004_000), N, "about 50 min"),
    Case("lag", reader(committed=5_000, committed_before=0, end=1_004_999, end_before=1_004_000), None),
    Case("lag", cluster(over_s=None, groups=(GROUP._replace(partitions=(GroupPartition(T0, 0, 0, 1_000_000),)),)), W,
         "far behind"),
    Case("lag", cluster(over_s=None, groups=(GROUP._replace(partitions=(GroupPartition(T0, 0, 0, 999_999),)),)), None),
    Case("near-retention", keeping(retention_ms=1000, committed=500, due_offset=501), W, "retention deletes soon"),
    Case("near-retention", keeping(retention_ms=1000, committed=501, due_offset=501), None),
    Case("near-retention", keeping(retention_ms=1000, committed=10_000, due_offset=10_000), None),
    Case("near-retention", keeping(retention_bytes=12 << 20, committed=1_999), W, "retention deletes soon"),
    Case("near-retention", keeping(retention_bytes=12 << 20, committed=2_000), None),
    Case("near-retention", keeping(retention_bytes=13 << 20, committed=1_999), None),
    Case("lakes", cluster(lakes=(LakeFacts("trips", paused="restored"),)), W, "paused: restored"),
    Case("lakes", cluster(lakes=(LakeFacts("trips", error="no bucket"),)), W, "fail: no bucket"),
    Case("lakes", cluster(lakes=(LakeFacts("trips", lag=7, behind_s=301.0),)), W, "7 offsets are missing"),
    Case("lakes", cluster(lakes=(LakeFacts("trips", lag=7, behind_s=30.0),)), None),
    Case("mirrors", cluster(mirrors=(MirrorFacts("old", "trips", paused="made again"),)), W, "paused: made again"),
    Case("mirrors", cluster(mirrors=(MirrorFacts("old", "trips", error="no route"),)), W, "fails: no route"),
    Case("mirrors", cluster(mirrors=(MirrorFacts("old", "trips", has_worker=False),)), W, "no mirror worker"),
    Case("mirrors", cluster(mirrors=(MirrorFacts("old", "trips", lag=7, behind_s=301.0),)), W, "7 offsets are missing"),
    Case("mirrors", cluster(mirrors=(MirrorFacts("old", "trips", lost=1_234),)), W, "deleted 1,234 offsets"),
    Case("mirrors", cluster(mirrors=(MirrorFacts("old", "trips", refused=1_234),)), W, "1,234 records do not fit"),
    Case("mirrors", cluster(mirrors=(MirrorFacts("old", "trips", lag=7, behind_s=30.0),)), None),
    Case("mirrors", cluster(mirrors=(MirrorFacts("old", "trips", held=7, held_s=901.0),)), W, "7 offsets of topic trips"),
    Case("mirrors", cluster(mirrors=(MirrorFacts("old", "trips", held=7, held_s=30.0),)), None),
    Case("messages-beyond-frames", cluster(topics=(replace(TOPIC, configs={"max.message.bytes": 100 << 20}),)), W, "104,857,600"),
    Case("messages-beyond-frames", cluster(topics=(replace(TOPIC, configs={"max.message.bytes": 99 << 20}),)), None),
    Case("data-directory", data_dir(problem="/data does not exist", log_dirs=()), E, "/data does not exist"),
    Case("data-directory", directory(problem="/data cannot be read"), E, "/data cannot be read"),
    Case("data-directory", WELL, None),
    Case("disk-space", disk(free_bytes=49 * GIB), E, "49.0 GiB of space left (4.9%)"),
    Case("disk-space", disk(free_bytes=149 * GIB), W, "(14.9%)"),
    Case("disk-space", disk(size_bytes=4 * GIB, free_bytes=GIB - 1), E, "of space left (25.0%)"),
    Case("disk-space", disk(free_files=40_000), E, "40,000 of inodes left"),
    Case("disk-space", disk(free_bytes=151 * GIB, free_files=151_000), None),
    Case("disk-space", disk(size_bytes=100_000 * GIB, free_bytes=500 * GIB), None),
    Case("disk-space", disk(files=0, free_files=0), None),
    Case("read-only", disk(is_read_only=True), E, "read-only"),
    Case("read-only", WELL, None),
    Case("not-made-to-last", directory(path="/tmp/x"), W, "/tmp/x is below /tmp"),
    Case("not-made-to-last", disk(kind="tmpfs"), W, "in memory (tmpfs)"),
    Case("not-made-to-last", disk(kind="nfs4"), W, "network file system (nfs4)"),
    Case("not-made-to-last", directory(path="/tmpx/x"), None),
    Case("damaged-files", directory(damage=(("/data/t-0", "t-0/0.arrow, position 7: bad"),)), E, "position 7: bad"),
    Case("damaged-files", directory(damage=None, size_bytes=5 * GIB), N, "5.0 GiB) were not read"),
    Case("damaged-files", WELL, None),
    Case("metadata-store", data_dir(metadata_problem="metadata.db is missing"), E, "is missing"),
    Case("metadata-store", WELL, None),
    Case("foreign-files", directory(foreign=("a", "b")), W, "not sparklog's: a, b"),
    Case("foreign-files", WELL, None),
    Case("set-aside", directory(set_aside=("t-0.x-stray",)), W, "moved aside: t-0.x-stray"),
    Case("set-aside", WELL, None),
    Case("topics-put-aside", data_dir(put_aside=("t",)), E, "records of: t"),
    Case("topics-put-aside", WELL, None),
    Case("others-files", directory(others_files=("t-1",)), E, "some of its files do not: t-1"),
    Case("others-files", WELL, None),
    Case("absent-directories", data_dir(absent=("/disk2",)), E, "missing: /disk2"),
    Case("absent-directories", WELL, None),
    Case("mixed-directories", data_dir(log_dirs=(DIRECTORY, SECOND._replace(identity=("x", 1, "d2")))), E, "cluster x"),
    Case("mixed-directories", data_dir(log_dirs=(DIRECTORY, SECOND._replace(identity=DIRECTORY.identity))), E, "a copy"),
    Case("mixed-directories", data_dir(log_dirs=(DIRECTORY, SECOND)), None),
    Case("unclean-stop", stopped(stopped_clean=False), N, "not stopped cleanly"),
    Case("unclean-stop", stopped(stopped_clean=True), None),
    Case("unclean-stop", directory(stopped_clean=False), None),
    Case("lock-holder", data_dir(holder=HOLDER._replace(state="T")), E, "process 42 (sparklog broker) holds /data and is st"),
    Case("lock-holder", cluster(problem="refused"), E, "no broker answers"),
    Case("lock-holder", cluster(problem="invalid credentials", is_refused=True), None),
    Case("lock-holder", data_dir(holder=None), None),
    Case("lock-holder", WELL, None),
    Case("metrics-page", page(problem="no metrics from http://x"), W, "no metrics from"),
    Case("metrics-page", page(ready=False), E, "not ready"),
    Case("metrics-page", WELL, None),
    Case("open-metrics", page(host="10.0.0.7", url="http://10.0.0.7:9293/metrics"), W, "10.0.0.7"),
    Case("open-metrics", config(metrics_host="0.0.0.0"), W, "metrics.listen in /etc/broker.toml"),
    Case("open-metrics", config(metrics_host=""), None),
    Case("open-metrics", page(host="10.0.0.7", problem="refused"), None),
    Case("older-store", page(has_older_store=True), E, "older than what the broker has seen"),
    Case("older-store", page(put_aside=2), E, "files of 2 topics"),
    Case("older-store", page(), None),
    Case("descriptors", page(open_files=8_000, open_files_max=10_000), W, "8,000 of 10,000"),
    Case("descriptors", page(open_files=9_500, open_files_max=10_000), E, "9,500 of 10,000"),
    Case("descriptors", page(open_files=10, open_files_max=4_095), W, "may open 4,095"),
    Case("descriptors", data_dir(holder=HOLDER._replace(open_files=9_600, open_files_max=10_000))._replace(page=None), E,
         "process 42"),
    Case("descriptors", stopped()._replace(host=HostFacts(0, 1024)), W, "started from this shell"),
    Case("descriptors", page(open_files=7_999, open_files_max=10_000), None),
    Case("request-memory", page(memory_used_bytes=90, memory_waiting=3), W, "take 90%"),
    Case("request-memory", page(memory_used_bytes=90), None),
    Case("request-memory", page(memory_used_bytes=89, memory_waiting=3), None),
    Case("refused-connections", page(refused_connections=7), W, "refused 7 connections"),
    Case("refused-connections", WELL, None),
    Case("failing-disks", page(failed_directories=("/disk1",)), E, "out of use: /disk1"),
    Case("failing-disks", page(fsync_failures=1), E, "1 fsyncs failed"),
    Case("failing-disks", WELL, None),
    Case("failing-background", page(cleaner_failing=2), W, "2 logs cannot be compacted"),
    Case("failing-background", page(tier_failing=1), W, "1 partitions cannot be tiered"),
    Case("failing-background", WELL, None),
    Case("swapped", data_dir(holder=HOLDER._replace(swapped_bytes=32 << 20)), W, "32 MiB"),
    Case("swapped", data_dir(holder=HOLDER._replace(swapped_bytes=(32 << 20) - 1)), None),
    Case("overcommit", WELL._replace(host=HostFacts(2, 65_536)), W, "never overcommits"),
    Case("overcommit", WELL._replace(host=HostFacts(2, 65_536), data_dir=None), None),
    Case("configuration", config(problem="x.toml is not TOML"), E, "is not TOML"),
    Case("configuration", config(readable_secrets=True), W, "every user of this machine can read it"),
    Case("configuration", config(max_message_bytes=100 << 20), W, "frames of 104,857,600"),
    Case("configuration", config(queued_max_request_bytes=99 << 20), W, "all requests together"),
    Case("configuration", WELL, None),
)  # fmt: skip


def look(name: str, facts: Facts) -> list[Finding]:
    (check,) = [check for check in CHECKS if check.name == name]
    return list(check.look(facts))


@for_each("case", CASES, ids=lambda case: f"{case.check}-{case.words or 'quiet'}")
def test_check(case: Case) -> None:
    found = look(case.check, case.facts)
    if case.severity is None:
        assert found == []
        return
    (finding,) = found
    assert finding.severity is case.severity
    assert case.words in finding.fault
    for text in (finding.fault, finding.why, finding.todo):
        assert text.strip() == text != ""


def test_every_check_is_tried_both_ways() -> None:
    names = {check.name for check in CHECKS}
    assert len(names) == len(CHECKS)
    for fires in (True, False):
        assert {case.check for case in CASES if (case.severity is not None) is fires} == names


def test_the_page_lists_every_check() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "watching.md").read_text(encoding="utf-8")
    assert f"\n{len(CHECKS)} checks of the cluster" in page
    table = page.partition("| checks | subject |\n")[2].partition("\n\n")[0]
    first_cells = "".join(line.split("|")[1] for line in table.splitlines())
    assert sorted(re.findall(r"`([\w-]+)`", first_cells)) == sorted(check.name for check in CHECKS)


def test_healthy_and_unknown_states_give_no_finding() -> None:
    assert examine(WELL, CHECKS) == []
    assert examine(Facts(), CHECKS) == []


def commands() -> list[str]:
    return [finding.command for case in CASES for finding in look(case.check, case.facts) if finding.command]


def test_commands_that_are_named_exist() -> None:
    from typer.main import get_command

    from sparklog.cli.app import app

    root = get_command(app)
    named = {tuple(re.findall(r"[\w-]+", command)[1:3]) for command in commands() if command.startswith("sparklog ")}
    assert len(named) >= 8
    for words in named:
        group = root.commands[words[0]]  # type: ignore[attr-defined]
        runs_itself = getattr(group, "invoke_without_command", False) and words[1].startswith("--")
        assert not hasattr(group, "commands") or runs_itself or words[1] in group.commands, words


def test_names_are_quoted_in_commands() -> None:
    evil = "g; rm -rf $HOME\n'"
    facts = cluster(groups=(GroupFacts(evil, "consumer", 0, (GroupPartition(T0, 0, 5, 5_000),)),))
    import shlex

    for name in ("lost-records", "lag"):
        (finding,) = look(name, facts)
        assert evil in shlex.split(finding.command)


def test_a_broker_that_is_down_is_named_once_and_first() -> None:
    """Many topics, an address without a broker, and replicas that lag: one error contains the consequences."""
    lost = descriptions.partition(replicas=(1, 2, 3), isr=(1, 2))
    alone = descriptions.partition(1, -1, (3,), (), error_code=NO_LEADER)
    few = descriptions.topic(lost, name="few", configs={"min.insync.replicas": 3})
    only = descriptions.topic(lost, alone, name="only")
    topics = (*(descriptions.topic(lost, name=f"t{i}") for i in range(30)), few, only)
    silent = BrokerFacts("127.0.0.1:9294", "127.0.0.1", problem="refused")
    found = examine(cluster(topics=topics, brokers=(BROKER, silent), down_brokers=frozenset({3})), CHECKS)
    assert [f.check for f in found] == ["broker-down"]
    (finding,) = (f.finding for f in found)
    assert "broker 3 is down: it keeps 33 partitions of 32 topics (t0, t1," in finding.fault
    assert "no broker answers at 127.0.0.1:9294" in finding.fault
    assert "neither be read nor written: only-1" in finding.why
    assert "acks=all (min.insync.replicas): few-0" in finding.why


def test_the_worst_comes_first_and_decides_the_status() -> None:
    facts = page(fsync_failures=1)._replace(clock=ClockFacts(6_000))
    found = examine(facts, CHECKS)
    assert [f.check for f in found] == ["failing-disks", "clocks"]
    assert exit_status(found) == 2
    assert exit_status(examine(WELL._replace(clock=ClockFacts(6_000)), CHECKS)) == 1
    assert exit_status(examine(stopped(stopped_clean=False), CHECKS)) == 0
    assert exit_status([]) == 0


def test_many_findings_of_a_check_are_counted() -> None:
    many = Check("many", lambda facts: (Finding(W if i < 30 else E, f"no. {i}", "", "") for i in range(40)))
    found = examine(Facts(), [many])
    assert len(found) == FINDINGS_MAX + 1
    assert [f.finding.fault for f in found[:2]] == ["no. 30", "no. 31"], "the worst are kept"
    assert found[-1].finding.fault == "20 more like these, the first: no. 10"


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.1.2.3", False), ("broker.example", False)],
)  # fmt: skip
def test_addresses_of_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
