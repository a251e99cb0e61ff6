"""SCRAM and PLAIN: the RFCs' own examples, hostile messages, and the secrecy towards an attacker that tries names."""

from __future__ import annotations

import base64
from collections import Counter

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError
from sparklog.security import plain as plain_module
from sparklog.security import scram
from sparklog.security.plain import PlainServer, plain_message
from sparklog.security.principals import user
from sparklog.security.sasl import SCRAM_MECHANISMS, SCRAM_SHA_256, SCRAM_SHA_512
from sparklog.security.scram import (
    ScramClient,
    ScramCredential,
    ScramServer,
    UnknownUsers,
    credential_matches,
    credential_text,
    make_credential,
    parse_credential,
)
from sparklog.security.secrets import Secret
from tests.support.cases import for_each

SERVER_SECRET = bytes(range(32))
PASSWORD = Secret("pencil")
UNKNOWN = {m: UnknownUsers(m, SERVER_SECRET) for m in SCRAM_MECHANISMS}
CREDENTIALS = {m: {"user": make_credential(m, PASSWORD)} for m in SCRAM_MECHANISMS}


def server(mechanism: str = SCRAM_SHA_256) -> ScramServer:
    return ScramServer(mechanism, CREDENTIALS[mechanism].get, UNKNOWN[mechanism])


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_both_sides_prove_that_they_know_the_password(mechanism: str) -> None:
    client, broker = ScramClient(mechanism, "user", PASSWORD), server(mechanism)
    first = broker.respond(client.first(), 0)
    assert first.principal is None
    final = broker.respond(client.respond(first.challenge), 0)
    client.finish(final.challenge)
    assert (final.principal, final.expires_ms) == (user("user"), None)


def test_the_example_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = make_credential(SCRAM_SHA_256, PASSWORD, 4096, salt)
    monkeypatch.setattr(scramp.core.Nonce, "create", lambda: scramp.core.Nonce("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"))
    broker = ScramServer(SCRAM_SHA_256, {"user": credential}.get, UNKNOWN[SCRAM_SHA_256])
    first = broker.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", 0)
    assert first.challenge == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = broker.respond(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", 0
    )
    assert final.challenge == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_unknown_users_look_like_real_ones_with_a_wrong_password(mechanism: str) -> None:
    def attempt(name: str) -> tuple[dict[str, str], str]:
        client, broker = ScramClient(mechanism, name, Secret("wrong")), server(mechanism)
        first = broker.respond(client.first(), 0).challenge
        with pytest.raises(SaslAuthenticationFailedError) as e:
            broker.respond(client.respond(first), 0)
        fields = dict(part.split("=", 1) for part in first.decode().split(","))
        return fields, str(e.value)

    known, known_error = attempt("user")
    unknown, unknown_error = attempt("nobody")
    assert known_error == unknown_error
    assert (len(known["s"]), known["i"], len(known["r"])) == (len(unknown["s"]), unknown["i"], len(unknown["r"]))
    assert attempt("nobody")[0]["s"] == unknown["s"] != attempt("somebody")[0]["s"]
    other_secret = UnknownUsers(mechanism, bytes(32)).credential("nobody")
    assert base64.b64encode(other_secret.salt).decode() != unknown["s"]


def credentials_of(shapes: dict[tuple[int, int], int]) -> list[ScramCredential]:
    """As many credentials of each (iterations, bytes of the salt)."""
    return [
        ScramCredential(bytes(salt_bytes), bytes(32), bytes(32), iterations)
        for (iterations, salt_bytes), users in shapes.items()
        for _ in range(users)
    ]


def test_unknown_users_have_the_shapes_of_real_ones() -> None:
    """An attacker that tries names sees iterations and the size of the salt. A number that only unknown names have
    would reveal unknown names; one that they never have would reveal known ones."""
    for shapes in (
        {},
        {(16_384, 32): 1},
        {(4_096, 32): 30, (16_384, 32): 10},
        {(4_096, 16): 10, (8_192, 200): 10, (1_000_000, 32): 20},
    ):
        unknown = UnknownUsers(SCRAM_SHA_256, SERVER_SECRET, credentials_of(shapes))
        names = [f"name-{i}" for i in range(4_000)]
        found = Counter((c.iterations, len(c.salt)) for c in map(unknown.credential, names))
        assert found.keys() == (shapes or {(4_096, 32): 1}).keys()
        for shape, users in shapes.items():
            assert abs(found[shape] / len(names) - users / sum(shapes.values())) < 0.05, (shapes, found)


def test_an_unknown_name_has_one_number_of_iterations_in_all_mechanisms() -> None:
    known = credentials_of({(4_096, 32): 3, (20_000, 32): 3})
    sha_256, sha_512 = (UnknownUsers(m, SERVER_SECRET, known) for m in (SCRAM_SHA_256, SCRAM_SHA_512))
    found = [(sha_256.credential(n).iterations, sha_512.credential(n).iterations) for n in map(str, range(64))]
    assert set(found) == {(4_096, 4_096), (20_000, 20_000)}


def test_a_new_user_changes_few_unknown_names_and_their_salt_too() -> None:
    """The iterations of a known name change with its password alone, and then the salt does."""
    shapes = {(4_096, 32): 50, (16_384, 32): 50}
    before = UnknownUsers(SCRAM_SHA_256, SERVER_SECRET, credentials_of(shapes))
    after = UnknownUsers(SCRAM_SHA_256, SERVER_SECRET, credentials_of(shapes | {(65_536, 32): 2}))
    pairs = [(before.credential(f"name-{i}"), after.credential(f"name-{i}")) for i in range(2_000)]
    changed = [(a, b) for a, b in pairs if a != b]
    assert 0 < len(changed) < 100
    assert all(a.salt != b.salt and b.iterations == 65_536 for a, b in changed)


def test_plain_works_as_long_for_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    worked = []
    monkeypatch.setattr(
        plain_module, "credential_matches", lambda _, __, credential: worked.append(credential) or False
    )
    known = credentials_of({(16_384, 32): 1})[0]
    unknown = UnknownUsers(SCRAM_SHA_256, SERVER_SECRET, [known])
    for name in ("user", "nobody"):
        with pytest.raises(SaslAuthenticationFailedError):
            PlainServer({"user": known}.get, unknown).respond(plain_message(name, PASSWORD), 0)
    assert [c.iterations for c in worked] == [16_384, 16_384]


def test_no_proof_opens_an_invented_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that fits: the user is not known."""
    fitting = CREDENTIALS[SCRAM_SHA_256]["user"]
    monkeypatch.setattr(UnknownUsers, "credential", lambda *_: fitting)
    client = ScramClient(SCRAM_SHA_256, "nobody", PASSWORD)
    broker = ScramServer(SCRAM_SHA_256, lambda _: None, UNKNOWN[SCRAM_SHA_256])
    proof = client.respond(broker.respond(client.first(), 0).challenge)
    with pytest.raises(SaslAuthenticationFailedError):
        broker.respond(proof, 0)


def test_a_recorded_exchange_is_no_proof() -> None:
    client, broker = ScramClient(SCRAM_SHA_256, "user", PASSWORD), server()
    first = client.first()
    proof = client.respond(broker.respond(first, 0).challenge)
    assert broker.respond(proof, 0).principal == user("user")
    with pytest.raises(SaslAuthenticationFailedError):
        broker.respond(proof, 0)  # again, on the same connection
    again = server()
    again.respond(first, 0)
    with pytest.raises(SaslAuthenticationFailedError):
        again.respond(proof, 0)  # on another


@for_each(
    "first",
    [
        b"",
        b"\xff",
        b"n,,n=user",
        b"n,a=admin,n=user,r=abc",  # to act for somebody else
        b"p=tls-unique,,n=user,r=abc",  # channel binding, which is not offered
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,,n=user,r=" + b"a" * 5000,
        b"c=biws,r=abc,p=AAAA",
    ],
)
def test_a_first_message_that_is_not_right_ends_the_exchange(first: bytes) -> None:
    broker = server()
    with pytest.raises(SaslAuthenticationFailedError):
        broker.respond(first, 0)
    with pytest.raises(SaslAuthenticationFailedError):
        broker.respond(b"n,,n=user,r=abc", 0)


def test_the_channel_binding_flag_cannot_be_changed_on_the_way() -> None:
    """Downgrade: client-final repeats the header of client-first; here it says another."""
    client, broker = ScramClient(SCRAM_SHA_256, "user", PASSWORD), server()
    proof = client.respond(broker.respond(client.first().replace(b"n,,", b"y,,", 1), 0).challenge)
    with pytest.raises(SaslAuthenticationFailedError):
        broker.respond(proof, 0)


def test_the_client_refuses_a_broker_with_cheap_or_endless_work_or_without_a_proof() -> None:
    for answer in (b"i=1", b"i=4095", b"i=9000000", b"i=99999999999", b"x", b"\xff"):
        client = ScramClient(SCRAM_SHA_256, "user", PASSWORD)
        nonce = client.first().split(b"r=")[1]
        with pytest.raises(SaslAuthenticationFailedError):
            client.respond(b"r=%sx,s=W22ZaJ0SNY7soEsUEjb6gQ==,%s" % (nonce, answer))
    client = ScramClient(SCRAM_SHA_256, "user", PASSWORD)
    client.respond(server().respond(client.first(), 0).challenge)
    with pytest.raises(SaslAuthenticationFailedError, match="could not prove"):
        client.finish(b"v=" + base64.b64encode(bytes(32)))


@given(st.lists(st.binary(max_size=80) | st.text("nrpc=,abuse", max_size=40).map(str.encode), max_size=4))
def test_garbage_is_only_a_failed_authentication(messages: list[bytes]) -> None:
    for exchange in (server(), PlainServer(CREDENTIALS[SCRAM_SHA_256].get, UNKNOWN[SCRAM_SHA_256])):
        for message in messages:
            try:
                step = exchange.respond(message, 0)
            except SaslAuthenticationFailedError:
                continue
            assert step.principal is None


def test_a_lookup_that_fails_is_no_wrong_password() -> None:
    def fails(name: str) -> ScramCredential | None:
        raise OSError("store")

    with pytest.raises(OSError, match="store"):
        ScramServer(SCRAM_SHA_256, fails, UNKNOWN[SCRAM_SHA_256]).respond(b"n,,n=user,r=abc", 0)


def test_credentials_are_salted_and_written_as_kafka_writes_them() -> None:
    one, two = make_credential(SCRAM_SHA_256, PASSWORD), make_credential(SCRAM_SHA_256, PASSWORD)
    assert one.salt != two.salt
    assert one.stored_key != two.stored_key
    assert "pencil" not in credential_text(one)
    assert base64.b64encode(one.stored_key).decode() not in repr(one)
    assert parse_credential(SCRAM_SHA_256, credential_text(one)) == one
    assert credential_matches(SCRAM_SHA_256, PASSWORD, one)
    assert not credential_matches(SCRAM_SHA_256, Secret("Pencil"), one)


@for_each("text", ["", "salt=eA==", "x", "salt=a,stored_key=b,server_key=c,iterations=4096", "iterations=4096"])
def test_credentials_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InvalidConfigError) as e:
        parse_credential(SCRAM_SHA_256, text)
    assert "eA==" not in str(e.value)
    with pytest.raises(InvalidConfigError):
        parse_credential("SCRAM-SHA-512", credential_text(CREDENTIALS[SCRAM_SHA_256]["user"]))


def test_limits_of_passwords_and_names() -> None:
    for iterations in (0, 4095, scram.ITERATIONS_MAX + 1):
        with pytest.raises(InvalidConfigError):
            make_credential(SCRAM_SHA_256, PASSWORD, iterations)
    with pytest.raises(InvalidConfigError):
        make_credential("SCRAM-SHA-1", PASSWORD)
    for password in ("", "a\0b", "\u200b"):
        with pytest.raises(InvalidConfigError):
            make_credential(SCRAM_SHA_256, Secret(password))
    with pytest.raises(InvalidConfigError):
        UnknownUsers(SCRAM_SHA_256, b"short")


def plain() -> PlainServer:
    return PlainServer(CREDENTIALS[SCRAM_SHA_256].get, UNKNOWN[SCRAM_SHA_256])


def test_plain() -> None:
    assert plain().respond(plain_message("user", PASSWORD), 0).principal == user("user")
    assert plain().respond(b"user\0user\0pencil", 0).principal == user("user")
    used = plain()
    used.respond(plain_message("user", PASSWORD), 0)
    with pytest.raises(SaslAuthenticationFailedError):
        used.respond(plain_message("user", PASSWORD), 0)


@for_each(
    "message",
    [
        b"",
        b"user",
        b"\0user\0",
        b"\0user\0wrong",
        b"\0nobody\0pencil",
        b"admin\0user\0pencil",
        b"\0user\0pencil\0",
        b"\0\0x",
        b"\0user\0" + b"x" * 5000,
    ],
)
def test_plain_refuses_with_one_text(message: bytes) -> None:
    with pytest.raises(SaslAuthenticationFailedError, match=r"^authentication failed: invalid credentials$"):
        plain().respond(message, 0)
