"""Switches that take a fast path out of a process from outside: the product has no such switches.

`environment` names the path in a variable and puts a `sitecustomize.py` on the path of every Python that starts with
it, the broker's and the clients', which calls `apply` before anything else runs.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

VARIABLE = "SPARKLOG_BENCH_WITHOUT"
ROOT = Path(__file__).resolve().parents[3]
SWITCHES: dict[str, dict[str, object]] = {
    "fetch-turn": {"sparklog.client.consumer.fetch_turn:FetchTurn.is_polls": False},
    "small-batches": {
        "sparklog.client.producer.open_batch:OpenBatch.small_rows": None,
        "sparklog.client.reading.consumed:is_small_batch": False,
        "sparklog.format.offset_column:is_small_batch": False,
    },
    "packed-batches": {"sparklog.client.producer.encoding:encode_packed_batch": None},
    "inline-appends": {"sparklog_broker.partitions.appender:Appender.may_append_inline": False},
}
"""By fast path: functions, and the result of their stand-ins."""


def environment(name: str, directory: Path) -> dict[str, str]:
    """Variables for processes without the fast path; `directory` takes the file that Python runs first."""
    site = directory / f"without-{name}"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(
        "from tests.campaigns.benchmarks.switches import apply\napply()\n", encoding="utf-8"
    )
    packages = (site, ROOT, ROOT / "datasource", ROOT / "broker_daemon")
    rest = os.environ.get("PYTHONPATH", "")
    return {VARIABLE: name, "PYTHONPATH": os.pathsep.join([*map(str, packages), *([rest] if rest else [])])}


def switch_off(name: str) -> None:
    """Replace the functions of a fast path. Raises AttributeError for a function that does not exist any more."""
    for target, result in SWITCHES[name].items():
        module, _, path = target.partition(":")
        owner = importlib.import_module(module)
        *owners, attribute = path.split(".")
        for each in owners:
            owner = getattr(owner, each)
        getattr(owner, attribute)  # the switch must not be older than the fast path
        setattr(owner, attribute, lambda *_, result=result, **__: result)


def apply() -> None:
    """Switch off the fast path that the environment names. A failure ends the process: two equal sides measure
    nothing."""
    name = os.environ.get(VARIABLE)
    try:
        if name:
            switch_off(name)
    except Exception as e:  # noqa: BLE001
        print(f"cannot switch off {name}: {e!r}", flush=True)
        os._exit(70)
