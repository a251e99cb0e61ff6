"""A data directory of the release in which a single broker had a store of another form opens, and nothing is lost."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.environment import real_environment
from sparklog.metadata.local_coordination import FORMAT, METADATA_FILE
from sparklog.metadata.local_store import open_local
from sparklog.types import TopicPartition
from tests.support.metadata import read_store
from tests.system import earlier_directory
from tests.system.releases import environment_of, files_of

pytestmark = pytest.mark.nightly

EARLIER = "36d1b887"
"""The last commit whose single broker had tables of topics."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A directory of the earlier release, and what its broker said of it. Beside it is the tier."""
    root = tmp_path_factory.mktemp("earlier")
    release = files_of(EARLIER, tmp_path_factory.mktemp("release"))
    command = [sys.executable, earlier_directory.__file__, str(root / "data"), (root / "tier").as_uri()]
    done = subprocess.run(
        command, env=environment_of(release), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout)


def test_it_opens_without_a_loss(made: tuple[Path, dict[str, Any]]) -> None:
    root, before = made
    data = shutil.copytree(root / "data", root / "opened")
    settings = earlier_directory.settings_of((root / "tier").as_uri())
    with sparklog.start_local(data, settings=settings) as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
        servers = broker.bootstrap_servers
        after = json.loads(json.dumps(earlier_directory.told(admin)))
        assert after == before
        values = sparklog.read_table(servers, "events").column("value").to_pylist()
        assert sorted(map(int, values)) == list(range(301)), "the open transaction is not seen"
        assert sparklog.read_table(servers, "trips").num_rows == 2
        assert sparklog.read_table(servers, "cold").num_rows == 20
        assert [s for s in admin.describe_segments(TopicPartition("cold", 0)) if s.is_remote]
        with sparklog.Producer(bootstrap_servers=servers, transactional_id="open") as producer:
            producer.init_transactions()  # ends what is open
            producer.begin_transaction()
            producer.send("events", value=b"301", partition=1)
            producer.commit_transaction()
        admin.create_topic("new", partitions=1, schema=earlier_directory.SCHEMA)
        assert admin.describe_topic("new").schema_id > admin.describe_topic("trips").schema_id
    with sparklog.start_local(data, settings=settings) as broker:  # once more, in the new form
        values = sparklog.read_table(broker.bootstrap_servers, "events").column("value").to_pylist()
        assert sorted(map(int, values)) == list(range(302))


def test_the_conversion_happens_as_a_whole_or_not_at_all(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """A process that is killed leaves a journal; here each statement of the conversion is the last one."""
    root, before = made
    done = False
    for step in range(0, 200, 2):
        path = tmp_path / f"{step}.db"
        shutil.copy(root / "data" / METADATA_FILE, path)
        child = subprocess.run(
            [sys.executable, "-c", KILLED, str(path), str(step)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert child.returncode in (-9, 0), child.stderr
        with sqlite3.connect(path) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        db.close()
        assert (version == FORMAT) == ("nodes" in tables) == ("topics" not in tables)
        open_local(path, real_environment(), 0, create=False).close()
        stored = read_store(path)
        assert stored.cluster_id == before["cluster"]
        assert {n: t.topic_id for n, t in stored.topics.items()} == {n: t[0] for n, t in before["topics"].items()}
        done = child.returncode == 0
        if done:
            break
    assert done and step > 20


KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from sparklog.environment import real_environment
from sparklog.metadata.local_store import open_local

left = int(sys.argv[2])

class Connection(sqlite3.Connection):
    def execute(self, *args):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(*args)

class Databases:
    def open(self, path):
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Connection)

open_local(Path(sys.argv[1]), real_environment()._replace(databases=Databases()), 0, create=False).close()
"""
