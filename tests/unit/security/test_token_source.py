"""A token is requested again when its part of the lifetime is over, or when a broker has refused it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparklog.security.client_security import TokenEndpoint
from sparklog.security.token_source import USED_PART, TokenSource


@pytest.mark.parametrize("lifetime_s", [100, 0])
def test_a_token_is_reused_for_a_part_of_its_lifetime(lifetime_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, issued = 0.0, 0

    def fetch(*_: Any, **__: Any) -> bytes:
        nonlocal issued
        issued += 1
        return json.dumps({"access_token": f"t{issued}", "expires_in": lifetime_s}).encode()

    monkeypatch.setattr("sparklog.security.token_source.fetch", fetch)
    source = TokenSource(TokenEndpoint("https://localhost/token"), lambda: now_s)
    assert source.token(1).reveal() == "t1"
    if lifetime_s:
        now_s = USED_PART * lifetime_s - 0.001
        assert source.token(1).reveal() == "t1"
    now_s = USED_PART * lifetime_s
    assert source.token(1).reveal() == "t2"
    source.forget()
    assert source.token(1).reveal() == "t3"
