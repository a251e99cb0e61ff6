"""INTERVAL in a result: DuckDB hands the part below a day to Arrow as nanoseconds, whose number it does not check."""

from __future__ import annotations

from typing import Any

from sparklog.query.names import quoted, written

HOURS_MAX = 2_562_046
"""Whole hours whose nanoseconds fit into 64 bits: about 292 years."""


def with_checked_intervals(relation: Any) -> Any:
    """A DuckDB relation whose INTERVAL columns raise an error for a value that Arrow has no form for; `relation` itself
    if it has none. Intervals inside lists and structs are not looked at."""
    types = [str(t) for t in relation.types]
    if "INTERVAL" not in types:
        return relation
    columns = zip(relation.columns, types, strict=True)
    return relation.project(", ".join(_column(i, name, t) for i, (name, t) in enumerate(columns, 1)))


def _column(number: int, name: str, t: str) -> str:
    """The column by its place: a result may have two columns of a name."""
    if t != "INTERVAL":
        return f"#{number} AS {quoted(name)}"
    text = (
        f"column {name}: an INTERVAL has at most {HOURS_MAX:,} hours (292 years) in a result; longer ones can be read as "
        f"epoch_us({written(name)}), a number of microseconds, or as {written(name)}::VARCHAR"
    ).replace("'", "''")
    return (
        f"CASE WHEN abs(extract('hour' FROM #{number})) > {HOURS_MAX} THEN error('{text}') ELSE #{number} END "
        f"AS {quoted(name)}"
    )
