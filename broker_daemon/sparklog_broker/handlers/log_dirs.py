"""DESCRIBE_LOG_DIRS: the space on this broker's disks, and its failed disks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from sparklog.errors import StorageError
from sparklog.log.directories.log_directory import LogDirectory
from sparklog.protocol.operation_messages import DescribeLogDirsRequest, DescribeLogDirsResponse, LogDir
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def describe_log_dirs(request: DescribeLogDirsRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with the state of the log directories. The admin thread reads it, because a dead mount can block."""
    broker = context.broker
    directories = list(broker.storage.logs.directories.all)
    topics = None if request.topics is None else set(request.topics)
    counted = (p for p in broker.partitions.all() if topics is None or p.key.topic in topics)
    logs = [partition.open_log for partition in counted]
    counts: Counter[Path] = Counter()
    sizes: Counter[Path] = Counter()
    for log in logs:
        if log is not None:
            counts[log.directory.parent] += 1
            sizes[log.directory.parent] += log.size_bytes
    states = await broker.storage.run(lambda: [(_space(d), _put_aside(d)) for d in directories])
    described = [
        _described(directory, space, counts[directory.path], sizes[directory.path], put_aside)
        for directory, (space, put_aside) in zip(directories, states, strict=True)
    ]
    return Response(DescribeLogDirsResponse(described))


def _space(directory: LogDirectory) -> tuple[int, int]:
    try:
        return (-1, -1) if directory.failure is not None else directory.files.space(directory.path)
    except StorageError:
        return -1, -1


def _put_aside(directory: LogDirectory) -> int:
    try:
        return 0 if directory.failure is not None else directory.count_strays()
    except StorageError:
        return 0


def _described(
    directory: LogDirectory, space: tuple[int, int], partitions: int, size_bytes: int, put_aside: int
) -> LogDir:
    error = directory.failure
    code, message = (0, "") if error is None else (error.code, str(error))
    return LogDir(str(directory.path), code, message, *space, partitions, size_bytes, put_aside)
