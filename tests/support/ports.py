"""A port for a process that has to be told its own before it listens."""

from __future__ import annotations

from sparklog.environment.ports import free_ports


def free_port() -> int:
    """A port of loopback that was free just now."""
    return free_ports(1)[0]
