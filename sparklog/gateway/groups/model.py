"""Values of classic groups."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct

from sparklog.gateway.wire.errors import Kafka

SESSION_TIMEOUT_MS_MAX = 1_800_000
GROUP_SIZE_MAX = 10_000
PENDING_MAX = 10_000
"""Limit of a group's member ids that were issued and not used yet."""
METADATA_BYTES_MAX = 16 * 1024 * 1024
"""Subscriptions and assignments of one group together."""
UNKNOWN_GENERATION = -1
NO_GENERATION = 0


class GroupState(StrEnum):
    """States, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Join(NamedTuple):
    """A JoinGroup request."""

    member_id: str
    """"": the member is new."""
    instance_id: str | None
    """Name of a static member; None: the member is dynamic."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]
    """Names and metadata of the assignors, the preferred one first."""
    needs_member_id: bool
    """True if the client can repeat the request with a member id that it is given."""
    can_skip_assignment: bool = False
    """True if the client understands that its earlier assignment stays (version 9)."""


class JoinAnswer(NamedTuple):
    """The answer to a join."""

    error: Kafka
    member_id: str = ""
    generation: int = UNKNOWN_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: Sequence[tuple[str, str | None, bytes]] = ()
    """Ids, instance ids and metadata of all members, for the leader."""
    skip_assignment: bool = False


class SyncAnswer(NamedTuple):
    """The answer to a sync."""

    error: Kafka
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class Reply(NamedTuple):
    """An effect: the answer to the request that waits with `token`."""

    token: Any
    answer: JoinAnswer | SyncAnswer


class Member(Struct):
    """One member."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    deadline_ms: int
    """Time at which the member is removed unless it sends a request before."""
    assignment: bytes = b""
    join_token: Any = None
    """Token of the join that waits for other members; None if none waits."""
    sync_token: Any = None
    """Token of the sync that waits for the leader's assignment; None if none waits."""

    @property
    def metadata_bytes(self) -> int:
        """Size of the member's assignment and subscriptions, which the client chooses."""
        return len(self.assignment) + sum(len(metadata) for _, metadata in self.protocols)

    def metadata_of(self, protocol: str) -> bytes:
        """Return the subscription for one assignor."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")
