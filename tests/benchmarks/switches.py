"""Switches fast paths off in a process from outside: the product has no such switches.

`environment` names the path in a variable and puts a `sitecustomize.py` on the path of every Python that is started
with it, the broker's and the clients', which calls `apply` before anything else runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "SPARKLOG_BENCH_WITHOUT"
ROOT = Path(__file__).resolve().parents[2]


def _never(*_: object, **__: object) -> bool:
    return False


def _nothing(*_: object, **__: object) -> None:
    return None


def _replace(owner: Any, name: str, value: object) -> None:
    if not hasattr(owner, name):
        raise AttributeError(f"{owner.__name__} has no {name}: the switch is older than the fast path")
    setattr(owner, name, value)


def _fetch_turn() -> None:
    from sparklog.client.consumer.fetch_turn import FetchTurn

    _replace(FetchTurn, "is_polls", _never)


def _small_batches() -> None:
    from sparklog.client.producer.open_batch import OpenBatch
    from sparklog.client.reading import consumed
    from sparklog.format import offset_column

    _replace(OpenBatch, "small_rows", _nothing)
    _replace(consumed, "is_small_batch", _never)
    _replace(offset_column, "is_small_batch", _never)


def _packed_batches() -> None:
    from sparklog.client.producer import encoding

    _replace(encoding, "encode_packed_batch", _nothing)


def _inline_appends() -> None:
    from sparklog_broker.partitions.appender import Appender

    _replace(Appender, "may_append_inline", _never)


SWITCHES: dict[str, Callable[[], None]] = {
    "fetch-turn": _fetch_turn,
    "small-batches": _small_batches,
    "packed-batches": _packed_batches,
    "inline-appends": _inline_appends,
}


def environment(name: str, directory: Path) -> dict[str, str]:
    """What processes without the fast path are started with; `directory` takes the file that Python runs first."""
    site = directory / f"without-{name}"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text("from tests.benchmarks.switches import apply\napply()\n", encoding="utf-8")
    packages = (site, ROOT, ROOT / "datasource", ROOT / "broker_daemon")
    rest = os.environ.get("PYTHONPATH", "")
    return {VARIABLE: name, "PYTHONPATH": os.pathsep.join([*map(str, packages), *([rest] if rest else [])])}


def apply() -> None:
    """Switches off what the environment names. A failure ends the process: a side that is as the other one measures
    nothing."""
    name = os.environ.get(VARIABLE)
    if not name:
        return
    try:
        SWITCHES[name]()
    except Exception as e:  # noqa: BLE001 - said, and fatal
        print(f"cannot switch off {name}: {e!r}", flush=True)
        os._exit(70)
