"""The sink's campaign on three brokers: each fault hits one of them, and the pipeline continues."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path

from tests.campaigns.torture.cluster_campaign import TOPIC_SETTINGS
from tests.campaigns.torture.machines import IDS, ZOOKEEPER, Machines, node_of
from tests.campaigns.torture.processes import Broker
from tests.campaigns.torture.sink_campaign import STILL_S, SinkCampaign, SinkOutcome, SinkPlan


class _AllBrokers(Broker):
    """The cluster where the campaign has a broker."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.lives = 0

    @property
    def bootstrap_servers(self) -> str:  # type: ignore[override]
        return self._machines.bootstrap_servers

    @property
    def running(self) -> bool:
        """Raises CampaignError if one has ended by itself."""
        self._machines.look()
        return True

    def start(self, fault: Mapping[str, str] | None = None) -> None:
        """They are started before."""

    def stop(self) -> None:
        for broker in IDS:
            self._machines.stop(broker)

    def kill(self) -> None:
        """They end with the network."""

    def log(self) -> str:
        return self._machines.logs()


class ClusterSinkCampaign(SinkCampaign):
    """Also kinds of faults that a cluster survives: "isolate broker", "kill zookeeper", "stop broker"."""

    _topic_settings = TOPIC_SETTINGS

    def __init__(self, plan: SinkPlan, directory: Path) -> None:
        self._machines = Machines(directory, plan.broker_settings, plan.without)
        super().__init__(plan, directory)

    def _new_broker(self) -> Broker:
        return _AllBrokers(self._machines)

    def run(self) -> SinkOutcome:
        with self._machines.run():
            return super().run()

    def _go_on(self) -> None:
        """Wait until a batch has been written without the absent broker."""
        self._feed()
        self._wait_for_batches(self._batches() + 2)

    def _any_broker(self) -> int:
        self._machines.wait_until_in_sync()
        return self._rng.choice(IDS)

    def _kill_broker(self) -> None:
        broker = self._any_broker()
        self._machines.kill(broker)
        self._go_on()
        self._machines.start(broker)

    def _stop_broker(self) -> None:
        broker = self._any_broker()
        self._machines.stop(broker)
        self._go_on()
        self._machines.start(broker)

    def _pause_broker(self) -> None:
        broker = self._machines.brokers[self._any_broker()]
        broker.signal(signal.SIGSTOP)
        try:
            time.sleep(self._rng.uniform(*STILL_S))
        finally:
            broker.signal(signal.SIGCONT)

    def _isolate_broker(self) -> None:
        broker = self._any_broker()
        for other in (ZOOKEEPER, *(node_of(i) for i in IDS if i != broker)):
            self._machines.network.cut_both(node_of(broker), other)
        time.sleep(self._rng.uniform(*STILL_S))
        self._machines.network.heal()

    def _kill_zookeeper(self) -> None:
        self._machines.wait_until_in_sync()
        self._machines.zookeeper.kill()
        self._go_on()
        self._machines.start_zookeeper()
