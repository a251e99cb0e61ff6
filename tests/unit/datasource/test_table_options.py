"""Options of a table in the catalog, and the reads that get them."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from pyspark_sparklog.options import table_options
from pyspark_sparklog.options.option_table import OptionUse
from pyspark_sparklog.options.table_options import (
    MARK,
    OPTIONS,
    kept_with,
    of_new_table,
    of_read,
    of_write,
    readable,
    refuse_new_table,
)

from sparklog.errors import InvalidConfigError

COLUMNS = StructType([StructField("value", BinaryType()), StructField("topic", StringType(), True, {"comment": "c"})])
GIVEN = {"subscribe": "t", "kafka.bootstrap.servers": "h:1", "endingoffsets": "latest", "maxoffsetspertrigger": "5"}
TABLE = kept_with(COLUMNS, GIVEN)


def properties(**options: str) -> dict[str, str]:
    """Return the properties that Spark passes while it creates a table."""
    return {"provider": "sparklog", "owner": "root", **options, **{f"option.{k}": v for k, v in options.items()}}


def test_a_new_table_is_recognized_by_its_properties() -> None:
    assert of_new_table(properties(subscribe="t")) == {"subscribe": "t"}
    assert of_new_table({"subscribe": "t"}) is None
    assert of_new_table(properties(subscribe="t") | {"provider": "other"}) is None
    assert of_new_table(properties(subscribe="t", path="/x") | {"location": "/x"}) == {"subscribe": "t"}


def test_written_options_are_read_as_well() -> None:
    options = of_new_table(properties(topic="t", txnappid="a"))
    assert options == {"topic": "t", "txnappid": "a", "subscribe": "t"}
    assert readable(options) == {"subscribe": "t"}
    with pytest.raises(InvalidConfigError, match="the table names no topic"):
        of_new_table(properties())


def test_the_columns_are_unchanged() -> None:
    assert [(f.name, f.dataType, f.nullable) for f in TABLE] == [(f.name, f.dataType, f.nullable) for f in COLUMNS]
    assert TABLE["topic"].metadata["comment"] == "c"
    assert COLUMNS["topic"].metadata == {"comment": "c"}
    assert StructType.fromJson(json.loads(TABLE.json())) == TABLE


def test_a_read_has_the_tables_options_and_its_own_before_them() -> None:
    assert of_read({}, TABLE, OptionUse.BATCH) == {k: v for k, v in GIVEN.items() if k != "maxoffsetspertrigger"}
    assert of_read({}, TABLE, OptionUse.STREAM) == {k: v for k, v in GIVEN.items() if k != "endingoffsets"}
    assert of_read({"endingOffsets": "x"}, TABLE, OptionUse.BATCH)["endingoffsets"] == "x"
    assert of_read({"assign": "{}"}, TABLE, OptionUse.BATCH) == {"assign": "{}"}
    assert of_read({"a": "b"}, COLUMNS, OptionUse.BATCH) == {"a": "b"}


def test_an_insert_has_the_tables_options() -> None:
    assert of_write({}, TABLE) == {"kafka.bootstrap.servers": "h:1", "topic": "t"}
    assert of_write({}, kept_with(COLUMNS, {"subscribe": "t", "topic": "u"})) == {"topic": "u"}
    assert of_write({}, kept_with(COLUMNS, {"assign": '{"t": [0]}'})) == {"topic": "t"}
    assert of_write({}, kept_with(COLUMNS, {"subscribe": "t, u"})) == {}
    assert of_write({}, kept_with(COLUMNS, {"subscribepattern": "t"})) == {}


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        ({"topic": "other"}, TABLE),
        ({}, COLUMNS),
        ({}, StructType(TABLE.fields[:1])),
        ({}, StructType([TABLE["topic"], TABLE["value"]])),
        ({}, StructType([TABLE["value"], COLUMNS["topic"]])),
        ({}, StructType([*TABLE.fields, COLUMNS["value"]])),
    ],
)
def test_rows_that_were_read_from_a_table_are_no_insert_into_it(given: dict[str, str], schema: StructType) -> None:
    assert of_write(given, schema) == given


def test_metadata_that_is_not_ours_is_named() -> None:
    damaged = StructType([StructField("value", BinaryType(), True, {OPTIONS: "[", MARK: ""})])
    with pytest.raises(InvalidConfigError, match="create the table again"):
        of_read({}, damaged, OptionUse.BATCH)


def running(monkeypatch: pytest.MonkeyPatch, properties: dict[str, str] | None) -> None:
    context = None if properties is None else SimpleNamespace(getLocalProperty=properties.get)
    monkeypatch.setattr(table_options, "TaskContext", SimpleNamespace(get=lambda: context))


OWN, ROOT, BATCH = "spark.sql.execution.id", "spark.sql.execution.root.id", "streaming.sql.batchId"


def test_a_write_inside_of_another_execution_makes_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    running(monkeypatch, {OWN: "27", ROOT: "26"})
    with pytest.raises(InvalidConfigError, match=r"nothing is written: saveAsTable.*save\(\)"):
        refuse_new_table()


@pytest.mark.parametrize("properties", [None, {}, {OWN: "7"}, {OWN: "7", ROOT: "7"}, {OWN: "7", ROOT: "6", BATCH: "0"}])
def test_other_writes_make_none(monkeypatch: pytest.MonkeyPatch, properties: Any) -> None:
    running(monkeypatch, properties)
    refuse_new_table()


@pytest.mark.parametrize(
    ("shell", "program", "tells"),
    [([], "org.apache.spark.deploy.SparkSubmit", True),
     (["--class", "org.apache.spark.sql.hive.thriftserver.SparkSQLCLIDriver"], "org.apache.spark.deploy.SparkSubmit", False),
     ([], "com.example.Driver", False)],
)  # fmt: skip
def test_only_programs_that_run_writes_by_themselves_tell_new_tables(
    shell: list[str], program: str, tells: bool
) -> None:
    """A driver with such a command line, and below it the process that is asked."""
    ask = "from pyspark_sparklog.options.table_options import tells_new_tables; print(tells_new_tables())"
    driver = f"import subprocess, sys; print(subprocess.run([sys.executable, '-c', {ask!r}], capture_output=True, text=True).stdout)"
    found = subprocess.run([sys.executable, "-c", driver, program, *shell], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(tells)
