"""Checks INTERVAL values in a result. For Arrow, DuckDB converts the hours of an INTERVAL to nanoseconds, and does not
check for an overflow of 64 bits."""

from __future__ import annotations

from typing import Any

from sparklog.query.names import quoted, written

HOURS_MAX = 2_562_046
"""Largest number of hours whose nanoseconds fit into 64 bits: about 292 years."""


def with_checked_intervals(relation: Any) -> Any:
    """Return the relation with a check of each INTERVAL in its columns, at any depth.

    Reading a row with an INTERVAL of more than HOURS_MAX raises an error. A relation without INTERVAL is returned
    unchanged.
    """
    checks = [_too_long(f"#{place}", t, 0) for place, t in enumerate(relation.types, 1)]
    if not any(checks):
        return relation
    columns = zip(relation.columns, relation.types, checks, strict=True)
    return relation.project(", ".join(_column(i, name, t, check) for i, (name, t, check) in enumerate(columns, 1)))


def _column(number: int, name: str, t: Any, check: str) -> str:
    """Return the SQL expression of a column. It refers to the column by number, because names can occur twice."""
    if not check:
        return f"#{number} AS {quoted(name)}"
    as_number = f"epoch_us({written(name)}), a number of microseconds, or as " if t.id == "interval" else ""
    text = (
        f"column {name}: an INTERVAL has at most {HOURS_MAX:,} hours (292 years) in a result; longer ones can be read "
        "as "
        f"{as_number}{written(name)}::VARCHAR"
    ).replace("'", "''")
    return f"CASE WHEN {check} THEN error('{text}') ELSE #{number} END AS {quoted(name)}"


def _too_long(value: str, t: Any, depth: int) -> str:
    """Return the SQL condition that `value` of type `t` has an INTERVAL of more than HOURS_MAX, at any depth.

    The condition is "" for a type without INTERVAL. `depth` makes the parameters of nested lambdas unique.
    """
    if t.id == "interval":
        return f"abs(extract('hour' FROM {value})) > {HOURS_MAX}"
    if t.id in ("list", "array"):
        return _any_too_long(value, t.children[0][1], depth)
    if t.id == "map":
        (_, key), (_, item) = t.children
        parts = [
            _any_too_long(f"map_keys({value})", key, depth),
            _any_too_long(f"map_values({value})", item, depth),
        ]
    elif t.id in ("struct", "tuple"):  # by number, because the fields of a tuple have no names
        fields = enumerate(t.children, 1)
        parts = [_too_long(f"struct_extract_at({value}, {place})", child, depth) for place, (_, child) in fields]
    elif t.id == "union":
        parts = [_too_long(f"union_extract({value}, {_text(name)})", child, depth) for name, child in t.children]
    else:
        return ""
    return " OR ".join(f"({part})" for part in parts if part)


def _any_too_long(values: str, t: Any, depth: int) -> str:
    check = _too_long(f"e{depth}", t, depth + 1)
    return f"len(list_filter({values}, lambda e{depth}: {check})) > 0" if check else ""


def _text(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"
