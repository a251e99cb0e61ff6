"""Readers of the broker's files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from sparklog_broker.config import load_config
from sparklog_broker.main import give_to_group

from sparklog.environment import real_environment
from sparklog.environment.files import directory_mode
from sparklog.errors import InvalidConfigError
from sparklog.metadata.local_coordination import METADATA_FILE
from sparklog.metadata.store import TopicSpec
from tests.support.brokers import started
from tests.support.logs import records


@pytest.fixture
def umask() -> Iterator[None]:
    """Restore the umask after the test."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(data: Path) -> tuple[set[int], set[int]]:
    """Of all files but the users' own, and of all directories."""
    paths = [data, *(path for path in data.rglob("*") if not path.name.startswith(METADATA_FILE))]
    found = {p: stat.S_IMODE(p.stat().st_mode) for p in paths}
    return {m for p, m in found.items() if p.is_file()}, {m for p, m in found.items() if p.is_dir()}


def used(root: Path, setting: str) -> Path:
    """Return a data directory in which a broker has created all kinds of files."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "broker.toml").write_text(setting)
    config = load_config(root / "broker.toml", data_dir=str(root / "data"), listen="127.0.0.1:0")

    async def scenario() -> None:
        broker = await started(config)
        await broker.topics.create(TopicSpec("events", 2, configs={"cleanup.policy": "compact"}))
        log = broker.partitions.get("events", 0).log
        log.appender.append(records(3))
        log.appender.begin_segment()
        log.appender.append(records(3))
        await broker.close()

    asyncio.run(scenario())
    return root / "data"


@pytest.mark.parametrize("mode", ["", "0600", "0640", "0644", "0660"])
def test_files_and_directories_have_the_mode_of_the_setting(tmp_path: Path, umask: None, mode: str) -> None:
    data = used(tmp_path / "a", f'"data.file.mode" = "{mode}"' if mode else "")
    expected = int(mode or "0640", 8)
    assert modes(data) == ({expected}, {directory_mode(expected)})
    assert stat.S_IMODE((data / METADATA_FILE).stat().st_mode) == 0o600, "it has the users' credentials"


def test_a_readable_directory_with_users_becomes_private(tmp_path: Path, umask: None) -> None:
    """With the files that SQLite has beside it."""
    data = used(tmp_path / "a", "")
    left_by_sqlite = data / f"{METADATA_FILE}-shm"
    left_by_sqlite.touch()
    for path in (data / METADATA_FILE, left_by_sqlite):
        path.chmod(0o644)
    with contextlib.closing(real_environment(0o644).databases.open(data / METADATA_FILE)):
        for path in (data / METADATA_FILE, left_by_sqlite):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_umask_only_forbids(tmp_path: Path, umask: None) -> None:
    os.umask(0o077)
    assert modes(used(tmp_path / "a", "")) == ({0o600}, {0o700})


@pytest.mark.parametrize(
    ("of_files", "of_directories"), [(0o600, 0o700), (0o640, 0o750), (0o644, 0o755), (0o660, 0o770)]
)
def test_readers_may_enter(of_files: int, of_directories: int) -> None:
    assert directory_mode(of_files) == of_directories


def test_another_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="0666"):
        used(tmp_path, '"data.file.mode" = "0666"')


def test_new_files_belong_to_the_group_that_is_named(tmp_path: Path) -> None:
    """To one of the process's own: another one only root may give them to."""
    own = os.getgroups()[-1] if os.getuid() else 12_345
    config = load_config(data_dir=str(tmp_path / "data"), listen="127.0.0.1:0", data_file_group=str(own))
    give_to_group(config, real_environment())

    async def make() -> None:
        broker = await started(config)
        await broker.topics.create(TopicSpec("t", 2))
        await broker.close()

    asyncio.run(make())
    assert {p.stat().st_gid for p in (config.data_dir, *config.data_dir.rglob("*"))} == {own}
    assert stat.S_IMODE((config.data_dir / METADATA_FILE).stat().st_mode) == 0o600


def test_an_absent_group(tmp_path: Path) -> None:
    config = load_config(data_dir=str(tmp_path / "data"), listen="127.0.0.1:0", data_file_group="no-such-group")
    with pytest.raises(InvalidConfigError, match="the group does not exist"):
        give_to_group(config, real_environment())
