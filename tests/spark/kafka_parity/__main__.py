"""`make parity`: every case against sparklog and against a Kafka with Spark's connector, and the table of the
differences. Spark's connector runs the cases at sparklog's Kafka gateway, too.

The tables go into docs/moving-from-kafka.md and docs/kafka-clients.md. Exit status 1 if a case contradicts its
statement: Kafka differs from the expectation, or sparklog differs without a reason.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

import sparklog
from tests.spark.kafka_parity import table
from tests.spark.kafka_parity.checks import Observation
from tests.spark.kafka_parity.systems import KafkaSystem
from tests.support.kafka import SPARK_VERSION, KafkaInstallation, KafkaServer

HERE = Path(__file__).parent
KEPT = HERE.parents[2] / "build" / "parity"
PLUGIN = "kafka-parity"
CONNECTOR = "spark-sql-kafka-0-10_2.13"
TOKENS = "spark-token-provider-kafka-0-10_2.13"


class Parity:
    """The systems of the session, and their results. A system that does not run is None."""

    def __init__(self, kafka: KafkaSystem | None, gateway: KafkaSystem | None, systems: list[str]) -> None:
        self.kafka = kafka
        self.gateway = gateway
        self.systems = systems
        self.seen: list[Observation] = []


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold sparklog against Spark's Kafka connector, case by case.")
    parser.add_argument("--no-write", action="store_true", help="print the table, leave the document as it is")
    parser.add_argument(
        "--system",
        choices=table.SYSTEMS,
        action="append",
        help="run on this one alone, and take the others' last run; may be repeated",
    )
    parser.add_argument(
        "pytest", nargs="*", help="arguments of pytest, after --; a run of some cases adds to the last one"
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that Kafka does not stay behind
    installation = KafkaInstallation()
    installation.install()
    # Spark's resolver is not given the second jar: it is put beside as a file
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        f"--packages org.apache.spark:{CONNECTOR}:{SPARK_VERSION} --exclude-packages org.apache.spark:{TOKENS} "
        f"--jars {installation.token_jar()} pyspark-shell"
    )
    with tempfile.TemporaryDirectory(prefix="sparklog-parity-", ignore_cleanup_errors=True) as scratch:
        systems = given.system or list(table.SYSTEMS)
        with ExitStack() as stack:
            kafka = gateway = None
            if "kafka" in systems:
                server = KafkaServer(installation, Path(scratch))
                stack.callback(server.stop)
                server.start()
                kafka = KafkaSystem(server.bootstrap_servers, server.wait_for_partitions)
            if "gateway" in systems:
                broker = stack.enter_context(sparklog.start_local(Path(scratch) / "gateway", kafka=True))
                gateway = KafkaSystem(broker.kafka_bootstrap_servers, lambda topic, partitions: None)
            parity = Parity(kafka, gateway, systems)
            status = pytest.main(["-q", "--all", *(given.pytest or [str(HERE)])], plugins=[_named(parity)])
    seen = table.remember(parity.seen, KEPT, whole=not given.pytest)
    for system, page in (("sparklog", table.PAGE), ("gateway", table.GATEWAY_PAGE)):
        if not any(s.system == system for s in seen):
            print(f"{system}: no run, so {page.name} stays as it is")
            continue
        rendered = table.render(seen, system)
        print(rendered)
        print(f"{system}: {table.summary(seen, system)}")
        if status == 0 and not given.no_write:
            table.write(rendered, page)
    return int(status)


def _named(parity: Parity) -> object:
    """The plugin under the name that the cases' conftest looks for."""

    class Registers:
        def pytest_configure(self, config: pytest.Config) -> None:
            config.pluginmanager.register(parity, PLUGIN)

    return Registers()


if __name__ == "__main__":
    sys.exit(main())
