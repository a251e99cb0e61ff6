"""Times at which the keys of tokens are read again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, TypeVar

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from sparklog_broker.security.tokens import UNKNOWN_KEY_INTERVAL_S, UNKNOWN_KEY_PATIENCE_S, TokenKeys

from sparklog.errors import InvalidConfigError
from sparklog.security.oauthbearer import OAuthBearerServer, bearer_message
from sparklog.security.secrets import Secret
from sparklog.settings import Scope, settings_of

T = TypeVar("T")

DAY_S = 86_400
KEYS: list[Any] = [rsa.generate_private_key(65537, 2048) for _ in range(3)]


def jwks(*numbers: int) -> str:
    entries = [json.loads(RSAAlgorithm.to_jwk(KEYS[i].public_key())) | {"kid": str(i)} for i in numbers]
    return json.dumps({"keys": entries})


class Threads(Executor):
    """Each job runs when it is submitted; while jobs hang, no caller waits for them in real time."""

    def __init__(self) -> None:
        self.hang = False
        self.patience_s: float | None = None
        """Timeout of the last wait for a job that hung."""
        self.on_wait: Callable[[], None] | None = None
        """Called once when a caller waits."""
        self.jobs = 0
        """Number of jobs so far."""
        self._hanging: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        threads = self

        class Job(Future[T]):
            def result(self, timeout: float | None = None) -> T:
                if not self.done():
                    threads.patience_s = timeout
                    on_wait, threads.on_wait = threads.on_wait, None
                    if on_wait is not None:
                        on_wait()
                return super().result(0)

        self.jobs += 1
        future = Job()
        self._hanging.append(lambda: future.set_result(fn(*args, **kwargs)))
        if not self.hang:
            self.go_on()
        return future

    def go_on(self) -> None:
        self.hang = False
        while self._hanging:
            self._hanging.pop(0)()


class World:
    """Keys at an address whose answers are `texts`, one after the other; the last one stays."""

    def __init__(self, *texts: str) -> None:
        self.now_s = 0.0
        self.fetched = 0
        self.texts = list(texts)
        settings = {name: setting.default for name, setting in settings_of(Scope.BROKER).items()}
        settings |= {
            "sasl.oauthbearer.jwks.endpoint.url": "https://issuer/jwks",
            "sasl.oauthbearer.expected.audience": "sparklog",
        }
        self.threads = Threads()
        self.keys = TokenKeys(settings, lambda: self.now_s, 10, self.threads, fetch=self._fetch)

    def _fetch(self, url: str, **_: object) -> bytes:
        self.fetched += 1
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        if not text:
            raise OSError("away")
        return text.encode()

    def log_in(self, key: int, kid: str = "") -> bool:
        return self.refusal(key, kid) == ""

    def refusal(self, key: int, kid: str = "") -> str:
        """Reason for which a token is refused; "" if it is accepted."""
        claims = {"sub": "alice", "aud": "sparklog", "exp": time.time() + 300}
        token = jwt.encode(claims, KEYS[key], "RS256", headers={"kid": kid or str(key)})
        server = OAuthBearerServer(self.keys)
        step = server.respond(bearer_message(Secret(token)), int(time.time() * 1000))
        assert (step.principal is None) == bool(server.failure)
        return server.failure


def test_an_unknown_key_has_them_read_again_at_most_so_often() -> None:
    world = World(jwks(0), jwks(0, 1), jwks(0, 1, 2))
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


def test_an_issuer_that_hangs_or_is_away_costs_a_moment_and_no_keys() -> None:
    world = World(jwks(0), "", jwks(0, 1))
    world.keys.renew()
    world.threads.hang = True
    assert not world.log_in(1)
    assert world.threads.patience_s == UNKNOWN_KEY_PATIENCE_S
    assert world.log_in(0)
    assert world.fetched == 1
    world.threads.go_on()
    assert world.fetched == 2
    assert world.log_in(0)  # it was away, the old keys stay
    world.now_s += UNKNOWN_KEY_INTERVAL_S
    assert world.log_in(1)


def test_a_slow_issuer_holds_a_limited_number_of_threads() -> None:
    world = World(jwks(0))
    world.keys.renew()
    world.threads.hang = True
    inner: list[bool] = []

    def log_in_meanwhile() -> None:
        world.threads.patience_s = None
        inner.append(world.log_in(2))

    world.threads.on_wait = log_in_meanwhile
    assert not world.log_in(1)
    assert inner == [False]
    assert world.threads.patience_s is None, "the second authentication does not wait"


def test_keys_are_used_for_a_limited_time_after_their_last_read(caplog: pytest.LogCaptureFixture) -> None:
    world = World(jwks(0), "")
    assert world.log_in(0)
    world.now_s += DAY_S - 1
    world.keys.renew()
    assert "the previous keys stay in use for 1 s more" in caplog.text
    assert world.log_in(0)
    world.now_s += 1
    assert "the issuer's keys could not be read for 86400 s" in world.refusal(0)
    assert "no token is accepted until they can" in caplog.text
    reads = world.fetched
    assert not world.log_in(0)
    assert world.fetched == reads, "refused tokens cause no further reads"
    world.texts[0] = jwks(1)
    world.now_s += UNKNOWN_KEY_INTERVAL_S
    assert world.log_in(1)
    assert "(kid) is not in the issuer's set" in world.refusal(0)


def test_a_read_that_hangs_makes_no_queue_of_reads() -> None:
    world = World(jwks(0))
    world.threads.hang = True
    for _ in range(3):
        world.keys.renew_soon()
    world.threads.go_on()
    assert world.threads.jobs == 1
    world.keys.renew_soon()
    assert world.threads.jobs == 2


def test_only_https_and_only_trusted_authorities(tmp_path: Path) -> None:
    from sparklog.security.https import fetch

    with pytest.raises(InvalidConfigError, match="https://"):
        fetch("http://localhost/jwks", ca_location="", timeout_s=30, bytes_max=1)
    (tmp_path / "ca.pem").write_text("none")
    for wrong in (tmp_path / "ca.pem", tmp_path / "missing"):
        with pytest.raises(InvalidConfigError, match=r"https\.ca\.location"):
            fetch("https://localhost/jwks", ca_location=str(wrong), timeout_s=30, bytes_max=1)
