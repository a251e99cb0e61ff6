"""The store of a cluster of one broker: durable, atomic, one session at a time."""

from __future__ import annotations

import errno
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from sparklog.environment import Environment, real_environment
from sparklog.errors import StorageError, StorageFullError
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import (
    Create,
    Delete,
    NodeExistsError,
    SessionExpiredError,
    SetData,
    StoreWriteError,
)
from sparklog.metadata.local_coordination import METADATA_FILE, LocalCoordination
from sparklog.metadata.local_store import problem_with, run_steps
from sparklog.testing._sim_files import PowerCut
from sparklog.testing._sim_loop import Simulation
from sparklog.testing._sim_machine import SimMachine


def opened(path: Path) -> LocalCoordination:
    return LocalCoordination(path / METADATA_FILE, real_environment())


def test_nodes_outlive_a_session_and_ephemeral_ones_do_not(tmp_path: Path) -> None:
    first = opened(tmp_path)
    node = first.create("/a", b"1").result()
    first.create("/a/b", b"").result()
    gone = first.create("/a/e", b"", ephemeral=True).result()
    first.delete("/a/b").result()
    changed = first.set_data("/a", b"2").result()
    assert (node.owner, gone.owner) == (0, first.session_id)
    first.close()
    second = opened(tmp_path)
    assert second.get("/a").result() == changed
    assert second.children("/a").result() == []
    assert second.session_id > first.session_id
    assert second.create("/a/e", b"", ephemeral=True).result().czxid > gone.czxid
    second.close()


def test_zxids_of_a_killed_process_are_not_issued_again(tmp_path: Path) -> None:
    killed = opened(tmp_path)
    epochs = [killed.create(f"/e{i}", b"", ephemeral=True).result().czxid for i in range(5)]
    second = opened(tmp_path)
    assert second.create("/e0", b"", ephemeral=True).result().czxid > max(epochs)


def test_calls_are_answered_without_a_thread_that_waits_and_by_threads_that_do(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.create("/n", b"0").result()
    done = threading.Event()
    store.create("/later", b"").add_done_callback(lambda _: done.set())
    assert done.wait(30)

    def count_up(_: int) -> None:
        for _ in range(20):
            while True:
                node = store.get("/n").result()
                assert node is not None
                try:
                    store.set_data("/n", b"%d" % (int(node.data) + 1), node.version).result()
                    break
                except Exception as e:  # noqa: BLE001 - another thread was first
                    assert type(e).__name__ == "BadVersionError"

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count_up, range(4)))
    node = store.get("/n").result()
    assert node is not None and node.data == b"80"
    store.close()
    with pytest.raises(SessionExpiredError):
        store.get("/n").result()


def test_a_callback_may_wait_for_further_calls(tmp_path: Path) -> None:
    store = opened(tmp_path)
    seen: list[object] = []

    def on_made(_: object) -> None:
        seen.append(store.create("/b", b"").result().path)
        seen.append(store.children("/").result())

    store.get("/a", lambda: seen.append(store.get("/a").result() is not None))
    call = store.create("/a", b"")
    call.add_done_callback(on_made)
    call.result()
    store.close()
    assert seen == [True, "/b", ["a", "b"]]


def test_a_failed_write_has_no_effect() -> None:
    """A full disk: nothing is there, now or after a restart, and later calls go on."""
    simulation = Simulation(1)
    machine = SimMachine(simulation, "m")
    machine.files.make_directory(Path("/data"))
    _, environment = machine.process()
    store = LocalCoordination(Path("/data/x"), environment)
    store.create("/a", b"").result()
    machine.files.fault = lambda operation, path: errno.ENOSPC if operation == "write" else 0
    with pytest.raises(StoreWriteError) as refused:
        store.transaction([SetData("/a", b"1"), Create("/b", b"")]).result()
    assert isinstance(refused.value.reason, StorageFullError)
    machine.files.fault = lambda operation, path: 0
    assert store.children("/").result() == ["a"]
    store.create("/c", b"").result()
    again = LocalCoordination(Path("/data/x"), environment)
    assert again.children("/").result() == ["a", "c"]
    node = again.get("/a").result()
    assert node is not None and (node.data, node.version) == (b"", 0)


def test_a_power_cut_keeps_transactions_whole() -> None:
    for seed in range(20):
        simulation = Simulation(seed)
        machine = SimMachine(simulation, "m")
        machine.files.make_directory(Path("/data"))
        machine.files.sync_directory(Path("/"))
        loop, environment = machine.process()
        store = LocalCoordination(Path("/data/x"), environment)
        store.create("/n", b"0").result()
        machine.files.cut_at = len(machine.files.calls) + 1 + seed
        done = 0
        try:
            for i in range(1, 5):
                store.transaction([SetData("/n", b"%d" % i), Create(f"/n/{i}", b"")]).result()
                done = i
        except PowerCut:
            pass
        machine.power_cut(loop)
        _, environment = machine.process()
        store = LocalCoordination(Path("/data/x"), environment)
        node = store.get("/n").result()
        assert node is not None
        assert done <= int(node.data) <= done + 1
        assert store.children("/n").result() == [str(i) for i in range(1, int(node.data) + 1)]


def test_damage_is_a_storage_error(tmp_path: Path) -> None:
    environment: Environment = real_environment()
    path = tmp_path / METADATA_FILE
    path.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(StorageError, match=r"metadata\.db is damaged.*rebuild-metadata"):
        LocalCoordination(path, environment)
    with pytest.raises(StorageError, match="missing"):
        LocalCoordination(tmp_path / "missing" / METADATA_FILE, environment)
    with pytest.raises(StorageError, match=r"is missing.*rebuild-metadata"):
        LocalCoordination(tmp_path / "gone.db", environment, create=False)
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version = 9")
    newer.close()
    with pytest.raises(StorageError, match="format 9"):
        LocalCoordination(tmp_path / "newer.db", environment)
    rows = LocalCoordination(tmp_path / "rows.db", environment)
    rows.create("/a", b"").result()
    rows.create("/a/b", b"").result()
    with pytest.raises(NodeExistsError):
        rows.transaction([Delete("/a/b"), Create("/a", b"")]).result()
    rows.close()
    with sqlite3.connect(tmp_path / "rows.db") as db:
        db.execute("DELETE FROM nodes WHERE path = '/a'")
    db.close()
    with pytest.raises(StorageError, match="damaged"):
        LocalCoordination(tmp_path / "rows.db", environment)


def test_a_store_that_cannot_be_used_has_a_reason(tmp_path: Path) -> None:
    path = tmp_path / METADATA_FILE
    assert "is missing" in str(problem_with(path, "c"))
    store = LocalCoordination(path, real_environment())
    store.transaction([*znodes.base_ops(), Create(znodes.CLUSTER, znodes.encode(znodes.ClusterNode("c")))]).result()
    store.close()
    assert problem_with(path, "c") is None
    assert "another cluster" in str(problem_with(path, "d"))
    for change in (
        "PRAGMA user_version = 9",
        "UPDATE sqlite_schema SET sql = replace(sql, 'data BLOB', 'data BLOB CHECK (length(data) < 0)')",
        f"DELETE FROM nodes WHERE path = '{znodes.CLUSTER}'",
    ):
        copy = tmp_path / "copy.db"
        copy.write_bytes(path.read_bytes())
        with closing(sqlite3.connect(copy)) as db, db:
            db.execute("PRAGMA writable_schema = ON")
            db.execute(change)
        assert "is damaged" in str(problem_with(copy, "c")), change


def test_a_store_of_an_earlier_release_gets_the_nodes_that_it_lacks(tmp_path: Path) -> None:
    """Whichever they are: a release may have added any of them."""
    ops = znodes.base_ops()
    for number, left_out in enumerate(ops):
        if any(op.path.startswith(f"{left_out.path}/") for op in ops):
            continue  # it is there with what is below it
        store = LocalCoordination(tmp_path / f"{number}.db", real_environment())
        for op in ops:
            if op is not left_out:
                store.create(op.path, b"kept").result()
        run_steps(znodes.make_base(store))
        for op in ops:
            node = store.get(op.path).result()
            assert isinstance(op, Create) and node is not None and node.data == (op.data if op is left_out else b"kept")
        store.close()
