"""The files of a secured cluster."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from sparklog.errors import InvalidConfigError
from sparklog.security.cluster_setup import new_authority, places, retire_authority, secure_cluster_setup


def test_the_only_authority_cannot_be_retired_nor_a_third_added(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    secure_cluster_setup(tmp_path, places(["localhost"], 9292), "localhost:2181", now)
    authorities = tmp_path / "ca.pem"
    first = authorities.read_text()
    with pytest.raises(InvalidConfigError, match="has one authority"):
        retire_authority(tmp_path)
    assert authorities.read_text() == first
    new_authority(tmp_path, now)
    with pytest.raises(InvalidConfigError, match="has 2 authorities"):
        new_authority(tmp_path, now)
    retire_authority(tmp_path)
    assert authorities.read_text().count("BEGIN CERTIFICATE") == 1 and first not in authorities.read_text()
