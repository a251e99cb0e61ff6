"""Users with passwords: their records, and the alterations of their credentials."""

from __future__ import annotations

import pytest

from sparklog.errors import InvalidConfigError, ResourceNotFoundError
from sparklog.security.scram import ScramCredential, credential_text
from sparklog.security.users import UserAlteration, altered_users, decode_user, encode_user, parse_initial

SHA256, SHA512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


def credential(mechanism: str, filling: int = 1) -> ScramCredential:
    key = bytes([filling]) * (32 if mechanism == SHA256 else 64)
    return ScramCredential(b"s" * 16, key, key, 8_192)


def test_a_record_holds_the_credentials_of_all_mechanisms() -> None:
    credentials = {m: credential(m) for m in (SHA512, SHA256)}
    assert decode_user(encode_user(credentials)) == credentials
    for record in (b"", b"[]", b'{"SCRAM-SHA-256": 5}', b"\xff"):
        with pytest.raises(InvalidConfigError, match="cannot be read"):
            decode_user(record)


def test_initial_credentials_need_a_mechanism_for_each_user() -> None:
    text = credential_text(credential(SHA256))
    users = parse_initial(f" alice={SHA256}:{text}; ;bob={SHA512}:{credential_text(credential(SHA512))};")
    assert users == {"alice": {SHA256: credential(SHA256)}, "bob": {SHA512: credential(SHA512)}}
    for wrong in (f"alice={text}", f"alice=PLAIN:{text}", f"alice=:{text}", "alice"):
        with pytest.raises(InvalidConfigError, match=r"NAME=MECHANISM:salt=… is needed") as refused:
            parse_initial(wrong)
        assert text not in str(refused.value)
    with pytest.raises(InvalidConfigError):
        parse_initial(f"={SHA256}:{text}")


def test_credentials_are_set_replaced_and_removed() -> None:
    users = {"alice": {SHA256: credential(SHA256), SHA512: credential(SHA512)}, "bob": {SHA256: credential(SHA256)}}
    new = credential(SHA256, 2)
    altered = altered_users(
        users,
        [
            UserAlteration("alice", SHA512, None),
            UserAlteration("alice", SHA256, new),
            UserAlteration("bob", SHA256, None),
            UserAlteration("carol", SHA256, new),
        ],
    )
    assert altered == {"alice": {SHA256: new}, "bob": None, "carol": {SHA256: new}}
    assert SHA512 in users["alice"], "the present users are not changed"


def test_impossible_alterations_are_refused_as_a_whole() -> None:
    users = {"alice": {SHA256: credential(SHA256)}, "o\u00aa": {SHA256: credential(SHA256)}}
    set_one, remove = UserAlteration("alice", SHA256, credential(SHA256)), UserAlteration("alice", SHA256, None)
    for alterations, error, reason in (
        (
            [UserAlteration("alice", "PLAIN", credential(SHA256))],
            InvalidConfigError,
            "'PLAIN' is not a SCRAM mechanism",
        ),
        ([UserAlteration("alice", "PLAIN", None)], InvalidConfigError, "use SCRAM-SHA-256 or SCRAM-SHA-512"),
        ([set_one, remove], InvalidConfigError, "altered twice"),
        ([remove, remove], InvalidConfigError, "altered twice"),
        ([UserAlteration("alice", SHA512, None)], ResourceNotFoundError, "does not exist with SCRAM-SHA-512"),
        ([UserAlteration("bob", SHA256, None)], ResourceNotFoundError, "user 'bob' does not exist"),
        ([UserAlteration("o\u00aa", SHA256, credential(SHA256))], InvalidConfigError, "normal form"),
    ):
        with pytest.raises(error, match=reason):
            altered_users(users, alterations)
    assert altered_users(users, [UserAlteration("o\u00aa", SHA256, None)]) == {"o\u00aa": None}, "it can be removed"
