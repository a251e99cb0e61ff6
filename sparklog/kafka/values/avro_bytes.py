"""Decoder of Avro records that were written with one schema, a field of all records at a time.

A position per record moves through the bytes: each field's decoder reads at all positions with NumPy, and returns an
Arrow array with the positions after the field. Lists are read element by element, the elements of one index for all
records that have it, except numbers, which are read all at once.

A record at fault is refused with the field's path, and its position moves to its end. So a fault stays in its record:
no position leaves the bytes of its own record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.errors import MessageTooLargeError
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX
from sparklog.kafka.records.varints import Array
from sparklog.kafka.schemas.avro import AvroField, AvroType
from sparklog.kafka.values.framing import byte_slices

ELEMENTS_MAX = 2_000_000
"""Largest number of elements of lists and maps in one record."""
ROUNDS_MIN, RECORDS_PER_ROUND = 100, 8
"""A decoder reads so many elements one by one, and another one for so many records. The records with more elements are
left to `avro_scalar`."""
_PADDING = bytes(16)
_HIGH, _LOW = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
_JOINS = (
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)
"""Steps that move the seven bits of eight bytes together: bits that stay, bits that move, distance."""
_ONE = np.uint64(1)
_INT_MAX = 2**31
_NUMBERS = {"float": (4, "<f4", pa.float32()), "double": (8, "<f8", pa.float64())}

CUT_OFF = "the record ends inside of it"


class Space:
    """Memory that the rows of a batch may take."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.free_bytes = limit_bytes

    def spend(self, size_bytes: int) -> None:
        """Count memory for values. Raises MessageTooLargeError."""
        self.free_bytes -= size_bytes
        if self.free_bytes < 0:
            raise MessageTooLargeError(
                f"the rows of the batch take more than {self._limit_bytes} bytes: send smaller batches"
            )


def physical_type(kind: AvroType) -> Any:
    """Return the Arrow type that the decoders have for a type of Avro, without its logical type."""
    match kind.kind:
        case "record":
            return pa.struct([pa.field(f.name, physical_type(f.type)) for f in kind.fields])
        case "array":
            return pa.list_(pa.field("element", physical_type(kind.inner[0])))
        case "map":
            return pa.map_(pa.string(), physical_type(kind.inner[0]))
        case "union":
            return physical_type(branch_of(kind))
        case _:
            return _PHYSICAL[kind.kind]


_PHYSICAL = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}


def branch_of(union: AvroType) -> AvroType:
    """Return the branch of a union that is not null; null for a union of null alone."""
    return next((one for one in union.inner if one.kind != "null"), union.inner[0])


class AvroReader:
    """Decoder of some records."""

    def __init__(self, payloads: Any, space: Space) -> None:
        """`payloads`: binary array of the records, without nulls."""
        count = len(payloads)
        offsets = np.frombuffer(payloads.buffers()[1], np.int32, count + 1, 4 * payloads.offset).astype(np.int64)
        body = memoryview(payloads.buffers()[2] or b"")[offsets[0] : offsets[-1]]
        self._data = np.frombuffer(b"".join((body, _PADDING)), np.uint8)
        self._words: Array = np.ndarray((len(self._data) - 7,), "<u8", self._data, strides=(1,))
        self._starts, self._ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
        self._space = space
        self._terminators: Array | None = None
        self._rounds = ROUNDS_MIN + count // RECORDS_PER_ROUND
        self._elements = 0
        self.refused: dict[int, str] = {}
        """Reasons by the index of the record."""
        self.is_refused = np.zeros(count, bool)
        """True for each refused record, and for those of `is_long`."""
        self.is_long = np.zeros(count, bool)
        """True for records with so many elements that they are left to `avro_scalar`."""

    def read(self, record: AvroType) -> list[Any]:
        """Return an array per field of the record. The values of refused records have no meaning."""
        rows, at = np.arange(len(self._starts)), self._starts
        arrays, at = self._fields(record, rows, at, "")
        self._refuse(rows, at, at < self._ends, "", "bytes follow its last field")
        return arrays

    # -- faults

    def _refuse(self, rows: Array, at: Array, mask: Array, path: str, reason: str) -> Array:
        """Refuse the records for which the mask is true, and return the positions, theirs at their ends."""
        if not mask.any():
            return at
        at_fault = np.unique(rows[mask])
        for row in at_fault[~self.is_refused[at_fault]][:RECORDS_NAMED_MAX].tolist():
            self.refused[row] = f"field {path!r}: {reason}" if path else reason
        self.is_refused[at_fault] = True
        return np.where(mask, self._ends[rows], at)

    def _leave(self, rows: Array) -> None:
        self.is_long[rows] = True
        self.is_refused[rows] = True

    # -- scalars

    def _varint(self, rows: Array, at: Array, path: str) -> tuple[Array, Array]:
        """Read a number with a variable size at each position."""
        first = self._data[at]
        sizes: Array | int = 1
        overflows = None
        if not len(first) or first.max() < 0x80:
            numbers = first.astype(np.uint64)
        else:
            numbers, sizes, overflows = self._long_varint(at)
        values = ((numbers >> _ONE) ^ (~(numbers & _ONE) + _ONE)).view(np.int64)
        after = at + sizes
        cut = after > self._ends[rows]
        if cut.any():
            after = self._refuse(rows, after, cut, path, CUT_OFF)
            values = np.where(cut, 0, values)
        if overflows is not None:
            after = self._refuse(rows, after, overflows, path, "a number has more than 64 bits")
        return values, after

    def _long_varint(self, at: Array) -> tuple[Array, Array, Array | None]:
        """Return the numbers at the positions, before the zigzag decoding, their sizes, and True for each with more
        than 64 bits."""
        words = self._words[at]
        stop = ~words & _HIGH
        lowest = stop & (~stop + _ONE)
        numbers = words & ((lowest << _ONE) - _ONE) & _LOW
        for stays, moves, distance in _JOINS:
            numbers = (numbers & stays) | ((numbers & moves) >> distance)
        sizes = (np.frexp(lowest.astype(np.float64))[1] >> 3).astype(np.int64)
        is_long = lowest == 0
        if not is_long.any():
            return numbers, sizes, None
        places = np.flatnonzero(is_long)
        ninth, tenth = (self._data[at[places] + i].astype(np.uint64) for i in (8, 9))
        has_tenth = ninth >= 0x80
        numbers[places] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
        numbers[places] |= np.where(has_tenth, (tenth & _ONE) << np.uint64(63), np.uint64(0))
        sizes[places] = np.where(has_tenth, 10, 9)
        overflows = np.zeros(len(at), bool)
        overflows[places] = has_tenth & (tenth > 1)
        return numbers, sizes, overflows

    def _value(self, kind: AvroType, rows: Array, at: Array, path: str) -> tuple[Any, Array]:
        """Read a value of the type at each position. `rows`: the record of each position, ascending."""
        match kind.kind:
            case "int" | "long":
                values, at = self._varint(rows, at, path)
                if kind.kind == "long":
                    return pa.array(values), at
                at = self._refuse(rows, at, (values < -_INT_MAX) | (values >= _INT_MAX), path, "a number above 32 bits")
                return pa.array(values.astype(np.int32)), at
            case "bytes" | "string":
                sizes, at = self._varint(rows, at, path)
                return self._bytes(kind, rows, at, sizes, path)
            case "fixed":
                return self._bytes(kind, rows, at, np.full(len(rows), kind.size, np.int64), path)
            case "float" | "double":
                width, layout, arrow = _NUMBERS[kind.kind]
                at = self._refuse(rows, at, at + width > self._ends[rows], path, CUT_OFF)
                windows: Array = np.ndarray((len(self._data) - width + 1,), layout, self._data, strides=(1,))
                ends = np.minimum(at + width, self._ends[rows])
                return pa.array(windows[at], arrow), ends
            case "boolean":
                at = self._refuse(rows, at, at >= self._ends[rows], path, CUT_OFF)
                values = self._data[at]
                after = self._refuse(rows, np.minimum(at + 1, self._ends[rows]), values > 1, path, "no boolean")
                return pa.array(values == 1), after
            case "null":
                return pa.nulls(len(rows)), at
            case "enum":
                return self._enum(kind, rows, at, path)
            case "union":
                return self._union(kind, rows, at, path)
            case "record":
                arrays, at = self._fields(kind, rows, at, path)
                return pa.StructArray.from_arrays(arrays, fields=list(physical_type(kind))), at
            case _:
                return self._list(kind, rows, at, path)

    def _fields(self, record: AvroType, rows: Array, at: Array, path: str) -> tuple[list[Any], Array]:
        arrays = []
        for field in record.fields:
            array, at = self._value(field.type, rows, at, f"{path}.{field.name}" if path else field.name)
            arrays.append(array)
        return arrays, at

    def _bytes(self, kind: AvroType, rows: Array, at: Array, sizes: Array, path: str) -> tuple[Any, Array]:
        wrong = (sizes < 0) | (sizes > self._ends[rows] - at)
        if wrong.any():
            at = self._refuse(rows, at, wrong, path, CUT_OFF)
            sizes = np.where(wrong, 0, sizes)
        after = at + sizes
        array = byte_slices(self._data, at, after)
        if kind.kind != "string":
            return array, after
        try:
            return array.cast(pa.string()), after
        except pa.ArrowInvalid:
            faults = np.array([not _is_text(value) for value in array.to_pylist()])
            after = self._refuse(rows, after, faults, path, "a text is not UTF-8")
            return byte_slices(self._data, at, np.where(faults, at, at + sizes)).cast(pa.string()), after

    def _enum(self, kind: AvroType, rows: Array, at: Array, path: str) -> tuple[Any, Array]:
        index, at = self._varint(rows, at, path)
        wrong = (index < 0) | (index >= len(kind.symbols))
        if wrong.any():
            at = self._refuse(rows, at, wrong, path, f"no symbol of the enum {kind.name}")
            index = np.where(wrong, 0, index)
        symbols = list(kind.symbols)
        if not symbols:
            return pa.nulls(len(rows), pa.string()), at
        self._space.spend(int(np.array([len(symbol) for symbol in symbols])[index].sum()))
        return pa.array(symbols, pa.string()).take(pa.array(index)), at

    def _union(self, kind: AvroType, rows: Array, at: Array, path: str) -> tuple[Any, Array]:
        branch, at = self._varint(rows, at, path)
        inner = branch_of(kind)
        is_set = branch == kind.inner.index(inner)
        wrong = (branch < 0) | (branch >= len(kind.inner))
        if wrong.any():
            at = self._refuse(rows, at, wrong, path, "no branch of the union")
        if is_set.all():
            return self._value(inner, rows, at, path)
        chosen = np.flatnonzero(is_set)
        if not len(chosen):
            return pa.nulls(len(rows), physical_type(inner)), at
        array, after = self._value(inner, rows[chosen], at[chosen], path)
        at[chosen] = after
        places = np.zeros(len(rows), np.int64)
        places[chosen] = np.arange(len(chosen))
        return array.take(pa.array(places, mask=~is_set)), at

    # -- lists

    def _list(self, kind: AvroType, rows: Array, at: Array, path: str) -> tuple[Any, Array]:
        """Read arrays or maps: blocks of elements, up to an empty block."""
        element = _entry_of(kind)
        owners: list[Array] = []
        parts: list[Any] = []
        at, active = at.copy(), np.arange(len(rows))
        while len(active):
            active = self._next_round(rows, at, active)
            counts, after = self._block(rows[active], at[active], path)
            at[active] = after
            active, counts = active[counts > 0], counts[counts > 0]
            if not len(active):
                break
            self._elements += int(counts.sum())
            if self._elements > ELEMENTS_MAX:
                at[active] = self._refuse(
                    rows[active], at[active], counts > 0, path, f"more than {ELEMENTS_MAX} elements"
                )
                break
            self._read_elements(element, rows, at, active, counts, f"{path}[]", owners, parts)
        owner = np.concatenate([*owners, np.zeros(0, np.int64)]).astype(np.int64)
        offsets = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(np.bincount(owner, minlength=len(rows)), out=offsets[1:])
        values = pa.concat_arrays(parts) if parts else pa.array([], physical_type(element))
        if len(parts) > 1:
            values = values.take(pa.array(np.argsort(owner, kind="stable")))
        if kind.kind == "map":
            return pa.MapArray.from_arrays(pa.array(offsets), values.field(0), values.field(1)), at
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=physical_type(kind)), at

    def _next_round(self, rows: Array, at: Array, active: Array) -> Array:
        """Return the positions' indices that are read in this round: none of refused records, and none
        after the last round."""
        active = active[~self.is_refused[rows[active]]]
        self._rounds -= 1
        if self._rounds < 0:
            self._leave(rows[active])
            at[active] = self._ends[rows[active]]
            active = active[:0]
        return active

    def _block(self, rows: Array, at: Array, path: str) -> tuple[Array, Array]:
        """Read the number of elements of a block; a negative one stands before the size of the block in bytes."""
        counts, at = self._varint(rows, at, path)
        has_size = np.flatnonzero(counts < 0)
        if len(has_size):
            _, after = self._varint(rows[has_size], at[has_size], path)
            at = at.copy()
            at[has_size] = after
            counts = np.abs(counts)
        wrong = (counts < 0) | (counts > self._ends[rows] - at)
        if wrong.any():
            at = self._refuse(rows, at, wrong, path, "more elements than the record has bytes")
            counts = np.where(wrong, 0, counts)
        return counts, at

    def _read_elements(
        self,
        element: AvroType,
        rows: Array,
        at: Array,
        active: Array,
        counts: Array,
        path: str,
        owners: list[Array],
        parts: list[Any],
    ) -> None:
        """Read `counts` elements at the positions `active`, and move these. Append the elements to `parts`, and the
        index of each element's position to `owners`."""
        width = _width_of(element)
        if width is not None:
            places = self._places(rows, at, active, counts, width, path)
            if places is not None:
                owner, starts = places
                array, _ = self._value(element, rows[owner], starts, path)
                owners.append(owner)
                parts.append(array)
            return
        for index in range(int(counts.max())):
            some = self._next_round(rows, at, active[counts > index])
            if not len(some):
                break
            array, after = self._value(element, rows[some], at[some], path)
            at[some] = after
            owners.append(some)
            parts.append(array)

    def _places(
        self, rows: Array, at: Array, active: Array, counts: Array, width: int, path: str
    ) -> tuple[Array, Array] | None:
        """Return the owner and the position of each number, and move the positions behind the numbers. `width`: size of
        a number; 0 for a variable size. None if no record has its numbers."""
        ends = self._ends[rows[active]]
        first, lasts = np.zeros(len(active), np.int64), at[active] + counts * width
        if not width:
            if self._terminators is None:
                self._terminators = np.flatnonzero(self._data < 0x80)
            first = np.searchsorted(self._terminators, at[active])
            last = np.minimum(first + counts - 1, len(self._terminators) - 1)
            lasts = self._terminators[last] + 1
        cut = lasts > ends
        if cut.any():
            at[active] = self._refuse(rows[active], at[active], cut, path, CUT_OFF)
            active, counts, first, lasts = active[~cut], counts[~cut], first[~cut], lasts[~cut]
        if not len(active):
            return None
        owner = np.repeat(active, counts)
        index = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        begins = np.repeat(at[active], counts)
        if width:
            starts = begins + index * width
        else:
            assert self._terminators is not None
            before = np.repeat(first, counts) + index - 1
            starts = np.where(index == 0, begins, self._terminators[np.maximum(before, 0)] + 1)
        at[active] = lasts
        return owner, starts


def _width_of(element: AvroType) -> int | None:
    """Return the size of a number or boolean; 0 for a variable size, None for other types."""
    return {"boolean": 1, "float": 4, "double": 8, "int": 0, "long": 0, "enum": 0}.get(element.kind)


def _entry_of(kind: AvroType) -> AvroType:
    """Return the type of a list's elements; for a map a record of key and value."""
    if kind.kind == "array":
        return kind.inner[0]
    return AvroType("record", fields=(AvroField("key", AvroType("string")), AvroField("value", kind.inner[0])))


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
