"""No descriptor is left for a moment: nothing is lost, nothing is in doubt, and the log recovers by itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.environment.files import File, RealFiles, storage_error
from sparklog.errors import RequestTimedOutError, SparklogError, StorageUnavailableError
from sparklog.log.compaction.offset_map import OffsetMap
from sparklog.log.housekeeping.cleaner import compact_log, due_for_compaction
from sparklog.log.partition_log import PartitionLog
from tests.support.logs import append, batch, open_log, records, segment_files, values


@pytest.fixture(autouse=True)
def no_fsyncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take milliseconds each, and no machine ends here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


class ShortFiles(RealFiles):
    """Opens `left` more files, then none: every way to a descriptor fails."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1 << 30

    def _take(self, what: str, path: Path) -> None:
        if self.left <= 0:
            raise storage_error(what, path, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        self.left -= 1

    def open(self, path: Path, *, create: bool = False) -> File:
        self._take("open", path)
        return super().open(path, create=create)

    def open_directory(self, path: Path) -> File:
        self._take("open", path)
        return super().open_directory(path)

    def list_directory(self, path: Path) -> list[str]:
        self._take("list", path)
        return super().list_directory(path)


def close_all(log: PartitionLog) -> None:
    for segment in log.segments:
        segment.close_handle()


def test_an_append_whose_file_cannot_be_opened_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    files = ShortFiles()
    log = open_log(tmp_path, files=files)
    append(log, records(3))
    before = segment_files(tmp_path)[0].read_bytes()
    close_all(log)
    files.left = 0
    with pytest.raises(StorageUnavailableError, match="Too many open files"):
        log.appender.append(records(1))
    assert log.write_error is None, "nothing was written: nothing has to be taken back"
    files.left = 1 << 30
    assert segment_files(tmp_path)[0].read_bytes() == before
    assert append(log, records(1)) == 3
    assert len(values(log)) == 4


SMALL = {"segment.bytes": 4096, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0}


def _append(log: PartitionLog) -> None:
    append(log, records(1, value=b"a" * 1500))


def _append_several(log: PartitionLog) -> None:
    append(log, *(records(1, value=b"b" * 2500) for _ in range(4)))


def _compact(log: PartitionLog) -> None:
    log.appender.begin_segment()
    due = due_for_compaction(log)
    if due is not None:
        compact_log(due, OffsetMap(1 << 20))


ACTIONS: dict[str, Callable[[PartitionLog], object]] = {
    "append": _append,
    "append to several segments": _append_several,
    "roll": lambda log: log.appender.begin_segment(),
    "flush": lambda log: log.flusher.flush(),
    "retain": lambda log: log.retention.retain(),
    "compact": _compact,
    "close": PartitionLog.close,
}


@pytest.mark.parametrize("name", ACTIONS)
def test_any_interruption_is_recovered_without_a_loss(tmp_path: Path, name: str) -> None:
    """The descriptors run out at each opening of the action in turn; then there are some again."""
    for left in range(60):
        directory = tmp_path / str(left)
        files = ShortFiles()
        log = open_log(directory, SMALL, files=files)
        for i in range(6):
            append(log, batch([i], keys=[b"%d" % (i % 2)], values=[b"%d" % i * 1500]))
        expected = dict(values(log))
        close_all(log)
        files.left = left
        failure: SparklogError | None = None
        try:
            ACTIONS[name](log)
        except SparklogError as e:
            failure = e
        ran_out = files.left <= 0
        files.left = 1 << 30
        if name == "close":
            log = open_log(directory, SMALL, files=files, clean=failure is None)
        assert failure is None or isinstance(failure, StorageUnavailableError), failure
        assert log.write_error is None or log.flusher.has_work
        log.flusher.recover_writes()
        assert log.write_error is None, (left, log.write_error)
        assert append(log, records(1)) >= 6
        found = dict(values(log))
        kept = {4, 5} if name == "compact" else set(expected)
        assert {o: found[o] for o in kept} == {o: expected[o] for o in kept}
        if failure is not None and name.startswith("append"):
            assert len(found) == 7, "a failed append is not there"
        log.flusher.flush()
        assert log.flushed_offset == log.log_end_offset
        again = open_log(directory, SMALL, clean=False, recovery_point=log.recovery_point)
        assert dict(values(again)) == found
        log.close()
        if not ran_out:
            return
    raise AssertionError("the action never came to its end")


def test_an_append_without_fsync_is_no_lost_append(tmp_path: Path) -> None:
    files = ShortFiles()
    log = open_log(tmp_path, {"flush.messages": 1}, files=files)
    info = log.appender.append(records(1))
    close_all(log)
    files.left = 0
    with pytest.raises(RequestTimedOutError, match="written, but not flushed to disk yet"):
        log.flusher.make_durable(info.last_offset + 1)
    files.left = 1 << 30
    log.flusher.make_durable(info.last_offset + 1)
    assert log.flushed_offset == 1
