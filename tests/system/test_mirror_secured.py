"""Mirrors of a source with TLS and logins, a broker with its gateway, into a cluster with ACLs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog import Admin
from sparklog.client.local import LocalBroker
from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError
from sparklog.mirror.worker.worker import GROUP_ID, MirrorWorker
from sparklog.security.acls import CLUSTER, Operation, ResourceType
from tests.support.cases import for_each
from tests.support.waiting import until
from tests.system.secure_broker import PASSWORD, SecureBroker, now, write_identity
from tests.system.secure_gateway import SecureGateway, allow

START_S = 300
"""Longest wait for a broker, which may start slowly beside other work."""
WORKER_RIGHTS = (
    Operation.CREATE,
    Operation.ALTER_CONFIGS,
    Operation.ALTER,
    Operation.READ,
    Operation.WRITE,
    Operation.DELETE,
)
READS = (Operation.READ, Operation.DESCRIBE_CONFIGS)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    broker = SecureGateway(tmp_path_factory.mktemp("mirror-security"))
    with Admin(broker.addresses["LOCAL"]) as admin, sparklog.Producer(broker.addresses["LOCAL"]) as producer:
        admin.set_user_password("alice", PASSWORD, ["SCRAM-SHA-256", "SCRAM-SHA-512"])
        for name in ("mine", "unreadable"):
            admin.create_topic(name)
            producer.send(name, b"v").result()
        rights = [
            *allow("alice", ResourceType.TOPIC, "mine", *READS),
            *allow("alice", ResourceType.GROUP, "g", READS[0]),
        ]
        rights += allow("CN=robot", ResourceType.TOPIC, "mine", *READS)
        rights += allow("alice", ResourceType.TOPIC, "unreadable", Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
        admin.create_acls(rights)
        admin.alter_group_offsets("g", {sparklog.TopicPartition("mine", 0): 1})
    yield broker
    assert broker.stop() == 0, broker.process.stderr


@pytest.fixture(scope="module")
def target() -> Iterator[LocalBroker]:
    with sparklog.start_local(timeout_s=START_S, settings={"mirror.worker.enable": False}) as local:
        yield local


@pytest.fixture
def admin(target: LocalBroker) -> Iterator[Admin]:
    with Admin(target.bootstrap_servers) as opened:
        yield opened


def settings_file(source: SecureGateway, listener: str, path: Path, **more: str) -> str:
    """A file with the settings of a client for a listener of the source. The password is a reference."""
    secret = path / "password"
    secret.write_text(more.pop("password", PASSWORD))
    secret.chmod(0o600)
    settings = {
        "security.protocol": {"SASL": "SASL_PLAINTEXT", "MUTUAL": "SSL", "BOTH": "SASL_SSL"}[listener],
    }
    if listener in ("MUTUAL", "BOTH"):
        settings["ssl.ca.location"] = str(source.ca)
    if listener in ("SASL", "BOTH"):
        settings |= {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": f"${{file:{secret}}}",
        }
    settings |= {name.replace("_", "."): value for name, value in more.items()}
    file = path / "source.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    file.chmod(0o600)
    return str(file)


@for_each(
    "listener, mechanism",
    [("SASL", "SCRAM-SHA-512"), ("BOTH", "SCRAM-SHA-256"), ("BOTH", "PLAIN"), ("MUTUAL", "")],
)
def test_a_mirror_logs_in_to_its_source(
    source: SecureGateway, target: LocalBroker, admin: Admin, tmp_path: Path, listener: str, mechanism: str
) -> None:
    more = {"sasl_mechanism": mechanism}
    if listener == "MUTUAL":
        identity = source.authority.issue("robot", (), now(), 1, broker=False)
        more = {name: str(value) for name, value in write_identity(tmp_path, "robot", identity).items()}
    config = settings_file(source, listener, tmp_path, **more)
    url = f"kafka://{source.kafka[listener]}"
    admin.create_mirror(
        "secured", source=url, topics="mine", groups="" if listener == "MUTUAL" else "g", source_config=config
    )
    worker = MirrorWorker(target.bootstrap_servers)
    assert worker.run_once() == {}
    worker.close()
    tp = sparklog.TopicPartition("mine", 0)
    assert admin.list_offsets({tp: "latest"})[tp].offset == 1
    if listener != "MUTUAL":
        assert admin.list_group_offsets("g")[tp].offset == 1
        admin.delete_group("g")
    (mirror,) = admin.describe_mirrors()
    assert (mirror.lag, mirror.error) == (0, "")
    admin.delete_mirror("secured")


def test_a_source_that_refuses_the_login_is_named(source: SecureGateway, admin: Admin, tmp_path: Path) -> None:
    def create(listener: str, topics: str = "mine", **more: str) -> None:
        config = settings_file(source, listener, tmp_path, **more)
        admin.create_mirror("refused", source=f"kafka://{source.kafka[listener]}", topics=topics, source_config=config)

    with pytest.raises(SaslAuthenticationFailedError, match=source.kafka["SASL"]):
        create("SASL", password="wrong")
    with pytest.raises(InvalidConfigError, match="SASL_SSL"):
        create("SASL", sasl_mechanism="PLAIN")
    with pytest.raises(InvalidConfigError, match="matches"):
        create("SASL", topics="others")
    assert admin.describe_mirrors() == []


def test_a_topic_without_the_right_to_read_is_named_and_stops_no_other(
    source: SecureGateway, target: LocalBroker, admin: Admin, tmp_path: Path
) -> None:
    config = settings_file(source, "SASL", tmp_path)
    url = f"kafka://{source.kafka['SASL']}"
    admin.create_mirror("partly", source=url, topics="mine,unreadable", source_config=config)
    worker = MirrorWorker(target.bootstrap_servers)
    errors = worker.run_once()
    worker.close()
    assert errors.keys() == {"unreadable"} and "TOPIC_AUTHORIZATION_FAILED" in errors["unreadable"]
    tp = sparklog.TopicPartition("mine", 0)
    assert admin.list_offsets({tp: "latest"})[tp].offset == 1
    admin.delete_mirror("partly")


def test_a_worker_needs_the_rights_that_the_guide_lists(
    source: SecureGateway, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    more = 'authorizer = "acl"\nsuper.users = "User:ANONYMOUS"\nmirror.worker.enable = false\n'
    here = SecureBroker(tmp_path_factory.mktemp("mirror-here"), more=more)
    with Admin(here.addresses["LOCAL"]) as admin:
        admin.set_user_password("mirror", PASSWORD, ["SCRAM-SHA-512"])
        rights = allow("mirror", ResourceType.CLUSTER, CLUSTER.name, Operation.ALTER)
        rights += allow("mirror", ResourceType.TOPIC, "mine", *WORKER_RIGHTS)
        for group in (GROUP_ID, "g"):
            rights += allow("mirror", ResourceType.GROUP, group, Operation.READ)
        admin.create_acls(rights)
        config = settings_file(source, "BOTH", tmp_path)
        admin.create_mirror(
            "secured", source=f"kafka://{source.kafka['BOTH']}", topics="mine", groups="g", source_config=config
        )
        login = {"security.protocol": "SASL_PLAINTEXT", **here.client("mirror")}
        worker = MirrorWorker(here.addresses["SASL"], security=login)
        failures: list[Exception] = []

        def run() -> None:
            try:
                worker.run()
            except Exception as e:  # noqa: BLE001 - judged below
                failures.append(e)

        thread = threading.Thread(target=run)
        thread.start()
        tp = sparklog.TopicPartition("mine", 0)
        try:
            until(lambda: failures or admin.list_offsets({tp: "latest"})[tp].offset == 1)
            until(lambda: failures or "g" in [g.group_id for g in admin.list_groups()])
            until(lambda: failures or reported_lag(admin) == 0)
        finally:
            worker.stop()
            thread.join()
            worker.close()
        assert not failures
        assert admin.list_group_offsets("g")[tp].offset == 1
    assert here.stop() == 0, here.process.stderr


def reported_lag(admin: Admin) -> int:
    return admin.describe_mirrors(asks_source=False)[0].lag
