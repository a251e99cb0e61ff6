"""The move of a Spark query's checkpoint to another cluster, which has copies of the query's topics.

The checkpoint is copied into a new directory, which appears whole or not at all. Only the offsets change in the copy:
they get the ids of the topics there. The texts of the newest offsets before the move stay in the copy, because the sink
of format("sparklog") compares a micro-batch that Spark repeats with the offsets of its first run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from sparklog.client.net.cluster import Cluster
from sparklog.client.net.retry import Retries, RetryPolicy
from sparklog.client.reading.offset_lookup import find_offsets
from sparklog.client.reading.single_fetch import fetch_once
from sparklog.errors import DataLossError, InvalidConfigError, OffsetOutOfRangeError
from sparklog.format.batch import decode_header
from sparklog.format.source_offsets import MOVED_OFFSETS
from sparklog.metadata.mirror_settings import NAME
from sparklog.mirror.checkpoint import (
    NAMED_MAX,
    NEW_CHECKPOINT,
    CheckpointMove,
    OffsetFile,
    PositionCheck,
    TopicCopy,
    newest_topics,
    plan_move,
    read_offset_file,
)
from sparklog.mirror.definition import copied_topic_id
from sparklog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_UNCOMMITTED, TopicPartition

OFFSETS, COMMITS, METADATA = "offsets", "commits", "metadata"
FILE_BYTES_MAX = 64 << 20
_BATCH = re.compile(r"\d+")


@dataclass(frozen=True)
class MovedCheckpoint:
    """The result of a move."""

    target: str
    """Directory of the new checkpoint."""
    query_id: str
    """Id of the query, which stays."""
    batch: int
    """Number of the newest micro-batch."""
    is_planned: bool
    """True if the newest micro-batch has no commit, so that Spark runs it again."""
    changed_files: int
    """Number of files in `offsets` with new ids."""
    topics: dict[str, tuple[str, str]]
    """Old and new id of each topic that the offsets name."""
    remarks: tuple[str, ...]
    """Facts that the owner of the query has to know."""


class _Checkpoint(NamedTuple):
    """A checkpoint as it is read."""

    query_id: str
    files: dict[int, OffsetFile]
    committed: set[int]


def move_checkpoint(
    cluster: Cluster,
    checkpoint: str,
    target: str,
    *,
    timeout_ms: int,
    dry_run: bool = False,
    while_copied: Callable[[], None] = lambda: None,
) -> MovedCheckpoint:
    """Copy the checkpoint of a stopped query, with the ids of the topics of `cluster`, into the new directory `target`.

    `dry_run`: check, and write nothing. `while_copied`: is called between the copy and the last look at the checkpoint.
    Raises InvalidConfigError for a checkpoint that cannot be moved, DataLossError if the copies lack offsets that the
    query needs, and errors of the brokers.
    """
    source, place = local_directory(checkpoint), local_directory(target)
    _check_places(source, place)
    before = _snapshot(source)
    content = _read(source)
    copies, mirrored = _copies(cluster, content, timeout_ms)
    move = plan_move(content.files, content.committed, copies)
    remarks = [*move.remarks, *_check_positions(cluster, move, mirrored, timeout_ms)]
    if not move.topics and not any(copy.has_columns for copy in copies.values()):
        remarks.append("the copy equals the checkpoint: the query can also go on with the checkpoint itself")
    if move.is_planned:
        remarks.append(_planned_remark(move.batch))
    if not dry_run:
        _write(source, place, content, move, before, while_copied)
    return MovedCheckpoint(
        str(place), content.query_id, move.batch, move.is_planned, len(move.files), move.topics, tuple(remarks)
    )


def _planned_remark(batch: int) -> str:
    return (
        f"batch {batch} has no commit, so that the query runs it again, with the same offsets. Sinks of Delta and of files "
        'leave out a batch that they have. A sink of format("sparklog") does so in the cluster in which it has written '
        "the batch; if its topic is one of the copies here, look first if the copy has the rows of the batch"
    )


# -- files


def local_directory(location: str) -> Path:
    """Return the local path of a checkpoint. Raises InvalidConfigError for another file system."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).absolute()
    if parts.scheme == "dbfs":
        return Path("/dbfs" + unquote(parts.path))
    if parts.scheme:
        raise InvalidConfigError(
            f"{location!r} is in the file system {parts.scheme!r}: copy the checkpoint to a local directory first, for "
            "example with 'hadoop fs -get', move it, and copy the result back"
        )
    if not location:
        raise InvalidConfigError("an empty path: name the directory of a checkpoint")
    return Path(location).absolute()


def _check_places(source: Path, target: Path) -> None:
    if not (source / METADATA).is_file() or not (source / OFFSETS).is_dir():
        raise InvalidConfigError(
            f"{str(source)!r} is no checkpoint of a Spark query: it has no {METADATA} and no {OFFSETS}; name the "
            "checkpointLocation of the query"
        )
    if os.path.lexists(target):
        raise InvalidConfigError(f"{str(target)!r} exists: name a directory that does not exist yet")
    if target.resolve().is_relative_to(source.resolve()):
        raise InvalidConfigError(f"{str(target)!r} lies in the checkpoint: name a directory outside of it")
    if not target.parent.is_dir():
        raise InvalidConfigError(f"{str(target.parent)!r} is no directory: create it first")


def _snapshot(directory: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file, by which a running query shows."""
    files = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            with contextlib.suppress(FileNotFoundError):
                state = path.stat()
                files[str(path.relative_to(directory))] = (state.st_size, state.st_mtime_ns)
    return files


def _read(directory: Path) -> _Checkpoint:
    try:
        query_id = json.loads(_text(directory / METADATA))["id"]
    except (ValueError, TypeError, KeyError) as e:
        raise InvalidConfigError(
            f"{str(directory / METADATA)!r} has no id of a query: the checkpoint is damaged; {NEW_CHECKPOINT}"
        ) from e
    numbers = sorted(int(p.name) for p in (directory / OFFSETS).iterdir() if _BATCH.fullmatch(p.name))
    commits = directory / COMMITS
    committed = {int(p.name) for p in commits.iterdir() if _BATCH.fullmatch(p.name)} if commits.is_dir() else set()
    files = {n: read_offset_file(str(n), _text(directory / OFFSETS / str(n))) for n in numbers}
    if committed and (not numbers or max(committed) > numbers[-1]):
        raise InvalidConfigError(
            f"{COMMITS} has batch {max(committed)}, {OFFSETS} has {numbers[-1] if numbers else 'none'}: the checkpoint is "
            f"damaged; {NEW_CHECKPOINT}"
        )
    return _Checkpoint(str(query_id), files, committed)


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        data = opened.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise InvalidConfigError(f"{str(file)!r} has more than {FILE_BYTES_MAX} bytes: no query writes such offsets")
    try:
        return data.decode()
    except ValueError as e:
        raise InvalidConfigError(
            f"{str(file)!r} is no text in UTF-8: the checkpoint is damaged; {NEW_CHECKPOINT}"
        ) from e


def _write(
    source: Path,
    target: Path,
    content: _Checkpoint,
    move: CheckpointMove,
    before: Mapping[str, tuple[int, int]],
    while_copied: Callable[[], None],
) -> None:
    """Write the new checkpoint beside the target, and rename it when it is whole."""
    work = target.with_name(f".{target.name}.{uuid.uuid4().hex}.moving")
    try:
        try:
            shutil.copytree(source, work)
        except (FileNotFoundError, shutil.Error) as e:
            raise _running(source) from e
        for number, text in move.files.items():
            (work / OFFSETS / str(number)).write_bytes(text.encode())
            for checksum in (f".{number}.crc", f"{number}.crc"):  # of the old text
                (work / OFFSETS / checksum).unlink(missing_ok=True)
        _keep_offsets(work, content, move)
        while_copied()
        if _snapshot(source) != before:
            raise _running(source)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _keep_offsets(work: Path, content: _Checkpoint, move: CheckpointMove) -> None:
    """Keep the texts of the newest offsets before the first move."""
    kept = work / MOVED_OFFSETS
    for number in (move.batch - 1, move.batch):
        if number in move.files and not (kept / str(number)).exists():
            kept.mkdir(exist_ok=True)
            (kept / str(number)).write_bytes(content.files[number].text().encode())


def _running(source: Path) -> InvalidConfigError:
    return InvalidConfigError(
        f"{str(source)!r} changes while it is copied: a query runs with the checkpoint. Stop the query, then repeat the "
        "command; nothing was written"
    )


# -- the cluster


def _copies(cluster: Cluster, content: _Checkpoint, timeout_ms: int) -> tuple[dict[str, TopicCopy], dict[str, bool]]:
    """Return the topics there by name, and whether a mirror still fills them."""
    names = sorted(newest_topics(content.files))
    infos = cluster.topic_infos(names, timeout_ms=timeout_ms) if names else {}
    copies = {
        name: TopicCopy(info.topic_id, copied_topic_id(info.configs), not info.is_envelope)
        for name, info in infos.items()
    }
    return copies, {name: bool(info.configs.get(NAME)) for name, info in infos.items()}


def _check_positions(
    cluster: Cluster, move: CheckpointMove, mirrored: Mapping[str, bool], timeout_ms: int
) -> list[str]:
    """Return remarks about offsets that the query does not get. Raises DataLossError if a copy lacks offsets that the
    query has read or planned."""
    attempts = Retries(RetryPolicy.within(timeout_ms))
    tps = list(move.checks)
    infos = cluster.topic_infos(sorted({tp.topic for tp in tps}), timeout_ms=timeout_ms) if tps else {}
    present = [tp for tp in tps if tp.partition < infos[tp.topic].partitions]
    starts = find_offsets(cluster, dict.fromkeys(present, EARLIEST_TIMESTAMP), attempts)
    ends = find_offsets(cluster, dict.fromkeys(present, LATEST_TIMESTAMP), attempts)
    missing, overwritten, remarks = {}, [], []
    for tp, check in move.checks.items():
        end = ends[tp].offset if tp in ends else 0
        if check.end > end:
            missing[tp] = (check, end)
        elif not mirrored[tp.topic] and not _is_copied(cluster, tp, check.end, attempts):
            overwritten.append(tp)
        if tp in starts and starts[tp].offset > check.begin:
            remarks.append(
                f"{tp}: the copy begins at offset {starts[tp].offset}, the query goes on at {check.begin}: it reports the "
                "offsets between as lost"
            )
    _refuse_missing(missing, mirrored)
    if overwritten:
        raise DataLossError(
            f"{overwritten[0]}: the record before offset {move.checks[overwritten[0]].end} was written after the promotion, so "
            "that the query has read records of the first cluster that the copy lacks, and would pass over new ones "
            f"({len(overwritten)} partitions). {NEW_CHECKPOINT}"
        )
    return remarks


def _refuse_missing(missing: Mapping[TopicPartition, tuple[PositionCheck, int]], mirrored: Mapping[str, bool]) -> None:
    if not missing:
        return
    total = sum(check.end - end for check, end in missing.values())
    shown = [
        f"{tp} ends at {end}, the query has {'planned' if check.begin < check.end else 'read'} up to {check.end}"
        for tp, (check, end) in list(missing.items())[:NAMED_MAX]
    ]
    more = f"; and {len(missing) - NAMED_MAX} partitions more" if len(missing) > NAMED_MAX else ""
    remedy = NEW_CHECKPOINT
    if any(mirrored[tp.topic] for tp in missing):
        remedy = (
            "Wait until the mirror has them ('sparklog mirror status'), then repeat the command. If the first cluster is "
            f"gone: {NEW_CHECKPOINT}"
        )
    raise DataLossError(f"the copies lack {total:,} offsets: {'; '.join(shown)}{more}. {remedy}")


def _is_copied(cluster: Cluster, tp: TopicPartition, end: int, attempts: Retries) -> bool:
    """Return True if the mirror has stored the batch before `end`, or retention has removed it. A batch of the mirror
    has no producer, and the source's leader epoch as its sequence, or no rows."""
    if end == 0:
        return True
    try:
        _, payload = fetch_once(cluster, tp, end - 1, 1, READ_UNCOMMITTED, attempts)
    except OffsetOutOfRangeError:
        return True
    if not payload.size:
        return True
    header = decode_header(memoryview(payload))
    return header.producer_id < 0 and (header.base_sequence >= 0 or not header.record_count)
