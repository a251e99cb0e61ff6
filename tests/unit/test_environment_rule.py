"""Below a process's main module, time, files, threads and chance come from the `Environment`, and from nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.cases import for_each

ROOT = Path(__file__).resolve().parents[2]
HELD = (
    "sparklog/format",
    "sparklog/log",
    "sparklog/protocol",
    "sparklog/replication",
    "sparklog/metadata",
    "sparklog/console",
    "broker_daemon",
)
FORBIDDEN = {
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.sleep",
    "time.clock_gettime_ns", "uuid.uuid4", "uuid.uuid1", "os.urandom", "random.random", "random.Random", "random.choice",
    "random.randrange", "random.shuffle", "secrets.token_bytes", "secrets.token_hex", "threading.Thread", "Thread",
    "ThreadPoolExecutor", "concurrent.futures.ThreadPoolExecutor", "open", "hash", "sqlite3.connect",
    "os.open", "os.read", "os.write", "os.pread", "os.pwrite", "os.preadv", "os.rename", "os.replace", "os.unlink",
    "os.remove", "os.listdir", "os.scandir", "os.stat", "os.fstat", "os.fsync", "os.fdatasync", "os.ftruncate", "os.link",
    "os.mkdir", "os.makedirs", "os.close",
}  # fmt: skip
PATH_METHODS = {
    "read_bytes", "read_text", "write_bytes", "write_text", "unlink", "mkdir", "iterdir", "is_file", "is_dir", "rglob",
    "rmdir", "symlink_to", "hardlink_to", "chmod",
}  # fmt: skip
EXCEPTIONS = {
    "broker_daemon/sparklog_broker/main.py": "starts the process",
    "broker_daemon/sparklog_broker/__main__.py": "starts the process",
    "broker_daemon/sparklog_broker/children/child.py": "real processes; a simulation has none",
    "broker_daemon/sparklog_broker/children/kafka_gateway.py": "real sockets and processes; a simulation has none",
    "broker_daemon/sparklog_broker/network/preamble.py": "real sockets; a simulation delivers frames above it",
    "broker_daemon/sparklog_broker/config.py": "reads the configuration before there is an environment",
    "broker_daemon/sparklog_broker/network/listening.py": "real sockets; a simulation delivers frames above it",
    "broker_daemon/sparklog_broker/network/out_queue.py": "real sockets; a simulation delivers frames above it",
    "broker_daemon/sparklog_broker/network/tls_transport.py": "real sockets; a simulation delivers frames above it",
    "broker_daemon/sparklog_broker/log_format.py": "the process's own log, also of faults of the environment",
    "broker_daemon/sparklog_broker/descriptors.py": "looks at the process's limits",
    "sparklog/console/sql_child.py": "a process of its own, for one statement",
    "sparklog/log/tools/verify.py": "a command's work, beside a broker: it reads real files",
    "sparklog/log/tools/verify_segment.py": "a command's work, beside a broker: it reads real files",
    "sparklog/log/tools/verify_producers.py": "a command's work, beside a broker: it reads real files",
    "sparklog/log/tiering/object_store.py": "what fsspec leaves to do on a real file system",
    "sparklog/log/directories/log_directory.py": "names that have to be unique and decide nothing",
    "sparklog/log/housekeeping/tier_run.py": "names that have to be unique and decide nothing",
    "sparklog/log/compaction/key_hash.py": "the seeds of a hash table: they must not be guessed, and change no result",
}


def modules() -> list[Path]:
    return sorted(p for folder in HELD for p in (ROOT / folder).rglob("*.py"))


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def uses(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute | ast.Name) and name_of(node) in FORBIDDEN - {"open", "hash"}:
            found.append(f"{path.relative_to(ROOT)}:{node.lineno} {name_of(node)}")
        elif isinstance(node, ast.Call):
            called = name_of(node.func)
            if called in ("open", "hash") or called.rpartition(".")[2] in PATH_METHODS:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {called}")
    return found


@for_each("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_machine_is_reached_through_the_environment(path: Path) -> None:
    if str(path.relative_to(ROOT)) in EXCEPTIONS:
        return
    assert uses(path) == []


def test_every_exception_is_needed() -> None:
    for name in EXCEPTIONS:
        assert (ROOT / name).exists(), name
