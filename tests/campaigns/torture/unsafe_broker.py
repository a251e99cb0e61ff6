"""A broker of which safeguards are off, to see that a campaign notices.

    python -m tests.campaigns.torture.unsafe_broker <module>:<field>[,…] <arguments of sparklog_broker>

`module` has the frozen dataclass `Safeguards`. Every instance has the field off: those that are there when the broker
has been imported (default arguments), and those that it makes.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import sys

from sparklog_broker.main import main


def switch_off(safeguard: str) -> None:
    """Raises ValueError if there is no such safeguard."""
    module, _, name = safeguard.partition(":")
    guards = importlib.import_module(module).Safeguards
    names = [field.name for field in dataclasses.fields(guards)]
    if name not in names:
        raise ValueError(f"{module} has the safeguards {', '.join(names)}, not {name!r}")
    defaults = list(guards.__init__.__defaults__)
    defaults[names.index(name)] = False
    guards.__init__.__defaults__ = tuple(defaults)
    for made in [o for o in gc.get_objects() if isinstance(o, guards)]:
        object.__setattr__(made, name, False)
    if getattr(guards(), name):
        raise ValueError(f"{safeguard} cannot be switched off")


if __name__ == "__main__":
    for chosen in sys.argv.pop(1).split(","):
        switch_off(chosen)
    sys.exit(main())
