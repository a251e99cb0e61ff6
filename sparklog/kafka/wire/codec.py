"""Decoders and encoders of Kafka's messages, compiled for each version from the table of messages.

A message, or a structure in it, is a dictionary by field names. A decoder accepts any bytes: it checks each length
against the remaining bytes, and the lists of a message have at most `ELEMENTS_MAX` elements. In a request, `records`
are a view of the received bytes; in a response, they are a list of parts, which are not copied.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any
from uuid import UUID

from sparklog.errors import InvalidRequestError
from sparklog.kafka.wire.schema import Field, Message, messages

ELEMENTS_MAX = 20_000
"""Largest number of elements in all lists of one request together, such as topics and their partitions."""
_VARINT_BYTES_MAX = 5
NO_UUID = UUID(int=0)

_FIXED = {"bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d"}
_SIZES = {name: struct.calcsize(">" + code) for name, code in _FIXED.items()}

Body = dict[str, Any]
Part = bytes | bytearray | memoryview
Decode = Callable[[memoryview], Body]
CountingDecode = Callable[..., tuple[Body, int]]
Encode = Callable[[Body], list[Part]]


def forget_body(body: Any) -> None:
    """Remove all fields of a decoded message, so that its memory is free while the answer waits."""
    body.clear()


class MalformedMessageError(InvalidRequestError):
    """The bytes are no message of the API and version, or the message has more than ELEMENTS_MAX elements."""


class LongMessageError(InvalidRequestError):
    """The message has more elements than the caller wants to decode at once."""


class _Reader:
    """A cursor over the bytes of a message."""

    __slots__ = ("data", "elements_max", "end", "is_partial", "limit", "pos", "room")

    def __init__(
        self,
        data: memoryview,
        elements_max: int | None = None,
        *,
        is_partial: bool = False,
        limit: int | None = None,
    ) -> None:
        """`limit`: largest number of elements in all lists; None: ELEMENTS_MAX. `is_partial`: read lists up to
        `elements_max` elements or the end of the data, whatever their length."""
        self.data = data
        self.is_partial = is_partial
        self.pos = 0
        self.end = len(data)
        self.limit = ELEMENTS_MAX if limit is None else limit
        self.elements_max = self.limit if elements_max is None else elements_max
        self.room = self.elements_max

    def take(self, size: int) -> memoryview:
        start, end = self.pos, self.pos + size
        if size < 0 or end > self.end:
            raise MalformedMessageError(f"a field of {size} bytes, {self.end - start} are left")
        self.pos = end
        return self.data[start:end]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            if self.pos >= self.end:
                raise MalformedMessageError("the message ends inside a length")
            byte = self.data[self.pos]
            self.pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedMessageError(f"a length of more than {_VARINT_BYTES_MAX} bytes")

    def items(self, number: int) -> Iterable[int]:
        """Check the number of elements in a list, and return an iterable of this length. Each element takes at least
        one byte. Raises MalformedMessageError."""
        if self.is_partial:
            return self._partial_items(number)
        self.room -= number
        if number > self.end - self.pos or self.room < -self.limit + self.elements_max:
            raise MalformedMessageError(f"a list of {number} elements; at most {self.limit} in one message are allowed")
        if self.room < 0:
            raise LongMessageError(f"more than {self.elements_max} elements")
        return range(number)

    def _partial_items(self, number: int) -> Iterator[int]:
        for i in range(number):
            self.room -= 1
            if self.room < 0:
                raise MalformedMessageError(f"more than {self.elements_max} elements")
            yield i

    def tags(self) -> dict[int, memoryview]:
        tags = {}
        for _ in self.items(self.varint()):
            tag = self.varint()
            tags[tag] = self.take(self.varint())
        return tags


def _text(data: memoryview) -> str:
    return str(data, "utf-8", "replace")  # as Kafka: most such names are unknown, and get an error


def _uuid(data: memoryview) -> UUID:
    return UUID(bytes=bytes(data))


def _refuse_null(name: str) -> None:
    raise MalformedMessageError(f"{name} is null")


def _varint_bytes(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_VARINTS = [_varint_bytes(value) for value in range(1024)]


def varint(value: int) -> bytes:
    """Encode a number as an unsigned varint."""
    return _VARINTS[value] if value < 1024 else _varint_bytes(value)


class _Source:
    """Python source under construction, with the objects to which it refers."""

    def __init__(self, flexible: bool, version: int) -> None:
        self.flexible = flexible
        self.version = version
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "text": _text,
            "uuid": _uuid,
            "refuse_null": _refuse_null,
            "varint": varint,
            "NO_UUID": NO_UUID,
            "Reader": _Reader,
        }
        self._number = 0

    def add(self, indent: int, line: str) -> None:
        self.lines.append("    " * indent + line)

    def fresh(self, stem: str) -> str:
        self._number += 1
        return f"{stem}{self._number}"

    def constant(self, value: Any) -> str:
        name = self.fresh("constant")
        self.names[name] = value
        return name

    def function(self, name: str) -> Any:
        exec(compile("\n".join(self.lines), f"<kafka {name}>", "exec"), self.names)
        return self.names[name]

    def fields(self, fields: tuple[Field, ...]) -> tuple[list[Field], list[Field]]:
        """Return the fields of the version: the untagged ones in their order, and the tagged ones by their numbers."""
        present = [f for f in fields if self.version in f.versions]
        plain = [f for f in present if f.tag is None]
        return plain, sorted((f for f in present if f.tag is not None), key=lambda f: f.tag or 0)


@cache
def counting_decoder(kind: str, name: str, version: int, limit: int | None = None) -> CountingDecode:
    """Return the decoder of a message in a version, which also returns the number of elements in all lists. Raises
    InvalidRequestError for a version that the table of messages lacks. The decoder raises MalformedMessageError, also
    for more elements than `limit` (None: ELEMENTS_MAX). It raises LongMessageError for more elements than its second
    argument; None: `limit`."""
    read = _compiled(kind, name, version)

    def decode(data: memoryview, elements_max: int | None = None) -> tuple[Body, int]:
        reader = _Reader(data, elements_max, limit=limit)
        body: Body = {}
        try:
            read(reader, body)
        except (struct.error, IndexError) as e:
            raise MalformedMessageError(f"{name} version {version} is cut off") from e
        # bytes after it are passed over, as by Kafka: librdkafka sends some with Metadata version 12
        return body, reader.elements_max - reader.room

    return decode


@cache
def _compiled(kind: str, name: str, version: int) -> Callable[[_Reader, Body], None]:
    """Return the function that reads a message into a dictionary. The dictionary has the fields before an error."""
    message = messages()[kind, name]
    _check_version(message, version)
    source = _Source(message.is_flexible(version), version)
    source.add(0, "def decode(r, body):")
    _emit_structure(source, 1, message.fields, "body")
    source.add(1, "return")
    read: Callable[[_Reader, Body], None] = source.function("decode")
    return read


def partial_decoder(kind: str, name: str, version: int) -> Callable[[memoryview, int], Body]:
    """Return the decoder of the beginning of a message, for the refusal of a message that is too long or damaged. The
    body has the first elements of its lists, up to the second argument; the last element may lack fields. Raises
    InvalidRequestError for a version that the table of messages lacks; the decoder raises nothing."""
    read = _compiled(kind, name, version)

    def decode(data: memoryview, elements_max: int) -> Body:
        body: Body = {}
        with suppress(struct.error, IndexError, InvalidRequestError):  # the end of the readable part
            read(_Reader(data, elements_max, is_partial=True), body)
        return body

    return decode


@cache
def decoder(kind: str, name: str, version: int, limit: int | None = None) -> Decode:
    """Return the decoder of a whole message; see `counting_decoder`."""
    decode = counting_decoder(kind, name, version, limit)
    return lambda data: decode(data)[0]


def _emit_structure(source: _Source, indent: int, fields: tuple[Field, ...], target: str) -> None:
    """Emit the code that reads a structure into the dictionary `target`."""
    plain, tagged = source.fields(fields)
    i = 0
    while i < len(plain):
        run: list[Field] = []
        while i + len(run) < len(plain) and _is_fixed(plain[i + len(run)]):
            run.append(plain[i + len(run)])
        if run:
            form = struct.Struct(">" + "".join(_FIXED[f.type] for f in run))
            unpack = source.constant(form.unpack_from)
            targets = "".join(f"{target}[{f.name!r}], " for f in run)
            source.add(indent, f"{targets}= {unpack}(r.data, r.pos)")
            source.add(indent, f"r.pos += {form.size}")
            i += len(run)
        else:
            _emit_value(source, indent, plain[i], f"{target}[{plain[i].name!r}]", "r")
            i += 1
    for field in tagged:
        source.add(indent, f"{target}[{field.name!r}] = {source.constant(field.default)}")
    if source.flexible:
        tags = source.fresh("tags")
        source.add(indent, f"{tags} = r.tags()")
        for field in tagged:
            source.add(indent, f"if {field.tag} in {tags}:")
            nested = source.fresh("nested")
            source.add(indent + 1, f"{nested} = Reader({tags}[{field.tag}])")
            saved = source.fresh("saved")
            source.add(indent + 1, f"{saved}, r = r, {nested}")
            _emit_value(source, indent + 1, field, f"{target}[{field.name!r}]", nested)
            source.add(indent + 1, f"r = {saved}")


def _is_fixed(field: Field) -> bool:
    return not field.is_list and field.type in _FIXED


def _emit_value(source: _Source, indent: int, field: Field, target: str, reader: str) -> None:
    may_be_null = field.null is not None and source.version in field.null
    if field.is_list:
        _emit_list(source, indent, field, target, may_be_null)
    elif field.type == "{}":
        if may_be_null:
            source.add(indent, "if r.take(1)[0] == 0xff:")
            source.add(indent + 1, f"{target} = None")
            source.add(indent, "else:")
            indent += 1
        inner = source.fresh("structure")
        source.add(indent, f"{target} = {inner} = {{}}")
        _emit_structure(source, indent, field.fields, inner)
    else:
        _emit_simple(source, indent, field.type, target, field.name, may_be_null)


def _emit_simple(source: _Source, indent: int, kind: str, target: str, name: str, may_be_null: bool) -> None:
    if kind in _FIXED:
        unpack = source.constant(struct.Struct(">" + _FIXED[kind]).unpack_from)
        source.add(indent, f"{target}, = {unpack}(r.data, r.pos); r.pos += {_SIZES[kind]}")
        return
    if kind == "uuid":
        source.add(indent, f"{target} = uuid(r.take(16))")
        return
    size = source.fresh("size")
    _emit_size(source, indent, size, "h" if kind == "string" else "i")
    convert = {"string": "text(r.take({}))", "bytes": "bytes(r.take({}))", "records": "r.take({})"}[kind].format(size)
    source.add(indent, f"if {size} < 0:")
    source.add(indent + 1, f"{target} = None" if may_be_null else f"refuse_null({name!r})")
    source.add(indent, "else:")
    source.add(indent + 1, f"{target} = {convert}")


def _emit_size(source: _Source, indent: int, target: str, code: str) -> None:
    if source.flexible:
        source.add(indent, f"{target} = r.varint() - 1")
    else:
        unpack = source.constant(struct.Struct(">" + code).unpack_from)
        source.add(indent, f"{target}, = {unpack}(r.data, r.pos); r.pos += {struct.calcsize('>' + code)}")


def _emit_list(source: _Source, indent: int, field: Field, target: str, may_be_null: bool) -> None:
    count, items = source.fresh("count"), source.fresh("items")
    _emit_size(source, indent, count, "i")
    source.add(indent, f"if {count} < 0:")
    source.add(indent + 1, f"{target} = None" if may_be_null else f"refuse_null({field.name!r})")
    source.add(indent, "else:")
    source.add(indent + 1, f"{target} = {items} = []")
    source.add(indent + 1, f"for _ in r.items({count}):")
    item = source.fresh("item")
    if field.type == "{}":
        source.add(indent + 2, f"{items}.append({item} := {{}})")
        _emit_structure(source, indent + 2, field.fields, item)
    else:
        _emit_simple(source, indent + 2, field.type, item, field.name, may_be_null=False)
        source.add(indent + 2, f"{items}.append({item})")


@cache
def encoder(kind: str, name: str, version: int) -> Encode:
    """Return the encoder of a message in a version. It converts a dictionary into parts of bytes. A field that is
    missing in the dictionary has its default; KeyError if it has none. Raises InvalidRequestError for a version that is
    not served."""
    message = messages()[kind, name]
    _check_version(message, version)
    source = _Source(message.is_flexible(version), version)
    source.add(0, "def encode(d):")
    source.add(1, "w = []")
    _write_structure(source, 1, message.fields, "d")
    source.add(1, "return w")
    encode: Encode = source.function("encode")
    return encode


def _check_version(message: Message, version: int) -> None:
    if version not in message.versions:
        raise InvalidRequestError(f"{message.name} has no version {version} here: {message.versions}")


def _value(source: _Source, field: Field, holder: str) -> str:
    if field.has_default:
        return f"{holder}.get({field.name!r}, {source.constant(field.default)})"
    return f"{holder}[{field.name!r}]"


def _write_structure(source: _Source, indent: int, fields: tuple[Field, ...], holder: str) -> None:
    plain, tagged = source.fields(fields)
    i = 0
    while i < len(plain):
        run: list[Field] = []
        while i + len(run) < len(plain) and _is_fixed(plain[i + len(run)]):
            run.append(plain[i + len(run)])
        if run:
            pack = source.constant(struct.Struct(">" + "".join(_FIXED[f.type] for f in run)).pack)
            source.add(indent, f"w.append({pack}({', '.join(_value(source, f, holder) for f in run)}))")
            i += len(run)
            continue
        value = source.fresh("value")
        source.add(indent, f"{value} = {_value(source, plain[i], holder)}")
        _write_value(source, indent, plain[i], value)
        i += 1
    if source.flexible:
        _write_tags(source, indent, tagged, holder)


def _write_tags(source: _Source, indent: int, tagged: list[Field], holder: str) -> None:
    if not tagged:
        source.add(indent, "w.append(b'\\0')")
        return
    outer, parts = source.fresh("outer"), source.fresh("tagged")
    source.add(indent, f"{outer} = w; {parts} = []")
    for field in tagged:
        value = source.fresh("value")
        source.add(indent, f"{value} = {_value(source, field, holder)}")
        source.add(indent, f"if {value} != {source.constant(field.default)}:")
        source.add(indent + 1, "w = []")
        _write_value(source, indent + 1, field, value)
        source.add(indent + 1, "w = b''.join(w)")
        source.add(indent + 1, f"{parts}.append(b''.join((varint({field.tag}), varint(len(w)), w)))")
    source.add(indent, f"w = {outer}; w.append(varint(len({parts}))); w.extend({parts})")


def _write_value(source: _Source, indent: int, field: Field, value: str) -> None:
    may_be_null = field.null is not None and source.version in field.null
    if field.is_list:
        _write_null(source, indent, value, "i", may_be_null)
        _write_size(source, indent + 1, f"len({value})", "i")
        item = source.fresh("item")
        source.add(indent + 1, f"for {item} in {value}:")
        if field.type == "{}":
            _write_structure(source, indent + 2, field.fields, item)
        else:
            _write_simple(source, indent + 2, field.type, item, may_be_null=False)
    elif field.type == "{}":
        if may_be_null:
            source.add(indent, f"if {value} is None: w.append(b'\\xff')")
            source.add(indent, "else:")
            source.add(indent + 1, "w.append(b'\\1')")
            indent += 1
        _write_structure(source, indent, field.fields, value)
    else:
        _write_simple(source, indent, field.type, value, may_be_null)


def _write_null(source: _Source, indent: int, value: str, code: str, may_be_null: bool) -> None:
    """Write the source for a null, and begin the branch for a value that is not None."""
    if may_be_null:
        null = b"\0" if source.flexible else struct.pack(">" + code, -1)
        source.add(indent, f"if {value} is None: w.append({null!r})")
        source.add(indent, "else:")
    else:
        source.add(indent, "if True:")


def _write_size(source: _Source, indent: int, size: str, code: str) -> None:
    if source.flexible:
        source.add(indent, f"w.append(varint({size} + 1))")
    else:
        pack = source.constant(struct.Struct(">" + code).pack)
        source.add(indent, f"w.append({pack}({size}))")


def _write_simple(source: _Source, indent: int, kind: str, value: str, may_be_null: bool) -> None:
    if kind in _FIXED:
        pack = source.constant(struct.Struct(">" + _FIXED[kind]).pack)
        source.add(indent, f"w.append({pack}({value}))")
    elif kind == "uuid":
        source.add(indent, f"w.append({value}.bytes if {value} else NO_UUID.bytes)")
    elif kind == "records":
        # a list of parts, which are not joined here
        _write_null(source, indent, value, "i", may_be_null)
        _write_size(source, indent + 1, f"sum(map(len, {value}))", "i")
        source.add(indent + 1, f"w.extend({value})")
    else:
        _write_null(source, indent, value, "h" if kind == "string" else "i", may_be_null)
        if kind == "string":
            source.add(indent + 1, f"{value} = {value}.encode()")
        _write_size(source, indent + 1, f"len({value})", "h" if kind == "string" else "i")
        source.add(indent + 1, f"w.append({value})")
