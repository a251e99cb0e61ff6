"""The pages about Scala, SQL, Connect, pipelines and Databricks: their commands run, and print the output on the
pages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparklog
from tests.spark import pages
from tests.spark.pages import FREE_PORT, blocks, environment, lines, printed, shell

SETTINGS = {
    "log.level": "ERROR",
    "ui.enabled": "false",
    "ui.showConsoleProgress": "false",
    "sql.shuffle.partitions": "2",
}
QUIET = "--master 'local[2]' " + " ".join(f"--conf spark.{name}={value}" for name, value in SETTINGS.items())
TRIPS = pa.schema([("zone", pa.string()), ("minutes", pa.float64())])


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[sparklog.LocalBroker]:
    """A broker without topics: the pages' names are their own."""
    with sparklog.start_local(tmp_path / "data") as started:
        yield started


def test_every_command_has_an_output_or_a_reason() -> None:
    silent = {"sh", "register", "reach", "file spark-pipeline.yml"}
    for page in ("scala-and-sql", "spark-connect", "declarative-pipelines", "databricks"):
        found = blocks(page)
        assert found
        for block in found:
            assert block.output or block.kind in silent or block.kind.startswith("file "), (page, block.text)


@pytest.mark.nightly
def test_scala(own_broker: sparklog.LocalBroker, tmp_path: Path) -> None:
    shell(blocks("scala-and-sql", "sh")[0].text, tmp_path, own_broker)
    commands = blocks("scala-and-sql", "scala")
    (tmp_path / "page.scala").write_text("".join(block.text for block in commands) + "sys.exit(0)\n")
    out = shell(f"spark-shell {QUIET} -i page.scala < /dev/null", tmp_path, own_broker)
    assert printed(out, lines(commands)) == [line.strip() for line in lines(commands)]


@pytest.mark.nightly
def test_sql(own_broker: sparklog.LocalBroker, tmp_path: Path) -> None:
    shell(blocks("scala-and-sql", "sh")[0].text, tmp_path, own_broker)
    with sparklog.Producer(own_broker.bootstrap_servers) as producer:  # what the Scala before it has written
        producer.send_batch("long-trips", {"zone": ["Airport", "Museum"], "minutes": [41.0, 8.0]})
    commands = blocks("scala-and-sql", "sql")
    (tmp_path / "page.sql").write_text("".join(block.text for block in commands))
    out = shell(f"spark-sql {QUIET} -f page.sql", tmp_path, own_broker)
    assert printed(out, lines(commands)) == lines(commands)


@pytest.mark.nightly
def test_spark_connect(own_broker: sparklog.LocalBroker, tmp_path: Path) -> None:
    for package in ("grpc", "grpc_status", "zstandard"):
        pytest.importorskip(package, reason="Spark Connect needs pyspark[connect]")
    commands = blocks("spark-connect", "python")
    program = "".join(block.text for block in commands)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(own_broker, **FREE_PORT),
        capture_output=True,
        text=True,
        timeout=pages.TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert [line for line in done.stdout.splitlines() if line] == lines(commands)


@pytest.mark.nightly
def test_declarative_pipelines(own_broker: sparklog.LocalBroker, tmp_path: Path) -> None:
    for package in ("grpc", "yaml", "pyspark.pipelines"):
        pytest.importorskip(package, reason="Declarative Pipelines need pyspark[pipelines]")
    setup, *files, run, after = blocks("declarative-pipelines")
    shell(setup.text, tmp_path, own_broker)
    for block in files:
        path = tmp_path / "pipeline" / block.kind.removeprefix("file ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text.replace("/srv/pipelines/trips/storage", str(tmp_path / "storage")))
    out = shell(f"{run.text.strip()} 2>&1", tmp_path / "pipeline", own_broker, **FREE_PORT)
    assert any(line.endswith(run.output[0]) for line in out.splitlines()), out[-5000:]  # Spark may have last words
    assert shell(after.text, tmp_path, own_broker).splitlines() == after.output
    (part,) = (tmp_path / "pipeline" / "spark-warehouse" / "minutes_per_zone").glob("*.parquet")
    per_zone = pq.read_table(part).sort_by("zone").to_pylist()
    assert per_zone == [
        {"zone": "Airport", "trips": 1, "minutes": 41.0},
        {"zone": "Harbour", "trips": 1, "minutes": 12.5},
        {"zone": "Museum", "trips": 1, "minutes": 8.0},
    ]


def test_the_job_for_databricks(
    spark: Any, own_broker: sparklog.LocalBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = own_broker.bootstrap_servers
    with sparklog.Admin(servers) as admin:
        for name in ("trips", "long-trips"):
            admin.create_topic(name, partitions=2, schema=TRIPS)
    (register,), (job,), (reach,) = (blocks("databricks", kind) for kind in ("register", "job", "reach"))
    text = job.text.replace("10.20.0.7:9292", servers)
    text = text.replace("/Volumes/main/default/checkpoints", str(tmp_path / "checkpoints"))
    assert text.count(str(tmp_path)) == text.count(servers) == 1
    scope = {"spark": spark}
    with sparklog.Producer(servers) as producer:
        exec(register.text, scope)
        for rows in ([12.5, 8.0, 41.0], [55.0, 3.0]):
            producer.send_batch("trips", {"zone": ["Zoo"] * len(rows), "minutes": rows}).result()
            exec(text, scope)
    assert capsys.readouterr().out.splitlines() == job.output
    exec(reach.text, scope)
    assert capsys.readouterr().out.splitlines() == ["['long-trips', 'trips']", "5"]
    assert sorted(sparklog.read_table(servers, "long-trips")["minutes"].to_pylist()) == [41.0, 55.0]
