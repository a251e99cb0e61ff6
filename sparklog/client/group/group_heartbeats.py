"""The thread that keeps a consumer in its group: heartbeats go on while records are processed.

The thread joins, receives assignments, reports released partitions, checks that `poll` is called
(`max.poll.interval.ms`), and resolves a pattern to topics. Its news wait in the `Membership` for the polling thread.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

from sparklog.client.group.membership import EPOCH_JOIN, Changes, MemberConfig, Membership, Partitions
from sparklog.client.net.background import daemon_thread
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.coordinator_key import group_key
from sparklog.errors import InvalidTopicError, SparklogError, UnknownTopicOrPartitionError, UnreleasedInstanceIdError
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import GroupHeartbeatResponse
from sparklog.types import INTERNAL_TOPICS, GroupMetadata

_log = logging.getLogger(__name__)

BACKOFF_S, BACKOFF_S_MAX = 0.05, 1.0
LEAVE_TIMEOUT_MS = 5_000
IN_USE_S = 60.0
"""Shortest time in s for which a static member tries to get its instance id; twice the session timeout, if that is
longer. If the previous process has died, its session must end first."""


class GroupHeartbeats:
    """One member of one group, from `subscribe` to `leave`. `on_change` is called on the heartbeat thread when there is
    work for the polling thread; it must not block."""

    def __init__(
        self,
        cluster: Cluster,
        config: MemberConfig,
        *,
        max_poll_interval_ms: int,
        metadata_max_age_ms: int,
        request_timeout_ms: int,
        on_change: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._max_poll_interval_s = max_poll_interval_ms / 1000
        self._metadata_max_age_s = metadata_max_age_ms / 1000
        self._request_timeout_ms = request_timeout_ms
        self._on_change = on_change
        self._wake = threading.Condition()
        self._membership = Membership(config)
        self._pattern: re.Pattern[str] | None = None
        self._pattern_due = 0.0
        self._unchecked: list[str] = []
        """Subscribed topics whose existence has not been checked."""
        self._polled_at = time.monotonic()
        self._joining_since = time.monotonic()
        self._hurry = True
        self._closing = False
        self._failure: SparklogError | None = None
        self._thread = daemon_thread(self._run, "sparklog-heartbeat")

    # -- the polling thread's side

    def subscribe(self, topics: list[str], pattern: re.Pattern[str] | None) -> None:
        """Set the topics that the member wants from now on."""
        with self._wake:
            self._pattern, self._pattern_due = pattern, 0.0
            self._unchecked = list(topics)
            if pattern is None:
                self._membership.subscribe(topics)
            self._hurry = True
            self._wake.notify_all()
        if self._thread.ident is None:
            self._thread.start()

    @property
    def topics(self) -> list[str]:
        with self._wake:
            return list(self._membership.topics)

    @property
    def metadata(self) -> GroupMetadata:
        """The identity of the member; epoch -1 while it joins."""
        with self._wake:
            member = self._membership
            epoch = -1 if member.epoch == EPOCH_JOIN else member.epoch
            return GroupMetadata(self._config.group_id, member.member_id, epoch, self._config.instance_id)

    @property
    def held(self) -> Partitions:
        with self._wake:
            return self._membership.held

    @property
    def pending(self) -> bool:
        """True if `changes` has changes to return or an error to raise."""
        with self._wake:
            return self._membership.changed or self._failure is not None

    def changes(self) -> Changes:
        """Return the changes since the last call, and note that poll is called. Raises permanent errors of the
        group."""
        with self._wake:
            self._polled_at = time.monotonic()
            if self._membership.epoch == EPOCH_JOIN:
                self._wake.notify_all()  # it may have left because poll was not called
            if self._failure is not None:
                raise self._failure
            return self._membership.changes()

    def not_taken(self, partitions: Partitions) -> None:
        """Let `changes` add these partitions again, because they could not be taken."""
        with self._wake:
            self._membership.not_taken(partitions)

    def let_go(self, partitions: Partitions) -> None:
        """Report partitions that are committed and not read any more."""
        with self._wake:
            self._membership.let_go(partitions)
            self._hurry = True
            self._wake.notify_all()

    def hurry(self) -> None:
        """Send a heartbeat now, because this member's assignment is perhaps outdated."""
        with self._wake:
            self._hurry = True
            self._wake.notify_all()

    def leave(self, timeout_s: float = LEAVE_TIMEOUT_MS / 1000 + 1) -> None:
        """Leave the group and wait for the end of the thread. The consumer must not read any records afterwards."""
        self.begin_to_leave()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def begin_to_leave(self) -> None:
        """Begin to leave the group as `leave` does, without waiting."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()

    # -- the thread

    def _run(self) -> None:
        due, backoff_s = 0.0, BACKOFF_S
        try:
            while self._wait(due):
                try:
                    due = time.monotonic() + self._beat()
                    backoff_s = BACKOFF_S
                except SparklogError as e:
                    due = time.monotonic() + backoff_s
                    backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
                    self._note(e)
            self._say_goodbye()
        except BaseException as e:  # noqa: BLE001  poll raises it
            _log.exception("the heartbeat thread failed")
            with self._wake:
                self._failure = SparklogError(f"the consumer's heartbeat thread failed: {e!r}")
            self._on_change()

    def _wait(self, due: float) -> bool:
        """Wait until the next heartbeat is due, or requested by `hurry`. Returns False at the end of the membership."""
        with self._wake:
            while not self._closing:
                now = time.monotonic()
                late = now - self._polled_at >= self._max_poll_interval_s
                if self._failure is not None or (late and self._membership.epoch == EPOCH_JOIN):
                    self._wake.wait(self._max_poll_interval_s)  # until poll is called again, or for good
                    continue
                if now >= due or self._hurry or late:
                    self._hurry = False
                    return True
                self._wake.wait(min(due - now, self._polled_at + self._max_poll_interval_s - now))
        return False

    def _beat(self) -> float:
        """Send one heartbeat; return the seconds until the next one."""
        with self._wake:
            late = time.monotonic() - self._polled_at >= self._max_poll_interval_s
        if late:
            self._leave_for_now()
            return 0.0
        self._resolve_pattern()
        with self._wake:
            request = self._membership.request()
        response = self._cluster.coordinator_request(
            group_key(self._config.group_id),
            Api.GROUP_HEARTBEAT,
            request,
            GroupHeartbeatResponse,
            timeout_ms=self._request_timeout_ms,
        )
        with self._wake:
            self._joining_since = time.monotonic()
            changed = self._membership.answered(response)
            self._hurry = self._hurry or self._membership.has_news
        if changed:
            self._on_change()
        self._check_topics()
        return response.heartbeat_interval_ms / 1000

    def _check_topics(self) -> None:
        """Warn of subscribed topics that do not exist: they can be created later, but their names are perhaps
        misspelt."""
        with self._wake:
            names = self._unchecked
        for name in names:
            try:
                self._cluster.topic(name, timeout_ms=self._request_timeout_ms)
            except UnknownTopicOrPartitionError as e:
                _log.warning("group %s reads topic %r once it exists: %s", self._config.group_id, name, e)
            except SparklogError as e:
                _log.info("group %s: topic %r could not be looked up: %s", self._config.group_id, name, e)
        with self._wake:
            if self._unchecked is names:
                self._unchecked = []

    def _resolve_pattern(self) -> None:
        with self._wake:
            pattern, now = self._pattern, time.monotonic()
            if pattern is None or now < self._pattern_due:
                return
        topics = self._cluster.partition_counts(timeout_ms=self._request_timeout_ms)
        matching = [name for name in topics if name not in INTERNAL_TOPICS and pattern.fullmatch(name)]
        with self._wake:
            if self._pattern is pattern:
                if not matching and not self._pattern_due:
                    _log.warning(
                        "group %s reads topics that match %.200r once one exists: no topic's whole name matches",
                        self._config.group_id,
                        pattern.pattern,
                    )
                self._pattern_due = now + self._metadata_max_age_s
                self._membership.subscribe(matching)

    def _leave_for_now(self) -> None:
        """Leave the group until the next poll: poll was not called in time, and another member has to read the
        partitions."""
        _log.warning(
            "poll was not called for %.1f s (max.poll.interval.ms): leaving group %s until the next call; process "
            "fewer records per poll (max.poll.records) or raise the setting",
            self._max_poll_interval_s,
            self._config.group_id,
        )
        with self._wake:
            request = self._membership.leave_request()
            self._membership.lose()
        self._on_change()
        self._cluster.coordinator_request(
            group_key(self._config.group_id),
            Api.GROUP_HEARTBEAT,
            request,
            GroupHeartbeatResponse,
            timeout_ms=self._request_timeout_ms,
        )

    def _note(self, error: SparklogError) -> None:
        """Handle a failed heartbeat: the thread tries again, or `changes` raises a permanent error."""
        now = time.monotonic()
        with self._wake:
            goes_on = self._membership.failed(error)
            if isinstance(error, UnreleasedInstanceIdError):
                goes_on = now - self._joining_since < max(IN_USE_S, 2 * self._config.session_timeout_ms / 1000)
            if not goes_on:
                self._failure = error
                self._membership.lose()
        _log.info("a heartbeat in group %s failed: %s", self._config.group_id, error)
        self._on_change()

    def _say_goodbye(self) -> None:
        with self._wake:
            if self._membership.epoch == EPOCH_JOIN and not self._membership.assigned:
                return  # it has not joined, as far as it knows; if it has, the session ends by itself
            request = self._membership.leave_request()
        try:
            self._cluster.coordinator_request(
                group_key(self._config.group_id),
                Api.GROUP_HEARTBEAT,
                request,
                GroupHeartbeatResponse,
                timeout_ms=LEAVE_TIMEOUT_MS,
            )
        except SparklogError as e:
            _log.info("leaving group %s failed; the session timeout removes this member: %s", self._config.group_id, e)


def compile_pattern(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """Compile a pattern, which matches whole topic names. Raises InvalidTopicError."""
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(text, str):
        raise InvalidTopicError(f"pattern = {pattern!r}: use a regular expression as str")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as e:
        raise InvalidTopicError(f"topic pattern {pattern!r} is no regular expression: {e}") from e
