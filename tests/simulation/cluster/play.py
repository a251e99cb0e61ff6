"""Three real brokers on a quiet network, for scenarios that run step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparklog_broker.cluster.replica import UNKNOWN

from sparklog.format.batch import assign_producer
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from sparklog.protocol.transaction_messages import InitProducerIdRequest, InitProducerIdResponse
from sparklog.replication.cluster_image import PartitionImage
from sparklog.replication.controller.model import Elect, ElectionKind, Reassign
from sparklog.testing._sim_loop import Simulation
from sparklog.testing._sim_node import Node
from sparklog.types import TopicPartition
from tests.simulation.plans import INPUT, OUTPUT, SAFE, SESSION_MS, Plan
from tests.simulation.sim_producer import encode_values
from tests.simulation.world import World

TP = TopicPartition(INPUT, 0)
PATIENCE_S = 30.0
SESSION_S = SESSION_MS / 1_000
STARTED_MS = 1_700_000_000_000
PLAN = Plan({}, {}, topics={INPUT: SAFE, OUTPUT: SAFE}, internal=SAFE, brokers=(3,), has_zookeeper=True, slow_share=0.0)


class Play:
    """Three brokers, all in sync; broker 1 leads the partition."""

    def __init__(self, simulation: Simulation, plan: Plan = PLAN) -> None:
        self.simulation = simulation
        self.world = World(1, plan, simulation)
        self.world._begin()
        self.client = self.world.connected(simulation.loop("client"), "client")
        self.values = iter(range(1, 1_000_000))
        self._state = UNKNOWN
        self.new_producer()
        self.order(1, 2, 3)

    def new_producer(self) -> None:
        """Begin a new producer after a possible loss of records: the old one's next sequence would be out of order."""
        drawn = self.ask(Api.INIT_PRODUCER_ID, InitProducerIdRequest(), InitProducerIdResponse)
        self.identity = drawn.producer_id, drawn.producer_epoch
        self.sequence = 0

    def __getitem__(self, broker_id: int) -> Node:
        return self.world.node(broker_id)

    def until(self, condition: Callable[[], Any]) -> None:
        end = self.simulation.now_s + PATIENCE_S
        while not condition():
            assert self.simulation.now_s < end, f"it does not come about: {self.state}"
            self.pass_time(0.02)

    def until_turn(self, condition: Callable[[], Any]) -> None:
        """Wait as `until`, but check after every event."""
        assert self.simulation.run(lambda: bool(condition()), limit_s=self.simulation.now_s + PATIENCE_S), self.state

    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @property
    def state(self) -> PartitionImage:
        """The partition in the controller's image, or in the last one while there is no controller."""
        image = self.world.controller_image()
        found = None if image is None else image.partition(TP)
        self._state = found or self._state
        return self._state

    def log(self, broker_id: int) -> Any:
        broker = self[broker_id].broker
        assert broker is not None
        partition = broker.partitions.find(TP)
        assert partition is not None
        return partition.open_log

    def ask(self, api: Api, request: Any, response: Any, payload: bytes = b"") -> Any:
        work = self.client.ask_until(api, request, response, payload)
        return self.simulation.complete(self.client.loop, work, limit_s=PATIENCE_S)

    def ask_controller(self, make: Callable[[int], Any]) -> Any:
        """Send the controller a request as one of its own brokers would."""
        controller = self.world.controller()
        assert controller is not None and controller.cluster is not None and controller.loop is not None
        work = controller.cluster.membership.ask(make)
        return self.simulation.complete(controller.loop, work, limit_s=PATIENCE_S)

    def order(self, *replicas: int) -> None:
        """Set the order of the replicas; the first one leads."""
        self.ask_controller(lambda token: Reassign(token, {TP: replicas}))
        self.ask_controller(lambda token: Elect(token, ElectionKind.PREFERRED, (TP,)))
        self.until(lambda: self.leads(replicas[0]))

    def leads(self, broker_id: int) -> bool:
        broker = self[broker_id].broker
        partition = None if broker is None else broker.partitions.find(TP)
        return partition is not None and partition.replicas.leads_in(self.state.leader_epoch)

    def acknowledged(self, count: int = 3, *, at_ms: int = STARTED_MS) -> int:
        """Store one batch; return its base offset."""
        payload = encode_values([next(self.values) for _ in range(count)], at_ms)
        assign_producer(
            memoryview(payload),
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=self.sequence,
        )
        self.sequence += count
        return self.stored(payload)

    def stored(self, payload: bytearray) -> int:
        """Store an encoded batch; return its base offset. A batch without a producer may be stored more than once."""
        request = ProduceRequest(-1, 5_000, [ProducePartition(*TP, len(payload))])
        end = self.simulation.now_s + PATIENCE_S
        while True:
            (result,) = self.ask(Api.PRODUCE, request, ProduceResponse, bytes(payload)).results
            if not result.error_code:
                return int(result.base_offset)
            assert self.simulation.now_s < end, result
            self.pass_time(0.1)

    def found_at(self, timestamps_ms: Sequence[int]) -> list[tuple[int, int]]:
        """Return the offset and time that a lookup of each time finds."""
        found = []
        for timestamp_ms in timestamps_ms:
            request = ListOffsetsRequest([ListOffsetsPartition(*TP, timestamp_ms)])
            (result,) = self.ask(Api.LIST_OFFSETS, request, ListOffsetsResponse).results
            assert result.error_code == 0, result
            found.append((result.offset, result.timestamp_ms))
        return found

    def delete_below(self, offset: int) -> None:
        request = DeleteRecordsRequest(5_000, [DeleteRecordsPartition(*TP, offset)])
        (result,) = self.ask(Api.DELETE_RECORDS, request, DeleteRecordsResponse).results
        assert result.error_code == 0, result

    def come_to_rest(self) -> None:
        """Wait until all brokers are back, and all replicas are equal."""
        self.world.trouble.heal()
        self.world._come_to_rest()
        self.world._promises.at_rest(self.world.nodes)
