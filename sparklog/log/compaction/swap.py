"""Replacement of old segments by compacted ones; a crash at any point leaves all old segments or all new ones.

===========================  ==============================================================================
file                         meaning
===========================  ==============================================================================
<base>.arrow.cleaned         incomplete; after a crash it does not count
<base>.arrow.swap            complete and fsynced: it counts, unless a ``.cleaned`` is left at or below it
<base>.arrow.<n>.deleted     an old segment, kept for `file.delete.delay.ms` for running reads
===========================  ==============================================================================

Order, the directory fsynced between the steps:

1. every new file is fsynced as ``.cleaned``, with its indexes (``<base>.arrow.index``, ``<base>.arrow.timeindex``);
2. each is renamed to ``.swap``, the highest base offset first: as long as a ``.cleaned`` is left, the ``.swap`` files
   at or above its offset are only a part of the new segments and do not count;
3. the log uses the new segments; the old files are renamed to ``.deleted``, and their index files too;
4. each ``.swap`` is renamed to ``<base>.arrow``, and its index files get the matching names.

`finish_swaps` completes these steps when a log is opened. It gives two kinds of files the ending ``.misplaced``, and
these have no effect: a file with a segment of another partition or of another offset than its name, and a ``.swap``
whose end is not the start of another segment of this log.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sparklog.environment.files import MISPLACED_SUFFIX, File, FileSystem
from sparklog.errors import CorruptBatchError, LogCorruptError, SparklogError, StorageError
from sparklog.format.segment import decode_head, decode_seal, parse_segment_name, segment_name
from sparklog.log.model.log_config import LogOwner
from sparklog.log.model.log_health import LogHealth
from sparklog.log.segments.header_walk import header_at
from sparklog.log.segments.indexes import remove_indexes
from sparklog.log.segments.segment import LogSegment
from sparklog.log.segments.slices import sync_held

logger = logging.getLogger(__name__)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"

_numbers = itertools.count()


def swap_segments(
    files: FileSystem,
    directory: Path,
    old: Sequence[LogSegment],
    new: Sequence[LogSegment],
    *,
    replace: Callable[[], bool],
    health: LogHealth,
) -> bool:
    """Replace the segments `old` by `new`, in the steps of the module; return the result of `replace`. `replace` makes
    the log use `new`; if the log no longer has all of `old`, it returns False, and the files of `new` are removed. The
    caller holds the log's swap lock. Raises StorageError, StorageFullError.
    """
    names = files.open_directory(directory)  # opened first: a lack of descriptors must not stop the swap half-way
    try:
        return _swap(files, directory, names, old, new, replace=replace, health=health)
    finally:
        names.close()


def _swap(
    files: FileSystem,
    directory: Path,
    names: File,
    old: Sequence[LogSegment],
    new: Sequence[LogSegment],
    *,
    replace: Callable[[], bool],
    health: LogHealth,
) -> bool:
    try:
        commit(files, directory, names, new)
    except SparklogError:
        with _fatal(directory, health):
            withdraw(directory, names, new)
        raise
    if not replace():
        with _fatal(directory, health):
            withdraw(directory, names, new)
        return False
    with _fatal(directory, health):
        install(directory, names, old, new)
    for segment in old:
        segment.close_handle()
    return True


@contextmanager
def _fatal(directory: Path, health: LogHealth) -> Iterator[None]:
    """Mark the log as failed if a swap stops half-way: the files must not change before the next start has completed
    the swap."""
    try:
        yield
    except SparklogError as e:
        health.fail(StorageError(f"{directory}: a compaction stopped half-way ({e}); restart to finish it"))
        raise


def commit(files: FileSystem, directory: Path, names: File, new: Sequence[LogSegment]) -> None:
    """Do steps 1 and 2. Once both are complete, a crash leaves the new segments in effect. `names`: the open directory.
    Raises StorageError, StorageFullError."""
    mine = {segment.path.name for segment in new}
    for name in files.list_directory(directory):
        if name.endswith(CLEANED_SUFFIX) and name not in mine:
            files.remove(directory / name)  # left by a failed run; it would make this commit look incomplete
    for segment in new:
        sync_held(segment.hold_for_sync())
    names.sync()
    for segment in reversed(new):
        segment.move(directory / (segment_name(segment.base_offset) + SWAP_SUFFIX))
        names.sync()  # after each rename: a power cut must not keep the rename of a lower file and lose a higher one's


def withdraw(directory: Path, names: File, new: Sequence[LogSegment]) -> None:
    """Remove the files of a commit, finished or not. The lowest file becomes ``.cleaned`` first, so that no file of the
    commit counts after a crash, and it is removed last. Raises StorageError."""
    lowest = directory / (segment_name(new[0].base_offset) + CLEANED_SUFFIX)
    if new[0].path != lowest:
        new[0].move(lowest)
        names.sync()
    for segment in reversed(new):
        segment.delete()
        names.sync()


def install(directory: Path, names: File, old: Sequence[LogSegment], new: Sequence[LogSegment]) -> None:
    """Do the renames of steps 3 and 4. Raises StorageError; the next start then completes the swap."""
    for segment in old:
        segment.move(directory / f"{segment_name(segment.base_offset)}.{next(_numbers)}{DELETED_SUFFIX}")
    names.sync()
    for segment in new:
        segment.move(directory / segment_name(segment.base_offset))
    names.sync()


def finish_swaps(files: FileSystem, directory: Path, owner: LogOwner) -> None:
    """Complete a swap that a crash has interrupted in the directory of `owner`: remove the files that do not count, and
    rename the files that do.

    Raises LogCorruptError, before a file is removed, for an incomplete ``.swap`` file, which no crash can leave.
    Raises StorageError.
    """
    names = files.list_directory(directory)
    leftovers = [n for n in names if n.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX))]
    if not leftovers:
        return
    for name in [n for n in leftovers if n.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]:
        foreign = _foreign(files, directory / name, owner)
        if foreign is not None:
            _set_aside(files, directory / name, foreign)
            leftovers.remove(name)
    cleaned = [b for b in (_base_of(n, CLEANED_SUFFIX) for n in leftovers) if b is not None]
    swaps = sorted(b for b in (_base_of(n, SWAP_SUFFIX) for n in leftovers) if b is not None)
    partial = [b for b in swaps if cleaned and b >= min(cleaned)]
    live = [b for b in map(parse_segment_name, names) if b is not None]
    committed = _fitting_segments(files, directory, [b for b in swaps if b not in partial], live)
    for base in partial:  # before the .cleaned files, which tell that these are not complete
        files.remove(directory / (segment_name(base) + SWAP_SUFFIX))
    if partial:
        files.sync_directory(directory)
    for name in leftovers:
        if name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX)):
            files.remove(directory / name)
    _replace(files, directory, committed, live)
    files.sync_directory(directory)
    logger.info("%s: leftovers of a compaction removed, %d segments put in place", directory, len(committed))


def _foreign(files: FileSystem, path: Path, owner: LogOwner) -> str | None:
    """Describe the segment in the file if it is not this log's segment at the offset of the file's name. Returns None
    if it is, or if the file is unreadable: a crash can leave an unreadable ``.cleaned`` file."""
    file = files.open(path)
    try:
        info = decode_head(file.read).info
    except (CorruptBatchError, LogCorruptError):
        return None
    finally:
        file.close()
    base = _base_of(path.name, CLEANED_SUFFIX if path.name.endswith(CLEANED_SUFFIX) else SWAP_SUFFIX)
    if tuple(info[:4]) == (owner.topic, owner.topic_id, owner.partition, base):
        return None
    return f"it is the segment of {info.topic}-{info.partition} (topic id {info.topic_id}) at offset {info.base_offset}"


def _set_aside(files: FileSystem, path: Path, reason: str) -> None:
    logger.error(
        "%s is misplaced; it is renamed with the ending %s and has no effect: %s", path, MISPLACED_SUFFIX, reason
    )
    files.rename(path, path.with_name(path.name + MISPLACED_SUFFIX))


def _fitting_segments(
    files: FileSystem, directory: Path, committed: Sequence[int], live: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the committed segments, as (base offset, end offset), whose end is the start of another segment; this
    holds for all of a log's own, because its active segment follows them. The remaining files are set aside. Raises
    LogCorruptError."""
    ends = {base: end_of(files, directory / (segment_name(base) + SWAP_SUFFIX)) for base in committed}
    fit: list[tuple[int, int]] = []
    for base in sorted(committed, reverse=True):
        if ends[base] in live or ends[base] in [other for other, _ in fit]:
            fit.insert(0, (base, ends[base]))
        else:
            reason = f"it ends at offset {ends[base]}, where no segment of this log begins"
            _set_aside(files, directory / (segment_name(base) + SWAP_SUFFIX), reason)
    return fit


def _replace(files: FileSystem, directory: Path, committed: Sequence[tuple[int, int]], live: Sequence[int]) -> None:
    """Remove the live segments that committed segments replace, then rename the committed ones to ``<base>.arrow``."""
    for base, end in committed:
        for old in live:
            if base <= old < end:
                files.remove(directory / segment_name(old))
                remove_indexes(files, directory / segment_name(old))
    if committed:
        files.sync_directory(directory)
    for base, _ in committed:
        remove_indexes(files, directory / segment_name(base))
        files.rename(directory / (segment_name(base) + SWAP_SUFFIX), directory / segment_name(base))


def _base_of(name: str, suffix: str) -> int | None:
    return parse_segment_name(name.removesuffix(suffix)) if name.endswith(suffix) else None


def end_of(files: FileSystem, path: Path) -> int:
    """Return the offset after a sealed segment. Raises LogCorruptError if the segment is unsealed or has no batch."""
    file = files.open(path)
    try:
        blocks = decode_seal(file.read, file.size())
        if blocks is None or not len(blocks.positions):
            raise LogCorruptError(
                f"{path} is not complete, although it was complete when it got its name; if the segments that it "
                "replaces exist (from its base offset on), remove it, else restore it from a copy or delete the "
                "topic"
            )
        return header_at(file.read, int(blocks.positions[-1]), blocks.data_end).next_offset
    except CorruptBatchError as e:
        raise LogCorruptError(f"{path}: {e}; restore it from a copy or delete the topic") from e
    finally:
        file.close()
