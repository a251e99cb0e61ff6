"""Actions and observations of clients, as data: operations, and the JSON lines in which clients write them down.

A history is a list of operations of many processes. A process is one client's life: a producer or consumer that is
started again is another process. Values are unique integers. Nothing here knows sparklog; "partition" is any string.

A client writes one file, two lines or more per operation, each handed to the kernel before the client goes on, so that
SIGKILL loses nothing but an unfinished last line:

    {"process": "p1", "group": "", "reads_committed": true}         first line
    {"id": 7, "at": ns, "begin": "transaction"}                     before anything is done
    {"id": 7, "at": ns, "sends": [["t-0", [11, 12], [-1, 4]]]}      before the call: partition, values, their sources
    {"id": 7, "at": ns, "polls": [["t-1", [5, 6], [3, 4]]]}         after the call: partition, offsets, values
    {"id": 7, "at": ns, "offsets": {"t-1": 7}}                      offsets committed (or read, or ends), by partition
    {"id": 7, "at": ns, "ending": true}                             before the commit (false: before the abort)
    {"id": 7, "at": ns, "end": "ok", "acked": [[100, 101]]}         after: ok, failed, unknown; offsets of the sends

`at` is a clock that all processes share (CLOCK_MONOTONIC of one machine). An operation that has no `end` is unknown.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

NEVER_NS = 2**62
UNKNOWN_OFFSET = -1
NO_SOURCE = -1


class Kind(StrEnum):
    """Kind of an operation."""

    SEND = "send"  # outside a transaction
    POLL = "poll"
    TRANSACTION = "transaction"  # sends, polls and offsets that take effect together or not at all
    ASSIGN = "assign"  # the process reads on at `offsets` (-1: somewhere); a seek and a rebalance are assignments, too
    COMMIT = "commit"  # of a group's offsets, outside a transaction
    FETCH_COMMITTED = "fetch-committed"  # the group's offsets as the broker says
    FINAL = "final"  # after healing: everybody could have read everything below `offsets`


class Outcome(StrEnum):
    """FAILED is certain: it has had no effect and never will. UNKNOWN may take effect, or have."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Sent(NamedTuple):
    """Values of one call to one partition in their order; `offsets` (-1 not known) and `sources` (-1 none) run
    along."""

    partition: str
    values: Sequence[int]
    offsets: Sequence[int]
    sources: Sequence[int]


class Polled(NamedTuple):
    """The records of one partition in one call; `at_ns` is the time of its return."""

    partition: str
    offsets: Sequence[int]
    values: Sequence[int]
    at_ns: int


@dataclass(frozen=True)
class Operation:
    """One operation of one process. Times are of the shared clock; `commit_asked_ns` is NEVER_NS if it never was."""

    process: str
    id: int
    kind: Kind
    outcome: Outcome = Outcome.UNKNOWN
    begun_ns: int = 0
    commit_asked_ns: int = NEVER_NS
    ended_ns: int = NEVER_NS
    steps: tuple[Sent | Polled, ...] = ()
    offsets: Mapping[str, int] = field(default_factory=dict)
    group: str = ""
    reads_committed: bool = True

    @property
    def sends(self) -> list[Sent]:
        return [s for s in self.steps if isinstance(s, Sent)]

    @property
    def polls(self) -> list[Polled]:
        return [s for s in self.steps if isinstance(s, Polled)]


class Recorder:
    """Writes one process's history. A client that dies leaves its last operation unknown."""

    def __init__(
        self,
        file: io.RawIOBase | io.BytesIO,
        process: str,
        *,
        group: str = "",
        reads_committed: bool = True,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`file` must not buffer: `path.open("xb", buffering=0)`."""
        self._file = file
        self._clock = clock
        self._next = 0
        self._write({"process": process, "group": group, "reads_committed": reads_committed})

    def begin(self, kind: Kind, sends: Sequence[Sequence[Any]] = (), offsets: Mapping[str, int] | None = None) -> int:
        """The new operation's id."""
        self._next += 1
        more = ({"sends": sends} if sends else {}) | ({"offsets": offsets} if offsets else {})
        self._line(self._next, begin=kind, **more)
        return self._next

    def sends(self, operation: int, sends: Sequence[Sequence[Any]]) -> None:
        """(partition, values, sources) per call, before the calls."""
        self._line(operation, sends=sends)

    def polls(self, operation: int, polls: Sequence[Sequence[Any]]) -> None:
        """(partition, offsets, values), after the call."""
        self._line(operation, polls=polls)

    def offsets(self, operation: int, offsets: Mapping[str, int]) -> None:
        self._line(operation, offsets=offsets)

    def ending(self, operation: int, *, commit: bool) -> None:
        """Before a transaction's commit or abort is asked for."""
        self._line(operation, ending=commit)

    def end(self, operation: int, outcome: Outcome, acked: Sequence[Sequence[int]] = (), **more: Any) -> None:
        """`acked`: the offsets of the sends, parallel to them; `more` as in the other lines."""
        self._line(operation, end=outcome, **({"acked": acked} if acked else {}), **more)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _line(self, operation: int, **content: Any) -> None:
        self._write({"id": operation, "at": self._clock()} | content)

    def _write(self, content: Mapping[str, Any]) -> None:
        left = memoryview((json.dumps(content, separators=(",", ":")) + "\n").encode())
        while left:
            left = left[self._file.write(left) :]


class HistoryError(ValueError):
    """A history file was not written by a Recorder."""


def read_history(paths: Iterable[Path]) -> list[Operation]:
    """All operations of the files, each file's in its order. Raises HistoryError."""
    return [operation for path in sorted(paths) for operation in parse_history(path.read_bytes(), path.name)]


def parse_history(content: bytes, name: str = "history") -> list[Operation]:
    """The operations of one process's file. Raises HistoryError."""
    *lines, unfinished = content.split(b"\n")
    del unfinished  # empty, or cut by a kill
    if not lines:
        return []
    try:
        head = json.loads(lines[0])
        blank = Operation(head["process"], 0, Kind.POLL, group=head["group"], reads_committed=head["reads_committed"])
        operations: dict[int, Operation] = {}
        for line in lines[1:]:
            event = json.loads(line)
            number = event["id"]
            operations[number] = _with_event(operations.get(number), blank, event)
    except (KeyError, ValueError, TypeError, AttributeError) as e:
        raise HistoryError(f"{name}: {e!r}") from e
    return [_settled(o) for o in operations.values()]


def _with_event(before: Operation | None, blank: Operation, event: Mapping[str, Any]) -> Operation:
    """The operation after one line more."""
    if "begin" in event:
        operation = replace(blank, id=event["id"], kind=Kind(event["begin"]), begun_ns=event["at"])
    elif before is not None:
        operation = before
    else:
        raise KeyError(f"operation {event['id']} has no begin")
    changes: dict[str, Any] = {}
    sends = tuple(Sent(p, values, [UNKNOWN_OFFSET] * len(values), sources) for p, values, sources in _sends(event))
    polls = tuple(Polled(p, offsets, values, event["at"]) for p, offsets, values in event.get("polls", ()))
    if sends or polls:
        changes["steps"] = operation.steps + sends + polls
    if "offsets" in event:
        changes["offsets"] = {**operation.offsets, **event["offsets"]}
    if event.get("ending"):
        changes["commit_asked_ns"] = event["at"]
    if "end" in event:
        changes |= {"outcome": Outcome(event["end"]), "ended_ns": event["at"]}
    if "acked" in event:
        acked = iter(event["acked"])
        changes["steps"] = tuple(
            s._replace(offsets=next(acked)) if isinstance(s, Sent) else s for s in changes.get("steps", operation.steps)
        )
    return replace(operation, **changes) if changes else operation


def _sends(event: Mapping[str, Any]) -> Iterable[tuple[str, list[int], list[int]]]:
    for partition, values, *sources in event.get("sends", ()):
        yield partition, values, sources[0] if sources else [NO_SOURCE] * len(values)


def _settled(operation: Operation) -> Operation:
    """A transaction whose commit was never asked for can never take effect."""
    if operation.kind is Kind.TRANSACTION and operation.commit_asked_ns == NEVER_NS:
        return replace(operation, outcome=Outcome.FAILED)
    return operation
