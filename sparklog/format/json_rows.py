"""JSON objects as rows: the one conversion of JSON to Arrow, for Kafka's clients, JSON lines, CSV and the console.

`json_exact` has the rules. They take about 10 µs a value, so that a slice of rows is first read by msgspec with the
types of the schema, and by Arrow column by column. These accept only texts to which the rules give the same values. If
they refuse a slice, the rules read it again, and name the rows at fault.

A member twice in an object is the one fault that msgspec does not see. Therefore the number of members in the texts is
compared with the number of members that msgspec has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta

from sparklog.format.decoders import passing_json_decoder
from sparklog.format.json_exact import (
    Bytes,
    JsonValueError,
    column_value,
    has_members,
    parse_object,
    text_as_bytes,
    unfit,
    unknown_names,
)
from sparklog.format.map_keys import require_distinct_keys
from sparklog.format.time_texts import parse_times

SLICE_ROWS = 1_000
"""Largest number of rows that are read as one slice."""
REFUSED_MAX = 1_000
"""Largest number of rows that an error names."""
_SCHEMAS_KEPT = 1_000
_UNREADABLE = (msgspec.MsgspecError, pa.ArrowException, ValueError, TypeError, OverflowError, RecursionError)
DECIMAL_PATTERN = r"^-?\d{1,38}(?:\.\d{1,38})?$"
"""Form of the decimal numbers that Arrow reads safely: it takes those with large exponents from other memory."""
_NAME_WRONG = frozenset('"\\') | {chr(c) for c in range(32)} | {"\x7f"}


class JsonRowsError(ValueError):
    """Rows do not fit the schema. The message is that of the first one."""

    def __init__(self, rows: dict[int, str]) -> None:
        super().__init__(next(iter(rows.values())))
        self.rows = rows
        """Reasons by the index of the row, in ascending order; at most REFUSED_MAX."""


class JsonRows:
    """Reader of JSON objects with the columns of a schema."""

    def __init__(self, schema: pa.Schema, to_bytes: Bytes = text_as_bytes) -> None:
        """Create a reader. `to_bytes`: function that returns the bytes for which a text stands in a binary column."""
        self._schema = schema
        self._to_bytes = to_bytes

    def read(self, texts: Sequence[bytes]) -> pa.RecordBatch:
        """Return the rows of at most SLICE_ROWS objects. A column that an object lacks is null.

        Raises JsonRowsError.
        """
        decoders = _decoders(self._schema, self._to_bytes is text_as_bytes)
        for decoder in decoders:
            try:
                return self._decoded(decoder, texts)
            except _UNREADABLE:
                continue
        return self._exact(texts)

    def _decoded(self, decoder: _Decoder, texts: Sequence[bytes]) -> pa.RecordBatch:
        decode = decoder.decode
        rows = [decode(text) for text in texts]
        members = _Members(is_sparse=decoder.is_sparse)
        columns = [
            build_array(members.present(list(map(get, rows))), field.type, members.leaf, members)
            for get, field in zip(decoder.getters, self._schema, strict=True)
        ]
        if not has_members(b"\n".join(texts), members.count):
            raise ValueError("a member is there twice")
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _exact(self, texts: Sequence[bytes]) -> pa.RecordBatch:
        refused: dict[int, str] = {}
        names = set(self._schema.names)
        columns: list[list[Any]] = [[] for _ in self._schema]
        for index, text in enumerate(texts):
            try:
                row = parse_object(text)
                unknown = row.keys() - names
                if unknown:
                    raise JsonValueError(
                        f"no column {unknown_names(unknown)} (columns: {', '.join(self._schema.names)})"
                    )
                values = [column_value(row.get(field.name), field, self._to_bytes) for field in self._schema]
            except JsonValueError as e:
                refused[index] = str(e)
                values = [None] * len(columns)
                if len(refused) == REFUSED_MAX:
                    break
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        arrays = []
        for column, field in zip(columns, self._schema, strict=True):
            array, unfit_rows = exact_column(column, field)
            arrays.append(array)
            refused |= {index: refused.get(index, reason) for index, reason in unfit_rows.items()}
        if refused:
            raise JsonRowsError(dict(sorted(refused.items())[:REFUSED_MAX]))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def exact_column(values: list[Any], field: pa.Field) -> tuple[Any, dict[int, str]]:
    """Return an array of results of `column_value`, and the reasons for the values that do not fit by their indexes."""
    try:
        return _checked_array(values, field.type), {}
    except _UNREADABLE:
        refused: dict[int, str] = {}
        for index, value in enumerate(values):
            try:
                _checked_array([value], field.type)
            except _UNREADABLE as e:
                refused[index] = str(unfit(value, field, str(e) if "twice" in str(e) else ""))
        return None, refused


def _checked_array(values: list[Any], t: Any) -> Any:
    array = build_array(values, t, _exact_leaf)
    require_distinct_keys(array)
    return array


class _Members:
    """The leaves of msgspec's rows, and the count of the members in these rows."""

    def __init__(self, *, is_sparse: bool) -> None:
        self._is_sparse = is_sparse
        self.count = 0

    def present(self, values: list[Any]) -> list[Any]:
        """Return the values of a member, with None where it is absent, and count those that are present."""
        if self._is_sparse:
            absent = sum([value is msgspec.UNSET for value in values])
            self.count += len(values) - absent
            if absent:
                return [None if value is msgspec.UNSET else value for value in values]
        else:
            self.count += len(values)
        return values

    def leaf(self, values: list[Any], t: Any) -> Any:
        """Return an array of values that msgspec has read. Raises an error for values that only the rules judge."""
        if pa.types.is_decimal(t):
            return _decimals(values, t)
        if pa.types.is_temporal(t):
            return parse_times(pa.array(values, pa.string()), t)
        if pa.types.is_binary(t):
            return pa.array(values, pa.binary())
        array = pa.array(values, t)
        if pa.types.is_float32(t) and pc.any(pc.is_inf(array)).as_py():
            raise ValueError("beyond the range of float")
        return array


def _exact_leaf(values: list[Any], t: Any) -> Any:
    return parse_times(pa.array(values, pa.string()), t) if pa.types.is_temporal(t) else pa.array(values, t)


def _decimals(raw: list[Any], t: Any) -> Any:
    """Return an array of decimals of their texts, or of their JSON."""
    if isinstance(next((text for text in raw if text is not None), ""), msgspec.Raw):
        texts = pa.array([None if text is None else bytes(text) for text in raw], pa.binary()).cast(pa.string())
        texts = pc.if_else(pc.equal(texts, "null"), None, texts)
        texts = pc.replace_substring_regex(texts, '^"(.*)"$', r"\1")
    else:
        texts = pa.array(raw, pa.string())
    if pc.all(pc.match_substring_regex(texts, DECIMAL_PATTERN)).as_py() is False:
        raise ValueError("not a usual decimal number")
    return texts.cast(t)


Leaf = Callable[[list[Any], Any], Any]


def build_array(values: list[Any], t: Any, leaf: Leaf, members: _Members | None = None) -> Any:
    """Return an array of Python objects. `values`: objects or None. A struct is a tuple, or a msgspec struct if there
    are `members`; a map is a list of pairs or a dict. `leaf`: function that returns an array of values whose type is
    not nested."""
    if not pa.types.is_nested(t):
        return leaf(values, t)
    nulls = [value is None for value in values]
    mask = pa.array(nulls, pa.bool_()) if any(nulls) else None
    if pa.types.is_struct(t):
        return _build_structs(values, t, leaf, members, mask)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([0 if value is None else len(value) for value in values], out=offsets[1:])
    if offsets[-1] >= 1 << 31:
        raise ValueError("too many elements")
    places = pa.array(offsets.astype(np.int32))
    present = [value for value in values if value is not None]
    if pa.types.is_list(t):
        elements = build_array(list(chain.from_iterable(present)), t.value_type, leaf, members)
        return pa.ListArray.from_arrays(places, elements, type=t, mask=mask)
    keys: list[Any] = []
    items: list[Any] = []
    for value in present:
        if isinstance(value, dict):
            keys += value.keys()
            items += value.values()
        else:
            keys += map(itemgetter(0), value)
            items += map(itemgetter(1), value)
    if members is not None:
        members.count += len(keys)
    children = build_array(keys, t.key_type, leaf, members), build_array(items, t.item_type, leaf, members)
    return pa.MapArray.from_arrays(places, *children, type=t, mask=mask)


def _build_structs(values: list[Any], t: Any, leaf: Leaf, members: _Members | None, mask: Any) -> Any:
    if not t.num_fields:
        return pa.array([None if value is None else {} for value in values], t)
    children = []
    for number, field in enumerate(t):
        get: Any = itemgetter(number) if members is None else attrgetter(f"f{number}")
        column = [None if value is None else get(value) for value in values]
        if members is not None:
            column = members.present(column)
            members.count -= sum([value is None for value in values])
        children.append(build_array(column, field.type, leaf, members))
    return pa.StructArray.from_arrays(children, fields=list(t), mask=mask)


class _Decoder:
    """A msgspec decoder of rows whose fields f0, f1 and so on are the columns."""

    def __init__(self, kind: Any, columns: int, *, is_sparse: bool) -> None:
        self.decode = passing_json_decoder(kind).decode
        self.getters = [attrgetter(f"f{i}") for i in range(columns)]
        self.is_sparse = is_sparse
        """True if the rows can lack columns; UNSET stands for these."""


@lru_cache(maxsize=_SCHEMAS_KEPT)
def _decoders(schema: pa.Schema, is_text: bool) -> tuple[_Decoder, ...]:
    """Return the decoders to be tried in turn: for rows with all columns, and for rows that can lack columns. Returns
    none if msgspec cannot read the schema's columns by the rules. `is_text`: True if a text in a binary column is
    UTF-8, False if it is base64."""
    try:
        return tuple(
            _Decoder(_structure("Row", list(schema), is_text, is_sparse), len(schema), is_sparse=is_sparse)
            for is_sparse in (False, True)
        )
    except _NoDecoderError:
        return ()


class _NoDecoderError(Exception):
    """msgspec cannot read a column by the rules."""


def _structure(name: str, fields: list[pa.Field], is_text: bool, is_sparse: bool) -> Any:
    if any(_NAME_WRONG & set(field.name) for field in fields):
        raise _NoDecoderError  # msgspec refuses such names
    members: list[Any] = []
    for number, field in enumerate(fields):
        kind = _type_of(field.type, is_text, is_sparse)
        kind = kind if kind is msgspec.Raw else kind | None
        members.append((f"f{number}", kind | msgspec.UnsetType, msgspec.UNSET) if is_sparse else (f"f{number}", kind))
    return msgspec.defstruct(
        name, members, rename={f"f{i}": f.name for i, f in enumerate(fields)}, forbid_unknown_fields=True
    )


def _type_of(t: Any, is_text: bool, is_sparse: bool) -> Any:
    if pa.types.is_list(t):
        return list[_optional(t.value_type, is_text, is_sparse)]  # type: ignore[misc]
    if pa.types.is_struct(t):
        return _structure("Inner", [t.field(i) for i in range(t.num_fields)], is_text, is_sparse)
    if pa.types.is_map(t) and pa.types.is_string(t.key_type):
        return dict[str, _optional(t.item_type, is_text, is_sparse)]  # type: ignore[misc]
    if pa.types.is_boolean(t):
        return bool
    if pa.types.is_integer(t):
        bits = t.bit_width - 1
        return Annotated[int, Meta(ge=-(2**bits), le=2**bits - 1)]
    if pa.types.is_floating(t):
        return int | float
    if pa.types.is_string(t) or pa.types.is_temporal(t):
        return str
    if pa.types.is_binary(t):
        return str if is_text else bytes
    if pa.types.is_decimal(t):
        return msgspec.Raw if is_sparse else str
    raise _NoDecoderError


def _optional(t: Any, is_text: bool, is_sparse: bool) -> Any:
    kind = _type_of(t, is_text, is_sparse)
    return kind if kind is msgspec.Raw else kind | None
