"""Spark DDL strings (`a INT, b ARRAY<STRING>`) as Arrow schemas, without Spark.

Grammar (case is ignored; a name in backquotes can contain any characters)::

    columns = column { "," column }
    column  = name [":"] type ["NOT" "NULL"] ["COMMENT" 'text']
    type    = word | DECIMAL ["(" precision ["," scale] ")"] | VARCHAR "(" n ")" | CHAR "(" n ")"
            | ARRAY "<" type ">" | MAP "<" type "," type ">" | STRUCT "<" [columns] ">"
            | INTERVAL DAY TO SECOND

The result has Spark's own Arrow layout (`sparklog.format.schema`). Every column is nullable, so NOT NULL is ignored,
and so is COMMENT. VARCHAR and CHAR are strings of any length.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.errors import InvalidTopicError

DEPTH_MAX = 64

_SIMPLE: dict[str, Any] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
}
_DECIMAL = ("DECIMAL", "DEC", "NUMERIC")
_TEXT = ("VARCHAR", "CHAR", "CHARACTER")
_NESTED = ("ARRAY", "MAP", "STRUCT")
TYPE_NAMES = (*_SIMPLE, *_DECIMAL, *_TEXT, *_NESTED, "INTERVAL")

_PLAIN_NAME = re.compile(r"\w+")
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|(.))", re.DOTALL)


class _Token(NamedTuple):
    """A token of a DDL string. `kind`: "quoted name", "text", "word", "mark" or "end"."""

    kind: str
    text: str
    position: int


def parse_ddl(text: str) -> pa.Schema:
    """Return the Arrow schema of a Spark DDL string.

    Raises InvalidTopicError, which names the position of the fault and the expected text.
    """
    return pa.schema(_Parser(text).parse())


def _tokens(text: str) -> list[_Token]:
    tokens = []
    stripped = text.rstrip()
    position = 0
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        assert match is not None and match.lastindex is not None
        kind = ("quoted name", "text", "word", "mark")[match.lastindex - 1]
        tokens.append(_Token(kind, match[match.lastindex], match.start(match.lastindex)))
        position = match.end()
    return [*tokens, _Token("end", "", len(stripped))]


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def parse(self) -> list[pa.Field]:
        fields = self._columns()
        if self._next.kind != "end":
            raise self._error("',' or the end is expected")
        return fields

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._at += 1
        return token

    def _skip(self, mark: str) -> bool:
        """Consume the next token if it is `mark`, a mark or a word in any case. Returns True if it was consumed."""
        token = self._next
        if token.kind in ("mark", "word") and token.text.upper() == mark:
            self._at += 1
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise self._error(f"{mark!r} is expected")

    def _error(self, fault: str, token: _Token | None = None) -> InvalidTopicError:
        token = token or self._next
        place = f"found {token.text!r}" if token.kind != "end" else "the text ends"
        pointer = f"\n  {self._text}\n  {' ' * token.position}^" if "\n" not in self._text else ""
        return InvalidTopicError(f"schema: {fault}, {place} at character {token.position + 1}{pointer}")

    def _columns(self) -> list[pa.Field]:
        fields = [self._column()]
        while self._skip(","):
            fields.append(self._column())
        return fields

    def _column(self) -> pa.Field:
        token = self._take()
        if token.kind == "quoted name":
            name = token.text[1:-1].replace("``", "`")
        elif token.kind == "word":
            name = token.text
        else:
            hint = f" (names are quoted as `{token.text[1:-1]}`)" if token.text.startswith('"') else ""
            raise self._error(f"a column name is expected{hint}", token)
        self._skip(":")
        field = pa.field(name, self._type())
        if self._skip("NOT"):
            self._expect("NULL")
        if self._skip("COMMENT") and self._take().kind != "text":
            raise self._error("a text in quotes is expected after COMMENT", self._tokens[self._at - 1])
        return field

    def _type(self) -> Any:
        token = self._take()
        word = token.text.upper()
        if token.kind != "word":
            raise self._error("a type is expected", token)
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word in _DECIMAL:
            return self._decimal(token)
        if word in _TEXT:
            self._expect("(")
            self._integer()
            self._expect(")")
            return pa.string()
        if word == "INTERVAL":
            for part in ("DAY", "TO", "SECOND"):
                self._expect(part)
            return pa.duration("us")
        if word in _NESTED:
            return self._nested_type(word, token)
        near = difflib.get_close_matches(word, TYPE_NAMES, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"the types are {', '.join(TYPE_NAMES)}"
        raise self._error(f"unknown type ({hint})", token)

    def _decimal(self, token: _Token) -> Any:
        precision, scale = 10, 0
        if self._skip("("):
            precision = self._integer()
            if self._skip(","):
                scale = self._integer()
            self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self._error(f"DECIMAL({precision},{scale}): 1 to 38 digits, of which at most all are decimals", token)
        return pa.decimal128(precision, scale)

    def _nested_type(self, word: str, token: _Token) -> Any:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(f"types are nested more than {DEPTH_MAX} deep", token)
        self._expect("<")
        nested: Any
        if word == "ARRAY":
            nested = pa.list_(pa.field("element", self._type()))
        elif word == "MAP":
            key = self._type()
            self._expect(",")
            nested = pa.map_(key, self._type())
        else:
            nested = pa.struct([] if self._next.text == ">" else self._columns())
        self._expect(">")
        self._depth -= 1
        return nested

    def _integer(self) -> int:
        token = self._take()
        if not token.text.isdecimal():
            raise self._error("a number is expected", token)
        return int(token.text)


_DDL_NAMES = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date32[day]": "DATE",
    "timestamp[us, tz=UTC]": "TIMESTAMP",
    "timestamp[us]": "TIMESTAMP_NTZ",
    "string": "STRING",
    "binary": "BINARY",
    "duration[us]": "INTERVAL DAY TO SECOND",
}


def ddl_type(t: Any) -> str:
    """Return a canonical Arrow type in the notation of Spark's DDL."""
    if pa.types.is_decimal(t):
        return f"DECIMAL({t.precision},{t.scale})"
    if pa.types.is_list(t):
        return f"ARRAY<{ddl_type(t.value_type)}>"
    if pa.types.is_map(t):
        return f"MAP<{ddl_type(t.key_type)}, {ddl_type(t.item_type)}>"
    if pa.types.is_struct(t):
        return f"STRUCT<{', '.join(f'{_quoted(f.name)}: {ddl_type(f.type)}' for f in t)}>"
    return _DDL_NAMES.get(str(t), str(t))


def ddl_of(schema: pa.Schema) -> str:
    """Return canonical columns as a DDL string that `parse_ddl` reads as the same columns."""
    return ", ".join(f"{_quoted(field.name)} {ddl_type(field.type)}" for field in schema)


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"
