"""Requirements of a topic's schema for a batch's body: the nodes, the buffers, and the buffers' sizes.

Arrow's IPC reader trusts the metadata of a message: it reads a column of n rows even out of a smaller buffer. So the
metadata are compared with the schema before Arrow reads them. The order of nodes and buffers is that of
Arrow's Columnar.rst ("RecordBatch message"): depth first, the children after their parent::

    type                     node's length            buffers
    bool                     rows of the parent       validity (a bit a row), values (a bit a row)
    numbers, times, decimal  rows of the parent       validity, values (their width a row)
    string, binary           rows of the parent       validity, offsets (i32, one more than rows), bytes
    struct                   rows of the parent       validity; then its fields
    list                     rows of the parent       validity, offsets; then its elements, of any length
    map                      rows of the parent       validity, offsets; then its entries, of any length: a struct

A validity buffer is allowed to be empty if no row is null, and any buffer if the column has no rows. Values can be
padded to a multiple of 64 bytes (Arrow's alignment). More bytes are refused: they would be values of another type.

Afterwards Arrow's own validation checks the buffers' content (offsets inside the data, UTF-8, keys of maps). Two
swapped columns of the same type cannot be detected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.errors import CorruptBatchError
from sparklog.format.flat import Bytes, RecordBatchMessage
from sparklog.format.identity_cache import kept_by_identity

INFLATED_BYTES_MAX = 1 << 30
"""Largest decompressed size of one batch, in bytes, if the topic's own limit is unknown."""
ROW_BYTES = 8
"""Memory of a row beside its columns: a reader creates the row's offset, an i64."""
FEW_BUFFERS = 64
"""Largest number of buffers for which checks in Python are faster than NumPy's."""
BATCH_ROWS_MAX = 1 << 25
"""Largest number of rows of one batch, also if the rows take no bytes: a reader's offsets for them take 256 MiB."""
_LENGTH_MAX = 2**31 - 1
_BODY_ROWS_MAX = 8
"""Largest number of rows per byte of an uncompressed body: a row takes at least one bit."""
_PADDING = 64
_SIZE_MAX = np.iinfo(np.int64).max
_PREFIX_BYTES = 8


class InflatedSizeError(CorruptBatchError):
    """A batch that would exceed its topic's memory limit once decompressed. It was not decompressed."""


class _Rows(NamedTuple):
    """Required sizes of the buffers, derived from sound nodes. The last one is kept, because successive batches often
    have the same nodes, and the derivation is a third of a batch's check."""

    rows: int
    nodes: bytes
    required: np.ndarray
    """Smallest size of each buffer."""
    most: np.ndarray
    """Largest size of each buffer. It is the padded smallest size for values, and unlimited for other buffers."""
    longest: int
    """Largest length of a node."""
    bounds: list[tuple[int, int]]
    """Pair (required, most) of each buffer, if there are few buffers."""


class BodyLayout:
    """The nodes and buffers that a schema requires, see the module. `layout_of_schema` returns a schema's layout."""

    def __init__(self, schema: pa.Schema) -> None:
        """Compile the layout of a schema. Raises CorruptBatchError for a type that no topic can have."""
        compiled = _CompiledLayout()
        node_starts, buffer_starts = [], []
        for field in schema:
            node_starts.append(len(compiled.tied_to))
            buffer_starts.append(len(compiled.node_of))
            compiled.add(field.type, field.nullable, tied_to=None)
        self._names = schema.names
        self.columns = list(zip(schema.types, node_starts, buffer_starts, strict=True))
        """Type, number of the first node, and number of the first buffer of each column."""
        self._node_starts = np.array([*node_starts, len(compiled.tied_to)])
        self._buffer_starts = np.array([*buffer_starts, len(compiled.node_of)])
        self._tied_to = np.array(compiled.tied_to, np.int64)
        self._top = self._node_starts[:-1]
        self._may_be_null = np.array(compiled.may_be_null, np.int64)
        self._node_of = np.array(compiled.node_of, np.int64)
        self._bits = np.array(compiled.bits, np.int64)
        self._more_bits = np.array(compiled.more_bits, np.int64)
        self._is_validity = np.array(compiled.is_validity, bool)
        self._is_values = np.array(compiled.is_values, bool)
        self._last_rows: _Rows | None = None

    @property
    def buffer_count(self) -> int:
        """Number of buffers of a batch."""
        return len(self._node_of)

    def buffers_of(self, columns: Sequence[int]) -> np.ndarray:
        """Return the numbers of the buffers of `columns` (indexes of top-level columns)."""
        starts = self._buffer_starts
        return np.concatenate([np.arange(starts[c], starts[c + 1]) for c in columns] or [np.zeros(0, np.int64)])

    def is_longer_than_allowed(self, nodes: np.ndarray, columns: Sequence[int], plain_body_bytes: int) -> bool:
        """Return True if a node of `columns` has more rows than an uncompressed body of this size is allowed to have.
        Sound nodes need such a body, unless there are structs without fields among them."""
        return self._longest(nodes, self._mask(columns)) > _BODY_ROWS_MAX * plain_body_bytes

    def check(
        self,
        message: RecordBatchMessage,
        body: Bytes | None,
        *,
        columns: Sequence[int] | None = None,
        inflated_bytes_max: int = INFLATED_BYTES_MAX,
    ) -> None:
        """Check the message's statements about its nodes and buffers. Nothing is decompressed. `body`: the batch's
        body; None if it has not arrived yet. Then the sizes of compressed buffers are not checked. `columns`: indexes
        of the columns that will be read; None for all. The bytes of other columns need not be in `body`, and the sizes
        of their buffers and the lengths of their nodes are not bounded. `inflated_bytes_max`: largest decompressed size
        of the batch, in bytes. Raises InflatedSizeError: The batch states a larger size, or too many rows;
        CorruptBatchError."""
        nodes, buffers = message.nodes, message.buffers
        if len(nodes) != len(self._tied_to) or len(buffers) != self.buffer_count:
            raise CorruptBatchError(
                f"{len(nodes)} nodes and {len(buffers)} buffers, the schema's columns have {len(self._tied_to)} and "
                f"{self.buffer_count}"
            )
        seen = self._last_rows
        if seen is None or seen.rows != message.rows or seen.nodes != nodes.tobytes():
            self._check_nodes(message.rows, nodes)
            seen = self._last_rows = self._rows_of(message.rows, nodes)
        if message.compression == "none" and _are_sound(buffers, seen.bounds, message.body_length_bytes):
            _check_longest(seen.rows, seen.longest, inflated_bytes_max, message.body_length_bytes)
            return
        self._check_places(buffers, message.body_length_bytes)
        mask = None if columns is None else self._mask(columns)
        sizes: np.ndarray = buffers[:, 1]
        if message.compression != "none":
            if body is None:
                return
            sizes = self._inflated_sizes(buffers, mask, body)
        self._check_sizes(seen, nodes, sizes, mask)  # first: a size beyond every topic's bound is damage
        if message.compression != "none":
            total = sum(sizes.tolist())  # may be more than an i64 holds
            if total > inflated_bytes_max:
                raise _too_large(f"its buffers declare {total} decompressed bytes", inflated_bytes_max)
        longest = seen.longest if mask is None else self._longest(nodes, mask)
        plain_body_bytes = message.body_length_bytes if message.compression == "none" else 0
        _check_longest(seen.rows, longest, inflated_bytes_max, plain_body_bytes)

    def _check_nodes(self, rows: int, nodes: np.ndarray) -> None:
        lengths, nulls = nodes[:, 0], nodes[:, 1]
        expected = lengths[self._tied_to]
        expected[self._top] = rows
        # as unsigned numbers, negative ones are large
        wrong = (lengths != expected) | (lengths.view(np.uint64) > _LENGTH_MAX)
        wrong |= nulls.view(np.uint64) > (lengths * self._may_be_null).view(np.uint64)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise CorruptBatchError(
                f"column {self._name(self._node_starts, i)}: {lengths[i]} values, {nulls[i]} of them null, where "
                f"{expected[i]} are expected"
            )

    def _rows_of(self, rows: int, nodes: np.ndarray) -> _Rows:
        lengths, nulls = nodes[self._node_of].T
        required = (lengths * self._bits + self._more_bits + 7) >> 3
        required[(lengths == 0) | (nulls == 0) & self._is_validity] = 0
        most = np.full(len(required), _SIZE_MAX)
        exact = self._is_values & (lengths > 0)
        most[exact] = ((required + (_PADDING - 1)) & -_PADDING)[exact]
        few = len(required) <= FEW_BUFFERS
        bounds = list(zip(required.tolist(), most.tolist(), strict=True)) if few else []
        return _Rows(rows, nodes.tobytes(), required, most, int(nodes[:, 0].max(initial=0)), bounds)

    def _check_places(self, buffers: np.ndarray, body_bytes: int) -> None:
        """Check that the buffers are inside the body, one after the other."""
        at, sizes = buffers[:, 0], buffers[:, 1]
        wrong = (at & 7 != 0) | (at.view(np.uint64) > body_bytes) | (sizes.view(np.uint64) > body_bytes)
        wrong |= sizes > body_bytes - at
        if wrong.any():
            i = int(np.argmax(wrong))
            raise CorruptBatchError(
                f"column {self._name(self._buffer_starts, i)}: a buffer of {sizes[i]} bytes at {at[i]} of a body of "
                f"{body_bytes}"
            )
        filled = sizes > 0
        starts, ends = at[filled], (at + sizes)[filled]
        overlaps = starts[1:] < ends[:-1]
        if overlaps.any():
            raise CorruptBatchError(f"two buffers share the body's bytes from {starts[1:][overlaps][0]} on")

    def _inflated_sizes(self, buffers: np.ndarray, mask: np.ndarray | None, body: Bytes) -> np.ndarray:
        """Return the decompressed size of each wanted buffer, 0 for other buffers. A buffer begins with its size, an
        i64. The value -1 says that the rest is not compressed; its size is then the length of the rest."""
        at, stored = buffers[:, 0], buffers[:, 1]
        filled = stored > 0 if mask is None else (stored > 0) & mask
        sizes = np.zeros(len(stored), np.int64)
        words = np.frombuffer(body, "<i8", len(body) // 8)
        held = stored[filled]
        if (held < _PREFIX_BYTES).any():
            raise CorruptBatchError("a compressed buffer is too short for its size")
        declared = words[at[filled] >> 3]
        if (declared < -1).any():
            raise CorruptBatchError(f"a compressed buffer declares a length of {declared.min()} bytes")
        sizes[filled] = np.where(declared == -1, held - _PREFIX_BYTES, declared)
        return sizes

    def _check_sizes(self, due: _Rows, nodes: np.ndarray, sizes: np.ndarray, mask: np.ndarray | None) -> None:
        wrong = (sizes < due.required) | (sizes > due.most)
        if mask is not None:
            wrong &= mask
        if wrong.any():
            i = int(np.argmax(wrong))
            raise CorruptBatchError(
                f"column {self._name(self._buffer_starts, i)}: a buffer of {sizes[i]} bytes, "
                f"{nodes[self._node_of[i], 0]} values of the schema's type take {due.required[i]}"
            )

    def _mask(self, columns: Sequence[int]) -> np.ndarray:
        mask = np.zeros(self.buffer_count, bool)
        mask[self.buffers_of(columns)] = True
        return mask

    def _longest(self, nodes: np.ndarray, mask: np.ndarray) -> int:
        """Return the largest length of a node that has one of these buffers."""
        return int(nodes[self._node_of[mask], 0].max(initial=0))

    def _name(self, starts: np.ndarray, number: int) -> str:
        """Return the name of the top-level column with this node or buffer, for error messages. `starts`: the number of
        each column's first node or buffer."""
        return repr(self._names[int(np.searchsorted(starts, number, "right")) - 1])


def _are_sound(buffers: np.ndarray, bounds: Sequence[tuple[int, int]], body_bytes: int) -> bool:
    """Return True if the buffers are inside the body, one after the other, with sizes within `bounds`. Returns False if
    they are not, or `bounds` is empty because there are too many buffers: the array checks then decide."""
    if len(bounds) != len(buffers):
        return False
    end = 0
    for (at, size), (required, most) in zip(buffers.tolist(), bounds, strict=True):
        if at & 7 or at < 0 or at + size > body_bytes or not required <= size <= most:
            return False
        if size:
            if at < end:
                return False
            end = at + size
    return True


def _check_longest(rows: int, longest: int, inflated_bytes_max: int, plain_body_bytes: int) -> None:
    """Check the batch's number of rows, and the largest length of a node."""
    if rows > BATCH_ROWS_MAX:
        raise InflatedSizeError(f"it declares {rows} rows, at most {BATCH_ROWS_MAX} are allowed")
    if longest > max(inflated_bytes_max // ROW_BYTES, _BODY_ROWS_MAX * plain_body_bytes):
        raise _too_large(f"it declares {longest} rows", inflated_bytes_max)


def stated_bytes(message: RecordBatchMessage, body: Bytes) -> int:
    """Return the sum of the decompressed sizes that the message's buffers state, also if the message is otherwise
    wrong; 0 for an uncompressed message."""
    if message.compression == "none":
        return 0
    at, stored = message.buffers[:, 0], message.buffers[:, 1]
    words = np.frombuffer(body, "<i8", len(body) // 8)
    declared = words[at[(stored > 0) & (at >= 0) & (at < 8 * len(words))] >> 3]
    return sum(declared[declared > 0].tolist())


def _too_large(why: str, inflated_bytes_max: int) -> InflatedSizeError:
    return InflatedSizeError(f"{why}, at most {inflated_bytes_max} bytes are allowed for a batch")


class _CompiledLayout:
    """Lists from which `BodyLayout` is created. Two lists have an item per node, the other lists an item per buffer."""

    def __init__(self) -> None:
        self.tied_to: list[int] = []
        """By node: the node whose length it must have; its own number if any length is allowed."""
        self.may_be_null: list[bool] = []
        """By node: True if nulls are allowed."""
        self.node_of: list[int] = []
        """By buffer: its node."""
        self.bits: list[int] = []
        """By buffer: size of a row in bits. A node of n rows needs n * bits + more_bits."""
        self.more_bits: list[int] = []
        self.is_validity: list[bool] = []
        self.is_values: list[bool] = []
        """By buffer: True if the size is exact up to its padding."""

    def add(self, kind: Any, nullable: bool, *, tied_to: int | None) -> None:
        """Add the nodes and buffers of a column or child. `tied_to`: the node whose length it must have; None if its
        length is independent of other nodes. Raises CorruptBatchError for a type that no topic can have."""
        node = len(self.tied_to)
        self.tied_to.append(node if tied_to is None else tied_to)
        self.may_be_null.append(nullable)
        self._buffer(node, 1, is_validity=True)
        for bits, more_bits, is_values in _buffers(kind):
            self._buffer(node, bits, more_bits, is_values=is_values)
        if pa.types.is_map(kind):
            entries = len(self.tied_to)
            self.tied_to.append(entries)
            self.may_be_null.append(False)
            self._buffer(entries, 1, is_validity=True)
            self.add(kind.key_type, False, tied_to=entries)
            self.add(kind.item_type, True, tied_to=entries)
        elif pa.types.is_list(kind):
            self.add(kind.value_type, True, tied_to=None)
        elif pa.types.is_struct(kind):
            for field in kind:
                self.add(field.type, field.nullable, tied_to=node)

    def _buffer(
        self, node: int, bits: int, more_bits: int = 0, *, is_validity: bool = False, is_values: bool = False
    ) -> None:
        self.node_of.append(node)
        self.bits.append(bits)
        self.more_bits.append(more_bits)
        self.is_validity.append(is_validity)
        self.is_values.append(is_values)


def _buffers(kind: Any) -> Iterator[tuple[int, int, bool]]:
    """Yield (bits of a row, bits in addition, True if that size is exact) for each buffer of a type after its validity
    buffer, without those of its children."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield 32, 32, False
        yield 0, 0, False
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        yield 32, 32, False
    elif pa.types.is_primitive(kind) or pa.types.is_decimal128(kind):
        yield kind.bit_width, 0, True
    elif not pa.types.is_struct(kind):
        raise CorruptBatchError(f"no topic has a column of type {kind}")


@kept_by_identity
def layout_of_schema(schema: pa.Schema) -> BodyLayout:
    """Return the layout of batches with `schema`. Raises CorruptBatchError for a type that no topic can have."""
    return BodyLayout(schema)
