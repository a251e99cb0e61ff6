"""The checksum of batches, and the decoders of small structures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sparklog.format import checksum
from sparklog.format.decoders import json_decoder, msgpack_decoder

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


# Decoders that several threads need at once, for the first time


ROOT = Path(__file__).resolve().parents[3]
FIRST_USE = """
import faulthandler, sys, threading
import msgspec
from sparklog.format.decoders import convert, json_decoder, msgpack_decoder

faulthandler.enable()
sys.setswitchinterval(1e-6)
for _ in range(250):
    inner = msgspec.defstruct("Inner", [(f"a{i}", int) for i in range(5)], array_like=True)
    outer = msgspec.defstruct("Outer", [(f"f{i}", list[inner]) for i in range(10)], array_like=True)
    value = outer(*[[inner(1, 2, 3, 4, 5)]] * 10)
    begun = threading.Barrier(6)
    failed = []

    def first(made, encode):
        data = encode(value)
        begun.wait()
        if made(outer).decode(data) != value or made(list[inner]).decode(encode(value.f0)) != value.f0:
            failed.append(made)

    def converted():
        plain = msgspec.to_builtins(value)
        begun.wait()
        if convert(plain, outer) != value:
            failed.append(convert)

    kinds = [(msgpack_decoder, msgspec.msgpack.encode), (json_decoder, msgspec.json.encode)] * 2
    threads = [threading.Thread(target=first, args=kind) for kind in kinds]
    threads += [threading.Thread(target=converted) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
"""


def test_threads_that_need_a_struct_for_the_first_time_at_once() -> None:
    """Without the lock the process dies of SIGSEGV."""
    ended = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_a_decoder_is_created_once() -> None:
    class Point(msgspec.Struct):
        x: int

    assert msgpack_decoder(Point) is msgpack_decoder(Point)
    assert msgpack_decoder(list[Point]) is msgpack_decoder(list[Point])
    assert json_decoder(Point).decode(b'{"x":1}') == Point(1)
    with pytest.raises(msgspec.ValidationError):
        json_decoder(Point).decode(b'{"x":"y"}')


def test_no_struct_is_met_elsewhere() -> None:
    made = re.compile(
        r"\bDecoder\((?!\)|float_hook=)|\bdecode\([^()]*, type=(?!dict\[str, (?:str|msgspec\.Raw)\])|\bmsgspec\.convert\((?!value, dt\.timedelta)"
    )
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("sparklog", "broker_daemon", "datasource")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "decoders.py"
        for line in path.read_text().splitlines()
        if made.search(line)
    ]
    assert not found
