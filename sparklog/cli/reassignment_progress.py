"""The progress of reassignments on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin
    from sparklog.client.admin.cluster_admin import PartitionReassignment

ASK_AGAIN_S = 1.0
LINE_EVERY_S = 10.0
"""Shortest time between lines of progress if stderr is no terminal."""


def summary(under_way: Sequence[PartitionReassignment], throttle_bytes: int) -> str:
    """Return the progress in one line. `throttle_bytes` is the limit per second and broker; 0: no limit."""
    from sparklog.cli import console

    measured = [r for r in under_way if r.total_bytes >= 0]
    copied, total = sum(r.copied_bytes for r in measured), sum(r.total_bytes for r in measured)
    text = f"{len(under_way)} partition{'' if len(under_way) == 1 else 's'} under way"
    if measured:
        share = 100 * copied / total if total else 100
        text += f", {console.size(copied)} of {console.size(total)} copied ({share:.0f} %)"
    if throttle_bytes:
        text += f", at most {console.size(throttle_bytes)}/s per broker"
    return text


def follow(admin: Admin) -> None:
    """Wait until no partition is being reassigned, and print the progress on stderr."""
    printed, printed_at = "", 0.0
    is_terminal = sys.stderr.isatty()
    throttle = 0
    while under_way := admin.list_partition_reassignments():
        throttle = admin.describe_cluster().throttle_bytes
        line = summary(under_way, throttle)
        if is_terminal:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif line != printed and time.monotonic() - printed_at >= LINE_EVERY_S:
            print(line, file=sys.stderr, flush=True)
            printed_at = time.monotonic()
        printed = line
        time.sleep(ASK_AGAIN_S)
    if printed and is_terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
