r"""OAUTHBEARER (RFC 7628, KIP-255): a signed JSON web token names the peer and the end of its session.

The client's only message is `n,,\x01auth=Bearer TOKEN\x01\x01`. The broker answers a refused token with a JSON object;
the client sends one byte \x01, and then the exchange fails with an error. The JSON object and the error give the reason
of the refusal. This reveals nothing: the token is the client's own, and no reason tells about users or keys that the
client has not named.

A token is accepted under these conditions:

- Its signature is by the key that its header names by id. The key is in the key set (JWKS, RFC 7517), and the algorithm
  is asymmetric and one of those in the configuration.
- It has `exp`, and now is before that time. Now is not before `nbf` or `iat`, if it has them. The allowed clock skew
  applies to all three.
- `aud` and `iss` are the expected ones, and the claim with the user's name is a text.

Statements of a token about its own keys (`jwk`, `jku`, `x5u`, `x5c`) are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError
from sparklog.security.optional import require
from sparklog.security.principals import user
from sparklog.security.sasl import CREDENTIALS_WRONG, TOKEN_BYTES_MAX, SaslStep
from sparklog.security.secrets import HIDDEN, Secret

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms that a configuration may allow: those with a private and a public key. With HS…, the secret would be in
the set of public keys."""
JWKS_CHARS_MAX = 1024 * 1024
KEYS_MAX = 256
RSA_BITS_MIN = 2_048
RSA_BITS_MAX = 16_384
"""Largest RSA key, in bits, that OpenSSL accepts for verification."""
_SEPARATOR = "\x01"
_KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_CLAIMS = {"exp": "expiry (exp)", "iss": "issuer (iss)", "aud": "audience (aud)"}
_CURVES = ("P-256", "P-384", "P-521", "Ed25519")


class UnknownKeyError(SaslAuthenticationFailedError):
    """The token names a key that is not in the set. The issuer may have a newer set."""


class TokenRules(Struct, frozen=True):
    """Requirements of a token. `audiences`: the token has to be for one of them; empty: not checked. `issuer`: its
    issuer; "": not checked. `name_claim`: the claim with the user's name."""

    audiences: tuple[str, ...]
    issuer: str = ""
    algorithms: tuple[str, ...] = ("RS256",)
    clock_skew_ms: int = 30_000
    name_claim: str = "sub"


class _Key(NamedTuple):
    """A public key of the set. `algorithm`: the only algorithm for which it may be used; "": any that fits its type."""

    key_id: object
    key_type: str
    algorithm: str
    key: Any


class TokenVerifier:
    """Verifier of tokens with a fixed set of keys."""

    def __init__(self, jwks: str, rules: TokenRules) -> None:
        """`jwks`: the key set as JSON. Raises InvalidConfigError if the set has no usable key, the rules have a
        forbidden algorithm, or they have neither audience nor issuer."""
        if not rules.algorithms or not set(rules.algorithms) <= set(ALGORITHMS):
            raise InvalidConfigError(f"sasl.oauthbearer algorithms: use some of {', '.join(ALGORITHMS)}")
        if not rules.audiences and not rules.issuer:
            raise InvalidConfigError(
                "sasl.oauthbearer.expected.audience or .expected.issuer is needed: otherwise this broker would accept "
                "tokens for other services"
            )
        self._rules = rules
        self._jwt = require("jwt", "OAUTHBEARER")
        self._keys = _parse_jwks(self._jwt, jwks)

    def __repr__(self) -> str:
        return f"TokenVerifier({len(self._keys)} keys)"

    def verify(self, token: str, now_ms: int) -> tuple[str, int]:
        """Return the user's name in the token, and the time in ms since 1970 from which the token is not accepted: its
        expiry and the clock skew. Raises SaslAuthenticationFailedError. Its text names the fault, but shows nothing of
        the token."""
        claims = self._signed_claims(token)
        expires_ms = _time_ms(claims, "exp")
        if expires_ms is None:
            raise SaslAuthenticationFailedError("the token has no expiry (exp)")
        skew_ms = self._rules.clock_skew_ms
        if now_ms >= expires_ms + skew_ms:
            ago_s = (now_ms - expires_ms) // 1000
            raise SaslAuthenticationFailedError(f"the token has expired (exp) {ago_s} s ago")
        for claim in ("nbf", "iat"):
            since_ms = _time_ms(claims, claim)
            if since_ms is not None and now_ms + skew_ms < since_ms:
                raise SaslAuthenticationFailedError(
                    f"the token is not valid yet ({claim}): its issuer's clock or this broker's is wrong, or it is for later"
                )
        name = claims.get(self._rules.name_claim)
        if not isinstance(name, str):
            raise SaslAuthenticationFailedError(
                f"the token's claim {self._rules.name_claim!r} is missing or not a string"
            )
        return name, expires_ms + skew_ms

    def _signed_claims(self, token: str) -> Mapping[str, Any]:
        jwt, rules = self._jwt, self._rules
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in rules.algorithms:
                raise SaslAuthenticationFailedError(
                    f"the token's algorithm (alg) is not allowed; allowed are {', '.join(rules.algorithms)}"
                )
            claims: Mapping[str, Any] = jwt.decode(
                token,
                self._key(header.get("kid"), algorithm),
                algorithms=[algorithm],
                audience=list(rules.audiences) or None,
                issuer=rules.issuer or None,
                options={
                    "verify_aud": bool(rules.audiences),
                    "verify_iss": bool(rules.issuer),
                    "require": ["exp", *(["iss"] if rules.issuer else []), *(["aud"] if rules.audiences else [])],
                    # the times are compared with the caller's clock
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as e:
            raise SaslAuthenticationFailedError(self._reason(e)) from None
        return claims

    def _reason(self, error: Exception) -> str:
        """Return a text for an error of the library, because the library's own texts can show parts of the token."""
        jwt = self._jwt
        if isinstance(error, jwt.MissingRequiredClaimError):
            return f"the token has no {_CLAIMS.get(error.claim, 'claim that is needed')}"
        if isinstance(error, jwt.InvalidSignatureError):
            return "the token's signature is wrong: it is not by the key that the token names"
        if isinstance(error, jwt.InvalidAudienceError):
            return "the token's audience (aud) is none of sasl.oauthbearer.expected.audience: it is for another service"
        if isinstance(error, jwt.InvalidIssuerError):
            return "the token's issuer (iss) is not sasl.oauthbearer.expected.issuer"
        if isinstance(error, jwt.InvalidTokenError) and not isinstance(error, jwt.DecodeError):
            return f"a claim of the token has a wrong form: {type(error).__name__}"
        return f"this is not a signed JSON web token (HEADER.CLAIMS.SIGNATURE): {type(error).__name__}"

    def _key(self, key_id: object, algorithm: str) -> Any:
        """Return the only key that fits. A token without a key id is accepted if the set has exactly one key for the
        algorithm."""
        fitting = [
            key
            for key in self._keys
            if key.key_type == _KEY_TYPES[algorithm[:2]]
            and (key_id is None or key.key_id == key_id)
            and key.algorithm in ("", algorithm)
        ]
        if not fitting and key_id is not None and all(key.key_id != key_id for key in self._keys):
            raise UnknownKeyError("the token's key (kid) is not in the issuer's set of keys")
        if len(fitting) != 1:
            raise SaslAuthenticationFailedError(
                "no key of the issuer's set fits the token's algorithm (alg) and key (kid)"
            )
        return fitting[0].key


def _parse_jwks(jwt: Any, text: str) -> list[_Key]:
    """Return the public keys for signatures. Keys for other uses, and keys of unknown types, curves and algorithms, are
    left out, as RFC 7517 requires. Raises InvalidConfigError, also for a private key."""
    if len(text) > JWKS_CHARS_MAX:
        raise InvalidConfigError(f"the set of keys has {len(text)} characters; at most {JWKS_CHARS_MAX} are allowed")
    try:
        entries = json.loads(text)["keys"]
        usable = [e for e in entries if _is_for_tokens(e)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidConfigError('the set of keys is not of the form {"keys": [{"kty": …}, …]}') from None
    if len(usable) > KEYS_MAX:
        raise InvalidConfigError(f"the set has {len(usable)} keys for signatures; at most {KEYS_MAX} are allowed")
    keys: list[_Key] = []
    for entry in usable:
        if "d" in entry:
            raise InvalidConfigError("the set of keys has a private key: give the broker public ones only")
        try:
            algorithm = entry.get("alg", "")
            key = _Key(entry.get("kid"), entry["kty"], algorithm, jwt.PyJWK(entry).key)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError) as e:
            raise InvalidConfigError(f"key {len(keys) + 1} of the set cannot be read: {type(e).__name__}") from None
        if key.key_type == "RSA" and not RSA_BITS_MIN <= key.key.key_size <= RSA_BITS_MAX:
            raise InvalidConfigError(
                f"key {len(keys) + 1} of the set has {key.key.key_size} bits: {RSA_BITS_MIN} to {RSA_BITS_MAX}"
            )
        keys.append(key)
    if not keys:
        raise InvalidConfigError("the set has no key for signatures (kty RSA, EC or OKP)")
    return keys


def _is_for_tokens(entry: Mapping[str, Any]) -> bool:
    if entry.get("kty") not in _KEY_TYPES.values() or entry.get("use", "sig") != "sig":
        return False
    return entry.get("alg", "") in ("", *ALGORITHMS) and entry.get("crv") in (None, *_CURVES)


def _time_ms(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 2**40:
        raise SaslAuthenticationFailedError(f"the token's {name} is not a time")
    return int(value * 1000)


class Verifier(Protocol):
    """Verifier of tokens; see `TokenVerifier.verify`."""

    def verify(self, token: str, now_ms: int) -> tuple[str, int]: ...


class OAuthBearerServer:
    """The server's side of one exchange. It has a second message if the token is refused."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._failure: SaslAuthenticationFailedError | None = None
        self._messages = 0

    @property
    def failure(self) -> str:
        """Reason of the token's refusal, for the log; "" if it was not refused."""
        return str(self._failure or "")

    @property
    def reported(self) -> str:
        """Reason of the token's refusal, for the client; "" if it was not refused."""
        return self.failure

    def respond(self, token: bytes, now_ms: int) -> SaslStep:
        """Answer a client's message; see `sasl.SaslServer`."""
        self._messages += 1
        if self._messages > 1:
            raise SaslAuthenticationFailedError(CREDENTIALS_WRONG)
        authzid, bearer = _parse(token)
        try:
            name, expires_ms = self._verifier.verify(bearer.reveal(), now_ms)
            if authzid not in ("", name):
                raise SaslAuthenticationFailedError("the message and the token name different users")
            principal = user(name)
        except (SaslAuthenticationFailedError, InvalidConfigError) as e:
            self._failure = SaslAuthenticationFailedError(str(e))
            return SaslStep(json.dumps({"status": "invalid_token", "error_description": str(e)}).encode())
        return SaslStep(b"", principal, expires_ms)


def bearer_message(token: Secret) -> bytes:
    """Return the client's message with the token. Raises InvalidConfigError if the token is empty or has impossible
    characters."""
    text = token.reveal()
    if not text:
        raise InvalidConfigError("the bearer token is empty")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidConfigError(f"the bearer token {HIDDEN} has characters that no token has")
    return f"n,,{_SEPARATOR}auth=Bearer {text}{_SEPARATOR}{_SEPARATOR}".encode()


def _parse(message: bytes) -> tuple[str, Secret]:
    """Return the authorization id ("": none) and the token of a client's message. Raises
    SaslAuthenticationFailedError."""
    try:
        text = message.decode("ascii") if len(message) <= TOKEN_BYTES_MAX else ""
        header, *pairs = text.split(_SEPARATOR)
        binding, authzid, end = header.split(",")
        values = dict(pair.split("=", 1) for pair in pairs[:-2])
        scheme, token = values["auth"].split(" ", 1)
        correct = binding in ("n", "y") and not end and pairs[-2:] == ["", ""] and len(values) == len(pairs) - 2
        if not correct or scheme.lower() != "bearer" or (authzid and not authzid.startswith("a=")):
            raise ValueError
    except (ValueError, KeyError):
        raise SaslAuthenticationFailedError(CREDENTIALS_WRONG) from None
    name = authzid.removeprefix("a=").replace("=2C", ",").replace("=3D", "=")
    return name, Secret(token.strip())
