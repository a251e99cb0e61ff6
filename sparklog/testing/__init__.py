"""The test kit for streaming jobs: `pip install 'sparklog[testing]'` brings it to pytest.

The plugin's fixtures are `sparklog_broker`, `kafka_broker`, `topic`, `produce`, `rows`, `replay`, `faults`, `spark`,
`stream` and `sim`. This module has the assertions, and the classes behind the fixtures. Everything else in this package
is private. Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparklog.testing._assertions import eventually, exactly_once, in_order, same_rows
    from sparklog.testing._broker import Faults, KitBroker
    from sparklog.testing._cases import record, replay
    from sparklog.testing._seeds import seeds
    from sparklog.testing._sim import Sim
    from sparklog.testing._sim_clients import SimClients
    from sparklog.testing._stream import Stream, StreamRun

_WHERE = {
    "Faults": "_broker",
    "KitBroker": "_broker",
    "Sim": "_sim",
    "SimClients": "_sim_clients",
    "Stream": "_stream",
    "StreamRun": "_stream",
    "eventually": "_assertions",
    "exactly_once": "_assertions",
    "in_order": "_assertions",
    "record": "_cases",
    "replay": "_cases",
    "same_rows": "_assertions",
    "seeds": "_seeds",
}

__all__ = [
    "Faults",
    "KitBroker",
    "Sim",
    "SimClients",
    "Stream",
    "StreamRun",
    "eventually",
    "exactly_once",
    "in_order",
    "record",
    "replay",
    "same_rows",
    "seeds",
]


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'sparklog.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"sparklog.testing.{module}"), name)
    globals()[name] = value
    return value
