"""Collects facts about a data directory, its disks, and the process that uses it. Takes no lock and writes nothing, so
that a broker can run or start meanwhile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from sparklog.cli.doctor.facts import DataDirFacts, DirectoryFacts, DiskFacts, HostFacts, ProcessFacts
from sparklog.environment.files import (
    MISPLACED_SUFFIX,
    TEMPORARY_SUFFIX,
    OddFileError,
    RealFiles,
    absolute,
    open_regular,
    read_regular,
)
from sparklog.errors import StorageError
from sparklog.format.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    CLUSTER_IMAGE_FILE,
    LOG_DIRS_FILE,
    META_FILE,
    PARTITION_FILE,
    RECOVERY_POINTS_FILE,
    DataDirMeta,
    decode,
)
from sparklog.format.segment import SUFFIX
from sparklog.log.directories.broker_epoch import BROKER_EPOCH_FILE
from sparklog.log.directories.log_directory import STRAY, is_moved_aside
from sparklog.log.directories.remembered import read_remembered_directories
from sparklog.log.housekeeping.expiry_clock import EXPIRY_CLOCK_FILE
from sparklog.log.model.watched_files import LOCK_FILE, PROBE_FILE
from sparklog.log.tiering.cache_directory import CACHE_DIRECTORY
from sparklog.log.tools.repair import QUARANTINE_SUFFIX
from sparklog.log.tools.verify import bytes_to_check, verify
from sparklog.metadata.image_copy import decode_copy
from sparklog.metadata.local_coordination import METADATA_FILE

VERIFIED_BYTES_MAX = 1 << 30
"""Largest size of a directory whose files are verified without `--verify`; this takes seconds."""
ENTRIES_MAX = 200_000
OWN = frozenset(
    {LOCK_FILE, PROBE_FILE, META_FILE, RECOVERY_POINTS_FILE, CLEAN_SHUTDOWN_FILE, LOG_DIRS_FILE, CLUSTER_IMAGE_FILE, EXPIRY_CLOCK_FILE,
     BROKER_EPOCH_FILE, CACHE_DIRECTORY, "lost+found"}
)  # fmt: skip
SQLITE_MARK = b"SQLite format 3\0"
PROC = Path("/proc")
_PARTITION = re.compile(r".+-\d+")
_LOG_FILE = re.compile(r".+\.log(\.\d{1,4})?")
"""Names of `log.file` and `audit.log.file`, and of the numbered older files."""
_PLACE = re.compile(r"(\d+): FLOCK +ADVISORY +WRITE +(\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ")


def data_dir_facts(path: Path, log_dirs: Iterable[Path] = (), *, deep: bool | None = None) -> DataDirFacts:
    """Return the facts of a data directory. `log_dirs`: log directories of the configuration. Empty: those of the
    broker's last start. `deep`: True verifies all files, False none; None: up to VERIFIED_BYTES_MAX per directory."""
    path = absolute(path)
    if not path.is_dir():
        return DataDirFacts(str(path), f"{path} does not exist, or is no directory")
    try:
        remembered = read_remembered_directories(RealFiles(), path)
        os.listdir(path)  # noqa: PTH208 - to raise
    except (StorageError, OSError) as e:
        return DataDirFacts(str(path), f"{path} cannot be read: {e}")
    named = [d.absolute() for d in log_dirs]
    examined = named or remembered or [path]
    directories = [directory_facts(d, deep=deep) for d in dict.fromkeys(examined) if d.is_dir()]
    absent = [str(d) for d in dict.fromkeys([*examined, *remembered]) if not d.is_dir() or not (d / META_FILE).exists()]
    is_new = not remembered and not any(d.identity or d.partitions for d in directories)
    if is_new and not (path / METADATA_FILE).exists():
        problem = f"{path} is not a data directory: it has neither {META_FILE} nor {METADATA_FILE}"
        return DataDirFacts(str(path), problem, tuple(directories))
    holder = lock_holder(path)
    # metadata.db of a member of a cluster is missing on purpose
    is_member = (path / CLUSTER_IMAGE_FILE).exists() and not (path / METADATA_FILE).exists()
    return DataDirFacts(
        str(path),
        "",
        tuple(directories),
        tuple(d for d in absent if Path(d) in remembered),
        "" if is_member else metadata_problem(path / METADATA_FILE, is_running=holder is not None),
        topics_put_aside(path),
        holder,
    )


def topics_put_aside(path: Path) -> tuple[str, ...]:
    """Return the names of the topics whose files the broker has put aside, from its copy of the metadata."""
    data = _read(path / CLUSTER_IMAGE_FILE)
    copy = decode_copy(data) if data is not None else None
    return tuple(sorted(topic.name for topic in copy.put_aside.values())) if copy is not None else ()


def directory_facts(path: Path, *, deep: bool | None, verified_bytes_max: int = VERIFIED_BYTES_MAX) -> DirectoryFacts:
    """Return the facts of one log directory. `deep` as in `data_dir_facts`, with `verified_bytes_max` for None."""
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)[:ENTRIES_MAX]
        owner = path.stat().st_uid
        others = [e.name for e in entries if e.stat(follow_symlinks=False).st_uid not in (owner,)]
    except OSError as e:
        return DirectoryFacts(str(path), f"{path} cannot be read: {e.strerror or e}")
    partitions = [Path(e) for e in entries if _is_partition(Path(e))]
    held = {p.name for p in partitions}
    aside = [e.name for e in entries if STRAY.fullmatch(e.name) or e.name.endswith(MISPLACED_SUFFIX)]
    aside += [f"{p.name}/{f.name}" for p in partitions for f in p.glob(f"*{QUARANTINE_SUFFIX}")]
    meta = _read(path / META_FILE)
    stored = decode(meta, DataDirMeta) if meta is not None else None
    facts = DirectoryFacts(
        str(path),
        "",
        (stored.cluster_id, stored.broker_id, stored.data_dir_id) if stored is not None else None,
        disk_facts(path),
        len(partitions),
        (path / CLEAN_SHUTDOWN_FILE).exists(),
        tuple(e.name for e in entries if e.name not in held and not _is_own(e.name)),
        tuple(aside),
        tuple(others),
        _user(owner),
    )
    return _verify(facts, path, deep, verified_bytes_max) if partitions or stored is not None else facts


def _verify(facts: DirectoryFacts, path: Path, deep: bool | None, bytes_max: int) -> DirectoryFacts:
    size_bytes = bytes_to_check([path])
    if deep is False or (deep is None and size_bytes > bytes_max):
        return facts._replace(damage=None, size_bytes=size_bytes)
    by_place: dict[str, list[str]] = {}
    for finding in verify([path]).damage:
        damaged = Path(finding.path)
        place = (
            path / damaged.relative_to(path).parts[0]
            if damaged.is_relative_to(path) and damaged.parent != path
            else path
        )
        by_place.setdefault(str(place), []).append(str(finding))
    damage = tuple(
        (place, messages[0] + (f" (and {len(messages) - 1} more places there)" if len(messages) > 1 else ""))
        for place, messages in sorted(by_place.items())
    )
    return facts._replace(damage=damage, size_bytes=size_bytes)


def _is_partition(path: Path) -> bool:
    if is_moved_aside(path.name) or not _PARTITION.fullmatch(path.name):
        return False
    return path.is_dir() and ((path / PARTITION_FILE).exists() or any(path.glob(f"*{SUFFIX}")))


def _is_own(name: str) -> bool:
    """Return True if a broker creates files with this name in a log directory, besides partitions."""
    if name.startswith(METADATA_FILE) or is_moved_aside(name) or _LOG_FILE.fullmatch(name):
        return True
    return name in OWN or name.removesuffix(TEMPORARY_SUFFIX) in OWN


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _read(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except (StorageError, OSError):
        return None


def disk_facts(path: Path) -> DiskFacts | None:
    """Return the facts of the file system of `path`; None if they cannot be read."""
    try:
        statistics = os.statvfs(path)
    except OSError:
        return None
    mount, kind = mounted_at(path.resolve(), (_read(PROC / "mounts") or b"").decode("utf-8", "replace"))
    return DiskFacts(
        statistics.f_blocks * statistics.f_frsize,
        statistics.f_bavail * statistics.f_frsize,
        statistics.f_files,
        statistics.f_favail,
        bool(statistics.f_flag & os.ST_RDONLY),
        kind,
        mount,
    )


def mounted_at(path: Path, mounts: str) -> tuple[str, str]:
    """Return the mount point and the type of the file system of `path`. `mounts` is the text of /proc/mounts, in which
    the last of several mounts at one point counts."""
    best = ("", "")
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        where = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), fields[1])
        if len(where) >= len(best[0]) and (Path(where) == path or Path(where) in path.parents):
            best = (where, fields[2])
    return best


def metadata_problem(path: Path, *, is_running: bool) -> str:
    """Return the fault of metadata.db; "" without a fault. While a broker runs, only the file's beginning is read."""
    import sqlite3

    try:
        with open(open_regular(path), "rb") as file:  # noqa: PTH123  (a descriptor)
            mark = file.read(len(SQLITE_MARK))
    except FileNotFoundError:
        return f"{path} is missing"
    except PermissionError:
        return ""  # only the broker's user may read the file
    except OddFileError as e:
        return str(e)
    except OSError as e:
        return f"{path} cannot be read: {e.strerror}"
    if mark != SQLITE_MARK:
        return f"{path} is damaged: it does not begin as a database does"
    if is_running:
        return ""
    try:
        store = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
        try:
            ((result,),) = store.execute("PRAGMA quick_check(1)").fetchall()
        finally:
            store.close()
    except sqlite3.OperationalError:
        return ""  # busy, or with a journal that the next broker applies
    except (sqlite3.DatabaseError, ValueError) as e:
        return f"{path} is damaged: {e}"
    return "" if result == "ok" else f"{path} is damaged: {result}"


# --- the process that holds the lock ---


def lock_holder(path: Path) -> ProcessFacts | None:
    """Return the process that holds the directory's lock; None if no process that is visible here holds it."""
    try:
        status = (path / LOCK_FILE).stat()
    except OSError:
        return None
    place = (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    pid = holder_of(place, (_read(PROC / "locks") or b"").decode("ascii", "replace"))
    return None if pid is None else process_facts(pid)


def holder_of(place: tuple[int, int, int], locks: str) -> int | None:
    """Return the id of the process that holds the lock of a file; None without one.

    `place` is the file's device (major, minor) and inode, `locks` the text of /proc/locks.
    """
    for match in _PLACE.finditer(locks):
        if (int(match[3], 16), int(match[4], 16), int(match[5])) == place and int(match[2]) > 0:
            return int(match[2])
    return None


def process_facts(pid: int) -> ProcessFacts | None:
    """Return the facts of a process; None if it has ended."""
    here = PROC / str(pid)
    stat = _read(here / "stat")
    if stat is None:
        return None
    command = (_read(here / "cmdline") or b"").replace(b"\0", b" ").decode("utf-8", "replace").strip()
    limits = (_read(here / "limits") or b"").decode("ascii", "replace")
    limit = re.search(r"Max open files +(\d+)", limits)
    status = (_read(here / "status") or b"").decode("utf-8", "replace")
    swapped = re.search(r"VmSwap:\s+(\d+) kB", status)
    try:
        open_files = sum(1 for _ in os.scandir(here / "fd"))
    except OSError:
        open_files = -1
    return ProcessFacts(
        pid,
        command,
        stat.rpartition(b")")[2].split()[0].decode("ascii", "replace"),
        open_files,
        int(limit[1]) if limit and open_files >= 0 else -1,
        int(swapped[1]) * 1024 if swapped else 0,
    )


def host_facts() -> HostFacts:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    overcommit = (_read(PROC / "sys/vm/overcommit_memory") or b"-1").decode("ascii", "replace").strip()
    return HostFacts(int(overcommit) if overcommit.isdecimal() else -1, -1 if hard == resource.RLIM_INFINITY else hard)
