"""The lake worker: runs rounds of all topics with a Delta table, and shares the topics with other workers as a group.

A topic belongs to the worker that the group assigns the topic's partition 0 to. The group notices a killed worker only
at the end of its session. Therefore another worker runs a round when the table's next offsets have not changed for
STANDBY_INTERVALS. Two workers on one topic do no harm: a commit succeeds only on the version that was checked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from sparklog.client.admin.admin import Admin
from sparklog.client.admin.lake_admin import report_lake
from sparklog.client.consumer.topic_shares import TopicShares
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.net.topic_info import TopicInfo
from sparklog.environment.fault_points import reach
from sparklog.errors import (
    InvalidConfigError,
    LakePausedError,
    LakeUnavailableError,
    SparklogError,
    UnknownTopicOrPartitionError,
    one_line,
)
from sparklog.lake.delta_errors import lasting_cause
from sparklog.lake.delta_snapshot import DeltaSnapshot
from sparklog.lake.location import normal_location
from sparklog.lake.settings import LakeSettings
from sparklog.lake.small_files import merge_small_files
from sparklog.lake.worker.sync import LakeSync, RoundResult
from sparklog.lake.worker.topic_reader import TopicReader
from sparklog.security.client_security import Security

logger = logging.getLogger(__name__)

GROUP_ID = "sparklog-lake"
"""The workers' group. It only distributes topics among the workers, which commit no offsets in it: the Delta tables
store the next offsets."""
FIND_TOPICS_S = 5.0
POLL_MS = 200
FAILURE_PAUSE_S, FAILURE_PAUSE_S_MAX = 1.0, 60.0
MERGE_ROUNDS = 8
"""Number of a topic's rounds from one search for small files to the next."""
MERGES_AT_ONCE = 4
PAUSE_REASON_CHARS_MAX = 1_000


STANDBY_INTERVALS = 3
"""Number of commit intervals between two looks of a worker at the table of another worker's topic. If the next offsets
have not changed in between, the worker runs a round itself."""


class _Topic(Struct):
    sync: LakeSync
    topic_id: str
    seen: dict[int, int] | None = None
    """Next offsets in the table after this worker's last round or last look; None before both."""
    due_s: float = 0.0
    failures: int = 0
    rounds: int = 0
    error: str = ""


class LakeWorker:
    """A lake worker; for one thread, except `stop`."""

    def __init__(
        self,
        bootstrap_servers: str | None = None,
        *,
        security: Security = None,
        request_timeout_ms: int = 30_000,
        on_round: Callable[[str, RoundResult], None] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a worker. `on_round`: called with a topic's name after each of its rounds."""
        self._bootstrap = bootstrap_servers
        self._security = security
        self._timeout_ms = request_timeout_ms
        self._admin = Admin(bootstrap_servers, request_timeout_ms=request_timeout_ms, security=security)
        self._cluster: Cluster = cluster(bootstrap_servers, security)
        self._on_round = on_round
        self._clock_s = clock_s
        self._topics: dict[str, _Topic] = {}
        self._stop = threading.Event()

    def stop(self) -> None:
        """Make `run` and `run_once` return after the present round. Any thread is allowed to call it."""
        self._stop.set()

    def close(self) -> None:
        """Close the worker's Admin. The process keeps the connections, and closes idle ones."""
        self._admin.close()

    # -- one time

    def run_once(self, topics: Iterable[str] | None = None) -> dict[str, str]:
        """Run rounds until each table has the records that are committed now, or until `stop`. `topics`: names of
        topics. None: all topics with a table. Returns the error of each topic that failed, is paused or has no table,
        by name."""
        errors: dict[str, str] = {}
        with_table = self.lake_topics()
        for name in sorted(with_table if topics is None else topics):
            if name not in with_table:
                errors[name] = f"topic {name!r} has no Delta table; use 'sparklog lake enable {name} --location URL'"
                continue
            info, settings = with_table[name]
            if settings.paused:
                errors[name] = f"paused: {settings.paused}"
                continue
            topic = self._topic(info)
            while not self._stop.is_set():
                result = self._round(info, settings, topic)
                if result is None:
                    errors[name] = topic.error
                    break
                if result.is_complete:
                    self._merge(settings, result.version)
                    break
                newest = self.lake_topics([name]).get(name)
                if newest is None:
                    break
                info, settings = newest
        return errors

    # -- continuously

    def run(self) -> None:
        """Run rounds until `stop`. Raises SparklogError: The brokers refuse this client, or the worker's settings are
        wrong."""
        shares = TopicShares(self._bootstrap, GROUP_ID, "sparklog-lake", self._security)
        look_s = float("-inf")
        topics: dict[str, tuple[TopicInfo, LakeSettings]] = {}
        try:
            while not self._stop.is_set():
                try:
                    if self._clock_s() - look_s >= FIND_TOPICS_S:
                        topics, look_s = self.lake_topics(), self._clock_s()
                        shares.use(topics)
                    owned = shares.owned()
                except SparklogError as e:
                    if not e.retriable:
                        raise
                    logger.warning("the lake worker waits for the brokers: %s", e)
                    self._stop.wait(FAILURE_PAUSE_S)
                    continue
                if not self._work(topics, owned):
                    self._stop.wait(POLL_MS / 1000)
        finally:
            shares.close()

    def _work(self, topics: dict[str, tuple[TopicInfo, LakeSettings]], owned: set[str]) -> bool:
        """Run the rounds that are due. Returns True if a round ran, successfully or not."""
        worked = False
        for name in sorted(topics):
            topic = self._topic(topics[name][0])
            if self._stop.is_set() or topic.due_s > self._clock_s():
                continue
            if name not in owned and self._is_served(*topics[name], topic):
                continue
            newest = self.lake_topics([name]).get(name)
            if newest is None or newest[1].paused:
                topic.due_s = self._clock_s() + FAILURE_PAUSE_S
                continue
            info, settings = newest
            topic = self._topic(info)
            began_s = self._clock_s()
            worked = True
            result = self._round(info, settings, topic)
            if result is None:
                topic.failures += 1
                topic.due_s = self._clock_s() + min(FAILURE_PAUSE_S * 2 ** (topic.failures - 1), FAILURE_PAUSE_S_MAX)
                continue
            topic.failures = 0
            interval_s = settings.commit_interval_ms / 1000
            topic.due_s = began_s + (interval_s if result.is_complete else 0.0)
            topic.seen = dict(result.next_offsets)
            topic.rounds += 1
            if result.offsets and topic.rounds % MERGE_ROUNDS == 0:
                self._merge(settings, result.version)
        for name in self._topics.keys() - topics.keys():
            del self._topics[name]
        return worked

    def _is_served(self, info: TopicInfo, settings: LakeSettings, topic: _Topic) -> bool:
        """True if another worker has committed since the last look. Also True for the first look, and if the table
        cannot be read. Sets the time of the next look."""
        interval_s = settings.commit_interval_ms / 1000
        topic.due_s = self._clock_s() + STANDBY_INTERVALS * interval_s
        try:
            offsets = topic.sync.next_offsets(info, settings)
        except SparklogError as e:
            logger.info("topic %s: the state of its Delta table cannot be read: %s", info.name, e)
            return True
        before, topic.seen = topic.seen, offsets
        return before is None or offsets != before

    # -- rounds

    def lake_topics(self, names: Iterable[str] | None = None) -> dict[str, tuple[TopicInfo, LakeSettings]]:
        """Return the topics with a Delta table. `names`: names of topics to look at. None: all."""
        topics: dict[str, tuple[TopicInfo, LakeSettings]] = {}
        for name in self._admin.list_topics() if names is None else names:
            try:
                info = self._cluster.topic(name, refresh=True, timeout_ms=self._timeout_ms)
                settings = LakeSettings.of(info.configs, info.broker_defaults)
            except (UnknownTopicOrPartitionError, InvalidConfigError):
                continue  # deleted meanwhile, or with a setting that is out of bounds
            if settings.location:
                topics[name] = info, settings
        return topics

    def _topic(self, info: TopicInfo) -> _Topic:
        topic = self._topics.get(info.name)
        if topic is None or topic.topic_id != info.topic_id:
            sync = LakeSync(TopicReader(self._cluster, self._timeout_ms))
            topic = self._topics[info.name] = _Topic(sync, info.topic_id)
        return topic

    def _round(self, info: TopicInfo, settings: LakeSettings, topic: _Topic) -> RoundResult | None:
        """Run one round. Returns None if it failed; the reason is in `topic.error`."""
        try:
            result = topic.sync.round(info, settings, lambda table_id: self._note(info.name, table_id))
        except LakePausedError as e:
            topic.error = str(e)
            self._report(info, {}, error=topic.error)
            logger.error("topic %s: its Delta table is paused: %s", info.name, e)  # noqa: TRY400 - a decision, no defect
            self._pause(info.name, str(e))
            return None
        except (SparklogError, OSError) as e:
            topic.error = str(e)
            self._report(info, {}, error=topic.error)
            cause = lasting_cause(e) if isinstance(e, LakeUnavailableError | OSError) else ""
            if cause:
                logger.error("topic %s: its Delta table is paused: %s: %s", info.name, cause, e)  # noqa: TRY400
                self._pause(info.name, f"{cause}: {e}; mend the cause, then use 'sparklog lake resume {info.name}'")
            else:
                logger.warning("topic %s: the round failed and will be retried: %s", info.name, e)
            return None
        except Exception as e:  # a defect that one topic's rows reach must not stop the other topics' tables
            topic.error = f"unexpected {type(e).__name__}: {one_line(str(e))}"
            self._report(info, {}, error=topic.error)
            logger.exception("topic %s: the round failed and will be retried", info.name)
            return None
        topic.error = ""
        self._report(
            info,
            result.next_offsets,
            as_of_ms=result.as_of_ms if result.is_current else 0,
            version=result.version,
            files=result.files,
            last_commit_ms=int(time.time() * 1000) if result.offsets else 0,
        )
        if self._on_round is not None:
            self._on_round(info.name, result)
        return result

    def _report(self, info: TopicInfo, next_offsets: Mapping[int, int], **state: Any) -> None:
        """Report a round to the brokers: metrics show the report, and retention waits for it (`lake.hold.retention`).
        If the report fails, the next round's report takes its place."""
        try:
            report_lake(self._cluster, info, next_offsets, **state)
        except SparklogError as e:
            logger.warning("topic %s: the state of its Delta table could not be reported: %s", info.name, e)

    def _note(self, name: str, table_id: str) -> None:
        self._admin.alter_topic(name, {"lake.table.id": table_id})

    def _pause(self, name: str, reason: str) -> None:
        try:
            self._admin.alter_topic(name, {"lake.paused": reason[:PAUSE_REASON_CHARS_MAX]})
        except SparklogError as e:
            logger.warning("topic %s: the pause could not be stored: %s", name, e)

    def _merge(self, settings: LakeSettings, version: int) -> None:
        """Merge small files of `version`, which a round has checked. Do nothing for an upserted table, whose small
        files are merged by each change."""
        if settings.is_upsert:
            return
        reach("lake.before-merge")
        try:
            table = DeltaSnapshot.open(normal_location(settings.location), version)
            for _ in range(MERGES_AT_ONCE):
                if table is None:
                    return
                table = merge_small_files(table, settings.file_size_bytes)
        except (SparklogError, OSError) as e:
            logger.warning("small files at %s could not be merged: %s", settings.location, e)
        except Exception:  # as in `_round`
            logger.exception("small files at %s could not be merged", settings.location)
