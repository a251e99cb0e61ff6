"""Replies that grow with the broker's content, built piece by piece, in slices of the loop's time, up to a limit.

The list in a header is encoded item by item, so that the broker stops before the reply exceeds the limit, and no
encoder builds hundreds of MiB at once. Only one reply above INLINE_BYTES is built at a time, however many clients
request everything; small replies do not wait for it. A client that supports pages gets the items that fit, and a mark
that there are more. Other clients get an error with a remedy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from sparklog.environment.memory_budget import MemoryBudget
from sparklog.environment.time_slices import ITEMS_PER_LOOK, LoopTimeSlices
from sparklog.errors import ResponseTooLargeError
from sparklog.protocol.base import Message
from sparklog.protocol.codec import encode, encode_value
from sparklog.protocol.versions import field_names
from sparklog_broker.network.reply import REST_BYTES_MAX, Response, fields_before_rest

INLINE_BYTES = 64 * 1024
"""Largest reply, in bytes, that is built while a long reply is being built, too."""
PIECE_BYTES = 64 * 1024
"""Size of the pieces, in bytes, to which small parts are joined."""
NEWER_CLIENT = "use a newer client, which requests pages"
"""Remedy in the error for a list that does not fit into one reply."""
_ARRAY32 = b"\xdd"
_BIN32 = b"\xc6"
_FIXARRAY = 0x90
"""First byte of MessagePack's header of an array with fewer than 16 elements, as all messages are."""


class LargeResponses:
    """Builds long replies. `limit_bytes`: largest header of a reply. Event-loop thread only."""

    def __init__(self, budget: MemoryBudget, time_slices: LoopTimeSlices, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._budget = budget
        self._time_slices = time_slices
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
        """Return `message` with `items` in its empty list `field`. `message`: the reply. The iterator `items` is
        allowed to change its other fields, as the list is encoded last. `paged`: True to stop at the first item that
        does not fit, and set `message.more`. `version`: the version of the encoded items; None for the newest. Raises
        ResponseTooLargeError: The first item does not fit, or any item if `paged` is False."""
        building = _PageBuilder(message, field, version)
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
        """Return a reply whose header consists of `parts` and the result of `reply.rest_of`. Raises
        ResponseTooLargeError.
        """
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


class FittingItems:
    """Collects as many elements of an item's list as fit into `room_bytes`, but at least one. The caller must iterate
    over `collect` first. Then `encoded` has the elements, and `complete` is True if all of them fit.
    """

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
    """The building of one reply, in slices of the loop's time. A reply above INLINE_BYTES waits until no other such
    reply is being built."""

    def __init__(self, large_responses: LargeResponses) -> None:
        self._of = large_responses
        self._alone = False
        self._count = 0

    async def collect(self, parts: Iterable[bytes], size_bytes: int) -> list[bytes] | None:
        """Return `parts` as a list; None if they exceed the limit together with the `size_bytes` of the reply so far.
        Pauses when the slice of the loop's time is used up."""
        collected: list[bytes] = []
        for part in parts:
            collected.append(part)
            size_bytes += len(part)
            if size_bytes > self._of.limit_bytes:
                return None
            self._count += 1
            if size_bytes > INLINE_BYTES and not self._alone:
                await self._wait_until_alone()
            if self._count % ITEMS_PER_LOOK == 0 and self._of._time_slices.due():
                await self._of._time_slices.pause()
        return collected

    async def _wait_until_alone(self) -> None:
        await self._of._one_at_a_time.acquire()
        self._alone = True
        # Not `reserve`: requests that wait for the end of this turn may hold the memory.
        self._of._budget.take(self._of.limit_bytes)

    def end(self) -> None:
        if self._alone:
            self._of._budget.release(self, self._of.limit_bytes)
            self._of._one_at_a_time.release()


class _PageBuilder:
    """The header of a message that is being built."""

    def __init__(self, message: Message, field: str, version: int | None) -> None:
        self._message = message
        self._field = field
        self._version = version
        self._parts: list[bytes] = []
        self.count = 0
        self.size_bytes = len(encode(message, version)) + len(array_header(0)) + REST_BYTES_MAX

    def add(self, parts: list[bytes]) -> None:
        """Add one item."""
        if len(parts) == 1:
            self._parts += parts
            self.size_bytes += len(parts[0])
        else:
            self._parts += joined(parts)
            self.size_bytes += sum(map(len, parts))
        self.count += 1

    def finish(self) -> list[bytes]:
        """Return the header's pieces in order."""
        parts = parts_of(self._message, {self._field: (self.count, self._parts)}, self._version)
        if self.size_bytes < PIECE_BYTES:
            return [b"".join(parts)]
        return joined(parts)


def parts_of(
    message: Message, lists: Mapping[str, tuple[int, Iterable[bytes]]], version: int | None = None
) -> Iterator[bytes]:
    """Encode the fields of `message` that `Response.header` contains, in parts. `lists` has, for some of the fields,
    the number of elements and the encoded elements. `version` None: the newest.
    """
    yield message_header(len(field_names(type(message), version)))
    for name in fields_before_rest(message, version):
        if name in lists:
            count, parts = lists[name]
            yield array_header(count)
            yield from parts
        else:
            yield encode_value(getattr(message, name), version)


def array_header(count: int) -> bytes:
    """Return MessagePack's header of an array of `count` elements."""
    return _ARRAY32 + count.to_bytes(4, "big")


def message_header(fields: int) -> bytes:
    """Return MessagePack's header of a message with `fields` fields."""
    return bytes([_FIXARRAY | fields])


def binary_header(length_bytes: int) -> bytes:
    """Return MessagePack's header of a byte string, whose bytes the caller appends without a copy."""
    return _BIN32 + length_bytes.to_bytes(4, "big")


def one_by_one(messages: Iterable[Message], version: int | None = None) -> Iterator[tuple[bytes]]:
    """Encode each message as one part. For messages that are small enough to be encoded at once."""
    for message in messages:
        yield (encode(message, version),)


def joined(parts: Iterable[bytes]) -> list[bytes]:
    """Return the parts in order, with small parts joined to pieces of PIECE_BYTES."""
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
