"""Putting compacted segments in the place of the old ones, so that a crash at any point leaves one set or the other.

===========================  ==============================================================================
file                         what it is
===========================  ==============================================================================
<base>.arrow.cleaned         being written; a crash leaves nothing that counts
<base>.arrow.swap            complete and on the disk: it counts, whatever else is there
<base>.arrow.<n>.deleted     an old segment, kept for `file.delete.delay.ms` for readers that are under way
===========================  ==============================================================================

Order, the directory fsynced between the steps:

1. every new file is fsynced as ``.cleaned``, with its indexes (``<base>.arrow.index``, ``<base>.arrow.timeindex``);
2. each becomes ``.swap``, the highest base offset first: as long as a ``.cleaned`` is left, the ``.swap`` files at or
   above it are a part only and do not count;
3. the log uses the new segments; the old files become ``.deleted``, their index files get out of the way, too;
4. each ``.swap`` gets its name, and so do its index files.

`finish_swaps` does the rest of it when a log is opened.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sparklog.errors import CorruptBatchError, LogCorruptError, SparklogError, StorageError
from sparklog.format.segment import decode_seal, parse_segment_name, segment_name
from sparklog.log.files import FileSystem
from sparklog.log.header_walk import header_at
from sparklog.log.log_health import LogHealth
from sparklog.log.segment import LogSegment
from sparklog.log.segment_indexes import remove_indexes
from sparklog.log.slices import sync_held

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
    """All steps. `replace` makes the log use `new`; False, and `new` is removed, when it does not have all of `old` any
    more. To be called under the log's swap lock. Raises StorageError, StorageFullError."""
    try:
        commit(files, directory, new)
    except SparklogError:
        with _fatal(directory, health):
            withdraw(files, directory, new)
        raise
    if not replace():
        with _fatal(directory, health):
            withdraw(files, directory, new)
        return False
    with _fatal(directory, health):
        install(files, directory, old, new)
    for segment in old:
        segment.close_handle()
    return True


@contextmanager
def _fatal(directory: Path, health: LogHealth) -> Iterator[None]:
    """When a swap stops half-way, what lies on the disk must not change any more before the next start sorts it out."""
    try:
        yield
    except SparklogError as e:
        health.fail(StorageError(f"{directory}: a compaction stopped half-way ({e}); restart to finish it"))
        raise


def commit(files: FileSystem, directory: Path, new: Sequence[LogSegment]) -> None:
    """Steps 1 and 2: from its end on the new segments count after a crash. Raises StorageError, StorageFullError."""
    mine = {segment.path.name for segment in new}
    for name in files.list_directory(directory):
        if name.endswith(CLEANED_SUFFIX) and name not in mine:
            files.remove(directory / name)  # of a run that failed: it would make ours look like a part only
    for segment in new:
        sync_held(segment.hold_for_sync())
    files.sync_directory(directory)
    for segment in reversed(new):
        segment.move(directory / (segment_name(segment.base_offset) + SWAP_SUFFIX))
        files.sync_directory(directory)  # after each: a power cut must not keep a lower one and lose a higher one


def withdraw(files: FileSystem, directory: Path, new: Sequence[LogSegment]) -> None:
    """Takes a commit back, finished or not: the lowest file becomes ``.cleaned`` again, so that none of them counts, and
    goes last. Raises StorageError."""
    lowest = directory / (segment_name(new[0].base_offset) + CLEANED_SUFFIX)
    if new[0].path != lowest:
        new[0].move(lowest)
        files.sync_directory(directory)
    for segment in reversed(new):
        segment.delete()
        files.sync_directory(directory)


def install(files: FileSystem, directory: Path, old: Sequence[LogSegment], new: Sequence[LogSegment]) -> None:
    """Steps 3 (its files) and 4. Raises StorageError; the next start finishes it then."""
    for segment in old:
        segment.move(directory / f"{segment_name(segment.base_offset)}.{next(_numbers)}{DELETED_SUFFIX}")
    files.sync_directory(directory)
    for segment in new:
        segment.move(directory / segment_name(segment.base_offset))
    files.sync_directory(directory)


def finish_swaps(files: FileSystem, directory: Path) -> None:
    """What a crash between the steps has left: removes what does not count, and puts in place what does.

    Raises LogCorruptError for a ``.swap`` file that is not complete, which no crash can leave.
    """
    names = files.list_directory(directory)
    left = [n for n in names if n.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX))]
    if not left:
        return
    cleaned = [b for b in (_base_of(n, CLEANED_SUFFIX) for n in left) if b is not None]
    swaps = sorted(b for b in (_base_of(n, SWAP_SUFFIX) for n in left) if b is not None)
    partial = [b for b in swaps if cleaned and b >= min(cleaned)]
    committed = [b for b in swaps if b not in partial]
    for base in partial:  # before the .cleaned files, which tell that these are not complete
        files.remove(directory / (segment_name(base) + SWAP_SUFFIX))
    if partial:
        files.sync_directory(directory)
    for name in left:
        if name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX)):
            files.remove(directory / name)
    _replace(files, directory, committed, [b for b in map(parse_segment_name, names) if b is not None])
    files.sync_directory(directory)
    logger.info("%s: leftovers of a compaction removed, %d segments put in place", directory, len(committed))


def _replace(files: FileSystem, directory: Path, committed: Sequence[int], live: Sequence[int]) -> None:
    """Removes the live segments that the committed ones replace, then gives those their names."""
    for base in committed:
        end = _end_of(files, directory / (segment_name(base) + SWAP_SUFFIX))
        for old in live:
            if base <= old < end:
                files.remove(directory / segment_name(old))
                remove_indexes(files, directory / segment_name(old))
    if committed:
        files.sync_directory(directory)
    for base in committed:
        remove_indexes(files, directory / segment_name(base))
        files.rename(directory / (segment_name(base) + SWAP_SUFFIX), directory / segment_name(base))


def _base_of(name: str, suffix: str) -> int | None:
    return parse_segment_name(name.removesuffix(suffix)) if name.endswith(suffix) else None


def _end_of(files: FileSystem, path: Path) -> int:
    """The offset after the last one of a sealed segment with at least one batch."""
    file = files.open(path)
    try:
        blocks = decode_seal(file.read, file.size())
        if blocks is None or not len(blocks.positions):
            raise LogCorruptError(
                f"{path} is not complete, though it was when it got its name; if the segments it replaces are there "
                f"(from its base offset on), remove it, else restore it from a copy or delete the topic"
            )
        return header_at(file.read, int(blocks.positions[-1]), blocks.data_end).next_offset
    except CorruptBatchError as e:
        raise LogCorruptError(f"{path}: {e}; restore it from a copy or delete the topic") from e
    finally:
        file.close()
