"""Text interfaces: the commands of `transcripts/*.txt` print the output that stands below them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.transcripts import FOLDER, difference, run

if TYPE_CHECKING:
    from sparklog.client.local import LocalBroker


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_commands_print_their_transcript(
    name: str, broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARKLOG_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    path = FOLDER / f"{name}.txt"
    difference_now = difference(path, run(path, tmp_path))
    assert not difference_now, (
        f"{difference_now}\n\nRead the difference. If it is as intended: python -m tests.support.transcripts {path}"
    )
