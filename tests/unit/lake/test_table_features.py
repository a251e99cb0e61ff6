"""Table features: the list is tried against the library, and every other feature pauses a table by its name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sparklog.errors import LakePausedError
from sparklog.lake.delta_snapshot import DeltaSnapshot
from sparklog.lake.table_features import WRITER_FEATURES, unsupported
from tests.support.cases import for_each
from tests.unit.lake.delta_log import require_features
from tests.unit.lake.model_log import ModelLog, run_round, settings_at

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
REFUSED = (
    "allowColumnDefaults",
    "checkpointProtection",
    "clustering",
    "domainMetadata",
    "icebergCompatV1",
    "icebergCompatV2",
    "identityColumns",
    "inCommitTimestamp",
    "rowTracking",
    "vacuumProtocolCheck",
    "a feature of a later release",
)


def files(path: Path) -> set[Path]:
    return set(path.rglob("*.parquet"))


@for_each("mode", ["append", "upsert"])
@for_each("feature", sorted(WRITER_FEATURES))
def test_a_table_with_an_accepted_feature_gets_its_rows(feature: str, mode: str, tmp_path: Path) -> None:
    path = tmp_path / f"{feature}-{mode}"
    log = ModelLog(SCHEMA, keys=["id"])
    settings = settings_at(path, mode=mode)
    log.rows[0] = [{"id": 1, "n": 1}]
    run_round(log, settings)
    require_features(path, feature)
    log.rows[0].append({"id": 1, "n": 2})
    run_round(log, settings)
    table = DeltaSnapshot.open(str(path))
    assert table is not None
    assert sum(file.rows or 0 for file in table.files()) == (2 if mode == "append" else 1)


@for_each("feature", REFUSED)
def test_a_table_with_another_feature_pauses_before_a_file_is_written(feature: str, tmp_path: Path) -> None:
    log, path = ModelLog(SCHEMA), tmp_path / feature
    log.rows[0] = [{"id": 1, "n": 1}]
    run_round(log, settings_at(path))
    require_features(path, feature)
    log.rows[0].append({"id": 2, "n": 2})
    before = files(path)
    for _ in range(2):
        with pytest.raises(LakePausedError, match=f"does not support: {feature}"):
            run_round(log, settings_at(path))
    assert files(path) == before


def test_a_table_in_an_object_store_pauses_for_a_feature_that_needs_a_commit_of_the_workers_own() -> None:
    (text,) = unsupported({"typeWidening"}, {}, [], is_upsert=False, is_directory=False)
    assert text.startswith("typeWidening (to drop: ")
    assert unsupported({"typeWidening"}, {}, [], is_upsert=False, is_directory=True) == []


def test_properties_that_ask_more_of_a_writer_are_named() -> None:
    assert unsupported({"changeDataFeed"}, {"delta.enableChangeDataFeed": "true"}, [], is_upsert=False) == []
    (text,) = unsupported({"changeDataFeed"}, {"delta.enableChangeDataFeed": "true"}, [], is_upsert=True)
    assert text.startswith("delta.enableChangeDataFeed with lake.mode=upsert")
    assert unsupported({}, {"delta.enableChangeDataFeed": "false"}, [], is_upsert=True) == []
    assert unsupported({}, {"delta.columnMapping.mode": "name"}, [], is_upsert=False) == ["column mapping"]
    assert unsupported({}, {"delta.constraints.low": "n > 1"}, [], is_upsert=False) == ["the constraint low"]


def test_an_upserted_table_with_a_change_feed_pauses(tmp_path: Path) -> None:
    """Each key of a rewritten file would be a deletion and an insertion in the feed."""
    for mode in ("append", "upsert"):
        log, path = ModelLog(SCHEMA, keys=["id"]), tmp_path / mode
        log.rows[0] = [{"id": 1, "n": 1}, {"id": 2, "n": 2}]
        run_round(log, settings_at(path, mode=mode))
        require_features(path, "changeDataFeed", configuration={"delta.enableChangeDataFeed": "true"})
        log.rows[0].append({"id": 1, "n": 3})
        if mode == "append":
            run_round(log, settings_at(path, mode=mode))
            feed = pa.table(DeltaTable(path).load_cdf(starting_version=2))
            assert feed.column("_change_type").to_pylist() == ["insert"]
            continue
        before = files(path)
        with pytest.raises(LakePausedError, match=r"delta\.enableChangeDataFeed with lake\.mode=upsert"):
            run_round(log, settings_at(path, mode=mode))
        assert files(path) == before
