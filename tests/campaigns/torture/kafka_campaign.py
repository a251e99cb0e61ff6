"""A campaign against three brokers with Kafka gateways: librdkafka's clients at work, and kill -9 of gateways, brokers
and leaders. Acknowledged records and transactions hold.

    python -m tests.campaigns.torture.kafka_campaign [--seed N] [--kills N] [--directory DIR]
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import sparklog
from sparklog.client.local_cluster import ClusterBroker, start_cluster
from tests.campaigns.torture.frame import Faults, Outcome, create_topics, judged, run_from_command_line
from tests.campaigns.torture.processes import CampaignError
from tests.campaigns.torture.transactional_work import SHORT
from tests.campaigns.torture.workforce import TOPICS, Work, Workforce, wait_until

BROKERS = 3
CLIENTS: Mapping[str, int] = {
    "kafka_producer": 1,
    "kafka_transactional": 2,
    "kafka_pipeline": 2,
    "kafka_assigned": 1,
    "assigned": 1,
}
FAULTS: Mapping[str, int] = {
    "kill gateway": 4,
    "kill broker": 2,
    "kill leader": 2,
    "restart broker": 1,
    "pause gateway": 1,
    "kill client": 2,
}
SETTINGS: Mapping[str, object] = {
    **SHORT,
    "zookeeper.session.timeout.ms": 2_000,
    "replica.lag.time.max.ms": 4_000,
    "replica.fetch.backoff.ms": 100,
}
PAUSE_S = (0.3, 3.0)


@dataclass(frozen=True)
class KafkaPlan:
    """`kills` processes are killed; `faults`: the frequency of each kind."""

    seed: int
    kills: int
    clients: Mapping[str, int] = field(default_factory=lambda: dict(CLIENTS))
    faults: Mapping[str, int] = field(default_factory=lambda: dict(FAULTS))
    partitions: int = 3


class KafkaCampaign:
    """Everything that runs, and the faults that happen to it."""

    def __init__(self, plan: KafkaPlan, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self._rng = random.Random(f"kafka/{plan.seed}")
        self._faults = Faults(self, plan.faults, self._rng)

    def run(self) -> Outcome:
        """Raises CampaignError, also when nothing goes on any more."""
        with start_cluster(BROKERS, self._directory / "cluster", settings=SETTINGS, kafka=True) as cluster:
            self._cluster = cluster
            told = {"kafka": cluster.kafka_bootstrap_servers}
            roles = [role for role in (*self._plan.clients, "kafka_last") if role.startswith("kafka")]
            work = Work(
                self._plan.clients,
                self._plan.partitions,
                settings=dict.fromkeys(roles, told),
                readers=("last", "kafka_last"),
            )
            self._clients = Workforce(work, self._plan.seed, self._rng, self._directory)
            configs = {"min.insync.replicas": 2, "retention.ms": -1}
            create_topics(cluster.bootstrap_servers, work.partitions, replication_factor=BROKERS, configs=configs)
            try:
                self._clients.start(cluster.bootstrap_servers)
                self._faults.work(self._wait_for_progress, lambda: self._faults.kills >= self._plan.kills)
                self._clients.finish()
                self._clients.read_everything()
            except CampaignError as e:
                logs = "\n".join(f"broker {b.broker_id}: {b.log[-4000:]}" for b in cluster.brokers)
                raise CampaignError(f"after {dict(self._faults.done)}: {e}\n{logs}") from e
            finally:
                self._clients.kill_all()
        return self._faults.outcome_of(self._clients)

    def _wait_for_progress(self) -> None:
        self._clients.wait_for_progress(lambda: None)

    # -- faults

    def _kill_gateway(self) -> None:
        os.kill(self._gateway(), signal.SIGKILL)

    def _pause_gateway(self) -> None:
        gateway = self._gateway()
        os.kill(gateway, signal.SIGSTOP)
        time.sleep(self._rng.uniform(*PAUSE_S))
        os.kill(gateway, signal.SIGCONT)

    def _kill_broker(self) -> None:
        self._kill(self._victim())

    def _kill_leader(self) -> None:
        self._wait_until_in_sync()
        with sparklog.Admin(self._cluster.bootstrap_servers) as admin:
            leaders = [p.leader for t in TOPICS for p in admin.describe_topic(t).partition_details]
        self._kill(self._broker(self._rng.choice(leaders)))

    def _restart_broker(self) -> None:
        broker = self._victim()
        broker.stop()
        broker.start()

    def _kill_client(self) -> None:
        self._clients.kill_one()

    def _kill(self, broker: ClusterBroker) -> None:
        broker.kill()
        self._wait_for_progress()
        broker.start()

    # -- the cluster

    def _broker(self, broker_id: int) -> ClusterBroker:
        return next(b for b in self._cluster.brokers if b.broker_id == broker_id)

    def _victim(self) -> ClusterBroker:
        """A broker that may crash now: the others have its records."""
        self._wait_until_in_sync()
        return self._rng.choice(self._cluster.brokers)

    def _wait_until_in_sync(self) -> None:
        with sparklog.Admin(self._cluster.bootstrap_servers) as admin:

            def in_sync() -> bool:
                return all(len(p.isr) == BROKERS for t in TOPICS for p in admin.describe_topic(t).partition_details)

            wait_until(in_sync, "the replicas do not come into sync")

    def _gateway(self) -> int:
        """The process of a broker's gateway."""
        broker = self._rng.choice(self._cluster.brokers)
        found: list[int] = []

        def is_there() -> bool:
            found[:] = gateways_of(broker.pid)
            return bool(found)

        wait_until(is_there, f"broker {broker.broker_id} has no gateway")
        return found[0]


def gateways_of(broker: int) -> list[int]:
    """Process ids of the gateways that are children of a broker."""
    children = Path(f"/proc/{broker}/task/{broker}/children").read_text().split()
    return [int(c) for c in children if b"sparklog.gateway" in _command(c)]


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def run(directory: Path, kills: int, seed: int) -> Outcome:
    """Run a campaign and judge it."""
    return judged(KafkaCampaign(KafkaPlan(seed, kills), directory).run(), seed)


if __name__ == "__main__":
    run_from_command_line(run, __doc__, kills=40)
