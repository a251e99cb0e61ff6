"""Authenticated users, ACLs and the audit log of one real broker, together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparklog import Admin, Producer
from sparklog.errors import SaslAuthenticationFailedError, TopicAuthorizationFailedError
from sparklog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.principals import user
from tests.support.waiting import until
from tests.system.secure_broker import PASSWORD, SecureBroker


def as_user(secure: SecureBroker, name: str, password: str = PASSWORD) -> dict[str, Any]:
    return secure.client(name, password) | {"security.protocol": "SASL_PLAINTEXT"}


def test_principal_act_address_and_result_are_written(tmp_path: Path) -> None:
    secure = SecureBroker(
        tmp_path,
        more='authorizer = "acl"\nsuper.users = "User:ANONYMOUS"\naudit.log.file = "audit.log"\n'
        "connection.failed.authentication.delay.ms = 10",
    )
    with Admin(secure.addresses["LOCAL"]) as operator:
        for name in ("alice", "mallory"):
            operator.set_user_password(name, PASSWORD)
        operator.create_topic("orders")
        write = Acl(
            ResourceType.TOPIC, PatternType.LITERAL, "orders", user("alice"), "*", Operation.WRITE, Permission.ALLOW
        )
        operator.create_acls([write])
    sasl = secure.addresses["SASL"]
    with Producer(sasl, security=as_user(secure, "alice")) as producer:
        assert producer.send("orders", b"1").result(60).offset == 0
    with Admin(sasl, security=as_user(secure, "alice")) as hers, pytest.raises(TopicAuthorizationFailedError):
        hers.delete_topic("orders")
    with Producer(sasl, security=as_user(secure, "mallory")) as producer, pytest.raises(TopicAuthorizationFailedError):
        producer.send("orders", b"2").result(60)
    with (
        pytest.raises(SaslAuthenticationFailedError),
        Admin(sasl, security=as_user(secure, "alice", "wrong")) as nobody,
    ):
        nobody.list_topics()
    path = secure.directory / "data" / "audit.log"
    until(lambda: '"authentication"' in path.read_text(), "the failed authentication in the audit log")
    text = path.read_text()
    found = {
        (line["kind"], line["principal"], line["listener"], line["api"], line["resource"], line["outcome"])
        for line in map(json.loads, text.splitlines())
    }
    assert ("act", "User:ANONYMOUS", "LOCAL", "CREATE_TOPIC", "topic:orders", "NONE") in found
    assert ("act", "User:ANONYMOUS", "LOCAL", "CREATE_ACLS", "cluster:kafka-cluster", "NONE") in found
    details = {(line["api"], line["detail"]) for line in map(json.loads, text.splitlines())}
    assert ("CREATE_ACLS", "Allow 'User:alice' Write on literal topic 'orders' from *") in details
    passwords = (f"password of 'alice' (SCRAM-SHA-{bits})" for bits in (256, 512))
    assert ("ALTER_USER_SCRAM_CREDENTIALS", "; ".join(passwords)) in details
    denied = "TOPIC_AUTHORIZATION_FAILED"
    assert ("denial", "User:alice", "SASL", "DELETE_TOPIC", "topic:orders", denied) in found
    assert not any(line[0] == "act" and line[1] == "User:alice" for line in found), "what is denied is no act"
    assert sum(line[1:4] == ("User:alice", "SASL", "DELETE_TOPIC") for line in found) == 1, "a denial is no act, too"
    assert any(line[:3] == ("denial", "User:mallory", "SASL") for line in found)
    assert ("authentication", "", "SASL", "", "", "CREDENTIALS") in found
    assert "wrong" not in text.replace("credentials are wrong", "")
    assert PASSWORD not in text
    assert secure.stop() == 0, secure.process.stderr
