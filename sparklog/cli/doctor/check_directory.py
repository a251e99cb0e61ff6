"""Checks of a data directory: disks, files, and the process that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sparklog.cli.doctor.facts import DirectoryFacts, Facts
from sparklog.cli.doctor.findings import Check, Finding, Severity, named, quoted

FREE_WARNING, FREE_ERROR = 0.15, 0.05
FREE_BYTES_ERROR = 1 << 30
FREE_BYTES_FINE = 500 << 30
"""Free space that causes no warning, even if it is a small share of a large disk."""
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run")
MEMORY_KINDS = ("tmpfs", "ramfs")
NETWORK_KINDS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone")
STUCK_STATES = {"T": "stopped", "t": "stopped by a debugger", "D": "waiting for its disk", "Z": "dead"}
REPAIR = (
    "Restore the files from a copy; or stop the broker, and keep the intact batches with `sparklog log repair`, which "
    "first shows its changes."
)


def _directories(facts: Facts) -> tuple[DirectoryFacts, ...]:
    return () if facts.data_dir is None else facts.data_dir.log_dirs


def not_a_data_directory(facts: Facts) -> Iterator[Finding]:
    problems = [] if facts.data_dir is None or not facts.data_dir.problem else [facts.data_dir.problem]
    problems += [d.problem for d in _directories(facts) if d.problem]
    for problem in problems:
        yield Finding(
            Severity.error,
            problem,
            "A broker with this directory finds no data: it fails, or begins a new, empty directory.",
            "Mount the disk, or name the right directory (data.dir, log.dirs); run this command as the broker's user.",
        )


def disk_space(facts: Facts) -> Iterator[Finding]:
    for directory in _directories(facts):
        disk = directory.disk
        if disk is None:
            continue
        for free, total, resource in (
            (disk.free_bytes, disk.size_bytes, "space"),
            (disk.free_files, disk.files, "inodes"),
        ):
            share = free / total if total > 0 else 1.0
            is_space = resource == "space"
            error = share < FREE_ERROR or (is_space and free < FREE_BYTES_ERROR)
            if (is_space and free >= FREE_BYTES_FINE) or not (error or share < FREE_WARNING):
                continue
            remaining = f"{free / (1 << 30):,.1f} GiB" if is_space else f"{free:,}"
            yield Finding(
                Severity.error if error else Severity.warning,
                f"the disk of {directory.path} is nearly full: {remaining} of {resource} left ({share:.1%})",
                "Without space, no record can be appended, compacted or committed; reading continues.",
                "Free space, delete topics, or let them keep fewer records (`retention.ms`, `retention.bytes`).",
                quoted("du", "-xsh", "--", directory.path),
            )


def read_only(facts: Facts) -> Iterator[Finding]:
    for directory in _directories(facts):
        if directory.disk is not None and directory.disk.is_read_only:
            yield Finding(
                Severity.error,
                f"the file system of {directory.path} is read-only",
                "No record can be written. The kernel also makes a failing disk read-only: its messages say so.",
                "Read the kernel's messages; check or replace the disk; mount it for writing.",
                "dmesg --level err,warn | tail -50",
            )


def short_lived(facts: Facts) -> Iterator[Finding]:
    for directory in _directories(facts):
        kind = directory.disk.kind if directory.disk is not None else ""
        below = next((t for t in TEMPORARY if Path(t) in (Path(directory.path), *Path(directory.path).parents)), "")
        if kind in MEMORY_KINDS or below:
            yield Finding(
                Severity.warning,
                f"{directory.path} is in memory ({kind})"
                if kind in MEMORY_KINDS
                else f"{directory.path} is below {below}",
                "Its files vanish with the next start of the machine, or when the machine removes old files.",
                "Stop the broker, move the directory, and start the broker with the new `--data-dir`. For a trial no action is needed.",
            )
        elif kind in NETWORK_KINDS:
            yield Finding(
                Severity.warning,
                f"{directory.path} is on a network file system ({kind})",
                "Locks and fsync are weaker there than on a disk: two brokers can open the same directory, and acknowledged "
                "records can be lost.",
                "Use a local disk, or a block device of the network.",
            )


def damaged(facts: Facts) -> Iterator[Finding]:
    for directory in _directories(facts):
        for place, message in directory.damage or ():
            yield Finding(
                Severity.error,
                f"damaged: {message}",
                "Readers get an error there; the partition may stay offline at the next start.",
                REPAIR,
                quoted("sparklog", "log", "repair", place),
            )
        if directory.damage is None:
            yield Finding(
                Severity.note,
                f"the files of {directory.path} ({directory.size_bytes / (1 << 30):,.1f} GiB) were not read",
                "Only reading the files shows wrong checksums; it takes a while.",
                "Add --verify, or check the files alone:",
                quoted("sparklog", "log", "verify", directory.path),
            )


def metadata_store(facts: Facts) -> Iterator[Finding]:
    if facts.data_dir is not None and facts.data_dir.metadata_problem:
        yield Finding(
            Severity.error,
            facts.data_dir.metadata_problem,
            "The file lists the topics: without it a broker does not start, or knows no topic.",
            "Restore the file from a copy, or write it again from the partitions' directories, with the broker stopped.",
            quoted("sparklog", "log", "rebuild-metadata", "--data-dir", facts.data_dir.path),
        )


def foreign_files(facts: Facts) -> Iterator[Finding]:
    for directory in _directories(facts):
        if directory.foreign:
            yield Finding(
                Severity.warning,
                f"{directory.path} has files that are not sparklog's: {named(directory.foreign)}",
                "Such files take space, and no broker removes them; a directory that looks like a partition's confuses tools.",
                "Move the files to another directory.",
                quoted("ls", "-la", "--", directory.path),
            )


def set_aside(facts: Facts) -> Iterator[Finding]:
    for directory in _directories(facts):
        if directory.set_aside:
            yield Finding(
                Severity.warning,
                f"{directory.path} has files that a broker or a repair has moved aside: {named(directory.set_aside)}",
                "The files belonged to no topic, or were damaged. They are kept for an inspection, and take space.",
                "Inspect the files, and delete those that you do not need. A finding of its own names topics that can be restored.",
                quoted("ls", "-la", "--", directory.path),
            )


def topics_put_aside(facts: Facts) -> Iterator[Finding]:
    data_dir = facts.data_dir
    if data_dir is not None and data_dir.put_aside:
        yield Finding(
            Severity.error,
            f"the cluster's metadata lack topics that {data_dir.path} has records of: {named(data_dir.put_aside)}",
            "ZooKeeper has lost these topics, or its data were replaced by older ones. Their files are put aside; no record is lost.",
            "Write the topics back into ZooKeeper: their files become theirs again. Brokers may run.",
            quoted(
                "sparklog", "cluster", "restore-metadata", "--data-dir", data_dir.path, "--zookeeper", "HOST:PORT/PATH"
            ),
        )


def others_files(facts: Facts) -> Iterator[Finding]:
    for directory in _directories(facts):
        if directory.others_files:
            yield Finding(
                Severity.error,
                f"{directory.path} belongs to {directory.owner}, but some of its files do not: {named(directory.others_files)}",
                "A tool under another user leaves files that the broker may not open: their partitions go offline.",
                "Return the files to the broker's user.",
                quoted("chown", "-R", directory.owner, "--", directory.path),
            )


def absent_directories(facts: Facts) -> Iterator[Finding]:
    absent = () if facts.data_dir is None else facts.data_dir.absent
    if facts.data_dir is not None and absent:
        yield Finding(
            Severity.error,
            f"log directories of earlier starts are missing: {named(absent)}",
            "Their partitions stay offline, so that they do not begin empty in another directory.",
            "Mount their disks, or name them in log.dirs, and restart the broker. If a directory is lost for good, remove its "
            f"line from {Path(facts.data_dir.path) / 'log-dirs.json'}.",
        )


def mixed_directories(facts: Facts) -> Iterator[Finding]:
    identified = [(d.path, d.identity) for d in _directories(facts) if d.identity is not None]
    for number, (path, identity) in enumerate(identified):
        for other_path, other in identified[:number]:
            if identity[:2] != other[:2]:
                yield Finding(
                    Severity.error,
                    f"{path} is of broker {identity[1]} of cluster {identity[0]}, {other_path} of broker {other[1]} of "
                    f"cluster {other[0]}",
                    "A broker does not start with directories of two clusters.",
                    "Name only the broker's own directories in log.dirs.",
                )
            elif identity[2] == other[2]:
                yield Finding(
                    Severity.error,
                    f"{path} is a copy of {other_path}",
                    "A broker does not start with the same directory twice.",
                    "Remove the copy from log.dirs.",
                )


def unclean_stop(facts: Facts) -> Iterator[Finding]:
    if facts.data_dir is None or facts.data_dir.holder is not None:
        return
    unclean = [d.path for d in _directories(facts) if not d.stopped_clean and d.partitions and not d.problem]
    if unclean:
        yield Finding(
            Severity.note,
            f"no broker uses {named(unclean)}, and the last one was not stopped cleanly",
            "The next start first checks the newest segments, which takes a while; no record is lost.",
            "Stop brokers with SIGTERM or Ctrl-C, and wait until they have closed their logs.",
        )


def lock_holder(facts: Facts) -> Iterator[Finding]:
    data_dir = facts.data_dir
    if data_dir is None or data_dir.holder is None:
        return
    holder = data_dir.holder
    is_silent = facts.cluster is not None and bool(facts.cluster.problem) and not facts.cluster.is_refused
    stuck = STUCK_STATES.get(holder.state, "")
    if not stuck and not is_silent:
        return
    how = f"is {stuck}" if stuck else "has the directory locked, but no broker answers at the address"
    yield Finding(
        Severity.error,
        f"process {holder.pid} ({holder.command}) holds {data_dir.path} and {how}",
        "No other broker can start with the directory while the process holds the lock.",
        "The process may still recover (its log and /health/ready say so), or listen at another address. Continue a stopped "
        "process with SIGCONT; end a hanging one with SIGTERM, then with SIGKILL.",
        quoted("ps", "-o", "pid,stat,etime,args", "-p", holder.pid),
    )


CHECKS = (
    Check("data-directory", not_a_data_directory),
    Check("disk-space", disk_space),
    Check("read-only", read_only),
    Check("not-made-to-last", short_lived),
    Check("damaged-files", damaged),
    Check("metadata-store", metadata_store),
    Check("foreign-files", foreign_files),
    Check("set-aside", set_aside),
    Check("topics-put-aside", topics_put_aside),
    Check("others-files", others_files),
    Check("absent-directories", absent_directories),
    Check("mixed-directories", mixed_directories),
    Check("unclean-stop", unclean_stop),
    Check("lock-holder", lock_holder),
)
