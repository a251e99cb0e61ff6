"""Replacement of a log's segments, by compacted segments or by their copies in the object store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparklog.format.batch import ATTRIBUTE_CONTROL
from sparklog.log.compaction.key_hash import HashSeeds
from sparklog.log.compaction.rewrite import RunContext
from sparklog.log.compaction.swap import swap_segments
from sparklog.log.producers.partition_producers import encode_states
from sparklog.log.segments.segment import LogSegment
from sparklog.log.state.log_state import LogState
from sparklog.log.tiering.remote_segment import RemoteLogSegment


class SegmentReplacement:
    """Replacement of one log's segments. Appends and reads can continue meanwhile. The log's swap lock admits one
    replacement at a time."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    def context(self, throttle: Callable[[int], None]) -> RunContext:
        """Return the inputs of a compaction run over this log."""
        return RunContext(
            self._state.directory,
            self._state.owner,
            self._state.schema_of,
            self._state.files,
            self._state.handles,
            HashSeeds.draw(),
            self._state.expiry_clock.now_ms(),
            self._state.config.compaction.delete_retention_ms,
            self._state.config.segment_bytes,
            self._state.config.index_interval_bytes,
            self._state.inflated_bytes_max,
            self._state.inflated,
            throttle,
        )

    def replace(self, old: Sequence[LogSegment], new: Sequence[LogSegment]) -> bool:
        """Replace `old` by the compacted segments `new`, which were made from them. Returns False, and removes `new`,
        if the log no longer has all of `old`. Raises StorageError, StorageFullError."""

        def replace() -> bool:
            with self._state.write_lock:
                return self._state.writer.replace(list(old), new, self._state.delete_due_ms())

        with self._state.swap_lock:
            self._state.health.check()
            replaced = swap_segments(
                self._state.files, self._state.directory, old, new, replace=replace, health=self._state.health
            )
            if replaced:
                self._forget_markers(new)
            return replaced

    def _forget_markers(self, new: Sequence[LogSegment]) -> None:
        """Forget the aborted transactions whose markers the compaction to `new` has removed: it removes a marker only
        after the records of its transaction."""
        start, end = new[0].base_offset, new[-1].next_offset
        if next(self._state.producers.aborted.entries(start, end), None) is None:
            return
        kept = {h.base_offset for s in new for _, h in s.headers_from(None) if h.attributes & ATTRIBUTE_CONTROL}
        with self._state.write_lock:
            self._state.producers.aborted.retain(start, end, kept)
            self._state.producer_files.forget_aborted(start, end)
            self._state.save_producers()

    def release_local(self, old: Sequence[LogSegment], new: Sequence[RemoteLogSegment]) -> bool:
        """Replace the oldest local segments `old` by their copies `new`; the files of `old` are unlinked after
        `file.delete.delay.ms`. Returns False, without a change, if `old` are not the oldest local segments any more, or
        if no local segment would stay. Raises StorageError, StorageFullError."""
        then = self._state.tier.producers_behind(old, self._state.config.producers_max)
        with self._state.swap_lock, self._state.write_lock:
            self._state.health.check()
            local = self._state.segments.local
            if local[: len(old)] != list(old) or len(local) == len(old):
                return False
            # a crash from here on leaves any of the files
            self._state.tier.release_below(old[-1].next_offset, encode_states(then.states.by_last_use()))
            return self._state.writer.replace(list(old), new, self._state.delete_due_ms())
