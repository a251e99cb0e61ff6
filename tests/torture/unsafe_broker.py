"""A broker of which safeguards are off, to see that a campaign notices.

    python -m tests.torture.unsafe_broker <module>:<field>[,…] <arguments of sparklog_broker>

`module` has the frozen instance ALL_SAFEGUARDS that everything uses which is not told otherwise.
"""

from __future__ import annotations

import importlib
import sys

from sparklog_broker.main import main


def switch_off(safeguard: str) -> None:
    """Raises AttributeError if there is no such safeguard, or if it is off already."""
    module, _, field = safeguard.partition(":")
    safeguards = importlib.import_module(module).ALL_SAFEGUARDS
    if getattr(safeguards, field) is not True:
        raise AttributeError(f"{safeguard} is not on")
    object.__setattr__(safeguards, field, False)


if __name__ == "__main__":
    for safeguard in sys.argv.pop(1).split(","):
        switch_off(safeguard)
    sys.exit(main())
