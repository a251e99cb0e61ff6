"""Options that several commands share, and arguments whose mistakes are refused before anything is done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from sparklog.cli import decommission
from sparklog.cli.elect_leaders import _parse_partitions
from sparklog.cli.options import parse_changes
from sparklog.client.admin.admin import Admin
from sparklog.errors import RequestTimedOutError
from sparklog.types import TopicPartition


def test_changes_of_settings() -> None:
    assert parse_changes(["a=1", "b = 2"], ["c"], "--add", "--delete") == {"a": "1", "b": "2", "c": None}
    with pytest.raises(typer.BadParameter, match="a is given to --add and to --delete"):
        parse_changes(["a=1"], ["a"], "--add", "--delete")
    with pytest.raises(typer.BadParameter, match="a is given to NAME=VALUE and to --delete"):
        parse_changes(["a=1"], ["a"], "", "--delete")


def test_a_partition_is_a_number_in_ascii() -> None:
    assert _parse_partitions("events:1", {"events": 2}) == [TopicPartition("events", 1)]
    for number in ("2", "²", "-1", ""):
        with pytest.raises(typer.BadParameter, match="partitions 0 to 1"):
            _parse_partitions(f"events:{number}", {"events": 2})


def test_a_broker_that_keeps_its_partitions_is_not_called_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    moves: dict[TopicPartition, tuple[int, ...]] = {TopicPartition("events", 0): (2, 3)}
    accepted: list[Any] = []
    monkeypatch.setattr(decommission, "plan", lambda *_: moves)
    monkeypatch.setattr("sparklog.cli.reassignment_progress.follow", lambda _: None)
    admin = SimpleNamespace(alter_partition_reassignments=lambda m, throttle_bytes: accepted.append(m))
    with pytest.raises(RequestTimedOutError, match="1 partitions are still on broker 1"):
        decommission._drain(cast("Admin", admin), 1, moves, None)
    assert len(accepted) == decommission.ROUNDS_MAX
