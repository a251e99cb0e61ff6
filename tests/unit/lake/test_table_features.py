"""Table features: the list is tried against the library, and every other feature pauses a table by its name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sparklog.errors import LakePausedError
from sparklog.lake.delta_snapshot import DeltaSnapshot
from sparklog.lake.log_entry import OWN_COMMIT_FEATURES
from sparklog.lake.table_features import WRITER_FEATURES, unsupported
from tests.support.cases import for_each
from tests.unit.lake.delta_log import require_features, require_writer_version
from tests.unit.lake.model_log import ModelLog, run_round, settings_at

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
REFUSED = (
    "allowColumnDefaults",
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
@for_each("feature", sorted({*WRITER_FEATURES, *OWN_COMMIT_FEATURES}))
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


@for_each("mode", ["append", "upsert"])
@for_each("version", [2, 3, 4, 5, 6, 8])
def test_a_table_of_an_earlier_protocol_gets_its_rows_or_pauses_before_a_file_is_written(
    version: int, mode: str, tmp_path: Path
) -> None:
    log, path = ModelLog(SCHEMA, keys=["id"]), tmp_path / f"{version}-{mode}"
    settings = settings_at(path, mode=mode)
    log.rows[0] = [{"id": 1, "n": 1}]
    run_round(log, settings)
    require_writer_version(path, version)
    log.rows[0].append({"id": 2, "n": 2})
    if version < 6:
        run_round(log, settings)
        assert DeltaTable(path).to_pyarrow_table().num_rows == 2
        return
    before = files(path)
    reason = "identityColumns .to drop: impossible" if version == 6 else "writer version 8"
    with pytest.raises(LakePausedError, match=f"does not support: {reason}"):
        run_round(log, settings)
    assert files(path) == before


def test_a_table_in_an_object_store_pauses_for_a_feature_that_needs_a_commit_of_the_workers_own() -> None:
    (text,) = unsupported({"typeWidening"}, {}, [], is_directory=False)
    assert text.startswith("typeWidening (to drop: ")
    assert unsupported({"typeWidening"}, {}, [], is_directory=True) == []


@for_each("mode", ["append", "upsert"])
def test_vectors_that_deltalake_cannot_read_stop_rewrites_and_reads_by_name(mode: str, tmp_path: Path) -> None:
    log, path = ModelLog(SCHEMA, keys=["id"]), tmp_path / mode
    log.rows[0] = [{"id": 1, "n": 1}]
    run_round(log, settings_at(path, mode=mode))
    require_features(path, "typeWidening", "deletionVectors")
    log.rows[0].append({"id": 2, "n": 2})
    before = files(path)
    reason = "deletionVectors together with typeWidening"
    if mode == "append":
        run_round(log, settings_at(path, mode=mode))
        table = DeltaSnapshot.open(str(path))
        assert table is not None
        with pytest.raises(LakePausedError, match=reason):
            table.deletion_masks()
        return
    with pytest.raises(LakePausedError, match=reason):
        run_round(log, settings_at(path, mode=mode))
    assert files(path) == before


def test_properties_that_ask_more_of_a_writer_are_named() -> None:
    assert unsupported({"changeDataFeed"}, {"delta.enableChangeDataFeed": "true"}, []) == []
    (text,) = unsupported({"changeDataFeed"}, {"delta.enableChangeDataFeed": "true"}, [], rewrites="lake.mode=upsert")
    assert text.startswith("delta.enableChangeDataFeed with lake.mode=upsert")
    assert unsupported({}, {"delta.enableChangeDataFeed": "false"}, [], rewrites="lake.mode=upsert") == []
    assert unsupported({}, {"delta.columnMapping.mode": "name"}, []) == ["column mapping"]
    assert unsupported({}, {"delta.constraints.low": "n > 1"}, []) == ["the constraint low"]


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
