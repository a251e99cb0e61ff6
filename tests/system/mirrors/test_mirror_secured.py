"""Mirrors of a source with TLS and logins, a broker with its gateway, into a cluster with ACLs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import sparklog
from sparklog import Admin
from sparklog.cli.app import app
from sparklog.client.local import LocalBroker
from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError, TopicAuthorizationFailedError
from sparklog.mirror.worker.worker import GROUP_ID, MirrorWorker
from sparklog.security.acl_records import AclFilter
from sparklog.security.acls import CLUSTER, Acl, Operation, ResourceType
from tests.support.cases import for_each
from tests.support.waiting import until
from tests.system.secure_broker import PASSWORD, SecureBroker, now, write_identity
from tests.system.secure_gateway import SecureGateway, allow

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
        admin.create_topic("mine")
        producer.send("mine", b"v").result()
        rights = [
            *allow("alice", ResourceType.TOPIC, "mine", *READS),
            *allow("alice", ResourceType.GROUP, "g", READS[0]),
        ]
        rights += allow("CN=robot", ResourceType.TOPIC, "mine", *READS)
        admin.create_acls(rights)
        admin.alter_group_offsets("g", {sparklog.TopicPartition("mine", 0): 1})
    yield broker
    assert broker.stop() == 0, broker.process.stderr


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


def address(source: SecureGateway, protocol: str, listener: str) -> str:
    return f"{protocol}://{(source.kafka if protocol == 'kafka' else source.addresses)[listener]}"


@for_each(
    "protocol, listener, mechanism",
    [
        ("kafka", "SASL", "SCRAM-SHA-512"),
        ("kafka", "BOTH", "SCRAM-SHA-256"),
        ("kafka", "BOTH", "PLAIN"),
        ("kafka", "MUTUAL", ""),
        ("sparklog", "SASL", "SCRAM-SHA-256"),
        ("sparklog", "BOTH", "SCRAM-SHA-512"),
        ("sparklog", "MUTUAL", ""),
    ],
)
def test_a_mirror_logs_in_to_its_source(
    source: SecureGateway,
    target: LocalBroker,
    admin: Admin,
    tmp_path_factory: pytest.TempPathFactory,
    protocol: str,
    listener: str,
    mechanism: str,
) -> None:
    tmp_path = tmp_path_factory.mktemp("login")
    more = {"sasl_mechanism": mechanism}
    if listener == "MUTUAL":
        identity = source.authority.issue("robot", (), now(), 1, broker=False)
        more = {name: str(value) for name, value in write_identity(tmp_path, "robot", identity).items()}
    config = settings_file(source, listener, tmp_path, **more)
    url = address(source, protocol, listener)
    admin.create_mirror(
        "secured", source=url, topics="mine", groups="" if listener == "MUTUAL" else "g", source_config=config
    )
    worker = MirrorWorker(target.bootstrap_servers)
    assert worker.run_once() == {}
    worker.close()
    tp = sparklog.TopicPartition("mine", 0)
    assert admin.list_offsets({tp: "latest"})[tp].offset >= 1
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


RIGHTS = {
    "kafka": (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.READ),
    "sparklog": (Operation.DESCRIBE, Operation.READ),
}
"""Rights of the mirror's user on a topic of the source."""


@for_each("protocol", list(RIGHTS))
def test_each_right_that_the_mirrors_user_lacks_is_named_and_no_topic_is_created(
    source: SecureGateway, target: LocalBroker, admin: Admin, tmp_path: Path, protocol: str
) -> None:
    config, url = settings_file(source, "SASL", tmp_path), address(source, protocol, "SASL")
    options: dict[str, Any] = {"source": url, "source_config": config, "topics": "mine,partly", "groups": "g,closed"}
    command = ["mirror", "create", "refused", "--source", url, "--source-config", config, "--topics", "mine,partly"]
    command += ["--groups", "g,closed", "--dry-run", "-b", target.bootstrap_servers]
    with Admin(source.addresses["LOCAL"]) as there:
        if "partly" not in there.list_topics():
            there.create_topic("partly")
            there.alter_group_offsets("closed", {sparklog.TopicPartition("mine", 0): 1})
        needed = [("partly", allow("alice", ResourceType.TOPIC, "partly", right)) for right in RIGHTS[protocol]]
        needed.append(("closed", allow("alice", ResourceType.GROUP, "closed", Operation.READ)))
        there.create_acls([acl for _, right in needed for acl in right])
        for name, right in needed:
            if right[0].operation is not Operation.READ:
                continue  # Read implies Describe, and the gateway reads settings with it
            take_back(there, right)
            with pytest.raises(TopicAuthorizationFailedError, match=f"lacks rights at .*{name}"):
                admin.create_mirror("refused", **options)
            shown = CliRunner().invoke(app, command)
            assert isinstance(shown.exception, TopicAuthorizationFailedError) and name in str(shown.exception)
            there.create_acls(right)
        topic_rights = [acl for name, right in needed if name == "partly" for acl in right]
        take_back(there, topic_rights)
        with pytest.raises(TopicAuthorizationFailedError, match="Describe on topic 'partly' is not allowed"):
            admin.create_mirror("refused", **options)
        assert admin.describe_mirrors() == []
        there.create_acls(topic_rights)
        assert admin.create_mirror("refused", **options).error == ""
        take_back(there, [acl for _, right in needed for acl in right])
    admin.delete_mirror("refused")


@for_each("protocol", list(RIGHTS))
def test_a_right_that_is_removed_later_is_named_and_the_mirror_goes_on_when_it_is_back(
    source: SecureGateway, target: LocalBroker, admin: Admin, tmp_path: Path, protocol: str
) -> None:
    config, url = settings_file(source, "SASL", tmp_path), address(source, protocol, "SASL")
    rights = [acl for right in RIGHTS[protocol] for acl in allow("alice", ResourceType.TOPIC, "taken", right)]
    read = allow("alice", ResourceType.TOPIC, "taken", Operation.READ)
    with Admin(source.addresses["LOCAL"]) as there, sparklog.Producer(source.addresses["LOCAL"]) as producer:
        if "taken" not in there.list_topics():
            there.create_topic("taken")
        there.create_acls(rights)
        admin.create_mirror("partly", source=url, topics="mine,taken", source_config=config)
        producer.send("taken", b"first").result()
        first = MirrorWorker(target.bootstrap_servers)
        assert first.run_once() == {}
        first.close()
        for removed, words in ((read, "taken"), (rights, "the source has no topic 'taken'")):
            take_back(there, removed)
            producer.send("taken", b"v").result()
            producer.send("mine", b"v").result()
            worker = MirrorWorker(target.bootstrap_servers)
            assert worker.run_once().keys() == {"taken"}
            (mirror,) = admin.describe_mirrors()
            errors = {topic.topic: topic.error for topic in mirror.topics}
            assert words in errors["taken"] and errors["mine"] == "", errors
            assert lags(admin)["mine"] == 0
            compared = CliRunner().invoke(app, ["mirror", "verify", "partly", "-b", target.bootstrap_servers])
            assert compared.exit_code == 1, compared.output
            lines = compared.output.splitlines()
            assert lines[0].startswith("1 partition, ") and lines[-1] == "no difference in what was compared"
            assert [line for line in lines[1:-1] if "taken" in line] == lines[1:-1] != []
            there.create_acls(removed)
            assert worker.run_once() == {}
            worker.close()
            (mirror,) = admin.describe_mirrors()
            assert [topic.error for topic in mirror.topics] == ["", ""] and mirror.lag == 0
        take_back(there, rights)
    admin.delete_mirror("partly")


def take_back(admin: Admin, acls: list[Acl]) -> None:
    filters = [
        AclFilter(acl.resource_type, name=acl.name, principal=acl.principal, operation=acl.operation) for acl in acls
    ]
    admin.delete_acls(*filters)


def lags(admin: Admin) -> dict[str, int]:
    return {topic.topic: sum(p.lag for p in topic.partitions) for topic in admin.describe_mirrors()[0].topics}


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
            until(lambda: failures or admin.list_offsets({tp: "latest"})[tp].offset >= 1)
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
