"""CRC-32C of bytes, in C: `crc32c(data, value=0)` continues `value`, the checksum of the preceding bytes.

The package crc32c asks `importlib.metadata` for its own version, which imports the email package. That takes more than
a twentieth of the processor time of a start of a broker or a Spark worker. The package's extension module alone needs
no such import.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder


def _load() -> Callable[..., int]:
    package = PathFinder.find_spec("crc32c")
    spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations if package else [])
    if spec is None or spec.loader is None:  # installed in another way, or laid out differently
        import crc32c as whole

        return whole.crc32c
    module = spec.loader.create_module(spec)
    assert module is not None
    spec.loader.exec_module(module)
    return module.crc32c  # type: ignore[no-any-return]


crc32c = _load()
