"""A real broker's pages for Prometheus: the series of dashboards and alerts exist, and scraping does no harm."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from sparklog.errors import SparklogError
from sparklog.protocol import group_messages as groups
from sparklog.protocol import mirror_messages as mirrors
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse
from sparklog.protocol.transaction_messages import InitProducerIdRequest, InitProducerIdResponse
from tests.support.raw_client import envelope_batch
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess, create_topic, fetch, handshake, produce
from tests.system.metrics_page import (
    ONLY_IN_A_CLUSTER,
    ROOT,
    RULES,
    exported,
    get,
    names_in,
    of_the_alerts,
    of_the_dashboard,
    samples,
)

PROMETHEUS = ROOT / "conf" / "prometheus" / "prometheus.yml"
SETTINGS = 'metrics.listen = "127.0.0.1:0"\nlake.worker.enable = false\nmirror.worker.enable = false\n'
BATCH = envelope_batch(10, 100)
STRIMZI = """
kafka_cluster_partition_atminisr kafka_cluster_partition_replicascount kafka_cluster_partition_underminisr
kafka_controller_controllerstats_uncleanleaderelections_total kafka_controller_kafkacontroller_activecontrollercount
kafka_controller_kafkacontroller_offlinepartitionscount kafka_log_log_size
kafka_server_brokertopicmetrics_bytesin_total kafka_server_brokertopicmetrics_bytesout_total
kafka_server_brokertopicmetrics_failedfetchrequests_total kafka_server_brokertopicmetrics_failedproducerequests_total
kafka_server_brokertopicmetrics_messagesin_total kafka_server_brokertopicmetrics_totalfetchrequests_total
kafka_server_brokertopicmetrics_totalproducerequests_total kafka_server_replicamanager_leadercount
kafka_server_replicamanager_partitioncount kafka_server_replicamanager_underreplicatedpartitions
kafka_server_socket_server_metrics_connection_count process_open_fds
kafka_broker_info kafka_consumergroup_current_offset kafka_consumergroup_lag kafka_topic_partition_current_offset
kafka_topic_partition_in_sync_replica kafka_topic_partition_oldest_offset kafka_topic_partition_replicas
kafka_topic_partition_under_replicated_partition kafka_topic_partitions
"""
"""Series that Strimzi's dashboards of Kafka and of kafka_exporter read, without the JVM's and those that only Kafka has
(docs/watching.md)."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that has done a little of everything."""
    directory = tmp_path_factory.mktemp("metrics")
    broker = BrokerProcess(directory / "data", settings=SETTINGS, work_dir=directory)
    with broker.connect() as client:
        handshake(client)
        create_topic(client, "t", 2)
        create_topic(client, "lake", configs={"lake.location": "/nowhere", "lake.paused": "tried"})
        mirrored = {"mirror.name": "old", "mirror.source": "kafka://old:9092", "mirror.lost": "0:3-9"}
        create_topic(client, "mirrored", configs=mirrored)
        topic_id = client.request(Api.METADATA, MetadataRequest(["mirrored"]), MetadataResponse).topics[0].topic_id
        report = mirrors.MirrorReport("mirrored", topic_id, [mirrors.SourceEnd(0, 7, 5)], 0, "no route", 4, 1_000)
        client.request(Api.REPORT_MIRRORS, mirrors.ReportMirrorsRequest([report]), mirrors.ReportMirrorsResponse)
        assert produce(client, [("t", 0, BATCH), ("t", 1, BATCH)])[0].error_code == 0
        assert produce(client, [("nobody's", 0, BATCH)])[0].error_code != 0
        fetch(client, "t", 0)
        fetch(client, "t", 99)
        commit = groups.OffsetCommitRequest("g", [groups.CommittedOffset("t", 0, 3)])
        client.request(Api.OFFSET_COMMIT, commit, groups.OffsetCommitResponse)
        client.request(Api.INIT_PRODUCER_ID, InitProducerIdRequest("app", 60_000), InitProducerIdResponse)
    yield broker
    broker.stop()


def is_ready(broker: BrokerProcess) -> bool:
    try:
        return "\nsparklog_ready 1.0\n" in get(broker.metrics_url)[1]
    except OSError:  # an HTTP error is one, too
        return False


def test_names_in_expressions() -> None:
    assert names_in('sum by (a, le) (rate(x_total{b="c",d=~"e"}[5m])) > 0 and on (f) deriv(y[1h]) * 2 or up == 0') == {
        "x_total",
        "y",
        "up",
    }


def test_the_numbers_are_those_of_the_requests(broker: BrokerProcess) -> None:
    content_type, text = get(broker.metrics_url)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    found = samples(text)

    def of(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert of("kafka_server_brokertopicmetrics_messagesin_total", topic="t") == 20
    assert of("kafka_server_brokertopicmetrics_bytesin_total", topic="t") == 2 * len(BATCH)
    assert of("kafka_server_brokertopicmetrics_bytesout_total", topic="t") == len(BATCH)
    assert of("kafka_server_brokertopicmetrics_failedfetchrequests_total", topic="t") == 1
    assert of("kafka_consumergroup_lag", consumergroup="g", topic="t") == 7
    assert of("sparklog_request_errors_total", api="PRODUCE", error="UNKNOWN_TOPIC_OR_PARTITION") == 1
    assert of("sparklog_request_errors_total", api="FETCH", error="OFFSET_OUT_OF_RANGE") == 1
    assert of("sparklog_requests_total", api="PRODUCE") == 2
    for phase in ("queue", "handle", "wait", "send"):
        assert of("sparklog_request_phase_seconds_count", api="PRODUCE", phase=phase) == 2
    total_s = of("sparklog_request_seconds_sum", api="PRODUCE")
    phases_s = sum(
        of("sparklog_request_phase_seconds_sum", api="PRODUCE", phase=p) for p in ("queue", "handle", "wait", "send")
    )
    assert phases_s == pytest.approx(total_s)
    assert of("sparklog_lake_paused", topic="lake") == 1
    assert of("sparklog_lake_lag_records", topic="lake") == 0
    figures = {"lag_records": 7, "lost_records": 6, "refused_records": 4, "paused": 0, "failing": 1, "held_records": 5}
    for name, value in figures.items():
        assert of(f"sparklog_mirror_{name}", topic="mirrored", mirror="old") == value
    held_since_1970_s = of("sparklog_mirror_held_seconds", topic="mirrored", mirror="old")
    assert held_since_1970_s == pytest.approx(time.time() - 1, rel=0.01)
    assert of("sparklog_ready") == 1
    assert of("process_open_fds") > 5


def test_openmetrics_says_the_same(broker: BrokerProcess) -> None:
    content_type, text = get(broker.metrics_url, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert text.endswith("# EOF\n")
    names = {sample.name for family in parse_openmetrics(text) for sample in family.samples}
    assert names == exported(broker.metrics_url)


def test_kafkas_dashboards_find_their_series(broker: BrokerProcess) -> None:
    assert set(STRIMZI.split()) - exported(broker.metrics_url) == set()


def test_every_series_of_the_dashboard_and_the_alerts_is_exported(broker: BrokerProcess) -> None:
    """Those of a cluster: test_cluster_watched.py."""
    assert len(of_the_dashboard()) > 40
    used = of_the_dashboard() | of_the_alerts()
    assert not {name for name in used - exported(broker.metrics_url) if not ONLY_IN_A_CLUSTER.search(name)}


def test_the_guide_has_all_series_and_no_other(broker: BrokerProcess) -> None:
    guide = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8").partition("## All series")[2]
    told = set(re.findall(r"`((?:kafka|sparklog)_\w+)`", guide.partition("## How many series")[0]))
    named = exported(broker.metrics_url)
    families = {re.sub(r"_(bucket|sum|count)$", "", n) if "_seconds_" in n else n for n in named}
    elsewhere = {name for name in told if re.search("authentication|throttle|zookeeper|put_aside", name)}
    assert len(elsewhere) == 3 + 2 + 6  # where somebody has to say who he is, has quotas, or is one of several
    assert told - elsewhere == {name for name in families if not name.startswith("process_")}


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed: it comes with Debian's package `prometheus`")
    return found


@pytest.mark.parametrize("check", [["rules", RULES], ["config", PROMETHEUS]], ids=["rules", "config"])
def test_prometheus_takes_the_files(check: list[str | Path]) -> None:
    done = subprocess.run([promtool(), "check", *check], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "SUCCESS" in done.stdout


ALERT_CASES = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'up{{job="sparklog", instance="a"}}', values: '1x5 0x60'}}
      - {{series: 'sparklog_group_lag_records{{group="falls back"}}', values: '20000+100x90'}}
      - {{series: 'sparklog_group_lag_records{{group="catches up"}}', values: '20000-100x90'}}
      - {{series: 'sparklog_group_lag_records{{group="a little"}}', values: '0+100x90'}}
      - {{series: 'sparklog_topic_undecided_records{{topic="stuck"}}', values: '5x90'}}
      - {{series: 'sparklog_topic_undecided_records{{topic="busy"}}', values: '5 0 5 7 0 3 2 0 5 5 0 1 1 0 5 5 0 5 7 0 3 2 0'}}
      - {{series: 'sparklog_fsync_failures_total{{directory="d", instance="a"}}', values: '0x30 1x60'}}
      - {{series: 'sparklog_mirror_refused_records{{topic="refuses"}}', values: '3x10 3 _ _ 5x60'}}
      - {{series: 'sparklog_mirror_refused_records{{topic="fits"}}', values: '7x40 _ 7x40'}}
    alert_rule_test:
      - {{eval_time: 6m, alertname: SparklogDown}}
      - eval_time: 8m
        alertname: SparklogDown
        exp_alerts: [{{exp_labels: {{severity: critical, job: sparklog, instance: a}}}}]
      - eval_time: 40m
        alertname: SparklogGroupFallsBehind
        exp_alerts: [{{exp_labels: {{severity: warning, group: falls back}}}}]
      - eval_time: 80m
        alertname: SparklogReadersHeldBack
        exp_alerts: [{{exp_labels: {{severity: warning, topic: stuck}}}}]
      - {{eval_time: 10m, alertname: SparklogMirrorRefusesRecords}}
      - eval_time: 45m
        alertname: SparklogMirrorRefusesRecords
        exp_alerts: [{{exp_labels: {{severity: warning, topic: refuses}}}}]
      - {{eval_time: 29m, alertname: SparklogFsyncFailed}}
      - eval_time: 35m
        alertname: SparklogFsyncFailed
        exp_alerts: [{{exp_labels: {{severity: critical, directory: d, instance: a}}}}]
"""


def test_alerts_come_when_they_should(tmp_path: Path) -> None:
    """The rules without their texts, against made-up series."""
    rules, cases = tmp_path / "rules.yml", tmp_path / "cases.yml"
    lines = RULES.read_text(encoding="utf-8").splitlines(keepends=True)
    texts = ("annotations:", "summary:", "description:")
    rules.write_text("".join(line for line in lines if not line.lstrip().startswith(texts)), encoding="utf-8")
    cases.write_text(ALERT_CASES.format(rules=rules), encoding="utf-8")
    done = subprocess.run([promtool(), "test", "rules", cases], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_page(broker: BrokerProcess) -> None:
    """It has one wish about a name, which is Kafka's."""
    page = get(broker.metrics_url)[1]
    done = subprocess.run(
        [promtool(), "check", "metrics"], input=page, capture_output=True, text=True, timeout=60, check=False
    )
    wishes = [line.split()[0] for line in (done.stdout + done.stderr).splitlines()]
    assert wishes == ["kafka_server_socket_server_metrics_connection_count"]


def test_health(broker: BrokerProcess) -> None:
    base = broker.metrics_url.removesuffix("/metrics")
    assert get(f"{base}/health/live")[1] == "alive\n"
    assert get(f"{base}/health/ready")[1] == "ready\n"
    for path, status in (("/", 404), ("/metrics/x", 404)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(base + path)
        refused.value.close()
        assert refused.value.code == status


def test_hostile_peers_of_the_page_do_not_disturb_the_broker(broker: BrokerProcess) -> None:
    address = broker.metrics_url.removeprefix("http://").removesuffix("/metrics").split(":")
    held = []
    for data in (b"", b"GET /metrics HTTP/1.1\r\n", b"\x00" * 100_000, b"POST /metrics HTTP/1.1\r\n\r\n" * 100) * 20:
        sock = socket.create_connection((address[0], int(address[1])), 20)
        held.append(sock)
        try:
            sock.sendall(data)
        except OSError:
            continue
    with broker.connect() as client:
        create_topic(client, "afterwards")
    for sock in held:
        sock.close()
    until(lambda: is_ready(broker), "the page is there again")
    assert "Traceback" not in broker.stderr


def test_a_stop_with_peers_that_do_not_read(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings=SETTINGS, work_dir=tmp_path)
    host, port = broker.metrics_url.removeprefix("http://").removesuffix("/metrics").split(":")
    with socket.create_connection((host, int(port)), 20) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert broker.stop() == 0
    assert "Traceback" not in broker.stderr


def test_the_log_as_json_with_slow_requests(tmp_path: Path) -> None:
    settings = 'log.format = "json"\nslow.request.threshold.ms = 0\n'
    broker = BrokerProcess(tmp_path / "data", settings=settings, work_dir=tmp_path)
    with broker.connect() as client:
        handshake(client)
        create_topic(client, "t")
        produce(client, [("t", 0, envelope_batch(1, 100))])
        with pytest.raises(SparklogError):
            client.request(Api.OFFSET_COMMIT, groups.OffsetCommitRequest("", []), groups.OffsetCommitResponse)
    assert broker.stop() == 0
    lines = [msgspec.json.decode(line) for line in broker.stderr.splitlines()]
    assert all({"time", "level", "logger", "event", "message"} <= line.keys() for line in lines)
    assert any(line["message"] == "created topic t: envelope, 1 partitions" for line in lines)
    slow = {line["api"]: line for line in lines if line["event"] == "slow_request"}
    assert {"HANDSHAKE", "CREATE_TOPIC", "PRODUCE"} <= slow.keys()
    phases_ms = [slow["PRODUCE"][f"{phase}_ms"] for phase in ("queue", "handle", "wait", "send")]
    assert sum(phases_ms) == pytest.approx(slow["PRODUCE"]["slow_ms"], abs=0.01)
    assert slow["PRODUCE"]["peer"].startswith("127.0.0.1:")
