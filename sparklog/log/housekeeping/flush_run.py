"""Work over many logs between appends: fsyncs, the end of failed appends, and the expiration of producers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from sparklog.errors import SparklogError, StorageUnavailableError
from sparklog.log.partition_log import PartitionLog
from sparklog.types import TopicPartition

__all__ = ["expire_producers", "flush_due", "flush_logs", "logs_with_work", "recover_writes"]

logger = logging.getLogger(__name__)


def flush_logs(logs: Mapping[TopicPartition, PartitionLog]) -> None:
    """Fsync the appended data of `logs`. A log whose disk fails is logged and accepts no more appends; a log whose
    files cannot be opened at the moment is tried again by the next call."""

    def flush(log: PartitionLog) -> bool:
        if log.write_error is None or log.write_error.retriable:
            log.flusher.flush()
        return True

    _in_each(logs, "flushed", flush)


def logs_with_work(logs: Mapping[TopicPartition, PartitionLog]) -> dict[TopicPartition, PartitionLog]:
    """Return the logs for which `recover_writes` or `flush_due` can have something to do: a broker may have many
    thousands of others."""
    return {tp: log for tp, log in logs.items() if log.flusher.has_work}


def flush_due(logs: Mapping[TopicPartition, PartitionLog]) -> bool:
    """Fsync rolled segments, and data that have waited for `flush.ms`. Returns True if `logs` had any. Failures are
    handled as in `flush_logs`."""
    return _in_each(logs, "flushed", lambda log: log.flusher.flush_if_due())


def recover_writes(logs: Mapping[TopicPartition, PartitionLog]) -> None:
    """Remove the remains of failed appends from `logs`, so that they accept appends again."""

    def recover(log: PartitionLog) -> bool:
        log.flusher.recover_writes()
        return False

    _in_each(logs, "written to", recover)


def _in_each(logs: Mapping[TopicPartition, PartitionLog], done: str, job: Callable[[PartitionLog], bool]) -> bool:
    """Call `job` for every log; return True if a call returned True. Failures are logged, with the participle `done` in
    the text. Logs whose storage is unavailable for the moment share one line. Errors of closed logs are ignored."""
    did = False
    short: list[TopicPartition] = []
    last: SparklogError | None = None
    for tp, log in logs.items():
        try:
            did |= job(log)
        except StorageUnavailableError as e:
            if not log.is_closed:
                short.append(tp)
                last = e
        except SparklogError as e:
            if not log.is_closed:
                logger.error("partition %s cannot be %s: %s", tp, done, e)  # noqa: TRY400
    if short:
        logger.warning("%d partitions cannot be %s now and will be retried: %s", len(short), done, last)
    return did


def expire_producers(logs: Mapping[TopicPartition, PartitionLog], now_ms: int, expiration_ms: int) -> int:
    """Make every log forget the producers that have written nothing for `expiration_ms`, and return their number.
    `now_ms` is a time of the expiry clock."""
    return sum(log.appender.expire_producers(now_ms, expiration_ms) for log in logs.values())
