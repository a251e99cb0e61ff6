"""The probe's safety check: an order of magnitude, so far from the measurements that a busy machine does not reach
it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.fuzz import probe

PARTITIONS = 300
MEMORY_BYTES_MAX = 1 << 30


@pytest.mark.parametrize(
    "peer",
    [probe.metadata_amplified, probe.answers_unread, probe.bombs],
)
def test_a_tiny_request_is_answered_beside_hostile_peers(peer: probe.Peer, tmp_path: Path) -> None:
    broker = probe.prepared(tmp_path, PARTITIONS)
    try:
        measured = probe.measure(broker, peer, 1.0, peers=1)
        assert broker.process.poll() is None, broker.stderr[-2000:]
        assert not measured.failed, measured  # within 20 s
        assert measured.memory_bytes < MEMORY_BYTES_MAX, measured
        assert "Traceback" not in broker.stderr
    finally:
        broker.stop()
