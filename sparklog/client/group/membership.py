"""The state of a group member and its permitted steps (KIP-848, the client's half), as a pure state machine.

One thread sends heartbeats, another thread polls. `assigned` is the member's part in the last answer, `held` the
partitions that the polling thread reads. A partition that leaves `assigned` stays in `held` until the polling thread
has committed and released it. A partition that is new in `assigned` waits until the polling thread takes it. The
partitions in either count as owned in reports, so the group gives no partition to another member while this process
could still read it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple

from sparklog.errors import (
    FencedMemberEpochError,
    SparklogError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from sparklog.protocol.group_messages import GroupHeartbeatRequest, GroupHeartbeatResponse, TopicPartitions
from sparklog.types import TopicPartition

EPOCH_JOIN, EPOCH_LEAVE, EPOCH_AWAY = 0, -1, -2

Partitions = frozenset[TopicPartition]
_NONE: Partitions = frozenset()


class MemberConfig(NamedTuple):
    """The member's settings. `instance_id` None: a dynamic member; `assignor` None: the group's own."""

    group_id: str
    instance_id: str | None = None
    client_id: str = ""
    assignor: str | None = None
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 300_000


class Changes(NamedTuple):
    """The steps of the polling thread, in this order: forget `lost`, release `revoked`, take `added`."""

    lost: Partitions
    revoked: Partitions
    added: Partitions


class Membership:
    """One member of a group. Not thread-safe; the caller has a lock."""

    def __init__(self, config: MemberConfig) -> None:
        self.config = config
        self.member_id = uuid.uuid4().hex
        self.epoch = EPOCH_JOIN
        self.topics: list[str] = []
        self.assigned: Partitions = _NONE
        self.held: Partitions = _NONE
        self.lost: Partitions = _NONE
        self._sequence = 0
        self._report = True

    # -- heartbeats

    def subscribe(self, topics: Iterable[str]) -> bool:
        """Set the topics. Returns True if they differ from those before."""
        names = sorted(set(topics))
        changed = names != self.topics
        self.topics, self._report = names, self._report or changed
        return changed

    def request(self) -> GroupHeartbeatRequest:
        """Return the next heartbeat. While the member joins, and after a change or an error, it has the topics, the
        assignor and the owned partitions; else they are None, that is unchanged."""
        self._sequence += 1
        report, self._report = self._report, False
        joining = self.epoch == EPOCH_JOIN
        owned = self.assigned | self.held
        return GroupHeartbeatRequest(
            self.config.group_id,
            self.member_id,
            self.epoch,
            self.config.instance_id,
            self.topics if report or joining else None,
            self.config.assignor if report or joining else None,
            to_topics(owned) if report or joining else None,
            self.config.rebalance_timeout_ms,
            self.config.session_timeout_ms,
            self.config.client_id,
            self._sequence,
        )

    def answered(self, response: GroupHeartbeatResponse) -> bool:
        """Handle the last request's answer. Returns True if the polling thread has work to do."""
        self.epoch = response.member_epoch
        if response.assigned is None:
            return False
        assigned = frozenset(TopicPartition(t.topic, p) for t in response.assigned for p in t.partitions)
        if self.assigned - assigned - self.held:
            self._report = True  # taken back before it was taken: there is nothing to let go but to say so
        changed, self.assigned = assigned != self.assigned, assigned
        return changed

    def failed(self, error: SparklogError) -> bool:
        """Handle the last request's error. Returns False if it is permanent; otherwise the member continues."""
        self._report = True
        if isinstance(error, UnknownMemberIdError | FencedMemberEpochError):
            self.lose()
            return True
        return error.retriable or isinstance(error, StaleMemberEpochError | UnreleasedInstanceIdError)

    def leave_request(self) -> GroupHeartbeatRequest:
        """Return the heartbeat that leaves the group; the consumer must not read any records afterwards. A static
        member keeps its partitions until its session ends."""
        self._sequence += 1
        epoch = EPOCH_LEAVE if self.config.instance_id is None else EPOCH_AWAY
        return GroupHeartbeatRequest(
            self.config.group_id, self.member_id, epoch, self.config.instance_id, sequence=self._sequence
        )

    def lose(self) -> None:
        """Note that the group has removed the member, or that it has left: it holds nothing and joins from the
        beginning."""
        self.lost |= self.held
        self.assigned = self.held = _NONE
        self.epoch = EPOCH_JOIN
        self._report = True

    @property
    def has_news(self) -> bool:
        """True if the next heartbeat should not wait."""
        return self._report

    # -- the polling thread

    @property
    def changed(self) -> bool:
        """True if `changes` would return changes."""
        return bool(self.lost) or self.held != self.assigned

    def changes(self) -> Changes:
        """Return the changes since the last call. Added partitions are held from now on, revoked ones until
        `let_go`."""
        lost, self.lost = self.lost, _NONE
        revoked, added = self.held - self.assigned, self.assigned - self.held
        self.held |= added
        return Changes(lost, revoked, added)

    def not_taken(self, partitions: Partitions) -> None:
        """Let `changes` return these partitions as added again, because they could not be taken."""
        self.held -= partitions

    def let_go(self, partitions: Partitions) -> None:
        """Note that partitions are no longer read; the next heartbeat reports it."""
        self.held -= partitions
        self._report = True


def to_topics(partitions: Iterable[TopicPartition]) -> list[TopicPartitions]:
    """Return the partitions in the form of the message, sorted."""
    numbers_by_topic: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        numbers_by_topic.setdefault(tp.topic, []).append(tp.partition)
    return [TopicPartitions(topic, numbers) for topic, numbers in numbers_by_topic.items()]
