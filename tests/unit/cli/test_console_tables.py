"""Tables of the command line show texts of other users, and these stay text."""

from __future__ import annotations

import pytest

from sparklog.cli import console

HOSTILE = "\x1b[2J\x1b]0;title\x07g\nforged   Stable\r\u202e\x9b31m"


def test_names_cannot_command_the_terminal_or_look_like_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    table = console.table("group", "state")
    table.add_row(HOSTILE, "Stable")
    console.stdout().print(table)
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if "Stable" in line]
    assert len(rows) == 1
    assert r"\x1b[2J\x1b]0;title\x07g\nforged   Stable\r\u202e\x9b31m" in rows[0]
    assert all(line.isprintable() for line in shown.splitlines())


def test_other_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = console.table("Gruppe", "n", right=("n",))
    table.add_row("Grüße 東京", console.number(1234))
    console.stdout().print(table)
    assert "Grüße 東京" in (shown := capsys.readouterr().out)
    assert "1,234" in shown
