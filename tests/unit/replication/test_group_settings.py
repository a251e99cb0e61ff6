"""Settings of single groups: their names in the image, their checks and their effect."""

from __future__ import annotations

from typing import Any

import pytest

from sparklog.errors import InvalidConfigError, PolicyViolationError
from sparklog.protocol.group_messages import GroupHeartbeatRequest
from sparklog.replication import group_settings
from sparklog.replication.group_membership import GroupConfig
from sparklog.replication.group_settings import HEARTBEAT_INTERVAL, SESSION_TIMEOUT, altered_group, stored_groups
from sparklog.replication.groups import GroupCoordinator
from tests.support.cases import for_each

CONFIG = GroupConfig(session_timeout_ms=45_000, heartbeat_interval_ms=5_000)


def test_values_are_stored_by_group_and_removed_by_none() -> None:
    image = altered_group({}, CONFIG, "a/b", {SESSION_TIMEOUT: "60000", HEARTBEAT_INTERVAL: 7_000})
    configs: dict[str, Any] = dict(image) | {"broker/*/log.level": "INFO"}
    assert stored_groups(configs) == {"a/b": {SESSION_TIMEOUT: 60_000, HEARTBEAT_INTERVAL: 7_000}}
    removed = altered_group(configs, CONFIG, "a/b", {SESSION_TIMEOUT: None})
    assert removed == {f"group/a/b/{SESSION_TIMEOUT}": None}


@for_each(
    "changes",
    [
        {"consumer.nonsense": 5},
        {"session.timeout.ms": 5_000},
        {SESSION_TIMEOUT: "soon"},
        {SESSION_TIMEOUT: 0},
        {SESSION_TIMEOUT: 5_000},
        {HEARTBEAT_INTERVAL: 45_000},
    ],
)
def test_other_values_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidConfigError):
        altered_group({}, CONFIG, "g", changes)


def test_the_number_of_values_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_settings, "ENTRIES_MAX", 1)
    configs: dict[str, Any] = dict(altered_group({}, CONFIG, "a", {SESSION_TIMEOUT: 60_000}))
    with pytest.raises(PolicyViolationError):
        altered_group(configs, CONFIG, "b", {SESSION_TIMEOUT: 60_000})
    altered_group(configs, CONFIG, "a", {SESSION_TIMEOUT: None})


def test_a_groups_values_apply_to_its_present_and_future_members() -> None:
    coordinator = GroupCoordinator(CONFIG, {"t": ("id", 2)})

    def beat(group_id: str, epoch: int, now_ms: int, **more: Any) -> int:
        topics = ["t"] if epoch == 0 else None
        request = GroupHeartbeatRequest(group_id, "m", epoch, topics=topics, owned=[] if epoch == 0 else None, **more)
        return coordinator.heartbeat(request, "h", now_ms, now_ms).answer.heartbeat_interval_ms

    assert (beat("g", 0, 0), beat("other", 0, 0)) == (5_000, 5_000)
    coordinator.set_group_settings({"g": {SESSION_TIMEOUT: 9_000, HEARTBEAT_INTERVAL: 1_000}})
    assert (beat("g", 1, 0), beat("other", 1, 0)) == (1_000, 5_000)
    coordinator.tick(9_000, 9_000)
    assert [len(coordinator.describe(g).members) for g in ("g", "other")] == [0, 1]
    assert beat("g", 0, 10_000, session_timeout_ms=30_000) == 1_000
    coordinator.tick(39_999, 39_999)
    assert len(coordinator.describe("g").members) == 1, "the member has asked for its own timeout"
    coordinator.set_group_settings({})
    assert beat("g", 3, 39_999) == 5_000
