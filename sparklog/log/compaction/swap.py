"""Replacement of old segments by compacted ones, such that a crash at any point leaves one set or the other.

===========================  ==============================================================================
file                         meaning
===========================  ==============================================================================
<base>.arrow.cleaned         incomplete; after a crash it does not count
<base>.arrow.swap            complete and on the disk: it counts, regardless of other files
<base>.arrow.<n>.deleted     an old segment, kept for `file.delete.delay.ms` for running reads
===========================  ==============================================================================

Order, the directory fsynced between the steps:

1. every new file is fsynced as ``.cleaned``, with its indexes (``<base>.arrow.index``, ``<base>.arrow.timeindex``);
2. each becomes ``.swap``, the highest base offset first: as long as a ``.cleaned`` is left, the ``.swap`` files at or
   above it are a part only and do not count;
3. the log uses the new segments; the old files become ``.deleted``, and their index files are renamed, too;
4. each ``.swap`` gets its name, and so do its index files.

`finish_swaps` completes these steps when a log is opened. It first checks the owner of the files: a file of another
partition's segment, or one whose end is not the start of one of this log's segments, gets the ending ``.misplaced`` and
changes nothing.
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
    """Replace segments, in all steps. `replace` makes the log use `new`. It returns False, and `new` is removed, if the
    log no longer has all of `old`. Called under the log's swap lock. Raises StorageError, StorageFullError.
    """
    names = files.open_directory(directory)  # half-way is no time to find that no descriptor is left
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
    """Mark the log as failed if a swap stops half-way: the files must not change any more before the next start has
    sorted them."""
    try:
        yield
    except SparklogError as e:
        health.fail(StorageError(f"{directory}: a compaction stopped half-way ({e}); restart to finish it"))
        raise


def commit(files: FileSystem, directory: Path, names: File, new: Sequence[LogSegment]) -> None:
    """Do steps 1 and 2. After they are complete, the new segments count after a crash. `names`: the directory, open.
    Raises StorageError, StorageFullError."""
    mine = {segment.path.name for segment in new}
    for name in files.list_directory(directory):
        if name.endswith(CLEANED_SUFFIX) and name not in mine:
            files.remove(directory / name)  # of a run that failed: it would make ours look like a part only
    for segment in new:
        sync_held(segment.hold_for_sync())
    names.sync()
    for segment in reversed(new):
        segment.move(directory / (segment_name(segment.base_offset) + SWAP_SUFFIX))
        names.sync()  # after each: a power cut must not keep a lower one and lose a higher one


def withdraw(directory: Path, names: File, new: Sequence[LogSegment]) -> None:
    """Withdraw a commit, finished or not: the lowest file becomes ``.cleaned`` again, so that no file of the commit
    counts, and is removed last. Raises StorageError."""
    lowest = directory / (segment_name(new[0].base_offset) + CLEANED_SUFFIX)
    if new[0].path != lowest:
        new[0].move(lowest)
        names.sync()
    for segment in reversed(new):
        segment.delete()
        names.sync()


def install(directory: Path, names: File, old: Sequence[LogSegment], new: Sequence[LogSegment]) -> None:
    """Do steps 3 (renaming the files) and 4. Raises StorageError; the next start then completes the swap."""
    for segment in old:
        segment.move(directory / f"{segment_name(segment.base_offset)}.{next(_numbers)}{DELETED_SUFFIX}")
    names.sync()
    for segment in new:
        segment.move(directory / segment_name(segment.base_offset))
    names.sync()


def finish_swaps(files: FileSystem, directory: Path, owner: LogOwner) -> None:
    """Complete a swap that a crash has interrupted in the directory of `owner`: remove the files that do not count, and
    rename the files that do.

    Raises LogCorruptError, before anything is removed, for a ``.swap`` file that is incomplete, which no crash can
    leave.
    """
    names = files.list_directory(directory)
    left = [n for n in names if n.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX))]
    if not left:
        return
    for name in [n for n in left if n.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]:
        foreign = _foreign(files, directory / name, owner)
        if foreign is not None:
            _set_aside(files, directory / name, foreign)
            left.remove(name)
    cleaned = [b for b in (_base_of(n, CLEANED_SUFFIX) for n in left) if b is not None]
    swaps = sorted(b for b in (_base_of(n, SWAP_SUFFIX) for n in left) if b is not None)
    partial = [b for b in swaps if cleaned and b >= min(cleaned)]
    live = [b for b in map(parse_segment_name, names) if b is not None]
    committed = _fitting_segments(files, directory, [b for b in swaps if b not in partial], live)
    for base in partial:  # before the .cleaned files, which tell that these are not complete
        files.remove(directory / (segment_name(base) + SWAP_SUFFIX))
    if partial:
        files.sync_directory(directory)
    for name in left:
        if name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX)):
            files.remove(directory / name)
    _replace(files, directory, committed, live)
    files.sync_directory(directory)
    logger.info("%s: leftovers of a compaction removed, %d segments put in place", directory, len(committed))


def _foreign(files: FileSystem, path: Path, owner: LogOwner) -> str | None:
    """Return the owner of a segment that a file has in place of this log's at this offset; None: it is this log's, or
    unreadable (a crash may leave an unreadable ``.cleaned`` file)."""
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
    """Return the committed segments, as (base offset, end), whose end is the start of another segment: the log's active
    segment always lies after compacted ones. The others are set aside. Raises LogCorruptError."""
    ends = {base: _end_of(files, directory / (segment_name(base) + SWAP_SUFFIX)) for base in committed}
    fit: list[tuple[int, int]] = []
    for base in sorted(committed, reverse=True):
        if ends[base] in live or ends[base] in [other for other, _ in fit]:
            fit.insert(0, (base, ends[base]))
        else:
            reason = f"it ends at offset {ends[base]}, where no segment of this log begins"
            _set_aside(files, directory / (segment_name(base) + SWAP_SUFFIX), reason)
    return fit


def _replace(files: FileSystem, directory: Path, committed: Sequence[tuple[int, int]], live: Sequence[int]) -> None:
    """Remove the live segments that the committed ones replace, then give those their names."""
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


def _end_of(files: FileSystem, path: Path) -> int:
    """Return the offset after the last one of a sealed segment with at least one batch."""
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
