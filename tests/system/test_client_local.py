"""`start_local`: the daemon's life."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.local_zookeeper import has_java
from sparklog.errors import BrokerNotAvailableError
from tests.support.cases import in_gate
from tests.support.waiting import until


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_temporary_directory_goes_with_the_broker() -> None:
    with sparklog.start_local() as broker:
        assert broker.running and alive(broker.pid) and broker.data_dir.is_dir()
        assert sparklog.Admin(broker.bootstrap_servers).list_topics() == []
    assert not broker.running and not alive(broker.pid) and not broker.data_dir.exists()
    assert broker.stop() == 0  # again is fine


def test_a_named_directory_stays(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path / "data") as broker:
        sparklog.Admin(broker.bootstrap_servers).create_topic("kept", partitions=2)
    with sparklog.start_local(tmp_path / "data") as broker:
        assert sparklog.Admin(broker.bootstrap_servers).describe_topic("kept").partitions == 2


def test_the_brokers_own_words_when_it_does_not_start(tmp_path: Path) -> None:
    with (
        sparklog.start_local(tmp_path / "data"),
        pytest.raises(BrokerNotAvailableError, match="did not start") as caught,
    ):
        sparklog.start_local(tmp_path / "data")
    assert str(tmp_path / "data") in str(caught.value)


def test_a_start_that_takes_too_long_names_the_limit() -> None:
    with pytest.raises(BrokerNotAvailableError, match="did not start within 0 s: raise timeout_s"):
        sparklog.start_local(timeout_s=0)


STARTS = {
    "the main thread": "broker = sparklog.start_local()",
    "a thread that goes on": """
started = queue.Queue()
threading.Thread(target=lambda: (started.put(sparklog.start_local()), time.sleep(600)), daemon=True).start()
broker = started.get(timeout=60)
""",
    "a thread that has ended": """
with concurrent.futures.ThreadPoolExecutor() as pool:
    broker = pool.submit(sparklog.start_local).result(60)
""",
}
ENDS = {
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "clean": "sys.exit(0)",
    "failed": "raise RuntimeError",
    "without cleaning up": "os._exit(1)",
    "killed, with a forked child that lives on": """
if os.fork() == 0:
    os.close(1); os.close(2)
    time.sleep(20)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
""",
}


@pytest.mark.parametrize("start", in_gate(STARTS, "a thread that has ended"))
def test_it_does_not_outlive_its_program(start: str) -> None:
    for end in ENDS:
        script = (
            "import concurrent.futures, os, queue, signal, sys, threading, time, sparklog\n"
            + STARTS[start]
            + "\nprint(broker.pid, broker.data_dir, flush=True)\n"
            + ENDS[end]
        )
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        pid, directory = done.stdout.split()
        until(lambda pid=int(pid): not alive(pid))  # type: ignore[misc]
        assert not Path(directory).exists(), end


def test_a_named_directory_outlives_a_killed_program(tmp_path: Path) -> None:
    script = f"""
        import os, signal, sparklog
        broker = sparklog.start_local({str(tmp_path / "data")!r})
        print(broker.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    pid = int(done.stdout)
    until(lambda: not alive(pid))
    assert (tmp_path / "data" / "clean-shutdown").exists()


def in_forked_child(script: str, address: str = "") -> str:
    """Output of a program in which `child()` is called in a forked child, `parent()` in the parent afterwards."""
    frame = """
import multiprocessing, os, sys, time, threading, sparklog
address = sys.argv[1]
{script}
pid = os.fork()
if pid == 0:
    child()
    sys.exit(0)
deadline = time.monotonic() + 60
while os.waitpid(pid, os.WNOHANG) == (0, 0):
    if time.monotonic() > deadline:
        os.kill(pid, 9)
        print("the child hangs")
        break
    time.sleep(0.05)
parent()
"""
    command = [sys.executable, "-c", frame.replace("{script}", textwrap.dedent(script)), address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_child_leaves_the_broker_of_its_parent_alone() -> None:
    said = in_forked_child(
        """
        broker = sparklog.start_local()
        sparklog.Admin(broker.bootstrap_servers).create_topic("t")

        def child():
            with broker:
                assert broker.running
                sparklog.Admin(broker.bootstrap_servers).create_topic("t2")
            broker.kill()

        def parent():
            assert broker.running and broker.data_dir.is_dir()
            print(sorted(sparklog.Admin(broker.bootstrap_servers).list_topics()), broker.stop(), broker.data_dir.exists())
        """
    )
    assert said == "['t', 't2'] 0 False\n"


def test_clients_of_the_parent_say_so_in_a_forked_child(broker: LocalBroker, topic: str) -> None:
    said = in_forked_child(
        f"""
        topic = {topic!r}
        from sparklog.query.session import SqlSession
        admin = sparklog.Admin(address)
        admin.create_topic(topic)
        producer = sparklog.Producer(address)
        sent = producer.send(topic, b"1")
        sent.result(30)
        consumer = sparklog.Consumer(address, group_id=topic, auto_offset_reset="earliest")
        consumer.subscribe([topic])
        while not consumer.poll(10_000):
            pass
        session = SqlSession(address)
        result = session.execute(f'SELECT * FROM "{{topic}}"')
        next(iter(result))

        def refused(what):
            try:
                what()
            except sparklog.errors.ClosedError as e:
                assert "parent" in str(e), e
            else:
                raise AssertionError("not refused")

        def child():
            refused(lambda: producer.send(topic, b"x").result(10))
            refused(lambda: consumer.poll(1_000))
            refused(lambda: session.execute("SELECT 1"))
            refused(result.read_all)
            for closed in (producer, consumer, result, session):
                closed.close()
            assert topic in admin.list_topics()
            assert sparklog.read_table(address, topic).num_rows >= 1
            with sparklog.Producer(address) as mine:
                mine.send(topic, b"3").result(30)
            print("child", flush=True)

        def parent():
            producer.send(topic, b"4").result(30)
            consumer.poll(1_000)
            assert session.execute("SELECT 42").read_all().num_rows == 1
            print("parent")
        """,
        broker.bootstrap_servers,
    )
    assert said == "child\nparent\n"


@pytest.mark.skipif(not has_java(), reason="ZooKeeper needs Java")
def test_no_process_of_a_cluster_outlives_its_killed_program() -> None:
    script = """
        import os, queue, signal, sys, threading, time, sparklog
        started = queue.Queue()
        def start():
            started.put(sparklog.start_local(brokers=2))
            time.sleep(600)
        threading.Thread(target=start, daemon=True).start()
        cluster = started.get(timeout=120)
        print(cluster.data_dir, cluster.zookeeper.pid, *[b.pid for b in cluster.brokers], flush=True)
        pid = os.fork()
        if pid == 0:
            with cluster:
                pass
            sys.exit(0)
        print(os.waitpid(pid, 0)[1], [b.running for b in cluster.brokers], cluster.data_dir.exists(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    first, second = done.stdout.splitlines()
    directory, *pids = first.split()
    assert second == "0 [True, True] True", "a forked child leaves all as it is"
    until(lambda: not any(alive(int(pid)) for pid in pids))
    until(lambda: not Path(directory).exists())
