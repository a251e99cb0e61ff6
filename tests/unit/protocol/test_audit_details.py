"""Text of the audit log for acts whose resources do not show the change."""

from __future__ import annotations

from sparklog.protocol.acl_messages import (
    ACLS_PER_REQUEST_MAX,
    AclEntry,
    AclFilterEntry,
    CreateAclsRequest,
    DeleteAclsRequest,
)
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.audit_details import ITEMS_MAX, audit_detail
from sparklog.protocol.base import Message
from sparklog.protocol.operation_messages import AlterBrokerConfigsRequest
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


def detail_of(api: Api, request: Message) -> str:
    return audit_detail(APIS[api].audit_detail, request)


def test_which_acls() -> None:
    assert detail_of(Api.CREATE_ACLS, CreateAclsRequest([acl("trips"), acl("a; b")])) == (
        "Allow 'User:etl' Read on prefixed topic 'trips' from *; Allow 'User:etl' Read on prefixed topic 'a; b' from *"
    )
    wanted = AclFilterEntry("topic", "literal", "trips")
    assert detail_of(Api.DELETE_ACLS, DeleteAclsRequest([wanted])) == "any any any on literal topic 'trips' from any"


def test_which_quotas_users_and_settings() -> None:
    changes = {"producer_byte_rate": 5e7, "max_topics": None}
    alteration = AlterClientQuotasRequest([QuotaAlteration("etl", "", changes)])
    assert detail_of(Api.ALTER_CLIENT_QUOTAS, alteration) == (
        "user 'etl', client id (default): producer_byte_rate=50000000.0, max_topics=(none)"
    )
    users = AlterUserScramCredentialsRequest(
        [ScramCredentialDeletion("old", "SCRAM-SHA-256")],
        [ScramCredentialUpsertion("new", "SCRAM-SHA-512", 4096, b"s" * 32, b"stored", b"server")],
    )
    assert detail_of(Api.ALTER_USER_SCRAM_CREDENTIALS, users) == (
        "removed 'old' (SCRAM-SHA-256); password of 'new' (SCRAM-SHA-512)"
    )
    settings = AlterTopicRequest("trips", {"retention.ms": 1, "cleanup.policy": None})
    assert detail_of(Api.ALTER_TOPIC, settings) == "retention.ms=1; cleanup.policy=(none)"
    of_one = AlterBrokerConfigsRequest(3, {"num.partitions": 2, "log.level": None})
    assert detail_of(Api.ALTER_BROKER_CONFIGS, of_one) == "broker 3: num.partitions=2, log.level=(none)"
    assert detail_of(Api.ALTER_BROKER_CONFIGS, AlterBrokerConfigsRequest(0, {"a": 1})) == "broker 0: a=1"
    assert detail_of(Api.ALTER_BROKER_CONFIGS, AlterBrokerConfigsRequest(-1, {"a": 1})) == "all brokers: a=1"
    of_group = AlterBrokerConfigsRequest(-1, {"a": 1}, group_id="g")
    assert detail_of(Api.ALTER_BROKER_CONFIGS, of_group) == "group g: a=1"


def test_long_requests_are_shortened() -> None:
    request = CreateAclsRequest([acl("n" * 65_536)] * ACLS_PER_REQUEST_MAX)
    detail = detail_of(Api.CREATE_ACLS, request)
    assert detail.endswith(f"; and {ACLS_PER_REQUEST_MAX - ITEMS_MAX} more")
    assert len(detail) < ITEMS_MAX * 400


def test_every_act_has_a_text_or_none() -> None:
    for api in (api for api, spec in APIS.items() if spec.is_audited):
        assert isinstance(detail_of(api, REQUESTS[api]), str)
