"""Detection of peers on the same host."""

from __future__ import annotations

import pytest
from sparklog_broker.handlers.locate import is_same_host


@pytest.mark.parametrize(
    ("peer", "local", "same"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.7", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("::ffff:127.0.0.2", "::ffff:127.0.0.1", True),
        ("10.0.0.5", "10.0.0.5", True),
        ("10.0.0.6", "10.0.0.5", False),
        ("fe80::1%eth0", "fe80::2%eth0", False),
        ("", "", False),
        ("not an address", "127.0.0.1", False),
    ],
)
def test_is_same_host(peer: str, local: str, same: bool) -> None:
    assert is_same_host(peer, local) is same
