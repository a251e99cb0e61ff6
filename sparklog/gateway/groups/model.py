"""Values of classic groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct

from sparklog.kafka.wire.errors import Kafka

SESSION_TIMEOUT_MS_MAX = 1_800_000
PENDING_MAX = 10_000
"""Largest number of issued member ids of a group that no join has used yet."""
METADATA_BYTES_MAX = 16 * 1024 * 1024
"""Largest size of all subscriptions and assignments of one group together, in bytes."""
REBALANCE_TIMEOUT_MS_MAX = SESSION_TIMEOUT_MS_MAX
"""Longest wait of a member for the others in ms."""
PENDING_MS_MAX = 60_000
"""Longest time in ms until an issued member id expires; a client uses it at once."""
GROUP_BYTES, MEMBER_BYTES, PENDING_BYTES = 4_096, 2_048, 512
"""Memory in bytes of a group, of a member without its metadata, and of an issued member id."""
UNKNOWN_GENERATION = -1
NO_GENERATION = 0


PROTOCOL_BYTES, NAME_COPIES = 256, 4
"""Memory in bytes of an assignor's name and metadata without their content, and of a character of a name."""


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    """Return the memory of the assignors' names with their metadata in bytes."""
    return sum(PROTOCOL_BYTES + NAME_COPIES * len(name) + len(metadata) for name, metadata in protocols)


class GroupState(StrEnum):
    """States of a classic group, with Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Join(NamedTuple):
    """A JoinGroup request."""

    member_id: str
    """Id of the member; "": it is new."""
    instance_id: str | None
    """Instance id of a static member; None: the member is dynamic."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]
    """Names of the assignors with the member's metadata for them, the preferred one first."""
    needs_member_id: bool
    """True if a new client has to join again with the member id that it gets in the error MEMBER_ID_REQUIRED (version
    4)."""
    can_skip_assignment: bool = False
    """True if the client understands `skip_assignment` in the answer (version 9)."""


class Pending(NamedTuple):
    """A member id that was issued, and that no join has used yet."""

    deadline_ms: int
    """Time in ms at which the id expires."""
    client_host: str


class JoinAnswer(NamedTuple):
    """The answer to a JoinGroup request."""

    error: Kafka
    member_id: str = ""
    generation: int = UNKNOWN_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: Sequence[tuple[str, str | None, bytes]] = ()
    """Member ids, instance ids and metadata of all members, for the leader; empty for other members."""
    skip_assignment: bool = False
    is_moved: bool = False
    """True if the group has moved into the broker's group, where the member has to join now."""


class SyncAnswer(NamedTuple):
    """The answer to a SyncGroup request."""

    error: Kafka
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class Reply(NamedTuple):
    """The answer to the waiting request `token`."""

    token: Any
    answer: JoinAnswer | SyncAnswer


class Member(Struct):
    """One member of a group."""

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
    has_joined: bool = False
    """True if a join of the member was answered. Otherwise its client cannot go on as this member after a disconnect.
    """
    has_released: bool = False
    """True if the member has got an empty assignment since the group began to move."""
    former_generation: int | None = None
    """Its generation in the broker's group that has become this group, until it has joined again."""

    @property
    def metadata_bytes(self) -> int:
        """Size in bytes of the member's assignment and subscriptions, which clients choose."""
        return len(self.assignment) + protocols_bytes(self.protocols)

    @property
    def held_bytes(self) -> int:
        """Memory of the member in bytes."""
        return MEMBER_BYTES + self.metadata_bytes + NAME_COPIES * len(self.instance_id or "")

    def metadata_of(self, protocol: str) -> bytes:
        """Return the member's metadata for one assignor; empty if the member does not have the assignor."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


def new_member(member_id: str, join: Join, now_ms: int) -> Member:
    """Return the member that a JoinGroup request describes."""
    return Member(
        member_id,
        join.instance_id,
        join.client_id,
        join.client_host,
        join.session_timeout_ms,
        join.rebalance_timeout_ms,
        list(join.protocols),
        now_ms + join.session_timeout_ms,
    )
