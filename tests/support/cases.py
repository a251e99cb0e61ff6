"""One test over many constants: a loop with subtests instead of an item for each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def for_each(
    names: str, cases: Iterable[Any], *, ids: Sequence[str] | Callable[[Any], object] | None = None
) -> Callable[[Test], Test]:
    """Run a test once per case, as subtests of one item.

    Takes the arguments of `pytest.mark.parametrize`. An item costs a millisecond of collection in every worker, a
    subtest nothing; so it is for tests that need no fixture of their own. Each failing case is reported by its id.

    Args:
        names: The test's parameters, separated by commas.
        cases: One value per case, or a tuple of values if there are several names. `pytest.param` gives a case an id.
        ids: The cases' ids, or a function from a value to its id.

    Returns:
        A decorator.
    """
    parameters = [name.strip() for name in names.split(",")]
    rows = list(cases)
    assert rows, f"no case for {names}"

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def looped(subtests: pytest.Subtests, **fixtures: Any) -> None:
            if "subtests" in signature.parameters:
                fixtures["subtests"] = subtests
            for number, row in enumerate(rows):
                case_id, values = _case(row, len(parameters), ids, number)
                with subtests.test(msg=case_id):
                    test(**fixtures, **dict(zip(parameters, values, strict=True)))

        others = [p for p in signature.parameters.values() if p.name not in (*parameters, "subtests")]
        own = inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY)
        keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in others]
        looped.__signature__ = signature.replace(parameters=[own, *keyword])  # type: ignore[attr-defined]
        return looped

    return decorate


def in_gate(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of which `make test` takes those that are `kept`, and `make test-all` all."""
    rows = list(values)
    assert all(value in rows for value in kept), f"{kept} are not all among the values"
    nightly = pytest.mark.nightly
    return [
        value if value in kept else pytest.param(*(value if isinstance(value, tuple) else [value]), marks=nightly)
        for value in rows
    ]


def _case(
    row: Any, width: int, ids: Sequence[str] | Callable[[Any], object] | None, number: int
) -> tuple[str, Sequence[Any]]:
    """The id and the values of one case."""
    given = None
    if isinstance(row, type(pytest.param())):
        given, values = row.id, row.values
    else:
        values = (row,) if width == 1 else row
    if given is None and ids is not None:
        given = "-".join(str(ids(value)) for value in values) if callable(ids) else ids[number]
    return str(given if given is not None else "-".join(repr(value)[:60] for value in values)), values
