"""The commits of a consumer, which a thread sends in the order of the calls.

A commit names the member and its epoch at the time of sending. If the group answers that the epoch is old, the commit
is sent again with the new epoch, but only for a member that still holds the partitions. Otherwise the commit fails
permanently (CommitFailedError): another member continues from the last commit and reads the later records again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from sparklog.client.group.group_offsets import Offsets, checked_offsets, commit_offsets
from sparklog.client.group.membership import Partitions
from sparklog.client.net.background import daemon_thread
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.retry import RetryPolicy
from sparklog.environment.fault_points import reach
from sparklog.errors import (
    ClosedError,
    CommitFailedError,
    FencedInstanceIdError,
    FencedLeaderEpochError,
    FencedMemberEpochError,
    RequestTimedOutError,
    SparklogError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from sparklog.types import GroupMetadata, OffsetAndMetadata, TopicPartition

RETRY_S, RETRY_S_MAX = 0.02, 1.0
COMMITS_QUEUED_MAX = 10_000

Callback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], SparklogError | None], None]
"""Callback of `commit_async`: the offsets, and the error (None after success)."""


class Member(Protocol):
    """The identity of the committing member."""

    @property
    def metadata(self) -> GroupMetadata: ...
    @property
    def held(self) -> Partitions: ...
    def hurry(self) -> None: ...


class _Commit(NamedTuple):
    offsets: dict[TopicPartition, OffsetAndMetadata]
    done: Future[None]
    deadline: Deadline


class Committer:
    """The thread of a consumer's commits, started by the first commit. `member` returns None while the consumer is not
    a member of the group; its commits are then those of a group without members."""

    def __init__(
        self, cluster: Cluster, group_id: str, member: Callable[[], Member | None], *, request_timeout_ms: int
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._member = member
        self._request_timeout_ms = request_timeout_ms
        self._condition = threading.Condition()
        self._queue: deque[_Commit] = deque()
        self._busy = False
        self._closed = False
        self._sequence = 0
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """True if no commit is queued or under way."""
        with self._condition:
            return not self._queue and not self._busy

    def submit(self, offsets: Offsets, timeout_ms: int) -> Future[None]:
        """Queue a commit. Raises InvalidRequestError, ClosedError, and CommitFailedError if too many commits are
        queued. Every later error goes to the future."""
        checked = checked_offsets(offsets)
        done: Future[None] = Future()
        with self._condition:
            if self._closed:
                raise ClosedError("the consumer is closed")
            if len(self._queue) >= COMMITS_QUEUED_MAX:
                raise CommitFailedError(f"{COMMITS_QUEUED_MAX} commits are waiting: commit less often")
            self._queue.append(_Commit(checked, done, Deadline(timeout_ms)))
            if self._thread is None:
                self._thread = daemon_thread(self._run, "sparklog-commit")
                self._thread.start()
            self._condition.notify_all()
        return done

    def close(self, timeout_s: float) -> None:
        """Send the queued commits, for at most `timeout_s`. The commits that are left then fail with ClosedError."""
        self.begin_to_close()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._condition:
            unsent, self._queue = list(self._queue), deque()
        for commit in unsent:
            commit.done.set_exception(ClosedError("the consumer was closed before these offsets could be committed"))

    def begin_to_close(self) -> None:
        """Let the thread end after the queued commits."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._queue and not self._closed:
                    self._condition.wait()
                if not self._queue:
                    return
                commit = self._queue.popleft()
                self._busy = True
            try:
                reach("consumer.before-commit")
                self._commit(commit)
                reach("consumer.after-commit")
            except Exception as e:  # noqa: BLE001 - the future's
                failure: Exception | None = e
            else:
                failure = None
            with self._condition:
                self._busy = False
            if failure is None:
                commit.done.set_result(None)
            else:
                commit.done.set_exception(failure)

    def _commit(self, commit: _Commit) -> None:
        pause_s = RETRY_S
        while True:
            error = self._failure_of(commit)
            if error is None:
                return
            if commit.deadline.left_s <= pause_s:
                raise RequestTimedOutError(
                    f"offsets could not be committed in time; the last attempt failed: {error}"
                ) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)

    def _failure_of(self, commit: _Commit) -> SparklogError | None:
        """Try the commit once. Returns None after success, or an error after which another attempt can succeed. Raises
        other errors."""
        try:
            remaining_ms = max(1, int(commit.deadline.left_s * 1000))  # it is tried once in any case
            self._attempt(commit.offsets, min(self._request_timeout_ms, remaining_ms))
        except StaleMemberEpochError as e:
            member = self._member()
            if member is not None:
                member.hurry()
            return e
        except SparklogError as e:
            if not e.retriable:
                raise
            return e
        return None

    def _attempt(self, offsets: dict[TopicPartition, OffsetAndMetadata], timeout_ms: int) -> None:
        member = self._member()
        metadata = GroupMetadata(self._group_id) if member is None else member.metadata
        if member is not None:
            gone = sorted(set(offsets) - member.held)
            if metadata.member_epoch < 0 or gone:
                which = ", ".join(map(str, gone[:5])) if gone else "its partitions"
                raise CommitFailedError(
                    f"this member of group {self._group_id!r} does not hold {which} (any more): records read since the "
                    "last commit are read again by their new owners (did processing take longer than "
                    "max.poll.interval.ms?)"
                )
        self._sequence += 1
        try:
            commit_offsets(
                self._cluster,
                metadata,
                offsets,
                sequence=-1 if member is None else self._sequence,
                policy=RetryPolicy.one_attempt(timeout_ms),
            )
        except (UnknownMemberIdError, FencedMemberEpochError, FencedInstanceIdError) as e:
            if member is not None:
                member.hurry()
            raise CommitFailedError(f"the group has removed this member, or reassigned its partitions: {e}") from e
        except FencedLeaderEpochError as e:
            raise CommitFailedError(str(e)) from e
