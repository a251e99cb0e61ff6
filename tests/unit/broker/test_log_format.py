"""The broker's log: lines to read, or JSON."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from sparklog_broker.log_format import VALUE_CHARS_MAX, JsonFormatter, set_up_logging


def line(message: str, *arguments: object, **more: Any) -> dict[str, Any]:
    record = logging.getLogger("a.b").makeRecord("a.b", logging.WARNING, "f", 1, message, arguments, None, **more)
    record.created = 1_700_000_000.1234
    text = JsonFormatter().format(record)
    assert "\n" not in text
    found: dict[str, Any] = msgspec.json.decode(text)
    return found


def test_a_line_has_keys() -> None:
    assert line("topic %s has %d partitions", "t", 3) == {
        "time": "2023-11-14T22:13:20.123+00:00",
        "level": "WARNING",
        "logger": "a.b",
        "thread": "MainThread",
        "event": "topic %s has %d partitions",
        "message": "topic t has 3 partitions",
    }


def test_the_caller_gives_more_keys() -> None:
    found = line("slow", extra={"fields": {"event": "slow_request", "api": "FETCH", "wait_ms": 1.5}})
    assert (found["event"], found["message"], found["api"], found["wait_ms"]) == ("slow_request", "slow", "FETCH", 1.5)


def test_text_of_a_peer_starts_no_line_of_its_own() -> None:
    found = line("%s: refused", 'x"\n{"level": "ERROR"}\r\n\u2028')
    assert found["message"] == 'x"\n{"level": "ERROR"}\r\n\u2028: refused'
    assert found["level"] == "WARNING"


def test_an_exception_is_in_its_line() -> None:
    try:
        raise KeyError("k")
    except KeyError:
        record = logging.getLogger("a").makeRecord("a", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    found = msgspec.json.decode(JsonFormatter().format(record))
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("KeyError: 'k'")


def test_long_texts_are_cut() -> None:
    assert len(line("%s", "x" * (VALUE_CHARS_MAX + 10))["message"]) == VALUE_CHARS_MAX + 1


@pytest.fixture
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    root.handlers, root.level = handlers, level


@pytest.mark.usefixtures("_root_logger")
def test_the_form_can_be_changed(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("INFO")
    logging.getLogger("x").info("one %d", 1)
    set_up_logging("WARNING", "json")
    logging.getLogger("x").info("not told")
    logging.getLogger("x").warning("two %d", 2)
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("INFO x: one 1")
    assert msgspec.json.decode(second)["message"] == "two 2"


FORGED = "x\n2026-01-01 00:00:00,000 WARNING sparklog_broker.main: stopped\r\x1b[2J\u2028\u202e\x85\x0b\x00"


def written(capsys: pytest.CaptureFixture[str], log_format: str) -> list[str]:
    """The lines of two messages of which a peer has chosen a part, one of them with an exception."""
    set_up_logging("INFO", log_format)
    log = logging.getLogger("any.logger")
    log.info("group %s is gone", FORGED)
    try:
        raise KeyError(FORGED) from ValueError(FORGED)
    except KeyError:
        log.exception("%s: failed", FORGED)
    return capsys.readouterr().err.splitlines()


@pytest.mark.usefixtures("_root_logger")
def test_a_name_forges_no_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = written(capsys, "text")
    assert [one for one in lines if not one.startswith("    ")] == [lines[0], lines[1]]
    assert r"x\n2026-01-01 00:00:00,000 WARNING" in lines[0]
    assert lines[0].endswith(r"stopped\r\x1b[2J\u2028\u202e\x85\x0b\x00 is gone")
    assert all(one.isprintable() for one in lines)
    assert any("KeyError" in one for one in lines[2:])


@pytest.mark.usefixtures("_root_logger")
def test_a_message_of_an_exception_with_line_ends_stays_indented(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("INFO")
    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.getLogger("a").exception("failed")
    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith("ERROR a: failed")
    assert all(one.startswith("    ") and one.isprintable() for one in others)


@pytest.mark.usefixtures("_root_logger")
def test_a_name_forges_no_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    lines = written(capsys, "json")
    assert all(one.isprintable() for one in lines)
    assert [msgspec.json.decode(one)["message"] for one in lines] == [f"group {FORGED} is gone", f"{FORGED}: failed"]


@pytest.mark.usefixtures("_root_logger")
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_name_of_a_file_that_is_no_utf_8_is_escaped(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("INFO", log_format)
    logging.getLogger("a").info("%s", "caf\udce9")
    (line,) = capsys.readouterr().err.splitlines()
    assert "caf\\" in line
    assert "udce9" in line
    assert "Logging error" not in line


@pytest.mark.usefixtures("_root_logger")
def test_long_lines_of_text_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("INFO")
    logging.getLogger("a").info("%s", "x" * (2 * VALUE_CHARS_MAX))
    assert len(capsys.readouterr().err) < VALUE_CHARS_MAX + 100
