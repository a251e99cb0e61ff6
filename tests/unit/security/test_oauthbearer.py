"""OAUTHBEARER: which tokens are taken, and that nothing of a refused one is shown."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError
from sparklog.security.client_security import TokenEndpoint
from sparklog.security.handshake import Authentication, Challenge, ChooseMechanism, Fail, ListenerRules, SaslToken
from sparklog.security.oauthbearer import KEYS_MAX, OAuthBearerServer, TokenRules, TokenVerifier, bearer_message
from sparklog.security.principals import user
from sparklog.security.sasl import OAUTHBEARER
from sparklog.security.secrets import Secret
from sparklog.security.token_source import USED_PART, TokenSource
from tests.support.cases import for_each

RSA_KEY, OTHER_KEY = (rsa.generate_private_key(65537, 2048) for _ in range(2))
EC_KEY = ec.generate_private_key(ec.SECP256R1())
NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000
RULES = TokenRules(audiences=("sparklog",), issuer="https://issuer", algorithms=("RS256", "ES256"))
CLAIMS = {"sub": "alice", "aud": "sparklog", "iss": "https://issuer", "exp": NOW_S + 600, "nbf": NOW_S, "iat": NOW_S}


def public(key: Any, kid: str | None, **more: str) -> dict[str, Any]:
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return json.loads(algorithm.to_jwk(key.public_key())) | ({"kid": kid} if kid else {}) | more


JWKS = json.dumps({"keys": [public(RSA_KEY, "r"), public(EC_KEY, "e", use="sig"), {"kty": "new-kind"}]})
VERIFIER = TokenVerifier(JWKS, RULES)


def token(
    key: Any = RSA_KEY, algorithm: str = "RS256", kid: str | None = "r", header: Any = None, **claims: Any
) -> str:
    merged = {k: v for k, v in (CLAIMS | claims).items() if v is not None}
    return jwt.encode(merged, key, algorithm, headers=({"kid": kid} if kid else {}) | (header or {}))


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_a_good_token() -> None:
    assert VERIFIER.verify(token(), NOW_MS) == ("alice", NOW_MS + 630_000)
    assert VERIFIER.verify(token(EC_KEY, "ES256", "e"), NOW_MS)[0] == "alice"
    assert VERIFIER.verify(token(kid=None), NOW_MS)[0] == "alice"  # one RSA key only
    assert VERIFIER.verify(token(aud=["x", "sparklog"]), NOW_MS)[0] == "alice"


def test_the_skew_counts_on_both_ends_and_the_clock_is_the_callers() -> None:
    assert VERIFIER.verify(token(), NOW_MS + 629_999)[0] == "alice"
    assert VERIFIER.verify(token(), NOW_MS - 30_000)[0] == "alice"
    for now_ms in (NOW_MS + 630_000, NOW_MS - 30_001):
        with pytest.raises(SaslAuthenticationFailedError):
            VERIFIER.verify(token(), now_ms)


RULES_OF_LISTENER = ListenerRules("OUTSIDE", (OAUTHBEARER,), tls=True)


def forged() -> dict[str, str]:
    """Tokens that an attacker could make without the private key, and others that are not for us."""
    body = b64(json.dumps(CLAIMS).encode())
    none = f"{b64(json.dumps({'alg': 'none', 'kid': 'r'}).encode())}.{body}."
    head = b64(json.dumps({"alg": "HS256", "kid": "r"}).encode())
    public_key = json.dumps(public(RSA_KEY, "r")).encode()
    hmac_with_public_key = f"{head}.{body}.{b64(hmac.digest(public_key, f'{head}.{body}'.encode(), hashlib.sha256))}"
    good = token().split(".")
    return {
        "none": none,
        "public key as a secret": hmac_with_public_key,
        "other key": token(OTHER_KEY),
        "brings its own key": token(OTHER_KEY, header={"jwk": public(OTHER_KEY, "r"), "jku": "file:///x"}),
        "unknown key id": token(kid="x"),
        "key of another type": token(kid="e"),
        "algorithm not pinned": token(algorithm="PS256"),
        "no signature": f"{good[0]}.{good[1]}.",
        "another body": f"{good[0]}.{b64(json.dumps(CLAIMS | {'sub': 'bob'}).encode())}.{good[2]}",
        "expired": token(exp=NOW_S - 31),
        "no expiry": token(exp=None),
        "infinite": token(exp=10**15),
        "more than a float holds": token(exp=10**400),
        "key id is a path": token(kid="../../../../proc/self/environ"),
        "key id is an address": token(kid="https://evil/key"),
        "not yet": token(nbf=NOW_S + 31),
        "from the future": token(iat=NOW_S + 31),
        "other audience": token(aud="other"),
        "no audience": token(aud=None),
        "other issuer": token(iss="https://evil"),
        "no issuer": token(iss=None),
        "no name": token(sub=None),
        "not a token": "a.b.c",
        "empty": "",
    }


@for_each("what", sorted(forged()))
def test_tokens_that_are_refused(what: str) -> None:
    bad = forged()[what]
    with pytest.raises(SaslAuthenticationFailedError) as e:
        VERIFIER.verify(bad, NOW_MS)
    assert not any(len(part) > 8 and part in str(e.value) for part in bad.split("."))
    exchange = OAuthBearerServer(VERIFIER)
    if bad:
        step = exchange.respond(f"n,,\x01auth=Bearer {bad}\x01\x01".encode(), NOW_MS)
        told = {"status": "invalid_token", "error_description": exchange.failure}
        assert (json.loads(step.challenge), step.principal) == (told, None)
        assert exchange.failure
        with pytest.raises(SaslAuthenticationFailedError):
            exchange.respond(b"\x01", NOW_MS)


def test_the_client_of_a_refused_token_learns_the_reason() -> None:
    """The reason reaches the client in the last answer, too: its libraries show that one."""
    for what, reason in {
        "expired": "the token has expired (exp) 31 s ago",
        "other audience": "audience (aud)",
        "no audience": "the token has no audience (aud)",
        "other issuer": "issuer (iss)",
        "another body": "signature",
        "other key": "signature",
        "unknown key id": "key (kid) is not in the issuer's set of keys",
        "algorithm not pinned": "algorithm (alg) is not allowed; allowed are RS256",
        "not a token": "not a signed JSON web token",
    }.items():
        auth = Authentication(RULES_OF_LISTENER, lambda _: OAuthBearerServer(VERIFIER), NOW_MS)
        auth.receive(ChooseMechanism(OAUTHBEARER), NOW_MS)
        message = f"n,,\x01auth=Bearer {forged()[what]}\x01\x01".encode()
        assert isinstance(auth.receive(SaslToken(message), NOW_MS)[0], Challenge)
        (failure,) = auth.receive(SaslToken(b"\x01"), NOW_MS)
        assert isinstance(failure, Fail)
        assert str(failure.error).startswith("authentication failed: ")
        assert reason in str(failure.error), what
        assert reason in failure.log_text, what


def test_a_token_with_an_impossible_name_is_refused() -> None:
    for name in ("*", "", "a\nb"):
        step = OAuthBearerServer(VERIFIER).respond(bearer_message(Secret(token(sub=name))), NOW_MS)
        assert step.principal is None


def test_the_exchange() -> None:
    exchange = OAuthBearerServer(VERIFIER)
    message = bearer_message(Secret(token()))
    step = exchange.respond(message, NOW_MS)
    assert (step.challenge, step.principal, step.expires_ms) == (b"", user("alice"), NOW_MS + 630_000)
    with pytest.raises(SaslAuthenticationFailedError):
        exchange.respond(message, NOW_MS)
    good = token().encode()
    for taken in (b"y,a=alice,\x01auth=bearer %s\x01ext=1\x01\x01" % good,):
        assert OAuthBearerServer(VERIFIER).respond(taken, NOW_MS).principal == user("alice")
    assert OAuthBearerServer(VERIFIER).respond(b"n,a=bob,\x01auth=Bearer %s\x01\x01" % good, NOW_MS).principal is None


@given(st.binary(max_size=60) | st.text("n,\x01auth=Bearer .x", max_size=60).map(str.encode))
def test_garbage_is_refused(message: bytes) -> None:
    try:
        assert OAuthBearerServer(VERIFIER).respond(message, NOW_MS).principal is None
    except SaslAuthenticationFailedError as e:
        assert str(e) == "authentication failed: invalid credentials"


def private(key: Any) -> dict[str, Any]:
    return json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key))


@pytest.mark.parametrize(
    ("jwks", "rules"),
    [
        ("", RULES),
        ("[]", RULES),
        ('{"keys": 1}', RULES),
        ('{"keys": [1]}', RULES),
        ('{"keys": []}', RULES),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', RULES),
        ('{"keys": [{"kty": "RSA", "n": "AQAB"}]}', RULES),
        (json.dumps({"keys": [public(RSA_KEY, "r", use="enc")]}), RULES),
        (json.dumps({"keys": [private(RSA_KEY)]}), RULES),
        (json.dumps({"keys": [public(rsa.generate_private_key(65537, 1024), "r")]}), RULES),
        (" " * (1024 * 1024 + 1), RULES),
        (json.dumps({"keys": [public(RSA_KEY, str(i)) for i in range(KEYS_MAX + 1)]}), RULES),
        (json.dumps({"keys": [public(RSA_KEY, "r") | {"n": b64(bytes([255] * 100_000))}]}), RULES),
        (json.dumps({"keys": [public(RSA_KEY, "r") | {"alg": ["RS256"]}]}), RULES),
        ('{"keys":' * 100_000, RULES),
        (JWKS, TokenRules(audiences=("a",), algorithms=("HS256",))),
        (JWKS, TokenRules(audiences=("a",), algorithms=())),
        (JWKS, TokenRules(audiences=(), issuer="")),
    ],
)
def test_key_sets_and_rules_that_are_refused(jwks: str, rules: TokenRules) -> None:
    with pytest.raises(InvalidConfigError):
        TokenVerifier(jwks, rules)


def test_a_key_is_used_for_its_own_algorithm_only() -> None:
    pinned = json.dumps({"keys": [public(RSA_KEY, "r", alg="PS256")]})
    verifier = TokenVerifier(pinned, TokenRules(audiences=("sparklog",), algorithms=("RS256", "PS256")))
    assert verifier.verify(token(algorithm="PS256"), NOW_MS)[0] == "alice"
    with pytest.raises(SaslAuthenticationFailedError):
        verifier.verify(token(algorithm="RS256"), NOW_MS)


def test_keys_that_sign_no_token_are_skipped() -> None:
    """A set that also has keys for encryption, or of curves that come later, is the issuer's usual one."""
    odd = [
        public(OTHER_KEY, "r", alg="RSA-OAEP"),
        public(OTHER_KEY, "r", alg="none"),
        public(OTHER_KEY, "r", alg="HS256"),
        public(EC_KEY, "e") | {"crv": "secp256k1"},
        {"kty": "OKP", "crv": "X25519", "x": "AAAA", "kid": "r"},
        {"kty": "OKP", "crv": "Ed448", "x": "AAAA", "kid": "r"},
        {"kty": "post-quantum", "kid": "r"},
    ]
    verifier = TokenVerifier(json.dumps({"keys": [*odd, public(RSA_KEY, "r")]}), RULES)
    assert verifier.verify(token(), NOW_MS)[0] == "alice"
    for key in odd:
        with pytest.raises(InvalidConfigError, match="no key for signatures"):
            TokenVerifier(json.dumps({"keys": [key]}), RULES)


def test_a_token_that_ends_in_the_middle_is_refused() -> None:
    whole = token()
    verifier = TokenVerifier(JWKS, RULES)
    message = bearer_message(Secret(whole))
    for length in range(len(whole)):
        with pytest.raises(SaslAuthenticationFailedError):
            verifier.verify(whole[:length], NOW_MS)
    for length in range(len(message)):
        server = OAuthBearerServer(verifier)
        with pytest.raises(SaslAuthenticationFailedError):
            server.respond(message[:length], NOW_MS)
            server.respond(b"\x01", NOW_MS)


def test_two_keys_of_one_id_open_no_connection() -> None:
    """Which of them is meant cannot be told; a set that an attacker may add to would let the attacker in."""
    for first, second in ((RSA_KEY, OTHER_KEY), (OTHER_KEY, RSA_KEY)):
        verifier = TokenVerifier(json.dumps({"keys": [public(first, "r"), public(second, "r")]}), RULES)
        for key in (RSA_KEY, OTHER_KEY):
            with pytest.raises(SaslAuthenticationFailedError):
                verifier.verify(token(key), NOW_MS)
    mixed = TokenVerifier(json.dumps({"keys": [public(RSA_KEY, "r"), public(EC_KEY, "r")]}), RULES)
    assert mixed.verify(token(), NOW_MS)[0] == "alice"  # of another type: it could not have signed this token


def test_a_token_that_is_none_is_not_sent() -> None:
    for text in ("", "a b", "a\x01b", "ü"):
        with pytest.raises(InvalidConfigError):
            bearer_message(Secret(text))


# A token is requested again when its part of the lifetime is over, or when a broker has refused it


@pytest.mark.parametrize("lifetime_s", [100, 0])
def test_a_token_is_reused_for_a_part_of_its_lifetime(lifetime_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, issued = 0.0, 0

    def fetch(*_: Any, **__: Any) -> bytes:
        nonlocal issued
        issued += 1
        return json.dumps({"access_token": f"t{issued}", "expires_in": lifetime_s}).encode()

    monkeypatch.setattr("sparklog.security.token_source.fetch", fetch)
    source = TokenSource(TokenEndpoint("https://localhost/token"), lambda: now_s)
    assert source.token(1).reveal() == "t1"
    if lifetime_s:
        now_s = USED_PART * lifetime_s - 0.001
        assert source.token(1).reveal() == "t1"
    now_s = USED_PART * lifetime_s
    assert source.token(1).reveal() == "t2"
    source.forget()
    assert source.token(1).reveal() == "t3"
