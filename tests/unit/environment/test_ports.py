"""Ports for programs that have to be told theirs."""

from __future__ import annotations

import socket

import pytest

from sparklog.environment import ports
from sparklog.environment.ports import END, FIRST, free_ports


def test_ports_differ_and_no_outgoing_connection_gets_them() -> None:
    chosen = [port for _ in range(20) for port in free_ports(50)]
    assert len(set(chosen)) == 1_000 and all(FIRST <= port < END for port in chosen)


def test_a_port_on_which_a_program_listens_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_ports(1)[0])) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "FIRST", port)
        monkeypatch.setattr(ports, "END", port + 1)
        with pytest.raises(OSError, match="no 1 ports from"):
            free_ports(1)
