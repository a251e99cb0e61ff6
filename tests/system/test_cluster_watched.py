"""Three brokers, their metrics and the console in a real browser, while the broker that was the controller dies."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.ui import WebDriverWait

import sparklog
from sparklog.cli.doctor.checks import CHECKS
from sparklog.cli.doctor.cluster_facts import ClusterLook
from sparklog.cli.doctor.facts import Facts
from sparklog.cli.doctor.findings import Severity, examine
from sparklog.client.local_zookeeper import has_java
from sparklog.environment.clock import SystemClock
from tests.support.waiting import until_reached
from tests.system.cluster_processes import ClusterProcesses
from tests.system.console_browser import console_process, open_browser, require_browser, text_of
from tests.system.metrics_page import exported, get, of_the_alerts, of_the_dashboard, samples

pytestmark = pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")

BROKERS = (1, 2, 3)
METRICS = 'metrics.listen = "127.0.0.1:0"\n'
PAGE_S = 30
UNDER_REPLICATED = "kafka_server_replicamanager_underreplicatedpartitions"
OF_A_CLUSTER = re.compile("replica|controller|zookeeper|reassign|isr")
CONTROLLER = "kafka_controller_kafkacontroller_activecontrollercount"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    made = ClusterProcesses(tmp_path, dict.fromkeys(BROKERS, METRICS))
    yield made
    made.close()


def value(cluster: ClusterProcesses, broker: int, name: str) -> float:
    return samples(get(cluster.processes[broker].metrics_url)[1])[name, frozenset()]


def total(cluster: ClusterProcesses, name: str, brokers: tuple[int, ...] = BROKERS) -> float:
    """The sum over the pages of `brokers`."""
    return sum(value(cluster, broker, name) for broker in brokers)


def controller(cluster: ClusterProcesses, asked: int) -> int:
    with sparklog.Admin(cluster.processes[asked].address) as admin:
        return admin.describe_cluster().controller_id


def fill(cluster: ClusterProcesses) -> None:
    """A topic of all three brokers, and one of each that nobody else has."""
    with sparklog.Admin(cluster.processes[1].address) as admin:
        admin.create_topic("shared", 6, configs={"min.insync.replicas": 2})
        for broker in BROKERS:
            admin.create_topic(f"only-{broker}", replica_assignment=[[broker]])
    for topic, replicas in {"shared": 3, **{f"only-{broker}": 1 for broker in BROKERS}}.items():
        until_reached(lambda t=topic, n=replicas: cluster.in_sync(t, n, asked=1), f"{topic} in sync")  # type: ignore[misc]
    with sparklog.Producer(cluster.processes[1].address) as producer:
        for partition in range(6):
            producer.send("shared", b"x" * 100, partition=partition).result(60)
        for broker in BROKERS:
            for _ in range(5 * broker):
                producer.send(f"only-{broker}", Random(broker).randbytes(100_000)).result(60)


def test_a_topic_has_its_leaders_figures_at_every_broker(cluster: ClusterProcesses) -> None:
    fill(cluster)
    for asked in BROKERS:
        with sparklog.Admin(cluster.processes[asked].address) as admin:
            many = admin.describe_topics([f"only-{broker}" for broker in BROKERS])
            one = admin.describe_topic("only-1").partition_details[0]
        assert one.high_watermark == 5
        for broker in BROKERS:
            (found,) = many[f"only-{broker}"].partition_details
            assert (found.leader, found.high_watermark, found.error_code) == (broker, 5 * broker, 0)
            assert found.size_bytes > 500_000 * broker
    with sparklog.Admin(cluster.processes[2].address) as admin:
        disks = admin.describe_log_dirs()
    assert sorted(disks) == list(BROKERS)
    for broker in BROKERS:
        (disk,) = disks[broker]
        assert (disk.path, disk.error) == (str(cluster.processes[broker].data_dir), "")
        assert 0 < disk.usable_bytes < disk.total_bytes
        assert disk.partitions >= 7
        assert disk.size_bytes > 500_000 * broker


def test_the_pages_show_replication_and_missing_brokers(cluster: ClusterProcesses) -> None:
    fill(cluster)
    used = {name for name in of_the_dashboard() | of_the_alerts() if OF_A_CLUSTER.search(name)}
    assert len(used) > 15
    for broker in BROKERS:
        assert not used - exported(cluster.processes[broker].metrics_url)
        assert value(cluster, broker, "sparklog_zookeeper_connected") == 1
    assert total(cluster, CONTROLLER) == 1
    assert total(cluster, "kafka_server_brokertopicmetrics_replicationbytesin_total") > 1_200
    copied = "kafka_server_brokertopicmetrics_replicationbytesin_total"
    sent = "kafka_server_brokertopicmetrics_replicationbytesout_total"
    until_reached(lambda: total(cluster, copied) == total(cluster, sent), "what is copied is what was sent")
    assert total(cluster, UNDER_REPLICATED) == 0
    killed = controller(cluster, asked=1)
    left = tuple(broker for broker in BROKERS if broker != killed)
    cluster.kill(killed)
    until_reached(lambda: total(cluster, CONTROLLER, left) == 1, "another controller")
    until_reached(lambda: total(cluster, UNDER_REPLICATED, left) >= 6, "partitions that lack a replica")
    offline = "kafka_controller_kafkacontroller_offlinepartitionscount"
    until_reached(lambda: total(cluster, offline, left) == 1, "the partition that nobody else has")
    assert total(cluster, "kafka_server_replicamanager_isrshrinks_total", left) > 0
    addresses = ",".join(cluster.processes[broker].address for broker in BROKERS)
    look = ClusterLook(addresses, SystemClock(), time.sleep, timeout_ms=30_000)
    found = [f for f in examine(Facts(look.take(0)[0]), CHECKS) if f.finding.severity > Severity.note]
    assert [f.check for f in found] == ["broker-down"]
    assert f"broker {killed} is down: it keeps" in found[0].finding.fault
    assert f"neither be read nor written: only-{killed}-0" in found[0].finding.why
    until_reached(
        lambda: value(cluster, left[0], "kafka_controller_kafkacontroller_activebrokercount") == 2, "two are left"
    )
    cluster.start(killed)
    until_reached(lambda: total(cluster, UNDER_REPLICATED) == 0, "all in sync again")
    until_reached(lambda: total(cluster, offline) == 0, "all can be used again")


def test_reassignment_and_zookeeper_are_reported(cluster: ClusterProcesses) -> None:
    fill(cluster)
    with sparklog.Admin(cluster.processes[1].address) as admin:
        admin.alter_partition_reassignments({sparklog.TopicPartition("only-3", 0): [2]})
        until_reached(lambda: cluster.leader_of("only-3", 0, asked=1) == 2, "the partition has moved")
    assert value(cluster, 2, "kafka_server_brokertopicmetrics_reassignmentbytesin_total") > 1_500_000
    assert value(cluster, 3, "kafka_server_brokertopicmetrics_reassignmentbytesout_total") > 1_500_000
    assert total(cluster, "kafka_server_brokertopicmetrics_reassignmentbytesin_total", (1, 3)) == 0
    until_reached(lambda: total(cluster, "kafka_server_replicamanager_reassigningpartitions") == 0, "it is done")
    cluster.zookeeper.kill()
    until_reached(lambda: total(cluster, "sparklog_zookeeper_connected") == 0, "nobody reaches ZooKeeper")
    assert total(cluster, "kafka_server_sessionexpirelistener_zookeeperdisconnects_total") >= 3
    cluster.zookeeper.start()
    until_reached(lambda: total(cluster, "sparklog_zookeeper_connected") == 3, "all do again")
    assert total(cluster, "kafka_server_sessionexpirelistener_zookeepersyncconnects_total") >= 3


# --- the console


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chrome]:
    driver, browser = require_browser()
    with open_browser(tmp_path / "profile", driver, browser) as made:
        made.set_page_load_timeout(PAGE_S)
        yield made


def shows(browser: Chrome, url: str, *expected: str) -> None:
    """The page is opened until it has all that is expected; each time it has to come within PAGE_S."""

    def there(browser: Chrome) -> bool:
        browser.get(url)
        return all(text in text_of(browser) for text in expected)

    WebDriverWait(browser, 2 * PAGE_S, 0.2).until(there, f"{url}: {expected}")


@pytest.mark.nightly
def test_the_console_while_the_controller_dies(cluster: ClusterProcesses, browser: Chrome) -> None:
    fill(cluster)
    killed = controller(cluster, asked=1)
    left = [broker for broker in BROKERS if broker != killed]
    addresses = ",".join(process.address for process in cluster.processes.values())
    with (
        sparklog.Consumer(addresses, group_id="readers", auto_offset_reset="earliest") as consumer,
        console_process(addresses) as console,
    ):
        consumer.subscribe(["shared"])
        until_reached(lambda: bool(consumer.poll(500)), "a record")
        consumer.commit()
        shows(browser, console + "/", f"Controller\n{killed}", "Brokers\n3")
        shows(browser, console + "/cluster/sizes", *(process.address for process in cluster.processes.values()))
        assert "1.50" in text_of(browser), "broker 3 leads half of all bytes: 1.5 times the mean"
        assert "are in sync" not in text_of(browser)
        for broker in BROKERS:
            assert str(cluster.processes[broker].data_dir) in text_of(browser), "its disk"

        cluster.kill(killed)
        until_reached(lambda: controller(cluster, asked=left[0]) in left, "another controller")
        new = controller(cluster, asked=left[0])
        shows(browser, console + "/", f"Controller\n{new}", "Brokers\n2")
        is_down = f"Broker {killed} is down."
        shows(
            browser, console + "/cluster/sizes", is_down, "1 partition is offline", f"because broker {killed} is down"
        )
        assert text_of(browser).count(is_down) == 1
        assert "are in sync" not in text_of(browser), "it is folded"
        browser.find_element("tag name", "summary").click()
        assert "2 of 3 replicas are in sync" in text_of(browser)
        assert cluster.processes[killed].address not in text_of(browser, "main")
        shows(browser, f"{console}/topics/only-{killed}", "offline: it has no leader")
        shows(browser, console + "/topics/shared", " of ", *(f"{n}" for n in left))
        for page in ("/topics", "/groups", "/group?id=readers", "/transactions", "/spark", "/sql"):
            shows(browser, console + page, "Cluster", is_down)
            assert "That did not work" not in text_of(browser)
        shows(browser, f"{console}/topics/shared/messages", "xxx")

        cluster.start(killed)
        until_reached(lambda: cluster.in_sync("shared", 3, asked=left[0]), "all in sync again")
        shows(browser, console + "/", "Brokers\n3")
        shows(browser, console + "/cluster/sizes", cluster.processes[killed].address)
        WebDriverWait(browser, PAGE_S, 0.2).until(lambda b: [b.refresh(), "are in sync" not in text_of(b)][1])
    assert browser.get_log("browser") == []
