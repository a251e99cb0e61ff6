"""Assertions about streams: rows that arrive once and in order, conditions that become true, and rows that are equal.

Rows are dicts. A PyArrow table, and a DataFrame of pandas, polars or Spark stand for their rows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol

from sparklog.testing._broker import Duration, duration_ms
from sparklog.testing._rows import Row, column, comparable, rows_of, shown, shown_pair

ROWS_SHOWN_MAX = 10
POLL_S = 0.05
VIRTUAL_POLL_S = 0.25
POLL_SHARE = 0.02
"""Virtual time between two looks at a condition, as a share of the time before: long waits take few looks."""
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
        key: The column, the columns, or a function of a row, that inputs and outputs have in common. `who.id` is a
            field of a struct.

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
    raw = [[key_of(row) for row in rows_of(data)] for data in (outputs, inputs)]
    names = {comparable(key): key for keys in raw for key in keys}
    actual, expected = (Counter(map(comparable, keys)) for keys in raw)
    problems = [
        *_listed("missing", [names[key] for key in expected - actual]),
        *_listed("more than once", [names[key] for key in actual - expected if key in expected]),
        *_listed("without an input", [names[key] for key in actual if key not in expected]),
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
    newest: dict[Hashable, tuple[int, Any]] = {}
    for place, row in enumerate(rows_of(rows)):
        group, value = key_of(row), order_of(row)
        before = newest.get(comparable(group))
        if before is not None and not _follows(value, before[1]):
            among = "" if key is None else f" of key {shown(group)}"
            raise AssertionError(
                f"not in order{among}: row {place} has {shown(value)}, and row {before[0]} has {shown(before[1])}"
            )
        newest[comparable(group)] = place, value


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
        TypeError: The condition is no function, or `sim` no simulation.
        ValueError: The wait is no duration.

    Example:
        ```python
        eventually(lambda: len(rows("out")) == 3, within="30 s")
        ```
    """
    __tracebackhide__ = True
    if not callable(condition):
        raise TypeError(f"condition = {condition!r}: a function is needed, such as lambda: len(rows('out')) == 3")
    if sim is not None and not hasattr(sim, "advance"):
        raise TypeError(f"sim = {sim!r}: the fixture `sim` is needed, or None for real time")
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
    if not problems and ordered:
        pairs = zip(map(comparable, here), map(comparable, expected_rows), strict=True)
        place = next((number for number, (one, other) in enumerate(pairs) if one != other), None)
        if place is not None:
            problems = [f"  the same rows in another order, from row {place} on: {shown(here[place])}"]
    if problems:
        lines = "\n".join(problems)
        raise AssertionError(f"rows differ: {len(here)} actual, {len(expected_rows)} expected\n{lines}")


def _key_function(key: Key) -> Callable[[Row], Any]:
    """Return the function of a row that `key` stands for. Raises TypeError."""
    if callable(key):
        return key
    names = [key] if isinstance(key, str) else list(key) if isinstance(key, Sequence) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{key!r} is no key: name a column, a list of columns, or give a function of a row")
    if isinstance(key, str):
        return lambda row: column(row, key)
    return lambda row: tuple(column(row, name) for name in key)


def _differences(actual: Sequence[Row], expected: Sequence[Row], key_of: Callable[[Row], Any] | None) -> list[str]:
    if key_of is None:
        counts = [Counter(map(comparable, rows)) for rows in (actual, expected)]
        surplus = _first_of_each(actual, counts[0] - counts[1])
        missing = _first_of_each(expected, counts[1] - counts[0])
        return [*_only("only in actual", surplus), *_only("only in expected", missing)]
    by_key, expected_by_key = _paired(actual, key_of), _paired(expected, key_of)
    lines = [
        f"  key {shown(key_of(row))}: {line}"
        for key, row in expected_by_key.items()
        if key in by_key
        for line in _changed_columns(by_key[key], row)
    ]
    actual = [row for key, row in by_key.items() if key not in expected_by_key]
    expected = [row for key, row in expected_by_key.items() if key not in by_key]
    return [*_shortened(lines), *_only("only in actual", actual), *_only("only in expected", expected)]


def _changed_columns(actual: Row, expected: Row) -> Iterable[str]:
    """Describe the columns in which two rows differ."""
    for name in {**expected, **actual}:
        if name not in actual:
            yield f"{name} is absent, expected {shown(expected[name])}"
        elif name not in expected:
            yield f"{name} is {shown(actual[name])}, expected no such column"
        elif comparable(actual[name]) != comparable(expected[name]):
            yield "{} is {}, expected {}".format(name, *shown_pair(actual[name], expected[name]))


def _first_of_each(rows: Iterable[Row], counts: Counter[Hashable]) -> list[Row]:
    """Return as many of the equal rows as are counted."""
    return [row for row in rows if _taken(counts, comparable(row))] if counts else []


def _taken(counts: Counter[Hashable], key: Hashable) -> bool:
    """Take one of the counted keys. Returns False if none is left."""
    if counts[key] == 0:
        return False
    counts[key] -= 1
    return True


def _paired(rows: Sequence[Row], key_of: Callable[[Row], Any]) -> dict[Hashable, Row]:
    """Return the rows by key. Raises AssertionError if a key is repeated."""
    by_key: dict[Hashable, Row] = {}
    for row in rows:
        key = comparable(key_of(row))
        if key in by_key:
            raise AssertionError(
                f"two rows have the key {shown(key_of(row))}: {shown(dict(by_key[key]))} and {shown(dict(row))}"
            )
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
    return [f"  {title} ({len(chosen)}): {', '.join(_shortened([shown(key) for key in chosen]))}"]


def _only(title: str, rows: Iterable[Row]) -> list[str]:
    return _shortened([f"  {title}: {shown(dict(row))}" for row in rows])


def _shortened(lines: list[str]) -> list[str]:
    more = len(lines) - ROWS_SHOWN_MAX
    return lines if more <= 0 else [*lines[:ROWS_SHOWN_MAX], f"  … and {more} more"]
