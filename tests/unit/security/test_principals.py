"""Principals and the mapping of certificates' names."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError
from sparklog.security import acl_records
from sparklog.security.acl_records import acl_from_texts, acl_of, acl_record, filter_from_texts
from sparklog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.plain import PlainServer, plain_message
from sparklog.security.principal_mapping import certificate_expiry_ms, certificate_name, map_name, parse_mapping_rules
from sparklog.security.principals import (
    ANONYMOUS,
    ANY_USER,
    Principal,
    check_name,
    check_user_name,
    parse_principal,
    parse_super_users,
    stored_principal,
    user,
)
from sparklog.security.quota_records import quota_record
from sparklog.security.quotas import Entity, QuotaKey
from sparklog.security.sasl import SCRAM_SHA_256
from sparklog.security.scram import (
    ScramClient,
    ScramServer,
    UnknownUsers,
    checked_name,
    credential_text,
    make_credential,
)
from sparklog.security.secrets import Secret
from sparklog.security.users import UserAlteration, altered_users, parse_initial
from tests.support.cases import for_each

CREDENTIAL = make_credential(SCRAM_SHA_256, Secret("pencil"))

DUKE = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


def test_parse() -> None:
    assert parse_principal("User:alice") == Principal("User", "alice")
    assert str(parse_principal("User:CN=a:b,O=c")) == "User:CN=a:b,O=c"
    assert parse_principal("User:*", wildcard=True) == ANY_USER


@for_each("text", ["", "alice", "user:alice", "User:", "User:*", "Group:a", "User:a\nb", "User:" + "x" * 1025])
def test_no_principal(text: str) -> None:
    with pytest.raises(InvalidConfigError):
        parse_principal(text)


@for_each("text", ["", "alice", "user:alice", "User:", "Group:a"])
def test_a_stored_text_without_a_principal_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError):
        stored_principal(text)


STRANGE_NAMES = (
    "", " ", "\u3000", " admin", "admin ", "*", "User:admin", "admin\n", "ad\0min", "ad\u200bmin", "ad\u202emin",
    "ad\u00admin", "\uff41\uff44\uff4d\uff49\uff4e", "e\u0301va", "\ufb01nance", "\u212aim", "admin\ufe0f", "adm\u00a0in",
    "x" * 1025,
)  # fmt: skip


def test_names_that_pass_for_others_are_refused_everywhere() -> None:
    for name in STRANGE_NAMES:
        for enters in (
            check_name,
            check_user_name,
            checked_name,
            user,
            lambda name: parse_principal(f"User:{name}"),
            lambda name: parse_super_users(f"User:a;User:{name}" if name.strip() == name and name else "User:*"),
            lambda name: quota_record(Entity(user=name or " "), {QuotaKey.PRODUCER_BYTE_RATE: 1.0}),
            lambda name: (
                acl_from_texts("Topic", "literal", "t", f"User:{name}", "*", "Read", "Allow")
                if name != "*"
                else check_name(name)
            ),
            lambda name: altered_users({}, [UserAlteration(name, SCRAM_SHA_256, CREDENTIAL)]),
            lambda name: (
                parse_initial(f"{name or '*'}={SCRAM_SHA_256}:{credential_text(CREDENTIAL)}")
                if name.strip() == name
                else check_name(name)
            ),
        ):
            with pytest.raises(InvalidConfigError):
                enters(name)
    with pytest.raises(InvalidConfigError, match="write 'admin'"):
        check_name("\uff41\uff44\uff4d\uff49\uff4e")


def test_names_of_all_scripts_are_allowed() -> None:
    for name in (
        "alice",
        "CN=Zo\u00eb M\u00fcller,O=B\u00e4r & Co",
        "\u6d4b\u8bd5",
        "\u0430\u043b\u0438\u0441\u0430",
        "a:b",
        "a b",
        "brokers",
    ):
        assert check_name(name) == name


def test_no_peer_is_authenticated_as_anonymous() -> None:
    """Every peer without authentication has this principal: ACLs and quotas name it, users cannot have it."""
    assert parse_principal("User:ANONYMOUS") == ANONYMOUS
    assert quota_record(Entity(user="ANONYMOUS"), {QuotaKey.PRODUCER_BYTE_RATE: 1.0})[1] is not None
    for enters in (user, check_user_name, checked_name):
        with pytest.raises(InvalidConfigError, match="without authentication"):
            enters("ANONYMOUS")
    with pytest.raises(SaslAuthenticationFailedError, match="without authentication"):
        map_name(parse_mapping_rules("RULE:^CN=(.*?),.*$/$1/"), "CN=ANONYMOUS,O=x")


def test_a_stored_user_with_a_strange_name_can_be_removed_and_not_log_in() -> None:
    stored = {"ANONYMOUS": {SCRAM_SHA_256: CREDENTIAL}}
    assert altered_users(stored, [UserAlteration("ANONYMOUS", SCRAM_SHA_256, None)]) == {"ANONYMOUS": None}
    lookup = {"ANONYMOUS": CREDENTIAL}.get
    server = ScramServer(SCRAM_SHA_256, lookup, UnknownUsers(SCRAM_SHA_256, bytes(32)))
    client = ScramClient(SCRAM_SHA_256, "ANONYMOUS", Secret("pencil"))
    proof = client.respond(server.respond(client.first(), 0).challenge)
    with pytest.raises(SaslAuthenticationFailedError):
        server.respond(proof, 0)


def test_a_name_in_another_form_logs_in_as_the_user_that_it_stands_for() -> None:
    """Not every client prepares the name that it sends."""
    credential = make_credential(SCRAM_SHA_256, Secret("pencil"))
    lookup = {"admin": credential}.get
    unknown = UnknownUsers(SCRAM_SHA_256, bytes(32))
    for name in ("\uff41\uff44\uff4d\uff49\uff4e", "ad\u00admin", "admin"):
        assert PlainServer(lookup, unknown).respond(plain_message(name, Secret("pencil")), 0).principal == user("admin")
        with pytest.raises(SaslAuthenticationFailedError):
            PlainServer(lookup, unknown).respond(plain_message(name, Secret("pen")), 0)
        server, client = (
            ScramServer(SCRAM_SHA_256, lookup, unknown),
            ScramClient(SCRAM_SHA_256, "admin", Secret("pencil")),
        )
        first = client.first().replace(b"n=admin", b"n=" + name.encode())
        client._exchange.client_first_bare = first.decode().split(",", 2)[2]  # as a client that prepares nothing
        step = server.respond(client.respond(server.respond(first, 0).challenge), 0)
        assert step.principal == user("admin")
    for strange in STRANGE_NAMES:
        if strange.strip() == strange and strange and "\0" not in strange and "admin" not in strange:
            with pytest.raises(SaslAuthenticationFailedError):
                PlainServer({strange: credential}.get, unknown).respond(plain_message(strange, Secret("pencil")), 0)


def test_an_acl_of_the_largest_size_is_kept_and_a_larger_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    acl = Acl(ResourceType.TOPIC, PatternType.LITERAL, "t", user("alice"), "*", Operation.READ, Permission.DENY)
    _, record = acl_record(acl)
    monkeypatch.setattr(acl_records, "VALUE_BYTES_MAX", len(record))
    assert acl_record(acl)[1] == record
    monkeypatch.setattr(acl_records, "VALUE_BYTES_MAX", len(record) - 1)
    with pytest.raises(InvalidConfigError, match=f"an ACL of {len(record)} bytes; at most {len(record) - 1}"):
        acl_record(acl)


def test_records_of_strange_names_can_be_read_and_removed() -> None:
    """One ACL of such a name must not make all ACLs unreadable: everybody would be denied."""
    for name in STRANGE_NAMES:
        if name in ("", "*"):
            continue
        acl = Acl(
            ResourceType.TOPIC, PatternType.LITERAL, "t", Principal("User", name), "*", Operation.READ, Permission.DENY
        )
        _, record = acl_record(acl)
        assert acl_of(record) == acl
        assert filter_from_texts(None, "any", None, f"User:{name}", None, None, None).takes(acl)


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("RULE:^CN=(.*?),.*$/$1/L", "CN=\u0130van,O=x"),
        ("RULE:^CN=(.*?),.*$/$1/U", "CN=adm\u0131n,O=x"),
        ("RULE:^CN=(.*?),.*$/$1/U", "CN=\u00df,O=x"),
        ("RULE:^CN=(.*?),.*$/$1/L", "CN=\u212aim,O=x"),
        ("RULE:^CN=(.*?),.*$/$1/", "CN=\uff41dmin,O=x"),
        ("RULE:^CN=(.*?),.*$/$1/", "CN=,O=x"),
        ("RULE:^CN=(.*?),.*$/$1/", "CN=*,O=x"),
        ("RULE:^CN=(.*?)(,.*)?$/$1/", "CN=User:admin,O=x"),
    ],
)
def test_a_certificate_does_not_become_another_name(rules: str, name: str) -> None:
    """Letters that lose their difference when they change case, and names that principals cannot have."""
    with pytest.raises(SaslAuthenticationFailedError, match="gives no valid principal"):
        map_name(parse_mapping_rules(rules), name)


def test_super_users_are_separated_by_semicolons() -> None:
    assert parse_super_users(" User:CN=a,O=b ; User:c;") == {Principal("User", "CN=a,O=b"), Principal("User", "c")}
    assert parse_super_users("") == frozenset()
    for text in ("User:a,User:b", "User:c; User:a, User:b"):  # one user of this name would be nobody
        with pytest.raises(InvalidConfigError, match="semicolons"):
            parse_super_users(text)


@pytest.mark.parametrize(
    ("rules", "name", "mapped"),
    [
        ("", DUKE, DUKE),
        ("DEFAULT", DUKE, DUKE),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", DUKE, "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", DUKE, "duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/U", DUKE, "DUKE"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1@$2/", DUKE, "Duke@$2"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2.$10/", DUKE, "Duke@ServiceUsers.Duke0"),
        ("RULE:^CN=(?<who>.*?),OU=.*$/${who}/", DUKE, "Duke"),
        (r"RULE:^CN=(.*?),.*$/\$$1/", DUKE, "$Duke"),
        ("RULE:^OU=x$/y/ , RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", DUKE, "duke"),
        ("RULE:^OU=x$/y/,DEFAULT", DUKE, DUKE),
        (r"RULE:^CN=a\/b$/ok/", "CN=a/b", "ok"),
        ("RULE:^CN=Duke$/x/,DEFAULT", DUKE, DUKE),
        (r"RULE:(?i)cn=(\p{Alpha}[a-z&&[^b]]+)\Q,OU=\E.*\z/$1/", DUKE, "Duke"),
        ("RULE:.*/x/", "CN=a", "xx"),  # as Java's replaceAll: the empty end is a match, too
        (",, DEFAULT ,", DUKE, DUKE),
    ],
)
def test_mapping(rules: str, name: str, mapped: str) -> None:
    assert map_name(parse_mapping_rules(rules), name) == Principal("User", mapped)


@pytest.mark.parametrize(
    ("rules", "part"),
    [
        ("RULE:^CN=(.*?)$/$1", "no slash"),
        ("RULE:^CN=(.*?)$", "no slash"),
        ("DEFAULTS", "'S' after 'DEFAULT'"),
        ("RULE:a/b/LU", "'U' after"),
        ("rule:a/b/", "neither"),
        ("RULE:(/b/", "not valid"),
        (r"RULE:\h/b/", r"\h"),
        ("RULE:[a-z&&]/b/", "&&"),
        ("RULE:(?U)cn=(.*)/$1/", "(?U)"),
        ("RULE:CN=(.*)/${nobody}/", "no group"),
        ("x" * 20_000, "characters"),
    ],
)
def test_rules_that_are_refused(rules: str, part: str) -> None:
    with pytest.raises(InvalidConfigError) as e:
        parse_mapping_rules(rules)
    assert part in str(e.value)


@pytest.mark.parametrize(
    ("rules", "name"),
    [("RULE:^CN=x$/y/", DUKE), ("RULE:^.*$//", DUKE), ("RULE:^.*$/*/", DUKE), ("DEFAULT", "CN=" + "x" * 2000)],
)
def test_a_name_that_makes_no_principal_is_a_failed_authentication(rules: str, name: str) -> None:
    with pytest.raises(SaslAuthenticationFailedError):
        map_name(parse_mapping_rules(rules), name)


def certificate(*attributes: tuple[x509.ObjectIdentifier, str]) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def test_certificate_names_are_written_as_java_writes_them() -> None:
    assert (
        certificate_name(
            certificate((NameOID.COUNTRY_NAME, "US"), (NameOID.ORGANIZATION_NAME, "Org"), (NameOID.COMMON_NAME, "Duke"))
        )
        == "CN=Duke,O=Org,C=US"
    )
    assert certificate_name(certificate((NameOID.COMMON_NAME, ' a,b=c+d"e\\f '))) == r"CN=\ a\,b\=c\+d\"e\\f\ "
    assert certificate_name(certificate((NameOID.EMAIL_ADDRESS, "a@b"), (NameOID.COMMON_NAME, "ü"))) == (
        "CN=ü,1.2.840.113549.1.9.1=#1603614062"
    )


def test_a_name_cannot_pretend_to_have_another_attribute() -> None:
    """Somebody with the name "alice,O=Org" is not alice of Org."""
    name = certificate_name(certificate((NameOID.ORGANIZATION_NAME, "Evil"), (NameOID.COMMON_NAME, "alice,O=Org")))
    with pytest.raises(SaslAuthenticationFailedError):
        map_name(parse_mapping_rules("RULE:^CN=([a-z]+),O=Org(,.*)?$/$1/"), name)


NAME_VALUES = (
    (0x0C, b"\xff" * 8), (0x14, b"\xe9AAAAAAA"), (0x1E, b"\xd8\0\0B\0C\0D"), (0x16, b"\xe9AAAAAAA"), (0x13, b"\xff*AAAAAA"),
    (0x03, b"AAAAAAAA"), (0x30, b"\x0c\x06AAAAAA"), (0x02, b"AAAAAAAA"),
)  # fmt: skip
"""Tags and contents of a common name that OpenSSL takes and that are no text."""


def test_a_certificate_whose_name_is_no_text_is_a_failed_authentication() -> None:
    whole = certificate((NameOID.COMMON_NAME, "AAAAAAAA"))
    for tag, value in NAME_VALUES:
        odd = bytearray(whole)
        at = whole.rindex(b"AAAAAAAA")
        odd[at - 2 : at + 8] = bytes([tag, 8]) + value
        with pytest.raises(SaslAuthenticationFailedError, match="the certificate's name cannot be read"):
            certificate_name(bytes(odd))
    for length in range(len(whole)):
        with pytest.raises(SaslAuthenticationFailedError):
            certificate_name(whole[:length])
        with pytest.raises(SaslAuthenticationFailedError):
            certificate_expiry_ms(whole[:length])
