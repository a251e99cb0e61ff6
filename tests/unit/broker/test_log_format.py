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


def test_what_a_peer_sends_makes_no_line_of_its_own() -> None:
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
