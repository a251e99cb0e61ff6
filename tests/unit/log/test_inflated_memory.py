"""The memory of decompressed batches: one limit for all logs of a broker, regardless of their topics' settings."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from sparklog_broker.partitions.appender import INLINE_APPEND_BYTES

from sparklog.errors import LogCorruptError, MessageTooLargeError
from sparklog.format.batch import decode_batch, decode_header, decoded_size_bytes
from sparklog.format.body_layout import BATCH_ROWS_MAX, INFLATED_BYTES_MAX, InflatedSizeError
from sparklog.log.model.inflated_memory import UNCOUNTED_BYTES, InflatedMemory
from sparklog.log.model.log_config import LogConfig
from sparklog.log.state.check import INFLATED_PER_WRITTEN
from sparklog.settings import MIB
from tests.support.compaction import append_rows, compact, keyed_batch, open_keyed
from tests.support.logs import append, open_log
from tests.unit.format.lies import bomb, encoded

WIDE = {"max.message.bytes": 8 * MIB, "max.message.inflated.ratio": 1024}
"""Settings of an attacker that make a broker inflate 8 GiB a batch."""


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def until_waiting(memory: InflatedMemory, thread: threading.Thread) -> None:
    """Returns when the thread waits for memory, or has ended because it did not have to."""
    while thread.is_alive() and not memory._turn.locked():
        thread.join(0.001)


def test_the_limit_holds_for_all_threads_together() -> None:
    memory = InflatedMemory(10 * MIB)
    events = []

    def hold(name: str, size_bytes: int) -> None:
        with memory.hold(size_bytes):
            events.append(name)

    with memory.hold(7 * MIB):
        large = in_thread(lambda: hold("large", 9 * MIB))
        until_waiting(memory, large)
        small = in_thread(lambda: hold("small", UNCOUNTED_BYTES))  # does not wait
        small.join()
        events.append("released")
    large.join()
    assert events == ["small", "released", "large"]
    assert (memory.held_bytes, memory.peak_bytes) == (0, 9 * MIB)


def test_more_than_the_limit_takes_all_of_it() -> None:
    memory = InflatedMemory(10 * MIB)
    with memory.hold(2**70):
        assert memory.held_bytes == 10 * MIB
    with pytest.raises(ZeroDivisionError), memory.hold(5 * MIB):
        raise ZeroDivisionError
    assert memory.held_bytes == 0


def test_the_event_loop_never_waits() -> None:
    assert INLINE_APPEND_BYTES * INFLATED_PER_WRITTEN < UNCOUNTED_BYTES


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_topic_does_not_set_its_brokers_limit_of_decompression(tmp_path: Path, codec: str) -> None:
    memory = InflatedMemory(16 * MIB)
    log = open_log(tmp_path, WIDE, inflated=memory)
    data = bomb(16 * MIB, codec)
    before = pa.total_allocated_bytes()
    with pytest.raises(MessageTooLargeError, match=r"at most 16777216 bytes.*queued\.max\.inflated\.bytes"):
        log.appender.append(data)
    assert pa.total_allocated_bytes() - before < MIB
    assert memory.peak_bytes == 0
    log.appender.append(bomb(15 * MIB, codec))
    assert 15 * MIB <= memory.peak_bytes <= memory.limit_bytes
    log.close()


def test_several_bombs_at_once_wait_for_one_another(tmp_path: Path) -> None:
    memory = InflatedMemory(16 * MIB)
    logs = [open_log(tmp_path / str(i), WIDE, inflated=memory) for i in range(4)]
    data = [bomb(12 * MIB, codec) for codec in ("zstd", "lz4", "zstd", "lz4")]
    with memory.hold(memory.limit_bytes):
        threads = [
            in_thread(lambda log=log, one=one: log.appender.append(one))  # type: ignore[misc]
            for log, one in zip(logs, data, strict=True)
        ]
        for thread in threads:
            until_waiting(memory, thread)
        assert [log.log_end_offset for log in logs] == [0] * 4
    for thread in threads:
        thread.join()
    assert [log.log_end_offset for log in logs] == [1] * 4
    assert (memory.held_bytes, memory.peak_bytes) == (0, 16 * MIB)
    for log in logs:
        log.close()


def test_lookups_and_compaction_count_too(tmp_path: Path) -> None:
    memory = InflatedMemory(64 * MIB)
    log = open_keyed(tmp_path, WIDE, inflated=memory)
    for _ in range(2):
        append_rows(log, [(b"k", bytes(10 * MIB)), (b"l", b"")], compression="zstd")
    memory.peak_bytes = 0
    log.reader.offset_for_timestamp(0)
    assert 10 * MIB <= memory.peak_bytes < 20 * MIB
    assert compact(log) is not None
    assert 20 * MIB <= memory.peak_bytes <= memory.limit_bytes  # the rows, and those that stay
    assert memory.held_bytes == 0
    log.close()


def test_a_stored_bomb_is_not_compacted(tmp_path: Path) -> None:
    """Appended under a larger limit; the broker has a smaller one since."""
    log = open_keyed(tmp_path, WIDE)
    append_rows(log, [(b"k", bytes(10 * MIB))], compression="zstd")
    log.close()
    memory = InflatedMemory(8 * MIB)
    log = open_keyed(tmp_path, WIDE, inflated=memory)
    append(log, keyed_batch([(b"k", b"")]))
    with pytest.raises(LogCorruptError, match=r"at most 8388608 bytes.*queued\.max\.inflated\.bytes"):
        compact(log)
    assert memory.held_bytes == 0
    log.close()


def test_no_topic_may_inflate_more_than_readers_take() -> None:
    assert InflatedMemory(2**40).batch_bytes_max(LogConfig.from_settings(WIDE).inflated_bytes_max) == INFLATED_BYTES_MAX


def test_rows_have_a_limit_however_few_bytes_they_take() -> None:
    schema = pa.schema([("flag", pa.bool_())])
    for rows, fits in ((BATCH_ROWS_MAX, True), (BATCH_ROWS_MAX + 1, False)):
        flags = pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(bytes(rows // 8 + 1))])
        data = encoded(pa.record_batch([flags], schema=schema))
        if fits:
            assert decode_batch(data, schema).num_rows == rows
            assert decoded_size_bytes(data, decode_header(data)) == 8 * rows
        else:
            with pytest.raises(InflatedSizeError, match=f"{rows} rows, at most {BATCH_ROWS_MAX} are allowed"):
                decode_batch(data, schema)
