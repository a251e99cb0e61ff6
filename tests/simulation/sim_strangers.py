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
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import encode
from sparklog.protocol.frames import encode_request
from sparklog.protocol.messages import (
    FetchPartition,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ProducePartition,
    ProduceRequest,
)
from sparklog.protocol.topic_messages import MetadataRequest
from sparklog.testing._sim_client import SimClient
from sparklog.types import READ_COMMITTED
from tests.simulation.sim_producer import encode_values
from tests.simulation.sim_roles import ClientContext, Role, partition_of

FAR = 2**62
ANSWER_S = 0.5


def _hosts(context: ClientContext) -> Sequence[str]:
    """Return the hosts of all brokers."""
    return getattr(context.client, "hosts", None) or [context.client.broker_host]


async def garbage(context: ClientContext) -> None:
    """Send requests with a few wrong bytes: in the header, which is decoded, or in the records."""
    while context.wanted():
        await asyncio.sleep(context.rng.random() * 0.1)
        api, request, payload = _request(context)
        header = bytearray(encode(request))
        for part in [bytearray(payload)] if payload and context.rng.random() < 0.5 else [header]:
            for _ in range(context.rng.choice([1, 1, 3])):
                part[context.rng.randrange(len(part))] = context.rng.randrange(256)
            payload = bytes(part) if part is not header else payload
        if context.rng.random() < 0.2:
            header = header[: context.rng.randrange(len(header))]
        version = context.rng.choice([APIS[api].version_max, APIS[api].version_max, 999])
        frame = encode_request(api, version, 1, bytes(header), len(payload)) + payload
        await _send_frame(context, context.rng.choice(_hosts(context)), frame)


async def _send_frame(context: ClientContext, host: str, frame: bytes) -> None:
    """Send a frame on a connection of its own, which is closed after a while, with or without an answer."""
    try:
        connection = context.client.net.connect(context.client.loop, f"stranger-{context.number}", host)
    except ConnectionRefusedError:
        return
    connection.send(frame)
    await asyncio.sleep(context.rng.random() * ANSWER_S)
    connection.close()


def _request(context: ClientContext) -> tuple[Api, Message, bytes]:
    """Return a well-formed request."""
    tp = partition_of(context.rng.choice(context.inputs))
    match context.rng.randrange(7):
        case 0:
            # its values are no numbers of a history: as it is damaged, it must not be stored
            payload = encode_values([FAR], context.now_ms())
            return Api.PRODUCE, ProduceRequest(-1, 500, [ProducePartition(*tp, len(payload))]), bytes(payload)
        case 1:
            return Api.FETCH, FetchRequest(100, 1, 1 << 20, READ_COMMITTED, [FetchPartition(*tp, 0, 1 << 20)]), b""
        case 2:
            return Api.LIST_OFFSETS, ListOffsetsRequest([ListOffsetsPartition(*tp, -1)]), b""
        case 3:
            return Api.METADATA, MetadataRequest(None), b""
        case 4:
            return Api.FIND_COORDINATOR, g.FindCoordinatorRequest(f"garbage-{context.number}", 0), b""
        case 5:
            return Api.END_TXN, t.EndTxnRequest(f"garbage-{context.number}", 1, 0, True), b""
        case _:
            return Api.REPLICA_FETCH, _fetch(context), b""


def _fetch(context: ClientContext) -> c.ReplicaFetchRequest:
    """Return the fetch of a replica that claims to have everything: a broker that believed it would commit records that
    other replicas lack.
    """
    partitions = [
        c.ReplicaFetchPartition(
            *partition_of(p), context.rng.randrange(6), context.rng.choice([0, 50, FAR]), 0, 0, FAR, 1 << 20
        )
        for p in (*context.inputs, *context.outputs)
    ]
    broker_id, epoch = context.rng.randint(1, 6), context.rng.choice([-1, 0, 1, FAR])
    return c.ReplicaFetchRequest(broker_id, epoch, 100, 1 << 20, context.rng.choice([0, 1, 7]), 0, partitions)


async def false_broker(context: ClientContext) -> None:
    """Act as a broker that is not registered, or no longer: fetch as a replica, propose other in-sync replicas, report
    a failed directory or a shutdown.
    """
    client = context.client
    brokers = [SimClient(client.loop, client.net, f"stranger-{context.number}", host) for host in _hosts(context)]
    while context.wanted():
        await asyncio.sleep(context.rng.random() * 0.1)
        broker_id, epoch = context.rng.randint(1, 6), context.rng.choice([-1, 0, 1, FAR])
        tp = partition_of(context.rng.choice(context.inputs))
        proposal = c.IsrProposal(
            *tp, context.rng.randrange(4), context.rng.randrange(8), [c.IsrMember(broker_id, epoch)]
        )
        api, request = context.rng.choice(
            [
                (Api.REPLICA_FETCH, _fetch(context)),
                (Api.ALTER_PARTITION, c.AlterPartitionRequest(broker_id, epoch, [proposal])),
                (Api.CONTROLLED_SHUTDOWN, c.ControlledShutdownRequest(broker_id, epoch)),
            ]
        )
        with contextlib.suppress(SparklogError):
            await context.rng.choice(brokers).ask(api, request, APIS[api].response, timeout_s=ANSWER_S)


ROLES: dict[str, Role] = {"garbage": garbage, "false broker": false_broker}
