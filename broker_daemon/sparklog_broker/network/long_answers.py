"""Answers that grow with what the broker holds: built piece by piece, in slices, and never larger than a limit.

A header's list is encoded item by item, so its size is known before there is too much of it: no encoder is ever asked
for hundreds of MiB at once. Of answers above INLINE_BYTES one at a time is built: however many peers ask for
everything, one large answer is in the making, and small ones do not stand in its queue. A peer that knows pages gets
what fits and the mark that there is more; to others a typed error says what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from sparklog.errors import ResponseTooLargeError
from sparklog.protocol.base import Message
from sparklog.protocol.messages import encode, encode_value
from sparklog.protocol.versions import field_names
from sparklog_broker.network.memory import MemoryBudget
from sparklog_broker.network.pace import ITEMS_PER_LOOK, Pace
from sparklog_broker.network.reply import REST_BYTES_MAX, Response, fields_before_rest

INLINE_BYTES = 64 * 1024
PIECE_BYTES = 64 * 1024
"""Small parts are put together to pieces of about this size."""
NEWER_CLIENT = "use a newer client, which asks page by page"
"""What to do about a list that one answer cannot hold."""
_ARRAY32 = b"\xdd"
_BIN32 = b"\xc6"
_FIXARRAY = 0x90
"""MessagePack's headers of arrays; those of messages have fewer than 16 fields."""


class LongAnswers:
    """Builds them. Event-loop thread only. `limit_bytes`: of one answer's header."""

    def __init__(self, budget: MemoryBudget, pace: Pace, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._budget = budget
        self._pace = pace
        self._one_at_a_time = asyncio.Lock()

    async def build(
        self,
        message: Message,
        field: str,
        items: Iterable[Iterable[bytes]],
        *,
        paged: bool,
        remedy: str,
        version: int | None = None,
    ) -> Response:
        """`message`, whose list `field` is empty, with `items` in it: each the encoded parts of one item. `version`:
        as the items are encoded (None: the newest). If they do not all fit: with `paged` as many as do, and
        `message.more` set; else raises ResponseTooLargeError, which names `remedy`. So it does when the first item
        alone is too large. What `items` does to `message` after an item is in the answer."""
        building = _Building(message, field, version)
        turn = _Turn(self)
        try:
            for item in items:
                parts = await turn.collect(item, building.size_bytes)
                if parts is not None:
                    building.add(parts)
                elif paged and building.count:
                    message.more = True  # type: ignore[attr-defined]
                    break
                else:
                    raise too_large(self.limit_bytes, remedy)
            return Response(message, header=building.finish())
        finally:
            turn.end()

    async def build_one(self, message: Message, parts: Iterable[bytes], *, remedy: str) -> Response:
        """An answer whose header consists of `parts`, and what `reply.rest_of` says. Raises ResponseTooLargeError."""
        turn = _Turn(self)
        try:
            header = await turn.collect(parts, REST_BYTES_MAX)
            if header is None:
                raise too_large(self.limit_bytes, remedy)
            return Response(message, header=joined(header))
        finally:
            turn.end()


def too_large(limit_bytes: int, remedy: str) -> ResponseTooLargeError:
    return ResponseTooLargeError(f"the answer is larger than {limit_bytes} bytes (response.max.bytes): {remedy}")


class Fitting:
    """As many elements of an item's own list as fit into `room_bytes`, but at least one. `collect` first; its parts are
    empty: places to pause."""

    def __init__(self, elements: Iterable[Message], room_bytes: int, version: int | None = None) -> None:
        self.encoded: list[bytes] = []
        self.complete = False
        self._elements = elements
        self._room_bytes = room_bytes
        self._version = version

    def collect(self) -> Iterator[bytes]:
        for element in self._elements:
            encoded = encode(element, self._version)
            self._room_bytes -= len(encoded)
            if self.encoded and self._room_bytes < 0:
                return
            self.encoded.append(encoded)
            yield b""
        self.complete = True


class _Turn:
    """One answer's way: in slices, and alone when it is not small any more."""

    def __init__(self, long_answers: LongAnswers) -> None:
        self._of = long_answers
        self._alone = False
        self._count = 0

    async def collect(self, parts: Iterable[bytes], size_bytes: int) -> list[bytes] | None:
        """`parts`, which come after `size_bytes`; None: too much."""
        found: list[bytes] = []
        for part in parts:
            found.append(part)
            size_bytes += len(part)
            if size_bytes > self._of.limit_bytes:
                return None
            self._count += 1
            if size_bytes > INLINE_BYTES and not self._alone:
                await self._wait_until_alone()
            if self._count % ITEMS_PER_LOOK == 0 and self._of._pace.due():
                await self._of._pace.pause()
        return found

    async def _wait_until_alone(self) -> None:
        await self._of._one_at_a_time.acquire()
        self._alone = True
        # Not `reserve`: what it would wait for may be held by requests that wait for this answer's turn to end.
        self._of._budget.take(self._of.limit_bytes)

    def end(self) -> None:
        if self._alone:
            self._of._budget.release(self, self._of.limit_bytes)
            self._of._one_at_a_time.release()


class _Building:
    """A message's header so far."""

    def __init__(self, message: Message, field: str, version: int | None) -> None:
        self._message = message
        self._field = field
        self._version = version
        self._parts: list[bytes] = []
        self.count = 0
        self.size_bytes = len(encode(message, version)) + len(array_header(0)) + REST_BYTES_MAX

    def add(self, parts: list[bytes]) -> None:
        """One item."""
        if len(parts) == 1:
            self._parts += parts
            self.size_bytes += len(parts[0])
        else:
            self._parts += joined(parts)
            self.size_bytes += sum(map(len, parts))
        self.count += 1

    def finish(self) -> list[bytes]:
        """The header's pieces, in order."""
        parts = parts_of(self._message, {self._field: (self.count, self._parts)}, self._version)
        if self.size_bytes < PIECE_BYTES:
            return [b"".join(parts)]
        return joined(parts)


def parts_of(
    message: Message, lists: Mapping[str, tuple[int, Iterable[bytes]]], version: int | None = None
) -> Iterator[bytes]:
    """`message` encoded in parts, in a version (None: the newest): for the fields in `lists` the number of their
    elements, and the encoded elements. Of an answer as much as `Response.header` has."""
    yield message_header(len(field_names(type(message), version)))
    for name in fields_before_rest(message, version):
        if name in lists:
            count, parts = lists[name]
            yield array_header(count)
            yield from parts
        else:
            yield encode_value(getattr(message, name), version)


def array_header(count: int) -> bytes:
    """MessagePack's header of an array of `count` elements, which follow."""
    return _ARRAY32 + count.to_bytes(4, "big")


def message_header(fields: int) -> bytes:
    """MessagePack's header of a message with that many fields, which follow."""
    return bytes([_FIXARRAY | fields])


def binary_header(length_bytes: int) -> bytes:
    """MessagePack's header of bytes, which follow: they need not be copied."""
    return _BIN32 + length_bytes.to_bytes(4, "big")


def one_by_one(messages: Iterable[Message], version: int | None = None) -> Iterator[tuple[bytes]]:
    """Items that are small enough to be encoded at once."""
    for message in messages:
        yield (encode(message, version),)


def joined(parts: Iterable[bytes]) -> list[bytes]:
    """The same bytes; small parts are put together."""
    pieces: list[bytes] = []
    small = bytearray()
    for part in parts:
        if len(part) < PIECE_BYTES:
            small += part
        if small and (len(part) >= PIECE_BYTES or len(small) >= PIECE_BYTES):
            pieces.append(bytes(small))
            small = bytearray()
        if len(part) >= PIECE_BYTES:
            pieces.append(part)
    if small:
        pieces.append(bytes(small))
    return pieces
