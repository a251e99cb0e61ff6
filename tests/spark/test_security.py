"""Spark and a secured broker: a job with Kafka's options works, others are denied, passwords show nowhere."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.errors import InvalidConfigError
from sparklog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.principals import user
from tests.secure_broker import SecureBroker
from tests.spark import pages
from tests.support.ports import free_port

PASSWORD = "wMvQ7-hidden-Zr81_tX"
OTHER = "another-Passw0rd"
JOB = Path(__file__).with_name("leaving_job.py")


def allowed(name: str, resource: ResourceType, where: str, operation: Operation) -> Acl:
    return Acl(resource, PatternType.LITERAL, where, user(name), "*", operation, Permission.ALLOW)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """With topics in (10 records), out and forbidden; etl may read one, write one, and nothing else; guest may look
    at the first, and not read it."""
    with SecureBroker(tmp_path_factory.mktemp("secured")) as broker:
        broker.add_user("etl", PASSWORD)
        broker.add_user("guest", OTHER)
        with broker.admin() as admin:
            for topic in ("in", "out", "forbidden"):
                admin.create_topic(topic)
            admin.create_acls(
                [
                    allowed("etl", ResourceType.TOPIC, "in", Operation.READ),
                    allowed("etl", ResourceType.TOPIC, "out", Operation.WRITE),
                    allowed("etl", ResourceType.TRANSACTIONAL_ID, "*", Operation.WRITE),
                    allowed("guest", ResourceType.TOPIC, "in", Operation.DESCRIBE),
                ]
            )
        with sparklog.Producer(broker.address, security=broker.security) as producer:
            for n in range(10):
                producer.send("in", key=b"k%d" % (n % 3), value=b"v%d" % n)
        yield broker


def test_a_job_reads_and_writes_with_kafkas_options(spark: Any, secured: SecureBroker, tmp_path: Path) -> None:
    options = secured.spark_options("etl", PASSWORD)
    read = spark.read.format("sparklog").options(**options).option("subscribe", "in").load()
    assert read.count() == 10
    before = _count_out(secured)
    read.select("key", "value").write.format("sparklog").options(**options).option("topic", "out").mode("append").save()
    stream = spark.readStream.format("sparklog").options(**options).option("subscribe", "in")
    query = (
        stream.option("startingOffsets", "earliest").load().select("key", "value").writeStream.format("sparklog")
        .options(**options).option("topic", "out").option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert _count_out(secured) == before + 20


def _count_out(secured: SecureBroker) -> int:
    return int(sparklog.read_table(secured.address, "out", security=secured.security).num_rows)


def test_latest_takes_the_options_of_the_data_source(spark: Any, secured: SecureBroker) -> None:
    with secured.admin() as admin:
        admin.create_topic("accounts", schema="id BIGINT, n BIGINT", key_columns=["id"])
        admin.create_acls([allowed("etl", ResourceType.TOPIC, "accounts", Operation.READ)])
    with sparklog.Producer(secured.address, security=secured.security) as producer:
        producer.send_batch("accounts", [{"id": n % 2, "n": n} for n in range(6)])
    options = secured.spark_options("etl", PASSWORD)
    rows = sparklog.latest(spark, "accounts", INCLUDEMETADATA=True, **options).orderBy("id").collect()
    assert [(row.n, row._offset) for row in rows] == [(4, 4), (5, 5)]
    with pytest.raises(InvalidConfigError, match="includemetdata"):
        sparklog.latest(spark, "accounts", includeMetdata=True, **options)


def test_references_are_resolved_by_driver_and_tasks(spark: Any, secured: SecureBroker, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(PASSWORD + "\n")
    options = secured.spark_options("etl", f"${{file:{tmp_path}/password}}")
    assert spark.read.format("sparklog").options(**options).option("subscribe", "in").load().count() == 10
    (tmp_path / "password").unlink()
    with pytest.raises(Exception, match=r"password' cannot be read"):
        spark.read.format("sparklog").options(**options).option("subscribe", "in").load().count()


def test_a_table_of_the_catalog_keeps_the_reference_and_never_a_password(
    spark: Any, secured: SecureBroker, tmp_path: Path
) -> None:
    def create(name: str, password: str) -> None:
        options = secured.spark_options("etl", password) | {"subscribe": "in"}
        listed = ", ".join(f"'{key}' '{value}'" for key, value in options.items())
        spark.sql(f"CREATE TABLE {name} USING sparklog OPTIONS ({listed})")

    with pytest.raises(Exception, match="kept in the catalog"):
        create("literal", PASSWORD)
    (tmp_path / "password").write_text(PASSWORD)
    create("secured_trips", f"${{file:{tmp_path}/password}}")
    try:
        assert spark.sql("SELECT count(*) FROM secured_trips").first()[0] == 10
        shown = str(spark.sql("DESCRIBE TABLE EXTENDED secured_trips").collect())
        shown += str(spark.table("secured_trips").schema.json())
        assert PASSWORD not in shown
        assert f"{tmp_path}/password" in shown
    finally:
        spark.sql("DROP TABLE secured_trips")


def test_a_missing_permission_is_named(spark: Any, secured: SecureBroker) -> None:
    def count(topic: str, name: str, password: str) -> int:
        options = secured.spark_options(name, password)
        return int(spark.read.format("sparklog").options(**options).option("subscribe", topic).load().count())

    with pytest.raises(Exception, match="authentication failed"):
        count("in", "etl", OTHER)
    with pytest.raises(Exception, match="authentication failed"):
        count("in", "nobody", OTHER)
    with pytest.raises(Exception, match=r"is not allowed"):
        count("forbidden", "etl", PASSWORD)
    with pytest.raises(Exception, match=r"is not allowed"):  # by a task: to plan it, Describe is enough
        count("in", "guest", OTHER)
    plain = {"kafka.bootstrap.servers": secured.address, "subscribe": "in", "sparklog.broker.wait.ms": "0"}
    with pytest.raises(Exception, match=r"security\.protocol"):
        spark.read.format("sparklog").options(**plain).load().count()


@pytest.mark.nightly
def test_no_file_of_a_run_has_the_password(secured: SecureBroker, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "tmp").mkdir(parents=True)
    environment = os.environ | {"TMPDIR": str(run / "tmp"), "PYSPARK_PYTHON": sys.executable, "HOME": str(run)}
    java = f"{environment.get('JAVA_TOOL_OPTIONS', '')} -Djava.io.tmpdir={run / 'tmp'}".strip()
    done = subprocess.run(
        [sys.executable, str(JOB), str(run)],
        input=json.dumps(secured.spark_options("etl", PASSWORD)) + "\n",
        env=environment | {"JAVA_TOOL_OPTIONS": java},
        cwd=run,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    (run / "printed").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr[-5000:]
    assert "10 rows" in done.stdout
    assert done.stdout.count("DENIED") == 3, done.stdout
    assert "NOT DENIED" not in done.stdout
    files = [path for root in (run, secured.directory) for path in root.rglob("*") if path.is_file()]
    kinds = {path.relative_to(run).parts[0] for path in files if path.is_relative_to(run)}
    assert {"events", "checkpoint", "pages", "printed"} <= kinds
    assert any(path.stat().st_size > 10_000 for path in (run / "events").iterdir())
    found = [str(path) for path in files if shows(path.read_bytes())]
    assert found == []


def shows(content: bytes) -> bool:
    """Return True if the content has the password, in any usual notation of texts and numbers."""
    encoded = PASSWORD.encode()
    forms = [encoded, PASSWORD.encode("utf-16-le"), PASSWORD.encode("utf-16-be"), encoded.hex().encode()]
    for before in range(3):  # Base64 depends on what stands before
        whole = base64.b64encode(b"\0" * before + encoded)
        forms.append(whole[4 if before else 0 : -4])
    return any(form in content for form in forms)


def test_the_search_finds_the_password() -> None:
    for text in (f'password="{PASSWORD}"', base64.b64encode(f"ab{PASSWORD}cd".encode()).decode()):
        assert shows(b"before " + text.encode() + b" after")
    assert not shows(b"nothing of the kind")


@pytest.mark.nightly
def test_the_chapter(tmp_path: Path) -> None:
    """docs/security.md from zero to a job: its commands are run unchanged, except for the port."""
    port = str(free_port())
    found = pages.blocks("security")
    assert [b.kind for b in found][:4] == ["sh", "broker", "sh", "sh"]
    texts = [(b.kind, b.text.replace("9292", port)) for b in found]
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("SPARKLOG_", "PYSPARK_DRIVER"))}
    environment |= {"PATH": f"{pages.BIN}{os.pathsep}{os.environ['PATH']}", "PYSPARK_PYTHON": sys.executable}
    environment |= {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "COLUMNS": "200"}

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        return done.stdout

    run(texts[0][1])
    broker = subprocess.Popen(
        ["bash", "-c", f"exec {texts[1][1]}"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert broker.stdout is not None
    try:
        assert broker.stdout.readline().startswith("listening on")
        run("".join(text for kind, text in texts[2:] if kind == "sh"))
        (job,) = [text for kind, text in texts if kind == "job"]
        (tmp_path / "job.py").write_text(job)
        run(f"{sys.executable} job.py")
        for number, (kind, text) in enumerate(texts):
            if kind == "python":
                (tmp_path / f"page-{number}.py").write_text(text)
                run(f"{sys.executable} -W error page-{number}.py")
        for kind, text in texts:
            if kind == "console":
                for command, wanted in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                    assert run(command) == wanted
    finally:
        broker.terminate()
        broker.wait(30)
        broker.stdout.close()
