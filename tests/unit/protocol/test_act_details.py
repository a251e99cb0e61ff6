"""Text of the audit log for acts whose resources do not show the change."""

from __future__ import annotations

from sparklog.protocol.acl_messages import (
    ACLS_PER_REQUEST_MAX,
    AclEntry,
    AclFilterEntry,
    CreateAclsRequest,
    DeleteAclsRequest,
)
from sparklog.protocol.act_details import ITEMS_MAX, act_detail
from sparklog.protocol.messages import Api
from sparklog.protocol.operation_messages import AlterBrokerConfigsRequest
from sparklog.protocol.permissions import ADMINISTRATIVE
from sparklog.protocol.quota_messages import AlterClientQuotasRequest, QuotaAlteration
from sparklog.protocol.security_messages import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from sparklog.protocol.topic_messages import AlterTopicRequest
from tests.golden.make_golden import REQUESTS


def acl(name: str) -> AclEntry:
    return AclEntry("topic", "prefixed", name, "User:etl", "*", "Read", "Allow")


def test_which_acls() -> None:
    assert act_detail(Api.CREATE_ACLS, CreateAclsRequest([acl("trips"), acl("a; b")])) == (
        "Allow 'User:etl' Read on prefixed topic 'trips' from *; Allow 'User:etl' Read on prefixed topic 'a; b' from *"
    )
    wanted = AclFilterEntry("topic", "literal", "trips")
    assert act_detail(Api.DELETE_ACLS, DeleteAclsRequest([wanted])) == "any any any on literal topic 'trips' from any"


def test_which_quotas_users_and_settings() -> None:
    changes = {"producer_byte_rate": 5e7, "max_topics": None}
    alteration = AlterClientQuotasRequest([QuotaAlteration("etl", "", changes)])
    assert act_detail(Api.ALTER_CLIENT_QUOTAS, alteration) == (
        "user 'etl', client id (default): producer_byte_rate=50000000.0, max_topics=(none)"
    )
    users = AlterUserScramCredentialsRequest(
        [ScramCredentialDeletion("old", "SCRAM-SHA-256")],
        [ScramCredentialUpsertion("new", "SCRAM-SHA-512", 4096, b"s" * 32, b"stored", b"server")],
    )
    assert act_detail(Api.ALTER_USER_SCRAM_CREDENTIALS, users) == (
        "removed 'old' (SCRAM-SHA-256); password of 'new' (SCRAM-SHA-512)"
    )
    settings = AlterTopicRequest("trips", {"retention.ms": 1, "cleanup.policy": None})
    assert act_detail(Api.ALTER_TOPIC, settings) == "retention.ms=1; cleanup.policy=(none)"
    of_one = AlterBrokerConfigsRequest(3, {"num.partitions": 2, "log.level": None})
    assert act_detail(Api.ALTER_BROKER_CONFIGS, of_one) == "broker 3: num.partitions=2, log.level=(none)"
    assert act_detail(Api.ALTER_BROKER_CONFIGS, AlterBrokerConfigsRequest(-1, {"a": 1})) == "all brokers: a=1"


def test_long_requests_are_told_in_part() -> None:
    request = CreateAclsRequest([acl("n" * 65_536)] * ACLS_PER_REQUEST_MAX)
    detail = act_detail(Api.CREATE_ACLS, request)
    assert detail.endswith(f"; and {ACLS_PER_REQUEST_MAX - ITEMS_MAX} more")
    assert len(detail) < ITEMS_MAX * 400


def test_every_act_has_a_text_or_none() -> None:
    for api in ADMINISTRATIVE:
        assert isinstance(act_detail(api, REQUESTS[api]), str)
