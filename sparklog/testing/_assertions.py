"""Assertions about streams: rows that arrive once and in order, conditions that become true, and rows that are equal.

Rows are dicts. A PyArrow table, a pandas DataFrame and a DataFrame of Spark stand for their rows.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from sparklog.testing._broker import Duration, duration_ms

ROWS_SHOWN_MAX = 10
ROWS_ALLOWED = "a list of dicts, an Arrow table, or a DataFrame of pandas, polars or Spark is needed"
POLL_S = 0.05
VIRTUAL_POLL_S = 0.25
POLL_SHARE = 0.02
"""Virtual time between two looks at a condition, as a share of the time before: long waits take few looks."""
Row = Mapping[str, Any]
Key = str | Sequence[str] | Callable[[Row], Any]


class VirtualTime(Protocol):
    """A simulation whose time passes when `advance` is called."""

    def advance(self, duration: Duration) -> Any:
        """Let virtual time pass."""
        ...


def exactly_once(inputs: Any, outputs: Any, *, key: Key) -> None:
    """Check that each input has one output, and that each output has an input.

    Args:
        inputs: The rows that went in.
        outputs: The rows that came out.
        key: The column, the columns, or a function of a row, that inputs and outputs have in common.

    Raises:
        AssertionError: Keys are missing, repeated or unexpected. The message has the first of each.
        TypeError: An argument is no rows, or no key.

    Example:
        ```python
        exactly_once(orders, rows("invoices"), key="order_id")
        ```
    """
    __tracebackhide__ = True
    key_of = _key_function(key)
    expected = Counter(key_of(row) for row in rows_of(inputs))
    actual = Counter(key_of(row) for row in rows_of(outputs))
    problems = [
        *_listed("missing", expected - actual),
        *_listed("more than once", [key for key in actual - expected if key in expected]),
        *_listed("without an input", [key for key in actual if key not in expected]),
    ]
    if problems:
        lines = "\n".join(problems)
        raise AssertionError(
            f"not exactly once: {sum(expected.values())} inputs, {sum(actual.values())} outputs\n{lines}"
        )


def in_order(rows: Any, *, by: Key, key: Key | None = None) -> None:
    """Check that rows are in ascending order, among all rows or among those with the same key.

    Args:
        rows: The rows.
        by: The column, the columns, or a function of a row, with the order. Equal values may follow one another.
        key: The same for the key. None: all rows have one order.

    Raises:
        AssertionError: A row comes after a greater one, or the two have no order. The message has both.
        TypeError: An argument is no rows, or no key.

    Example:
        ```python
        in_order(rows("positions"), by="at", key="vehicle")
        ```
    """
    __tracebackhide__ = True
    order_of, key_of = _key_function(by), _key_function(key) if key is not None else lambda _: None
    newest: dict[Any, tuple[int, Any]] = {}
    for place, row in enumerate(rows_of(rows)):
        group, value = key_of(row), order_of(row)
        before = newest.get(group)
        if before is not None and not _follows(value, before[1]):
            among = "" if key is None else f" of key {group!r}"
            raise AssertionError(
                f"not in order{among}: row {place} has {value!r}, and row {before[0]} has {before[1]!r}"
            )
        newest[group] = place, value


def eventually(condition: Callable[[], Any], *, within: Duration, sim: VirtualTime | None = None) -> Any:
    """Wait until a condition is true.

    Args:
        condition: A function. The condition is true if it returns a true value and raises no AssertionError.
        within: The longest wait: a text such as "30 s", a timedelta, or seconds.
        sim: A simulation: its virtual time passes. Two looks at the condition are then apart by 2 % of the time before,
            at least by 0.25 s. None: real time passes.

    Returns:
        The condition's value.

    Raises:
        AssertionError: The condition is still false. The message has its last value or its last AssertionError.

    Example:
        ```python
        eventually(lambda: len(rows("out")) == 3, within="30 s")
        ```
    """
    __tracebackhide__ = True
    remaining_s = duration_ms(within) / 1000
    end_s, waited_s = time.monotonic() + remaining_s, 0.0
    while True:
        reason: object
        try:
            value = condition()
            if value:
                return value
            reason = f"it returned {value!r}"
        except AssertionError as e:
            reason = e
        if sim is None:
            remaining_s = end_s - time.monotonic()
        if remaining_s <= 0:
            raise AssertionError(f"not true within {within}: {reason}")
        if sim is None:
            time.sleep(min(POLL_S, remaining_s))
        else:
            pause_s = min(max(VIRTUAL_POLL_S, POLL_SHARE * waited_s), remaining_s)
            sim.advance(pause_s)
            remaining_s -= pause_s
            waited_s += pause_s


def same_rows(actual: Any, expected: Any, *, key: Key | None = None, ordered: bool = False) -> None:
    """Check that two sets of rows are equal, and show their difference if they are not.

    Args:
        actual: The rows to check.
        expected: The rows that they should be.
        key: The column, the columns, or a function of a row, that pairs rows: differences of a pair are shown column
            by column. None: rows are equal as a whole or different.
        ordered: True if the order of the rows counts.

    Raises:
        AssertionError: The rows differ. The message has the rows that are only here or only there, and the columns that
            differ.
        TypeError: An argument is no rows, or no key.

    Example:
        ```python
        same_rows(run.rows(), [{"user": "ann", "clicks": 2}], key="user")
        ```
    """
    __tracebackhide__ = True
    here, expected_rows = rows_of(actual), rows_of(expected)
    problems = _differences(here, expected_rows, None if key is None else _key_function(key))
    if not problems and ordered and here != expected_rows:
        place = next(i for i, pair in enumerate(zip(here, expected_rows, strict=True)) if pair[0] != pair[1])
        problems = [f"  the same rows in another order, from row {place} on: {here[place]}"]
    if problems:
        lines = "\n".join(problems)
        raise AssertionError(f"rows differ: {len(here)} actual, {len(expected_rows)} expected\n{lines}")


def rows_of(data: Any) -> list[dict[str, Any]]:
    """Return the rows of a table, a DataFrame or an iterable of dicts."""
    columns_or_one_row = isinstance(data, Mapping | str | bytes)
    if columns_or_one_row or not (hasattr(data, "toArrow") or hasattr(data, "__iter__") or hasattr(data, "to_pylist")):
        raise TypeError(f"{data!r} are no rows: {ROWS_ALLOWED}")
    if hasattr(data, "toArrow"):  # Spark
        data = data.toArrow()
    if hasattr(data, "to_pylist"):  # PyArrow
        data = data.to_pylist()
    elif hasattr(data, "to_dict"):  # pandas
        data = data.to_dict("records")
    elif hasattr(data, "to_dicts"):  # polars
        data = data.to_dicts()
    return [_row(row) for row in data]


def _row(row: Any) -> dict[str, Any]:
    """Return a row as a dict. Raises TypeError."""
    if hasattr(row, "asDict"):  # Spark
        return dict(row.asDict(recursive=True))
    if not isinstance(row, Mapping):
        raise TypeError(f"{row!r} is no row: {ROWS_ALLOWED}")
    return dict(row)


def _key_function(key: Key) -> Callable[[Row], Any]:
    """Return the function of a row that `key` stands for. Raises TypeError."""
    if callable(key):
        return key
    names = [key] if isinstance(key, str) else list(key) if isinstance(key, Sequence) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{key!r} is no key: name a column, a list of columns, or give a function of a row")
    if isinstance(key, str):
        return lambda row: _hashable(_column(row, key))
    return lambda row: tuple(_hashable(_column(row, name)) for name in key)


def _column(row: Row, name: str) -> Any:
    if name not in row:
        raise AssertionError(f"no column {name!r} in the row {dict(row)}: it has {', '.join(row)}")
    return row[name]


def _hashable(value: Any) -> Any:
    """Return the value, or for lists and dicts a text that is equal for equal values."""
    return value if value.__hash__ is not None else json.dumps(value, sort_keys=True, default=repr)


def _differences(actual: Sequence[Row], expected: Sequence[Row], key_of: Callable[[Row], Any] | None) -> list[str]:
    if key_of is not None:
        by_key, expected_by_key = _paired(actual, key_of), _paired(expected, key_of)
        lines = [
            f"  key {key!r}: {name} is {by_key[key].get(name)!r}, expected {row.get(name)!r}"
            for key, row in expected_by_key.items()
            if key in by_key
            for name in {**row, **by_key[key]}
            if by_key[key].get(name) != row.get(name) or (name in row) != (name in by_key[key])
        ]
        actual = [row for key, row in by_key.items() if key not in expected_by_key]
        expected = [row for key, row in expected_by_key.items() if key not in by_key]
        return [*_shortened(lines), *_only("only in actual", actual), *_only("only in expected", expected)]
    surplus, missing = _unpaired(actual, expected)
    return [*_only("only in actual", surplus), *_only("only in expected", missing)]


def _unpaired(actual: Sequence[Row], expected: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows of each side that have no equal row on the other side. Rows with equal texts are paired first,
    because comparing each row with each is slow."""
    surplus, missing = list(actual), list(expected)
    by_text = Counter(map(repr, missing)) & Counter(map(repr, surplus))
    for rows in (surplus, missing):
        paired = by_text.copy()
        rows[:] = [row for row in rows if not _taken(paired, repr(row))]
    for row in list(surplus):
        if row in missing:
            surplus.remove(row)
            missing.remove(row)
    return surplus, missing


def _taken(paired: Counter[str], text: str) -> bool:
    """Take one of the counted texts. Returns False if none is left."""
    if paired[text] == 0:
        return False
    paired[text] -= 1
    return True


def _paired(rows: Sequence[Row], key_of: Callable[[Row], Any]) -> dict[Any, Row]:
    """Return the rows by key. Raises AssertionError if a key is repeated."""
    by_key: dict[Any, Row] = {}
    for row in rows:
        key = key_of(row)
        if key in by_key:
            raise AssertionError(f"two rows have the key {key!r}: {dict(by_key[key])} and {dict(row)}")
        by_key[key] = row
    return by_key


def _follows(value: Any, before: Any) -> bool:
    """Return True if a value may come after another; values without an order, such as None and 1, may not."""
    try:
        return bool(before <= value)
    except TypeError:
        return bool(value == before)


def _listed(title: str, keys: Iterable[Any]) -> list[str]:
    chosen = list(keys)
    if not chosen:
        return []
    return [f"  {title} ({len(chosen)}): {', '.join(_shortened([repr(key) for key in chosen]))}"]


def _only(title: str, rows: Iterable[Row]) -> list[str]:
    return _shortened([f"  {title}: {dict(row)}" for row in rows])


def _shortened(lines: list[str]) -> list[str]:
    more = len(lines) - ROWS_SHOWN_MAX
    return lines if more <= 0 else [*lines[:ROWS_SHOWN_MAX], f"  … and {more} more"]
