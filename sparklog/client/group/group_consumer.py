"""A consumer's part in its group, on the polling thread: assignments, callbacks, positions, commits.

The consumer calls `before_poll`, and `update` while a poll waits. Partitions come and go, and their callbacks run, only
in these two methods and in `close` and `unsubscribe`. Revoked partitions go in this order:

- The records of earlier polls are committed (enable.auto.commit).
- `on_revoke` is called.
- Commits that were begun end.
- Reading ends.
- The group is informed.

Partitions that another member perhaps has already are lost: nothing is committed, reading ends, and `on_lost` is
called.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, NamedTuple, Protocol

from sparklog.client.group.committer import Callback, Committer
from sparklog.client.group.group_heartbeats import GroupHeartbeats, compile_pattern
from sparklog.client.group.group_offsets import Offsets, checked_offsets, fetch_offsets
from sparklog.client.group.membership import MemberConfig, Partitions
from sparklog.client.group.pending_request import PendingRequest
from sparklog.client.net.arguments import texts
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.retry import RetryPolicy
from sparklog.errors import (
    CommitFailedError,
    FencedMemberEpochError,
    InvalidGroupIdError,
    RequestTimedOutError,
    SparklogError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from sparklog.types import GroupMetadata, OffsetAndMetadata, TopicPartition, check_topic_name

_log = logging.getLogger(__name__)

RETRY_S = 0.1
REVOKE_COMMIT_TIMEOUT_MS = 10_000
_SLACK_S = 0.1
"""Extra time in s for the committer, whose error is more precise than a timeout."""
CLOSE_TIMEOUT_MS = 30_000

Listener = Callable[[list[TopicPartition]], object]
"""Callback with the assigned or revoked partitions."""


class Reader(Protocol):
    """The consumer's part for its group."""

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Add assigned partitions. They are not read before `start_at` has set their beginning."""

    def start_at(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Set the first offsets of partitions that have no position yet; None stands for auto.offset.reset. If a `seek`
        has set a position since, it stays."""

    def drop_partitions(self, partitions: Iterable[TopicPartition]) -> None: ...
    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit, of each partition whose position the application knows (`Position.is_polled`):
        the offset after the last consumed record, or the start position if no record was consumed since."""

    def unstarted(self) -> list[TopicPartition]:
        """Return the assigned partitions that wait for `start_at`."""

    def wake(self) -> None:
        """End a waiting poll. Called on another thread."""


class _Listeners(NamedTuple):
    on_assign: Listener | None = None
    on_revoke: Listener | None = None
    on_lost: Listener | None = None


class _Member:
    """The identity of the consumer while it is a member."""

    def __init__(self) -> None:
        self.heartbeats: GroupHeartbeats | None = None

    def current(self) -> GroupHeartbeats | None:
        return self.heartbeats


class GroupConsumer:
    """The group's side of a consumer with `group.id`. `config` are the consumer's settings."""

    def __init__(self, cluster: Cluster, reader: Reader, config: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._reader = reader
        self._config = config
        self.group_id: str = config["group.id"]
        self._auto_commit: bool = config["enable.auto.commit"]
        self._auto_commit_interval_s = config["auto.commit.interval.ms"] / 1000
        self._api_timeout_ms: int = config["default.api.timeout.ms"]
        self._request_timeout_ms: int = config["request.timeout.ms"]
        self._member = _Member()  # not self: the committer's thread must not keep the consumer's callbacks
        self._listeners = _Listeners()
        self._committer = Committer(
            cluster, self.group_id, self._member.current, request_timeout_ms=self._request_timeout_ms
        )
        self._commit_due = time.monotonic() + self._auto_commit_interval_s
        self._automatic: dict[TopicPartition, int] = {}
        self._called_back: deque[tuple[Future[None], dict[TopicPartition, OffsetAndMetadata], Callback | None]] = (
            deque()
        )
        self._offsets_due = 0.0
        self._retry_at = 0.0
        self._pending_request: PendingRequest[Any] | None = None
        self._on_answer: Callable[[Callable[[], Any]], None] = lambda answer: None
        """The handler of the request's answer. The asking thread has no reference to it or to callbacks."""

    @property
    def _heartbeats(self) -> GroupHeartbeats | None:
        return self._member.heartbeats

    @_heartbeats.setter
    def _heartbeats(self, heartbeats: GroupHeartbeats | None) -> None:
        self._member.heartbeats = heartbeats

    # -- subscription

    @property
    def subscribed(self) -> bool:
        return self._heartbeats is not None

    @property
    def subscription(self) -> list[str]:
        return [] if self._heartbeats is None else self._heartbeats.topics

    def subscribe(
        self,
        topics: Iterable[str] | None,
        pattern: str | re.Pattern[str] | None,
        listeners: tuple[Listener | None, ...],
    ) -> None:
        """Join the group for these topics or this pattern. Raises InvalidTopicError."""
        names = [check_topic_name(t) for t in texts("topics", () if topics is None else topics)]
        compiled = None if pattern is None else compile_pattern(pattern)
        self._listeners = _Listeners(*listeners)
        if self._heartbeats is None:
            self._heartbeats = GroupHeartbeats(
                self._cluster,
                self._member_config(),
                max_poll_interval_ms=self._config["max.poll.interval.ms"],
                metadata_max_age_ms=self._config["metadata.max.age.ms"],
                request_timeout_ms=self._request_timeout_ms,
                on_change=self._reader.wake,
            )
        self._heartbeats.subscribe(names, compiled)

    def _member_config(self) -> MemberConfig:
        return MemberConfig(
            self.group_id,
            self._config["group.instance.id"] or None,
            self._config["client.id"],
            self._config["group.remote.assignor"] or None,
            self._config["session.timeout.ms"],
            self._config["max.poll.interval.ms"],
        )

    def unsubscribe(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS, autocommit: bool = True) -> None:
        """Commit (enable.auto.commit, unless `autocommit` is False), give up all partitions and leave.

        Raises the errors of callbacks.
        """
        heartbeats, deadline = self._heartbeats, Deadline(timeout_ms)
        if heartbeats is None:
            return
        try:
            self._release(heartbeats.held, timeout_ms, autocommit=autocommit)
        finally:
            heartbeats.leave(deadline.left_s)
            self._heartbeats = self._pending_request = None

    @property
    def metadata(self) -> GroupMetadata:
        """The identity of this consumer in its group."""
        return GroupMetadata(self.group_id) if self._heartbeats is None else self._heartbeats.metadata

    # -- while it polls

    @property
    def pending(self) -> bool:
        """True if the assignment has changed or the answer to a request has come."""
        if self._pending_request is not None:
            return self._pending_request.is_answered
        return self._heartbeats is not None and self._heartbeats.pending and time.monotonic() >= self._retry_at

    def before_poll(self) -> None:
        """Run callbacks of finished commits, commit automatically if that is due, and follow the assignment. The
        records of earlier polls count as processed. Raises permanent errors of the group and the errors of
        callbacks."""
        self._run_callbacks()
        self._commit_automatically()
        self.update()

    def update(self) -> None:
        """Follow the group's assignment. Requests to brokers run on another thread, so a poll does not wait for them
        for longer than its own timeout."""
        self._take_answer()
        if self._heartbeats is not None:
            lost, revoked, added = self._heartbeats.changes()
            if lost:
                self._reader.drop_partitions(lost)
                self._forget_automatic(lost)
                self._call(self._listeners.on_lost or self._listeners.on_revoke, lost)
            if revoked:
                self._release(revoked, REVOKE_COMMIT_TIMEOUT_MS)
            if added:
                self._take(added)
        unstarted = self._reader.unstarted() if self._pending_request is None else []
        if unstarted and time.monotonic() >= self._offsets_due:
            self._ask_for_offsets(unstarted)

    def _take(self, partitions: Partitions) -> None:
        assert self._heartbeats is not None
        unknown = sorted(t for t in {tp.topic for tp in partitions} if self._cluster.cached_topic(t) is None)
        if unknown or self._pending_request is not None:
            self._heartbeats.not_taken(partitions)
            if self._pending_request is None:
                learn = partial(_learn, self._cluster, unknown, self._request_timeout_ms)
                self._pending_request, self._on_answer = PendingRequest(learn, self._reader.wake), self._learnt
            return
        try:
            self._reader.add_partitions(partitions)
        except SparklogError as e:
            self._heartbeats.not_taken(partitions)
            self._cannot_be_read(e)
            return
        self._offsets_due = 0.0
        self._call(self._listeners.on_assign, partitions)

    def _learnt(self, answer: Callable[[], None]) -> None:
        try:
            answer()
        except SparklogError as e:
            self._cannot_be_read(e)

    def _cannot_be_read(self, error: SparklogError) -> None:
        """Schedule another attempt to take new partitions, or raise `error` if it is permanent. An unknown topic is not
        permanent here, because the partitions of a deleted topic are revoked soon."""
        self._retry_at = time.monotonic() + RETRY_S
        if not error.retriable and not isinstance(error, UnknownTopicOrPartitionError):
            raise error
        _log.info("assigned partitions are not readable yet: %s", error)

    def _take_answer(self) -> None:
        """Handle the answer to the request, if it has come."""
        request = self._pending_request
        if request is not None and request.is_answered:
            self._pending_request = None
            self._on_answer(request.answer)

    @property
    def wait_s(self) -> float:
        """The longest wait of a poll in s before its next `update`."""
        if self._pending_request is not None:
            return float("inf")  # its answer ends the wait
        now = time.monotonic()
        due = [self._retry_at] if self._retry_at > now else []
        due += [self._offsets_due] if self._reader.unstarted() else []
        return max(0.0, min(due, default=float("inf")) - now)

    def _release(self, partitions: Partitions, timeout_ms: int, *, autocommit: bool = True) -> None:
        heartbeats, deadline = self._heartbeats, Deadline(timeout_ms)
        assert heartbeats is not None
        if self._auto_commit and autocommit:
            self._commit_before_revoke(partitions, timeout_ms)
        try:
            if partitions:
                self._call(self._listeners.on_revoke, partitions)
            self._finish_commits(deadline)
        finally:
            self._reader.drop_partitions(partitions)
            self._forget_automatic(partitions)
            heartbeats.let_go(partitions)

    def _commit_before_revoke(self, partitions: Partitions, timeout_ms: int) -> None:
        offsets = {tp: o for tp, o in self._reader.consumed().items() if tp in partitions}
        if all(self._automatic.get(tp) == o.offset for tp, o in offsets.items()) and self._committer.idle:
            return
        try:
            self._committer.submit(offsets, timeout_ms).result(timeout_ms / 1000)
        except (SparklogError, TimeoutError) as e:
            _log.warning("the positions of revoked partitions could not be committed: %s", e)

    def _call(self, listener: Listener | None, partitions: Partitions) -> None:
        if listener is not None:
            listener(sorted(partitions))

    # -- positions

    def _ask_for_offsets(self, partitions: list[TopicPartition]) -> None:
        """Request the committed offsets of new partitions. Offsets that an open transaction can change are requested
        again later."""
        self._offsets_due = time.monotonic() + RETRY_S
        policy = RetryPolicy.one_attempt(self._request_timeout_ms)
        ask = partial(fetch_offsets, self._cluster, self.metadata, partitions, policy=policy)
        self._pending_request, self._on_answer = PendingRequest(ask, self._reader.wake), self._start

    def _start(
        self, answer: Callable[[], tuple[dict[TopicPartition, OffsetAndMetadata | None], list[TopicPartition]]]
    ) -> None:
        """Let the new partitions begin at their committed offsets."""
        self._offsets_due = time.monotonic() + RETRY_S
        try:
            committed, _ = answer()
        except (StaleMemberEpochError, UnknownMemberIdError, FencedMemberEpochError):
            if self._heartbeats is not None:
                self._heartbeats.hurry()
            return
        except SparklogError as e:
            if not e.retriable:
                raise
            _log.info("the committed offsets of group %s could not be read yet: %s", self.group_id, e)
            return
        self._automatic |= {tp: o.offset for tp, o in committed.items() if o is not None}
        self._reader.start_at(committed)

    def committed(
        self, partitions: Iterable[TopicPartition], deadline: Deadline | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets. The call waits until no open transaction can change them.

        Raises UnstableOffsetCommitError after default.api.timeout.ms (or at `deadline`), and the group's errors.
        """
        requested = list(partitions)
        deadline = deadline or Deadline(self._api_timeout_ms)
        while True:
            policy = RetryPolicy(timeout_ms=deadline.left_ms(), request_timeout_ms=self._request_timeout_ms)
            offsets_by_partition, unstable = fetch_offsets(
                self._cluster, GroupMetadata(self.group_id), requested, policy=policy
            )
            if not unstable:
                return offsets_by_partition
            if deadline.left_s <= RETRY_S:
                names = ", ".join(map(str, unstable[:5]))
                raise UnstableOffsetCommitError(f"a transaction with offsets of {names} has not ended")
            time.sleep(RETRY_S)

    # -- commits

    def commit(self, offsets: Offsets | None) -> None:
        """Commit and wait. Raises as `Committer.submit`, RequestTimedOutError, and the errors of the group and of
        callbacks."""
        checked = checked_offsets(self._reader.consumed() if offsets is None else offsets)
        if checked:
            self._forget_automatic(checked)
            done = self._committer.submit(checked, self._api_timeout_ms)
            try:
                done.result(self._api_timeout_ms / 1000 + _SLACK_S)
            except TimeoutError as e:
                raise RequestTimedOutError("earlier commits did not end within default.api.timeout.ms") from e
            self._run_callbacks()

    def commit_async(self, offsets: Offsets | None, callback: Callback | None) -> None:
        """Commit without waiting. Raises as `Committer.submit`; all later errors go to the callback."""
        checked = checked_offsets(self._reader.consumed() if offsets is None else offsets)
        if not checked:
            return
        self._forget_automatic(checked)
        self._called_back.append((self._committer.submit(checked, self._api_timeout_ms), checked, callback))

    def _run_callbacks(self) -> None:
        """Run the callbacks of finished commits, in their order, on the polling thread."""
        while self._called_back and self._called_back[0][0].done():
            done, offsets, callback = self._called_back.popleft()
            error = done.exception()
            if error is not None and not isinstance(error, SparklogError):
                raise error
            if callback is not None:
                callback(offsets, error)
            elif isinstance(error, CommitFailedError):
                _log.warning("%s", error)
            elif error is not None:
                _log.warning("offsets could not be committed: %s", error)

    def _finish_commits(self, deadline: Deadline) -> None:
        """Wait for the commits of `commit_async`, which the brokers refuse once the member has let its partitions go,
        and run their callbacks."""
        wait([done for done, *_ in self._called_back], deadline.left_s)
        self._run_callbacks()

    def _commit_automatically(self) -> None:
        now = time.monotonic()
        if not self._auto_commit or now < self._commit_due or not self._committer.idle:
            return
        self._commit_due = now + self._auto_commit_interval_s
        offsets = {tp: o for tp, o in self._reader.consumed().items() if self._automatic.get(tp) != o.offset}
        if offsets:
            self._called_back.append(
                (self._committer.submit(offsets, self._api_timeout_ms), {}, self._note_automatic(offsets))
            )

    def _note_automatic(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> Callback:
        def note(_: object, error: SparklogError | None) -> None:
            if error is None:
                self._automatic |= {tp: o.offset for tp, o in offsets.items()}
            else:
                _log.warning("the automatic commit failed; the next commit has newer positions: %s", error)

        return note

    def _forget_automatic(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._automatic.pop(tp, None)

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS, *, autocommit: bool = True) -> None:
        """Commit (enable.auto.commit, unless `autocommit` is False) and leave."""
        deadline = Deadline(timeout_ms)
        try:
            if self._heartbeats is not None:
                self.unsubscribe(timeout_ms=timeout_ms, autocommit=autocommit)
            elif self._auto_commit and autocommit:
                self._commit_at_close(timeout_ms)
        finally:
            self._committer.close(deadline.left_s)
            self._run_callbacks()

    def abandon(self) -> None:
        """Leave the group, because the consumer was dropped without close. Only commits that were requested before are
        sent. Does not wait."""
        if self._heartbeats is not None:
            self._heartbeats.begin_to_leave()
        self._committer.begin_to_close()

    def _commit_at_close(self, timeout_ms: int) -> None:
        """Commit the positions of partitions that were assigned by hand."""
        offsets = {tp: o for tp, o in self._reader.consumed().items() if self._automatic.get(tp) != o.offset}
        if offsets:
            try:
                self._committer.submit(offsets, timeout_ms).result(timeout_ms / 1000)
            except (SparklogError, TimeoutError) as e:
                _log.warning("the positions could not be committed at the close: %s", e)


def _learn(cluster: Cluster, topics: list[str], timeout_ms: int) -> None:
    """Read the metadata of these topics into the cluster's cache."""
    for topic in topics:
        cluster.topic(topic, timeout_ms=timeout_ms)


def require_group(group: GroupConsumer | None, action: str) -> GroupConsumer:
    """Return the group. Raises InvalidGroupIdError if the consumer has none."""
    if group is None:
        raise InvalidGroupIdError(f"{action} needs a group: create the consumer with group_id=…")
    return group
