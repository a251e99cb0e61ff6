"""CRC-32C, and the modules that it must not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sparklog.format import checksum

CHECK = b"123456789"
CHECK_CRC32C = 0xE3069283
"""Of CHECK, as the catalogues of checksums have it."""


class NothingFound:
    @staticmethod
    def find_spec(*_: object) -> None:
        return None


def test_it_is_crc32c_and_goes_on_from_a_checksum() -> None:
    assert checksum.crc32c(CHECK) == CHECK_CRC32C
    assert checksum.crc32c(CHECK[4:], checksum.crc32c(CHECK[:4])) == CHECK_CRC32C


def test_another_layout_of_the_package_is_imported_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "PathFinder", NothingFound)
    assert checksum._load()(CHECK) == CHECK_CRC32C


def test_the_package_can_be_imported_afterwards() -> None:
    program = "import sparklog.format.checksum, crc32c; print(crc32c.crc32c(b'123456789'))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(done.stdout) == CHECK_CRC32C
