"""The journal: its entries survive, a torn end is cut, damage in the middle is reported."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.environment.files import RealFiles
from sparklog.errors import InvalidConfigError, LogCorruptError, RemoteStorageError, StorageFullError
from sparklog.log.tiering.journal import JOURNAL_FILE, MAGIC, Journal, decode_journal, encode_journal, encode_record
from sparklog.log.tiering.object_store import ObjectStore, parse_options
from sparklog.log.tiering.state import (
    CopyFinished,
    CopyStarted,
    DeleteFinished,
    DeleteStarted,
    Event,
    LocalStart,
    ObjectInfo,
    RemoteLogState,
    RemoteSegmentMetadata,
)
from sparklog.testing._sim_files import PowerCut, SimFiles
from tests.support.cases import for_each
from tests.support.logs import LimitedFiles


def started(number: int) -> CopyStarted:
    return CopyStarted(f"{number:032x}", f"p/{number}", 10 * number, 10 * number + 10)


def finished(number: int) -> CopyFinished:
    s = started(number)
    return CopyFinished(
        RemoteSegmentMetadata(
            s.id, s.prefix, s.base_offset, s.next_offset, 1, 100, 10, 90, 5, 0, 6, 7, 1 << 20, {"x": ObjectInfo(1, 2)}
        )
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Events that may follow each other."""
    events: list[Event] = []
    state = RemoteLogState()
    for number in range(draw(st.integers(1, 6))):
        life: list[Event] = [
            started(number), finished(number), DeleteStarted(f"{number:032x}"), DeleteFinished(f"{number:032x}"),
        ]  # fmt: skip
        if draw(st.booleans()):
            del life[1]
        events += life[: draw(st.integers(1, len(life)))]
        if draw(st.booleans()):
            events.append(LocalStart(number))
    for event in events:
        state.apply(event)
    return events


@given(histories(), st.data())
def test_any_cut_gives_a_state_that_was(events: list[Event], data: st.DataObject) -> None:
    content = MAGIC + b"".join(map(encode_record, events))
    cut = data.draw(st.integers(0, len(content)))
    state, end = decode_journal(content[:cut])
    assert end <= cut
    whole, length = 0, len(MAGIC)
    for event in events:
        length += len(encode_record(event))
        whole += length <= cut
    assert state.events() == RemoteLogState(events[:whole]).events()
    assert decode_journal(encode_journal(state))[0].events() == state.events()


def test_damage_before_good_records_is_reported(tmp_path: Path) -> None:
    content = bytearray(MAGIC + encode_record(started(0)) + encode_record(finished(0)))
    content[len(MAGIC) + 12] ^= 1
    (tmp_path / JOURNAL_FILE).write_bytes(content)
    with pytest.raises(LogCorruptError, match=r"position 8.*restore-remote"):
        Journal(RealFiles(), tmp_path)
    (tmp_path / JOURNAL_FILE).write_bytes(b"something else")
    with pytest.raises(LogCorruptError, match="position 0"):
        Journal(RealFiles(), tmp_path)


def test_a_torn_end_is_cut_and_written_over(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_FILE).write_bytes(MAGIC + encode_record(started(0)) + encode_record(finished(0))[:-1])
    journal = Journal(RealFiles(), tmp_path)
    assert [c.started.id for c in journal.state.orphans] == [f"{0:032x}"]
    journal.append(DeleteStarted(f"{0:032x}"))
    journal.append(DeleteFinished(f"{0:032x}"))
    journal.close()
    assert Journal(RealFiles(), tmp_path).state.copies == {}


def test_a_failed_append_makes_no_change(tmp_path: Path) -> None:
    files = LimitedFiles()
    journal = Journal(files, tmp_path)
    journal.append(started(0))
    files.free_bytes = 20
    with pytest.raises(StorageFullError):
        journal.append(started(1))
    files.free_bytes = 1 << 20
    with pytest.raises(LogCorruptError, match="unknown"):
        journal.append(finished(1))
    journal.append(started(2))
    journal.close()
    assert list(Journal(RealFiles(), tmp_path).state.copies) == [started(0).id, started(2).id]


def test_history_is_dropped_at_a_start(tmp_path: Path) -> None:
    journal = Journal(LimitedFiles(), tmp_path)  # without fsync
    for number in range(400):
        for event in (started(number), DeleteStarted(f"{number:032x}"), DeleteFinished(f"{number:032x}")):
            journal.append(event)
    journal.append(started(400))
    journal.close()
    assert journal.path.stat().st_size > 64 * 1024
    assert list(Journal(RealFiles(), tmp_path).state.copies) == [started(400).id]
    assert journal.path.stat().st_size < 200


@for_each("event", [finished(0), DeleteFinished(f"{0:032x}"), DeleteStarted("f" * 32)])
def test_events_out_of_order_are_refused(event: Event) -> None:
    with pytest.raises(LogCorruptError):
        RemoteLogState([event])
    with pytest.raises(LogCorruptError, match="twice"):
        RemoteLogState([started(0), started(0)])


def test_options_are_json_or_a_file_and_never_repeated(tmp_path: Path) -> None:
    secret = tmp_path / "options.json"
    secret.write_text('{"key": "k", "secret": "hush"}')
    assert parse_options(str(secret)) == parse_options(secret.read_text()) == {"key": "k", "secret": "hush"}
    assert parse_options("") == {}
    for wrong in ('{"secret": "hush"', "[1]", str(tmp_path / "hush"), '{"secret": hush}'):
        with pytest.raises(InvalidConfigError) as raised:
            parse_options(wrong)
        assert "hush" not in str(raised.value)


@for_each("url", ["nosuch://bucket", "/a/path", "relative"])
def test_urls_that_cannot_be_used(url: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"remote\.log\.storage\.url"):
        ObjectStore(url)


@for_each("seed", range(40))
def test_no_power_cut_leaves_half_a_beginning(seed: int) -> None:
    """A file whose first record is not on the disk yet may come back longer than its kept part."""
    directory = Path("/data/t-0")
    for steps in range(12):
        files = SimFiles()
        files.make_directory(directory)
        files.sync_directory(directory)
        files.cut_at = len(files.calls) + steps
        recorded = 0
        try:
            journal = Journal(files, directory)
            for number in range(2):
                journal.append(started(number))
                recorded += 1
        except PowerCut:
            pass
        files.power_cut(random.Random(seed))
        found = Journal(files, directory).state.copies
        assert recorded <= len(found) <= recorded + 1, (steps, found)


# Objects in a directory


def test_a_replaced_object_stays_until_the_new_one_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore(tmp_path.as_uri())
    store.replace("latest", b"first")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(RemoteStorageError, match="No space left"):
            store.replace("latest", b"second")
        assert store.read_unchecked("latest") == b"first"
    store.replace("latest", b"third")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"latest": b"third"}
    store = ObjectStore("memory://replaced")
    store.replace("latest", b"first")
    store.replace("latest", b"second")
    assert store.read_unchecked("latest") == b"second"
