"""Users with passwords: changes and descriptions of their credentials (KIP-554)."""

from __future__ import annotations

from bisect import bisect_right

from sparklog.errors import InvalidConfigError, ResourceNotFoundError
from sparklog.protocol.security_messages import (
    USERS_MAX,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialInfo,
    UserCredentials,
)
from sparklog.security.records import RecordId, RecordKind
from sparklog.security.scram import ScramCredential, credential_text, parse_credential
from sparklog.security.users import UserAlteration, altered_users, encode_user
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext
from sparklog_broker.security.users import UNKNOWN_USERS


async def alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Make all changes or none. New credentials are checked like credentials that are read from records."""
    users = context.broker.users
    users_before = users.all()
    alterations = [
        UserAlteration(one.name, one.mechanism, None)
        for one in request.deletions
        if not context.is_repeated or one.mechanism in users_before.get(one.name, ())
    ]
    for one in request.upsertions:
        credential = ScramCredential(one.salt, one.stored_key, one.server_key, one.iterations)
        # the salt is random: an equal credential is from an earlier attempt
        if request.only_new and one.name in users_before and users_before[one.name].get(one.mechanism) != credential:
            raise InvalidConfigError(
                f"user {one.name!r} already exists; `sparklog user set-password` changes the password"
            )
        if request.only_existing and one.name not in users_before:
            raise ResourceNotFoundError(f"user {one.name!r} does not exist; `sparklog user add` creates one")
        alterations.append(
            UserAlteration(one.name, one.mechanism, parse_credential(one.mechanism, credential_text(credential)))
        )
    altered = altered_users(users_before, alterations)
    records = context.broker.security_records
    changes: dict[RecordId, bytes | None] = {
        RecordId(RecordKind.USERS, name): users.record_without(name)
        if credentials is None
        else encode_user(credentials)
        for name, credentials in altered.items()
    }
    if UNKNOWN_USERS not in records.of_kind(RecordKind.SECRETS):  # all brokers share it from the first user on
        changes[RecordId(RecordKind.SECRETS, UNKNOWN_USERS)] = users.secret
    if changes:  # none if an earlier attempt has made all of them
        await records.change(changes)
    return Response(AlterUserScramCredentialsResponse())


async def describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer with the users and their mechanisms, without salts and keys."""
    all_users = context.broker.users.all()
    names = sorted(all_users) if request.names is None else list(dict.fromkeys(request.names))
    if request.names is None and request.after:
        names = names[bisect_right(names, request.after) :]
    descriptions = [
        UserCredentials(
            name,
            [ScramCredentialInfo(mechanism, c.iterations) for mechanism, c in sorted(all_users.get(name, {}).items())],
        )
        for name in names[:USERS_MAX]
    ]
    return Response(DescribeUserScramCredentialsResponse(descriptions, more=len(names) > USERS_MAX))
