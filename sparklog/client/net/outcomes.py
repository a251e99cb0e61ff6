"""Errors of calls that change several items: each names the items that were changed and those that were not."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from sparklog.errors import SparklogError, error_from_code

NAMES_MAX = 10
"""Largest number of items of one kind that an error names; further ones are counted. `SparklogError.outcomes` has
all."""
REASONS_MAX = 3


def raise_failed(
    outcomes: Mapping[Any, object], done: str, *, noun: str = "partition", name: Callable[[Any], str] = str
) -> None:
    """Raise an error if an item of a call has failed. Its class is that of the first failure, and it has all outcomes.
    `outcomes`: the result of each item, or the SparklogError that refused it. `done`: the change of an item that
    succeeded, as a participle: "deleted". `noun`: the kind of an item, in the singular. `name`: the text of an item in
    the message. Raises SparklogError: Its message tells the reasons, the items that failed and those that are done."""
    failed = {item: outcome for item, outcome in outcomes.items() if isinstance(outcome, SparklogError)}
    if not failed:
        return
    first = next(iter(failed.values()))
    error = error_from_code(first.code, str(first) if len(outcomes) == 1 else _text(outcomes, failed, done, noun, name))
    error.outcomes = dict(outcomes)
    raise error from first


def _text(
    outcomes: Mapping[Any, object],
    failed: Mapping[Any, SparklogError],
    done: str,
    noun: str,
    name: Callable[[Hashable], str],
) -> str:
    reasons = list(dict.fromkeys(map(str, failed.values())))
    more = f" (and {len(reasons) - REASONS_MAX} other reasons)" if len(reasons) > REASONS_MAX else ""
    changed = [name(item) for item in outcomes if item not in failed]
    rest = f"{done}: {_names(changed)}" if changed else f"no {noun} is {done}"
    return (
        f"{'; '.join(reasons[:REASONS_MAX])}{more}. {len(failed)} of {len(outcomes)} {noun}s failed: "
        f"{_names([name(item) for item in failed])}; {rest}"
    )


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - NAMES_MAX} more" if len(listed) > NAMES_MAX else ""
    return ", ".join(listed[:NAMES_MAX]) + more
