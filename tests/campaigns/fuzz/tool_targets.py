"""`sparklog log dump`, `verify` and `repair` on files from elsewhere, called in a child as the command line calls
them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sparklog.cli.app import run_app
from sparklog.errors import SparklogError
from tests.campaigns.fuzz.log_targets import Found, _Directory, _open, _read_log
from tests.campaigns.fuzz.planted import plant


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: str) -> Ran:
    """The command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_app(arguments)
    ran = Ran(code, out.getvalue(), err.getvalue())
    assert ran.code in (0, 1), ran
    assert "Traceback" not in ran.err, ran.err
    return ran


def dump(schema_id: int, hostile: bytes, sealed: bool) -> Found:
    """Every record printed; the first segment's, which has the hostile batch."""
    with _Directory() as root:
        directory = root / "events-0"
        plant(directory, schema_id, hostile, sealed=sealed)
        ran = run("log", "dump", str(directory), "--records", "100000", "--format", "json", "--indexes")
        text = run("log", "dump", str(directory))
        assert text.code == ran.code
        shown = [msgspec.json.decode(line) for line in ran.out.splitlines()]
        offsets = [r["_offset"] for s in shown for r in s["first_records"]]
        return Found([], [ran.err] if ran.code else [], {"offsets": offsets, "code": ran.code})


def verify(schema_id: int, hostile: bytes, sealed: bool) -> Found:
    with _Directory() as root:
        directory = root / "events-0"
        plant(directory, schema_id, hostile)  # sealed: a rolled segment that is not is damage of its own
        ran = run("log", "verify", str(directory), "--format", "json")
        report = msgspec.json.decode(ran.out)
        assert report["sound"] == (ran.code == 0), report
        facts = {"sound": report["sound"], "not_looked_at": _not_looked_at(report)}
        return Found([], [d["message"] for d in report["damage"]], facts)


def _not_looked_at(report: dict[str, Any]) -> bool:
    """Return True if a batch states a larger decompressed size than the tools decompress."""
    return any("not checked" in note["message"] for note in report["notes"])


def repair(schema_id: int, hostile: bytes, sealed: bool) -> Found:
    """Repair, then start: returns the present content."""
    with _Directory() as root:
        directory = root / "events-0"
        plant(directory, schema_id, hostile)  # sealed: a rolled segment that is not is damage of its own
        before = {p.name: p.read_bytes() for p in directory.iterdir()}
        dry = run("log", "repair", str(directory), "--format", "json")
        assert {p.name: p.read_bytes() for p in directory.iterdir()} == before, "a dry run has written"
        ran = run("log", "repair", str(directory), "--yes", "--format", "json")
        report = msgspec.json.decode(run("log", "verify", str(directory), "--format", "json").out)
        facts = {"repaired": dry.code == 1, "sound": report["sound"], "not_looked_at": _not_looked_at(report)}
        try:
            log = _open(root, schema_id, {"index.interval.bytes": 1}, clean=False)
            reader = _read_log(log, schema_id, "repair")
            log.close()
        except SparklogError as e:
            return Found([], [f"{type(e).__name__}: {e}"], facts | {"offline": True})
        kept = sum(f.stat().st_size for f in Path(directory).glob("*.corrupt"))
        return Found(reader.readings, reader.refused, facts | {"quarantined": kept, "code": ran.code})
