"""Where the time of micro-batches goes: sparklog, Spark's Kafka connector, and a Python source and sink that do
nothing.

    python -m tests.benchmarks.spark_micro_batches [--rounds 5] [--rate 2000]

The query of the row spark-latency, for 23 s at a time. The kinds take turns in one session; the first round does not
count: it warms Spark up. Printed are medians over the rounds, in ms: of the last hundred micro-batches with rows and
their phases, and how long records took from when they were due until a consumer had them (of the third kind: until its
sink had them).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial

from .context import Context
from .results import Measurement
from .rows.latency import MICRO_BATCH_RATE, through_nothing, through_spark
from .spark_child import PHASES

RECORDS = ("p50_ms", "p99_ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=int, default=MICRO_BATCH_RATE, help="records a second")
    arguments = parser.parse_args()
    rate = arguments.rate
    kinds: dict[str, Callable[[Context], Measurement]] = {
        "sparklog": partial(through_spark, rate=rate, peer=False),
        "Kafka connector": partial(through_spark, rate=rate, peer=True),
        "nothing": partial(through_nothing, rate=rate),
    }
    columns = (*PHASES, *RECORDS)
    print(f"{'':>24}", *(f"{c:>17}" for c in columns), flush=True)
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with Context() as context:
        for turn in range(arguments.rounds + 1):
            for kind in list(kinds)[:: 1 if turn % 2 else -1]:
                found[kind].append(kinds[kind](context).extra)
                if turn:
                    _print(f"round {turn}, {kind}", found[kind][-1:], columns)
    for kind, rounds in found.items():
        _print(kind, rounds[1:], columns)


def _print(name: str, rounds: list[dict[str, float]], columns: tuple[str, ...]) -> None:
    known = {c: [r[c] for r in rounds if c in r] for c in columns}
    print(f"{name:>24}", *(f"{statistics.median(v):17.0f}" if v else f"{'-':>17}" for v in known.values()), flush=True)


if __name__ == "__main__":
    main()
