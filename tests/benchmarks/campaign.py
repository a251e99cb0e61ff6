"""Runs rows: a discarded warm-up of both sides, then pairs in turn, the side that begins alternating."""

from __future__ import annotations

import datetime
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .context import Context
from .results import Measurement, RowResult, write_row
from .rows import Row

PAIRS = 5
Progress = Callable[[str], None]


def run_row(
    row: Row,
    context: Context,
    *,
    pairs: int,
    progress: Progress,
    machine: Mapping[str, str],
    versions: Mapping[str, str],
) -> RowResult:
    """Measures a row. What fails is in the result's `failure`, with the pairs that were done before."""
    measurements: dict[str, list[Measurement]] = {"sparklog": [], "other": []}
    sides = [("sparklog", row.sparklog, "sparklog"), ("other", row.other, row.peer)]
    failure = None
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        for pair in range(pairs + 1):
            # who comes first must not matter
            for side, measure, label in sides if pair % 2 == 0 else sides[::-1]:
                progress(f"{row.name}: {'warm-up' if pair == 0 else f'pair {pair} of {pairs}'}, {label}")
                found = measure(context)
                if pair:
                    measurements[side].append(found)
    except Exception as e:  # noqa: BLE001  one row's failure, whatever it is, is shown and the others go on
        failure = _reason(e)
    try:
        context.end_row()
    except Exception as e:  # noqa: BLE001
        failure = failure or f"while giving back what it needed: {_reason(e)}"
    return RowResult(
        name=row.name,
        title=row.title,
        peer=row.peer,
        unit=row.unit,
        goal=row.goal,
        scale=context.scale,
        settings=dict(row.settings),
        machine=dict(machine),
        versions=dict(versions),
        measured_at=at,
        sparklog=measurements["sparklog"],
        other=measurements["other"],
        failure=failure,
    )


def _reason(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def run_rows(
    rows: Sequence[Row],
    context: Context,
    directory: Path,
    *,
    pairs: int,
    progress: Progress,
    done: Callable[[RowResult], None],
    machine: Mapping[str, str],
    versions: Mapping[str, str],
) -> list[RowResult]:
    """Measures `rows` one after the other and keeps each in `directory` as soon as it is done."""
    results = []
    for row in rows:
        result = run_row(row, context, pairs=pairs, progress=progress, machine=machine, versions=versions)
        write_row(result, directory)
        done(result)
        results.append(result)
    return results
