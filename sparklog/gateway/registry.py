"""The handler of each API."""

from __future__ import annotations

from sparklog.gateway.handlers import commits, coordinators, fetch, groups, metadata, offsets, produce, sasl, versions
from sparklog.gateway.session import Handler, Served
from sparklog.gateway.wire.apis import Api
from sparklog.gateway.wire.schema import REQUEST, messages

HANDLERS: dict[str, Handler] = {
    "Produce": produce.produce,
    "Fetch": fetch.fetch,
    "ListOffsets": offsets.list_offsets,
    "Metadata": metadata.metadata,
    "OffsetCommit": commits.offset_commit,
    "OffsetFetch": commits.offset_fetch,
    "FindCoordinator": coordinators.find_coordinator,
    "JoinGroup": groups.join_group,
    "Heartbeat": groups.heartbeat,
    "LeaveGroup": groups.leave_group,
    "SyncGroup": groups.sync_group,
    "SaslHandshake": sasl.sasl_handshake,
    "ApiVersions": versions.api_versions,
    "InitProducerId": produce.init_producer_id,
    "OffsetForLeaderEpoch": offsets.offset_for_leader_epoch,
    "SaslAuthenticate": sasl.sasl_authenticate,
}


def served_apis() -> dict[int, Served]:
    """All APIs by their keys."""
    found = {}
    for name, handler in HANDLERS.items():
        message = messages()[REQUEST, name]
        found[message.api_key] = Served(Api(name, message.api_key, *message.versions), handler)
    return found
