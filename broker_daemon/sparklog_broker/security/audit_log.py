"""The audit log: a thread writes lines into a file that is rotated.

When `audit.log.file` reaches `audit.log.max.bytes`, it becomes `….1`, the previous one `….2`, and so on up to
`audit.log.backups`. A failed write is reported in the broker's log and delays no request. At most WAITING_MAX lines
wait to be written; further lines are dropped, and the next line has their number. After another program such as
logrotate has renamed or removed the file, the next line begins a new file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from sparklog.environment import Environment
from sparklog.environment.files import File, FileSystem
from sparklog.errors import ERRORS, SparklogError, StorageError
from sparklog.protocol.apis import Api
from sparklog.security.acls import Operation, Resource
from sparklog.security.audit import VALUE_CHARS_MAX, AuditEvent, AuditKind, AuditLimiter, audit_line
from sparklog.security.principals import Principal
from sparklog_broker.config import BrokerConfig

log = logging.getLogger(__name__)

WAITING_MAX = 10_000
NO_ERROR = "NONE"


class AuditLog:
    """Queues lines for a thread that writes them. Event-loop thread only."""

    def __init__(self, config: BrokerConfig, environment: Environment, loop: asyncio.AbstractEventLoop) -> None:
        path = Path(config.audit_log_file)
        self._file = RotatedFile(
            path if path.is_absolute() else config.data_dir / path,
            environment.files,
            config.audit_log_max_bytes,
            config.audit_log_backups,
        )
        self._clock = environment.clock
        self._loop = loop
        self._limiter = AuditLimiter()
        self._thread = environment.executors.pool("audit", 1)
        self._waiting = 0
        self._unwritten = 0

    @classmethod
    def from_config(
        cls, config: BrokerConfig, environment: Environment, loop: asyncio.AbstractEventLoop
    ) -> AuditLog | None:
        """Return the audit log; None if none is configured."""
        return cls(config, environment, loop) if config.audit_log_file else None

    def act(
        self,
        api: Api,
        principal: Principal,
        host: str,
        listener: str,
        resources: Iterable[str],
        error_code: int,
        client_id: str = "",
        detail: str = "",
    ) -> None:
        """Write a line about an administrative act, successful or not. `detail`: facts that `resources` lack."""
        resource = ", ".join(map(_escaped, islice(resources, VALUE_CHARS_MAX)))[:VALUE_CHARS_MAX]
        event = self._event(AuditKind.ACT, api, principal, host, listener, _outcome(error_code), "", resource)
        self.record(event._replace(client_id=client_id, detail=detail))

    def denial(
        self,
        api: Api,
        principal: Principal,
        host: str,
        listener: str,
        error: SparklogError,
        operation: Operation | None,
        resource: Resource | None,
        client_id: str = "",
    ) -> None:
        """Write a line about a denied request, or about a denied part of a request."""
        about = (str(operation or ""), str(resource or ""))
        event = self._event(AuditKind.DENIAL, api, principal, host, listener, error.name, *about)
        self.record(event._replace(client_id=client_id))

    def failed_authentication(self, host: str, listener: str, reason: str, detail: str) -> None:
        """Write a line about a failed authentication. `reason`: the name of its counter. `detail`: a text without
        received bytes."""
        now_ms = self._clock.now_ms()
        self.record(
            AuditEvent(AuditKind.AUTHENTICATION, now_ms, None, host, listener, "", reason.upper(), detail=detail)
        )

    def _event(
        self,
        kind: AuditKind,
        api: Api,
        principal: Principal,
        host: str,
        listener: str,
        outcome: str,
        operation: str,
        resource: str,
    ) -> AuditEvent:
        now_ms = self._clock.now_ms()
        return AuditEvent(kind, now_ms, principal, host, listener, api.name, outcome, operation, resource)

    def record(self, event: AuditEvent) -> None:
        """Write the event's line, unless its source has exceeded its rate, or too many lines wait to be written."""
        suppressed = self._limiter.admit(event)
        if suppressed is None:
            return
        if self._waiting >= WAITING_MAX:
            self._unwritten += 1
            return
        line = audit_line(event, (), suppressed + self._unwritten)
        self._unwritten = 0
        self._waiting += 1
        self._loop.run_in_executor(self._thread, self._file.append, line.encode()).add_done_callback(self._written)

    def _written(self, writing: asyncio.Future[None]) -> None:
        self._waiting -= 1
        error = None if writing.cancelled() else writing.exception()
        if error is not None:
            log.error("a line of the audit log could not be written: %s", error)

    def close(self) -> None:
        """Write the waiting lines, and close the file. Blocks."""
        self._thread.shutdown()
        self._file.close()


def _escaped(resource: str) -> str:
    """Escape a resource's name, because commas separate names."""
    return resource[:VALUE_CHARS_MAX].replace("\\", "\\\\").replace(",", "\\,")


def _outcome(error_code: int) -> str:
    return ERRORS[error_code]("").name if error_code in ERRORS else (str(error_code) if error_code else NO_ERROR)


class RotatedFile:
    """A file with numbered predecessors. Used by one thread at a time."""

    def __init__(self, path: Path, files: FileSystem, max_bytes: int, backups: int) -> None:
        self._path = path
        self._files = files
        self._max_bytes = max_bytes
        self._backups = backups
        self._open: File | None = None
        self._size_bytes = 0

    def append(self, line: bytes) -> None:
        """Append a line. Raises StorageError, OSError."""
        file = self._opened()
        if self._max_bytes and self._size_bytes and self._size_bytes + len(line) > self._max_bytes:
            self._rotate()
            file = self._opened()
        file.write(self._size_bytes, line)
        self._size_bytes += len(line)

    def _opened(self) -> File:
        if self._open is not None and self._has_moved(self._open):
            self.close()
        if self._open is None:
            self._open = self._files.open(self._path, create=True)
            self._size_bytes = self._open.size()
        return self._open

    def _has_moved(self, file: File) -> bool:
        try:
            self._files.check_in_place(self._path, file.identity())
        except StorageError:
            return True
        return False

    def _rotate(self) -> None:
        self.close()
        for number in range(self._backups, 0, -1):
            newer = self._path if number == 1 else self._numbered(number - 1)
            if self._files.exists(newer):
                self._files.rename(newer, self._numbered(number))
        if not self._backups:
            self._files.remove(self._path)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
