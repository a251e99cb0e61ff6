"""Peers that send damaged requests, and requests of brokers from peers that are no such broker, or no longer. They are
refused, without harm to others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from sparklog.errors import SparklogError
from sparklog.protocol import cluster_messages as c
from sparklog.protocol import group_messages as g
from sparklog.protocol import transaction_messages as t
from sparklog.protocol.base import Message
from sparklog.protocol.frames import encode_request
from sparklog.protocol.messages import (
    APIS,
    Api,
    FetchPartition,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ProducePartition,
    ProduceRequest,
    encode,
)
from sparklog.protocol.topic_messages import MetadataRequest
from sparklog.types import READ_COMMITTED
from tests.simulation.sim_client import SimClient
from tests.simulation.sim_producer import encode_values
from tests.simulation.sim_roles import Role, Told, partition_of

FAR = 2**62
ANSWER_S = 0.5


def _hosts(told: Told) -> Sequence[str]:
    """Return the hosts of all brokers."""
    return getattr(told.client, "hosts", None) or [told.client.broker_host]


async def garbage(told: Told) -> None:
    """Send requests with a few wrong bytes: in the header, which is decoded, or in the records."""
    while told.wanted():
        await asyncio.sleep(told.rng.random() * 0.1)
        api, request, payload = _request(told)
        header = bytearray(encode(request))
        for part in [bytearray(payload)] if payload and told.rng.random() < 0.5 else [header]:
            for _ in range(told.rng.choice([1, 1, 3])):
                part[told.rng.randrange(len(part))] = told.rng.randrange(256)
            payload = bytes(part) if part is not header else payload
        if told.rng.random() < 0.2:
            header = header[: told.rng.randrange(len(header))]
        version = told.rng.choice([APIS[api].version_max, APIS[api].version_max, 999])
        frame = encode_request(api, version, 1, bytes(header), len(payload)) + payload
        await _said(told, told.rng.choice(_hosts(told)), frame)


async def _said(told: Told, host: str, frame: bytes) -> None:
    """Send a frame on a connection of its own, which is closed after a while, with or without an answer."""
    try:
        connection = told.client.net.connect(told.client.loop, f"stranger-{told.number}", host)
    except ConnectionRefusedError:
        return
    connection.send(frame)
    await asyncio.sleep(told.rng.random() * ANSWER_S)
    connection.close()


def _request(told: Told) -> tuple[Api, Message, bytes]:
    """Return a well-formed request."""
    tp = partition_of(told.rng.choice(told.inputs))
    match told.rng.randrange(7):
        case 0:
            # its values are no numbers of a history: as it is damaged, it must not be stored
            payload = encode_values([FAR], told.now_ms())
            return Api.PRODUCE, ProduceRequest(-1, 500, [ProducePartition(*tp, len(payload))]), bytes(payload)
        case 1:
            return Api.FETCH, FetchRequest(100, 1, 1 << 20, READ_COMMITTED, [FetchPartition(*tp, 0, 1 << 20)]), b""
        case 2:
            return Api.LIST_OFFSETS, ListOffsetsRequest([ListOffsetsPartition(*tp, -1)]), b""
        case 3:
            return Api.METADATA, MetadataRequest(None), b""
        case 4:
            return Api.FIND_COORDINATOR, g.FindCoordinatorRequest(f"garbage-{told.number}", 0), b""
        case 5:
            return Api.END_TXN, t.EndTxnRequest(f"garbage-{told.number}", 1, 0, True), b""
        case _:
            return Api.REPLICA_FETCH, _fetch(told), b""


def _fetch(told: Told) -> c.ReplicaFetchRequest:
    """Return the fetch of a replica that claims to have everything: a broker that believed it would commit records that
    other replicas lack.
    """
    partitions = [
        c.ReplicaFetchPartition(
            *partition_of(p), told.rng.randrange(6), told.rng.choice([0, 50, FAR]), 0, 0, FAR, 1 << 20
        )
        for p in (*told.inputs, *told.outputs)
    ]
    broker_id, epoch = told.rng.randint(1, 6), told.rng.choice([-1, 0, 1, FAR])
    return c.ReplicaFetchRequest(broker_id, epoch, 100, 1 << 20, told.rng.choice([0, 1, 7]), 0, partitions)


async def false_broker(told: Told) -> None:
    """Act as a broker that is not registered, or no longer: fetch as a replica, propose other in-sync replicas, report
    a failed directory or a shutdown.
    """
    client = told.client
    brokers = [SimClient(client.loop, client.net, f"stranger-{told.number}", host) for host in _hosts(told)]
    while told.wanted():
        await asyncio.sleep(told.rng.random() * 0.1)
        broker_id, epoch = told.rng.randint(1, 6), told.rng.choice([-1, 0, 1, FAR])
        tp = partition_of(told.rng.choice(told.inputs))
        proposal = c.IsrProposal(*tp, told.rng.randrange(4), told.rng.randrange(8), [c.IsrMember(broker_id, epoch)])
        api, request = told.rng.choice(
            [
                (Api.REPLICA_FETCH, _fetch(told)),
                (Api.ALTER_PARTITION, c.AlterPartitionRequest(broker_id, epoch, [proposal])),
                (Api.CONTROLLED_SHUTDOWN, c.ControlledShutdownRequest(broker_id, epoch)),
            ]
        )
        with contextlib.suppress(SparklogError):
            await told.rng.choice(brokers).ask(api, request, APIS[api].response, timeout_s=ANSWER_S)


ROLES: dict[str, Role] = {"garbage": garbage, "false broker": false_broker}
