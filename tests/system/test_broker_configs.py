"""Settings of a running broker: changed, described, kept over a restart."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog import Admin
from sparklog.errors import InvalidConfigError, InvalidRequestError
from tests.support.cli import Run
from tests.system.broker_process import BrokerProcess

SETTINGS = """
num.partitions = 2
slow.request.threshold.ms = 4000
remote.log.storage.options = '{"key": "hidden-key"}'
[topic]
retention.ms = 1000000
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path / "data", settings=SETTINGS, work_dir=tmp_path)
    yield made
    made.stop(signal.SIGKILL)


def test_a_change_is_in_effect_at_once_and_after_a_restart(process: BrokerProcess, run: Run, tmp_path: Path) -> None:
    at = ("-b", process.address)
    assert run(
        "config", "alter", "--all", "num.partitions=5", "topic.retention.ms=3d", "log.level=WARNING", *at
    ).stdout == ("changed on all brokers: num.partitions=5, topic.retention.ms=3d, log.level=WARNING\n")
    with Admin(process.address) as admin:
        created = admin.create_topic("before")
        assert (created.partitions, created.setting("retention.ms")) == (5, 3 * 86_400_000)
        admin.alter_broker(0, {"num.partitions": 7, "max.connections": 50})
        assert admin.create_topic("own").partitions == 7
        assert admin.describe_broker(None).keys() == {"num.partitions", "topic.retention.ms", "log.level"}
        with pytest.raises(InvalidConfigError, match="restart the broker"):
            admin.alter_broker(0, {"num.partitions": 1, "num.io.threads": 8})
        with pytest.raises(InvalidRequestError, match="broker 9 has never been in this cluster"):
            admin.alter_broker(9, {"num.partitions": 1})
        with pytest.raises(InvalidRequestError, match="broker 9 is not running"):
            admin.describe_broker(9)
        admin.alter_broker(0, {"num.partitions": 9}, validate_only=True)
    process.stop()
    again = BrokerProcess(tmp_path / "data", settings=SETTINGS, work_dir=tmp_path)
    try:
        with Admin(again.address) as admin:
            assert admin.create_topic("after").partitions == 7
            shown = admin.describe_broker(0)
            sources = {name: (shown[name].value, shown[name].source, shown[name].is_dynamic) for name in (
                "num.partitions", "topic.retention.ms", "slow.request.threshold.ms", "num.io.threads", "remote.log.storage.options",
            )}  # fmt: skip
            assert sources == {
                "num.partitions": ("7", "broker", True),
                "topic.retention.ms": ("259200000", "all-brokers", True),
                "slow.request.threshold.ms": ("4000", "file", True),
                "num.io.threads": ("2", "default", False),
                "remote.log.storage.options": (None, "file", False),
            }
            admin.alter_broker(0, {"num.partitions": None, "max.connections": None})
            assert admin.create_topic("of-all").partitions == 5
            admin.alter_broker(None, {"num.partitions": None, "topic.retention.ms": None})
            of_file = admin.create_topic("of-file")
            assert (of_file.partitions, of_file.setting("retention.ms")) == (2, 1_000_000)
        told = run("config", "describe", "--broker", 0, "-b", again.address)
        assert "hidden-key" not in told.stdout
        assert "[hidden]" in told.stdout
        lines = run(
            "config", "describe", "--broker", 0, "--everything", "--json", "-b", again.address
        ).stdout.splitlines()
        found = {one["name"]: one for one in map(json.loads, lines)}
        assert found["log.level"] == {
            "name": "log.level",
            "value": "WARNING",
            "source": "all-brokers",
            "is_dynamic": True,
        }
        assert run("config", "alter", "--all", "-b", again.address, code=2).returncode == 2
        assert run("config", "alter", "num.partitions=1", "-b", again.address, code=2).returncode == 2
        assert "settings changed: num.partitions=5" not in again.stderr, "its level is too low for the log"
    finally:
        again.stop()
