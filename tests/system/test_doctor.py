"""`sparklog doctor` against real brokers and their directories."""

from __future__ import annotations

import json
import os
import signal
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparklog import Admin, Producer, TopicPartition
from sparklog.cli.doctor.checks import CHECKS
from sparklog.client.admin.admin import Admin as AdminClass
from sparklog.protocol.transaction_messages import DescribeProducersResponse, ProducerState
from tests.support.cli import Run, run_here
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.system.broker_process import PATIENCE_S, BrokerProcess

SETTINGS = 'metrics.listen = "127.0.0.1:0"\n[topic]\nretention.ms = 604800000\n'


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path / "data", settings=SETTINGS, work_dir=tmp_path)
    yield made
    made.stop(signal.SIGKILL)


class Doctor:
    """Runs the command, and returns its findings by check; findings about the machine itself are left out."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, *options: object, code: int) -> dict[str, dict[str, Any]]:
        report = json.loads(self._run("doctor", "--json", "--interval", "0s", *options, code=code).stdout)
        assert report["status"] == code
        return {f["check"]: f for f in report["findings"]}


@pytest.fixture
def doctor(run: Run, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    monkeypatch.delenv("SPARKLOG_BOOTSTRAP_SERVERS")
    from sparklog.cli.doctor import check_cluster, check_directory

    monkeypatch.setattr(check_directory, "TEMPORARY", ())  # where tests work
    monkeypatch.setattr(check_directory, "FREE_WARNING", 0.0)
    monkeypatch.setattr(check_directory, "FREE_ERROR", 0.0)
    monkeypatch.setattr(check_directory, "FREE_BYTES_ERROR", 0)
    monkeypatch.setattr(check_directory, "MEMORY_KINDS", ())
    monkeypatch.setattr(check_cluster, "is_enough", lambda size_bytes, free_bytes: True)
    return Doctor(run)


def test_a_broker_that_is_well(doctor: Doctor, run: Run, process: BrokerProcess) -> None:
    with Admin(process.address) as admin, Producer(process.address) as producer:
        admin.create_topic("t", 2)
        producer.send("t", b"x", partition=0).result(PATIENCE_S)
        admin.alter_group_offsets("g", {TopicPartition("t", 0): 1})
    everything = ("-b", process.address, "--data-dir", process.data_dir, "--metrics", process.metrics_url)
    assert doctor(*everything, code=0) == {}
    shown = run("doctor", *everything).stdout
    assert shown.startswith(f"{len(CHECKS)} checks of the cluster at ")
    assert shown.endswith("nothing is wrong\n")
    assert ", 1 group)" in shown


def test_lost_records_and_groups_without_a_reader(doctor: Doctor, process: BrokerProcess) -> None:
    with Admin(process.address) as admin, Producer(process.address) as producer:
        admin.create_topic("t", 1)
        old_ms = time.time_ns() // 1_000_000 - 6 * 86_400_000
        for _ in range(1_200):
            producer.send("t", b"x", partition=0, timestamp_ms=old_ms)
        producer.flush()
        admin.alter_group_offsets("g", {TopicPartition("t", 0): 20})
        found = doctor("-b", process.address, code=1)
        assert found.keys() == {"near-retention"}, "six of their seven days are over"
        assert found["near-retention"]["command"] == "sparklog topic alter t --config retention.ms=1209600000"
        found = doctor("-b", process.address, "--interval", "10ms", code=1)
        assert "1,180 offsets are not read" in found["lag"]["what"]
        admin.delete_records({TopicPartition("t", 0): 50})
        found = doctor("-b", process.address, code=1)
        assert "has not read 30 offsets of t-0" in found["lost-records"]["what"]
        assert found["lost-records"]["command"] == "sparklog group reset-offsets g --topic t --to-earliest"


def test_transactions_that_hold_readers_back(
    doctor: Doctor, process: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparklog.cli.doctor import check_readers

    with Admin(process.address) as admin, Producer(process.address, transactional_id="shop") as producer:
        admin.create_topic("t", 1)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"x").result(PATIENCE_S)
        assert doctor("-b", process.address, code=0) == {}
        monkeypatch.setattr(check_readers, "LONG_OPEN_MS", 0)
        found = doctor("-b", process.address, code=1)["long-open-transactions"]
        assert "first record in t-0" in found["why"]
        assert found["command"] == "sparklog transaction abort shop"
        # brokers abort what no coordinator knows at their start, so there is no way to have one for real
        unknown = DescribeProducersResponse([ProducerState(4711, 0, 5, 1_700_000_000_000, 0)])
        monkeypatch.setattr(AdminClass, "describe_producers", lambda self, tp: unknown)
        found = doctor("-b", process.address, code=2)["hanging-transactions"]
        assert found["command"] == "sparklog transaction abort --topic t --partition 0 --producer-id 4711"
        producer.abort_transaction()


def test_the_directorys_holder_and_the_brokers_last_end(doctor: Doctor, process: BrokerProcess) -> None:
    with Admin(process.address) as admin:
        admin.create_topic("t", 1)
    data_dir = ("--data-dir", process.data_dir)
    assert doctor(*data_dir, code=0) == {}
    found = doctor(*data_dir, "-b", "127.0.0.1:1", code=2)
    assert found.keys() == {"unreachable", "lock-holder"}
    assert f"process {process.process.pid} " in found["lock-holder"]["what"]
    os.kill(process.process.pid, signal.SIGSTOP)
    stopped = psutil.Process(process.process.pid)
    until(lambda: stopped.status() == psutil.STATUS_STOPPED, "the signal has taken effect")
    assert "is stopped" in doctor(*data_dir, code=2)["lock-holder"]["what"]
    process.stop(signal.SIGKILL)
    found = doctor(*data_dir, code=0)
    assert found.keys() - {"descriptors"} == {"unclean-stop"}
    assert found["unclean-stop"]["severity"] == "note"


def test_directories_that_a_broker_has_put_aside(doctor: Doctor, process: BrokerProcess) -> None:
    with Admin(process.address) as admin:
        admin.create_topic("t", 1)
    (process.data_dir / f"old-0.{'0' * 32}-stray").mkdir()
    found = doctor("-b", process.address, code=1)
    assert found.keys() == {"put-aside"}
    assert found["put-aside"]["what"] == f"broker 0 has put aside 1 partition directory in {process.data_dir}"


def test_damage_and_a_lost_store(doctor: Doctor, process: BrokerProcess) -> None:
    with Admin(process.address) as admin, Producer(process.address) as producer:
        admin.create_topic("t", 1)
        for _ in range(10):
            producer.send("t", b"x" * 5_000).result(PATIENCE_S)
    process.stop()
    (segment,) = (process.data_dir / "t-0").glob("*.arrow")
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        file.write(b"\xff" * 100)
    (process.data_dir / "metadata.db").unlink()
    found = doctor("--data-dir", process.data_dir, code=2)
    assert found.keys() - {"descriptors"} == {"damaged-files", "metadata-store"}
    assert found["damaged-files"]["command"] == f"sparklog log repair {process.data_dir / 't-0'}"
    assert "--no-verify" not in doctor("--data-dir", process.data_dir, "--no-verify", code=2)["damaged-files"]["what"]


def test_partitions_that_are_offline(doctor: Doctor, process: BrokerProcess, tmp_path: Path) -> None:
    with Admin(process.address) as admin, Producer(process.address) as producer:
        admin.create_topic("t", 1)
        admin.create_topic("u", 1)
        producer.send("t", b"x").result(PATIENCE_S)
        producer.send("u", b"x").result(PATIENCE_S)
    process.stop()
    for segment in (process.data_dir / "t-0").glob("*.arrow"):
        segment.unlink()
    again = BrokerProcess(process.data_dir, work_dir=tmp_path)
    try:
        found = doctor("-b", again.address, code=2)
        assert "topic t: partition 0 offline" in found["offline-partitions"]["what"]
        assert "not-looked-at" not in found
    finally:
        again.stop()


def test_a_configuration_names_the_data_directory(doctor: Doctor, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f'listen = "0.0.0.0:9292"\ndata.dir = "{tmp_path / "none"}"\n')
    found = doctor("--config", path, code=2)
    assert found.keys() - {"descriptors"} == {"open-listener", "data-directory"}
    path.write_text("listn = 1\n")
    assert doctor("--config", path, code=2).keys() == {"configuration"}


def test_wrong_usage(run: Run) -> None:
    assert "as in 90s" in run("doctor", "--interval", "soon", code=2).stderr
    assert "Exit status" in run("doctor", "--help").stdout


def test_a_bundle_of_a_running_broker(tmp_path: Path) -> None:
    settings = SETTINGS.replace('"127.0.0.1:0"', f'"127.0.0.1:{free_port()}"').replace("[topic]", "")
    secret = """
log.file = "broker.log"
remote.log.storage.options = '{"key": "pl4nt-options"}'
ssl.key.password = "pl4nt-key"
"""
    process = BrokerProcess(
        tmp_path / "data", settings=secret + settings.replace("retention.ms", "topic.retention.ms"), work_dir=tmp_path
    )
    try:
        config = tmp_path / "broker.toml"
        with Admin(process.address) as admin:
            admin.create_topic("t", 2)
            admin.alter_broker(None, {"num.partitions": 4})
        given = f'data.dir = "{process.data_dir}"\n{config.read_text()}'
        config.write_text(given)
        path = tmp_path / "bundle.tar.gz"
        told = run_here("doctor", "-b", process.address, "--config", config, "--interval", "0s", "--bundle", path)
        assert f"wrote {path}" in told.stderr
        assert "  settings/broker-0.json (" in told.stderr
    finally:
        process.stop()
    with tarfile.open(path) as archive:
        files = {m.name.partition("/")[2]: archive.extractfile(m).read().decode() for m in archive}  # type: ignore[union-attr]
    assert not [name for name, text in files.items() if "pl4nt" in text]
    shown = json.loads(files["settings/broker-0.json"])
    assert (shown["num.partitions"]["value"], shown["num.partitions"]["source"]) == ("4", "all-brokers")
    assert shown["remote.log.storage.options"]["value"] == shown["ssl.key.password"]["value"] == "[hidden]"
    assert json.loads(files["topics.json"])["t"]["partitions"][1]["partition"] == 1
    (metrics,) = [text for name, text in files.items() if name.startswith("metrics/")]
    assert "sparklog_ready 1" in metrics
    assert "created topic t" in files["logs/data-broker.log"]
    assert json.loads(files["manifest.json"])["missing"] == {}
