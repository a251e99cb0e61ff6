"""Principals and the mapping of certificates' names."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError
from sparklog.security.principal_mapping import certificate_name, map_name, parse_mapping_rules
from sparklog.security.principals import ANY_USER, Principal, parse_principal, parse_super_users
from tests.support.cases import for_each

DUKE = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


def test_parse() -> None:
    assert parse_principal("User:alice") == Principal("User", "alice")
    assert str(parse_principal("User:CN=a:b,O=c")) == "User:CN=a:b,O=c"
    assert parse_principal("User:*", wildcard=True) == ANY_USER


@for_each("text", ["", "alice", "user:alice", "User:", "User:*", "Group:a", "User:a\nb", "User:" + "x" * 1025])
def test_no_principal(text: str) -> None:
    with pytest.raises(InvalidConfigError):
        parse_principal(text)


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
        (r"RULE:\p{Lu}/b/", r"\p{"),
        (r"RULE:\Qa.b\E/b/", r"\Q"),
        ("RULE:[a-z&&[^b]]/b/", "&&"),
        ("RULE:[a[bc]]/b/", "character classes in character classes"),
        ("RULE:(?i)cn=(.*)/$1/", "inline flags"),
        (r"RULE:CN=a\z/b/", "escapes"),
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
