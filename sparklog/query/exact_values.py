"""Values of a result for which DuckDB's Arrow has no exact form: they become text, or an error, never another value.

DuckDB itself checks nothing when it converts values to Arrow. The hours of a long INTERVAL overflow 64 bits, a large
UHUGEINT becomes negative, `24:00:00` becomes midnight, and a TIME WITH TIME ZONE loses its zone.
"""

from __future__ import annotations

from typing import Any

from sparklog.query.names import literal, quoted, written

HOURS_MAX = 2_562_046
"""Largest number of hours whose nanoseconds fit into 64 bits: about 292 years."""
HUGE_MAX = 10**38 - 1
"""Largest value of a HUGEINT or UHUGEINT in a result, whose type in Arrow is decimal128(38, 0)."""
TEXTS = frozenset({"bignum", "bit", "time with time zone", "type", "variant"})
"""DuckDB's types whose values are text in a result."""
_LIMITS = {
    "INTERVAL": (
        f"abs(extract('hour' FROM {{}})) > {HOURS_MAX}",
        f"an INTERVAL has at most {HOURS_MAX:,} hours (292 years) in a result",
    ),
    "HUGEINT": (f"{{}} NOT BETWEEN -{HUGE_MAX} AND {HUGE_MAX}", "a HUGEINT has at most 38 digits in a result"),
    "UHUGEINT": (f"{{}} > {HUGE_MAX}::UHUGEINT", "a UHUGEINT has at most 38 digits in a result"),
    "TIME": ("{} = TIME '24:00:00'", "a TIME is below 24:00:00 in a result"),
    "TIME_NS": ("{} = '24:00:00'::TIME_NS", "a TIME is below 24:00:00 in a result"),
}
"""Types of which some values have no form in Arrow: the SQL condition of these values, and the limit in words."""


def with_exact_values(relation: Any) -> Any:
    """Return the relation with the types of TEXTS as text, and with a check of the values of _LIMITS, at any depth.

    Reading a row with a value beyond its limit raises an error that names the column. A relation without such types is
    returned unchanged.
    """
    columns = [
        _column(number, name, t)
        for number, (name, t) in enumerate(zip(relation.columns, relation.types, strict=True), 1)
    ]
    if not any(columns):
        return relation
    names = enumerate(relation.columns, 1)
    return relation.project(
        ", ".join(f"{column or f'#{n}'} AS {quoted(name)}" for column, (n, name) in zip(columns, names, strict=True))
    )


def _column(number: int, name: str, t: Any) -> str:
    """Return the SQL expression of a column; "" if its type is exact. The expression refers to the column by number,
    because names can occur twice."""
    shown = _text_type(t)
    value = f"#{number}::{shown}" if shown else f"#{number}"
    whens = ""
    for kind, (_, limit) in _LIMITS.items():
        if check := _beyond(f"#{number}", t, kind, 0):
            whens += f" WHEN {check} THEN error({literal(f'column {name}: {limit}; read it {_way(name, t)}')})"
    return f"CASE{whens} ELSE {value} END" if whens else value if shown else ""


def _way(name: str, t: Any) -> str:
    micros = f"as epoch_us({written(name)}), a number of microseconds, or " if t.id == "interval" else ""
    return f"{micros}as {written(name)}::VARCHAR"


def _text_type(t: Any) -> str:
    """Return the type in SQL with text in place of the types of TEXTS, at any depth; "" for a type without them."""
    if t.id in TEXTS:
        return "VARCHAR"
    children = _children(t)
    texts = [_text_type(child) for _, child in children]
    if not any(texts):
        return ""
    parts = [text or str(child) for text, (_, child) in zip(texts, children, strict=True)]
    if t.id in ("list", "array"):
        return f"{parts[0]}[{t.children[1][1] if t.id == 'array' else ''}]"
    if t.id in ("struct", "union"):
        parts = [f"{quoted(name)} {part}" for part, (name, _) in zip(parts, children, strict=True)]
    return f"{t.id}({', '.join(parts)})"


def _beyond(value: str, t: Any, kind: str, depth: int) -> str:
    """Return the SQL condition that `value` of type `t` has a value beyond the limit of the type `kind`, at any depth.

    The condition is "" for a type without `kind`. `depth` makes the parameters of nested lambdas unique.
    """
    if str(t) == kind:  # not its id, which a state of an aggregate can have, too
        return _LIMITS[kind][0].format(value)
    children = _children(t)
    if t.id in ("list", "array"):
        return _any_beyond(value, children[0][1], kind, depth)
    if t.id == "map":
        values = (f"map_keys({value})", f"map_values({value})")
        parts = [_any_beyond(v, child, kind, depth) for v, (_, child) in zip(values, children, strict=True)]
    elif t.id == "union":
        parts = [_beyond(f"union_extract({value}, {literal(n)})", child, kind, depth) for n, child in children]
    else:  # by number, because the fields of a tuple have no names
        fields = enumerate(children, 1)
        parts = [_beyond(f"struct_extract_at({value}, {place})", child, kind, depth) for place, (_, child) in fields]
    return " OR ".join(f"({part})" for part in parts if part)


def _any_beyond(values: str, t: Any, kind: str, depth: int) -> str:
    check = _beyond(f"e{depth}", t, kind, depth + 1)
    return f"len(list_filter({values}, lambda e{depth}: {check})) > 0" if check else ""


def _children(t: Any) -> list[tuple[str, Any]]:
    """Return the names and types inside of a nested type; none for other types."""
    if t.id in ("list", "array"):
        return [t.children[0]]  # the second one of an array is its size
    if t.id == "union":
        return list(t.children[1:])  # the first one is the tag
    return list(t.children) if t.id in ("map", "struct", "tuple") else []
