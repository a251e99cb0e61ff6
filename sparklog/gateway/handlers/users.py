"""DESCRIBE_USER_SCRAM_CREDENTIALS and ALTER_USER_SCRAM_CREDENTIALS (KIP-554)."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter

from sparklog.client.net.paging import after_last
from sparklog.errors import InvalidConfigError, SparklogError, UnsupportedSaslMechanismError
from sparklog.gateway.handlers.entries import check_entry
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, code_of, text_of
from sparklog.protocol.apis import Api
from sparklog.protocol.security_messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserCredentials,
)
from sparklog.security.scram import salted_credential

MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_NUMBERS = {mechanism: number for number, mechanism in MECHANISMS.items()}
_TWICE = "the user is named twice"


async def describe_user_scram_credentials(
    session: Session, request: requests.DescribeUserScramCredentials, version: int
) -> responses.DescribeUserScramCredentials:
    """Answer with the mechanisms of users: of all users if the request names none."""
    names = [u["name"] for u in request["users"] or ()]
    named = Counter(names)
    message = DescribeUserScramCredentialsRequest(list(named) or None)
    following = after_last("users", attrgetter("name"))
    try:
        check_entry(len(named) - 1)
        pages = (await session.broker()).pages(
            Api.DESCRIBE_USER_SCRAM_CREDENTIALS, message, DescribeUserScramCredentialsResponse, following
        )
        users = [user async for page in pages for user in page.users]
    except SparklogError as e:
        return {"error_code": code_of(e), "error_message": text_of(e), "results": []}
    return {
        "error_code": Kafka.NONE,
        "error_message": None,
        "results": [_described(user, is_twice=named[user.name] > 1) for user in users],
    }


def _described(user: UserCredentials, *, is_twice: bool) -> responses.DescribeUserScramCredentialsResult:
    code, text = Kafka.NONE, None
    if is_twice:
        code, text = Kafka.DUPLICATE_RESOURCE, _TWICE
    elif not user.credentials:
        code, text = Kafka.RESOURCE_NOT_FOUND, f"there is no user {user.name!r}"
    return {
        "user": user.name,
        "error_code": code,
        "error_message": text,
        "credential_infos": [
            {"mechanism": _NUMBERS.get(c.mechanism, 0), "iterations": c.iterations}
            for c in (() if code else user.credentials)
        ],
    }


async def alter_user_scram_credentials(
    session: Session, request: requests.AlterUserScramCredentials, version: int
) -> responses.AlterUserScramCredentials:
    """Set and remove credentials. Each user has one result for all changes."""
    changes = [*request["deletions"], *request["upsertions"]]
    twice = {name for (name, _), times in Counter((c["name"], c["mechanism"]) for c in changes).items() if times > 1}
    results: list[responses.AlterUserScramCredentialsResult] = []
    for i, name in enumerate(dict.fromkeys(c["name"] for c in changes)):
        code, text = Kafka.NONE, None
        try:
            check_entry(i)
            if name in twice:
                code, text = Kafka.DUPLICATE_RESOURCE, _TWICE
            else:
                await (await session.broker()).ask(
                    Api.ALTER_USER_SCRAM_CREDENTIALS,
                    AlterUserScramCredentialsRequest(
                        [_deletion(d) for d in request["deletions"] if d["name"] == name],
                        [_upsertion(u) for u in request["upsertions"] if u["name"] == name],
                    ),
                    AlterUserScramCredentialsResponse,
                )
        except InvalidConfigError as e:
            code, text = Kafka.UNACCEPTABLE_CREDENTIAL, text_of(e)
        except SparklogError as e:
            code, text = code_of(e), text_of(e)
        results.append({"user": name, "error_code": code, "error_message": text})
    return {"results": results}


def _deletion(deletion: requests.AlterUserScramCredentialsDeletion) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(deletion["name"], _mechanism(deletion["mechanism"]))


def _upsertion(upsertion: requests.AlterUserScramCredentialsUpsertion) -> ScramCredentialUpsertion:
    """Return the credential in the broker's form. Raises UnsupportedSaslMechanismError, InvalidConfigError."""
    mechanism = _mechanism(upsertion["mechanism"])
    made = salted_credential(mechanism, upsertion["salted_password"], upsertion["salt"], upsertion["iterations"])
    return ScramCredentialUpsertion(
        upsertion["name"], mechanism, made.iterations, made.salt, made.stored_key, made.server_key
    )


def _mechanism(number: int) -> str:
    if number not in MECHANISMS:
        raise UnsupportedSaslMechanismError(f"SCRAM mechanism {number}; use 1 (SCRAM-SHA-256) or 2 (SCRAM-SHA-512)")
    return MECHANISMS[number]
