"""When the keys of tokens are read again."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from sparklog_broker.security import tokens
from sparklog_broker.security.tokens import UNKNOWN_KEY_INTERVAL_S, TokenKeys

from sparklog.errors import InvalidConfigError
from sparklog.security.oauthbearer import OAuthBearerServer, bearer_message
from sparklog.security.secrets import Secret
from sparklog.settings import Scope, settings_of

KEYS: list[Any] = [rsa.generate_private_key(65537, 2048) for _ in range(3)]


def jwks(*numbers: int) -> str:
    entries = [json.loads(RSAAlgorithm.to_jwk(KEYS[i].public_key())) | {"kid": str(i)} for i in numbers]
    return json.dumps({"keys": entries})


class World:
    """Keys at an address whose answers are `texts`, one after the other; the last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *texts: str) -> None:
        self.now_s = 0.0
        self.fetched = 0
        self._texts = list(texts)
        self.gate = threading.Event()
        self.gate.set()
        monkeypatch.setattr(tokens, "fetch", self._fetch)
        settings = {name: setting.default for name, setting in settings_of(Scope.BROKER).items()}
        settings |= {
            "sasl.oauthbearer.jwks.endpoint.url": "https://issuer/jwks",
            "sasl.oauthbearer.expected.audience": "sparklog",
        }
        self.threads = ThreadPoolExecutor(1)
        self.keys = TokenKeys(settings, lambda: self.now_s, 10, self.threads)

    def _fetch(self, url: str, **_: object) -> bytes:
        self.gate.wait(20)
        self.fetched += 1
        text = self._texts.pop(0) if len(self._texts) > 1 else self._texts[0]
        if not text:
            raise OSError("away")
        return text.encode()

    def log_in(self, key: int, kid: str = "") -> bool:
        claims = {"sub": "alice", "aud": "sparklog", "exp": time.time() + 300}
        token = jwt.encode(claims, KEYS[key], "RS256", headers={"kid": kid or str(key)})
        server = OAuthBearerServer(self.keys)
        return server.respond(bearer_message(Secret(token)), int(time.time() * 1000)).principal is not None


def test_an_unknown_key_has_them_read_again_at_most_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, jwks(0), jwks(0, 1), jwks(0, 1, 2))
    assert world.log_in(0)  # before the first look: it does not have to come again
    assert world.fetched == 1
    assert world.log_in(1)
    assert world.fetched == 2
    for made_up in range(50):
        assert not world.log_in(2, f"made-up-{made_up}")
    assert not world.log_in(2)
    assert world.fetched == 2
    world.now_s += UNKNOWN_KEY_INTERVAL_S
    assert world.log_in(2)
    assert world.fetched == 3
    assert not world.log_in(2, "0")  # a known key that has not signed it is no reason to ask
    assert world.fetched == 3
    world.threads.shutdown()


def test_an_issuer_that_hangs_or_is_away_costs_a_moment_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, jwks(0), "", jwks(0, 1))
    world.keys.renew()
    monkeypatch.setattr(tokens, "UNKNOWN_KEY_PATIENCE_S", 0.01)
    world.gate.clear()
    assert not world.log_in(1)
    assert world.log_in(0)
    world.gate.set()
    world.threads.submit(lambda: None).result(20)
    assert world.log_in(0)  # it was away, the old keys stay
    world.now_s += UNKNOWN_KEY_INTERVAL_S
    monkeypatch.setattr(tokens, "UNKNOWN_KEY_PATIENCE_S", 20)
    assert world.log_in(1)
    world.threads.shutdown()


def test_only_https_and_only_known_authorities(tmp_path: Path) -> None:
    from sparklog.security.https import fetch

    with pytest.raises(InvalidConfigError, match="https://"):
        fetch("http://localhost/jwks", ca_location="", timeout_s=1, bytes_max=1)
    (tmp_path / "ca.pem").write_text("none")
    for wrong in (tmp_path / "ca.pem", tmp_path / "missing"):
        with pytest.raises(InvalidConfigError, match=r"https\.ca\.location"):
            fetch("https://localhost/jwks", ca_location=str(wrong), timeout_s=1, bytes_max=1)
