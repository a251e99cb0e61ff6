"""Security of a client's connections: encryption, trusted authorities, identity. The settings are those of Kafka's
clients.

There are two types, because secrets have to be sent to some processes and must not get anywhere else:

- `SecuritySettings`: the given settings. References such as `${env:NAME}` and `${file:/path}` are not resolved. These
  settings are sent to Spark's tasks, so they can be pickled, including literal secrets. A task resolves the references
  itself. `repr` shows no value that could be a secret.
- `ClientSecurity`: the settings after resolution and checks. It holds `Secret`s and cannot be pickled. It can be
  compared and hashed: clients with equal security share connections.

A setting without effect is refused, although Kafka ignores it. Otherwise a user who sets a password but forgets
`security.protocol` would send everything unencrypted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from sparklog.errors import InvalidConfigError
from sparklog.security.jaas import parse_jaas
from sparklog.security.listeners import SecurityProtocol
from sparklog.security.sasl import OAUTHBEARER, PLAIN, SCRAM_MECHANISMS
from sparklog.security.secrets import (
    HIDDEN,
    Secret,
    is_reference,
    is_sensitive,
    parse_properties,
    read_text_file,
    resolve_secrets,
)
from sparklog.security.tls import TO_PEM
from sparklog.settings import Scope, Setting, did_you_mean, settings_of

BOOTSTRAP = "bootstrap.servers"
PREFIXES = ("security.", "sasl.", "ssl.", "https.")
"""Beginnings of the names of security settings. An unknown name that begins so is refused, because it is probably
misspelt."""
CALLBACK_CLASS = "OAuthBearerLoginCallbackHandler"

ALIASES = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
"""Other names of our settings, from other clients and from Kafka's releases."""
WITHOUT_EFFECT = {
    "security.providers": "Java classes are not supported",
    "ssl.protocol": "see ssl.enabled.protocols",
    "ssl.provider": "OpenSSL is used",
    "ssl.keymanager.algorithm": "OpenSSL is used",
    "ssl.trustmanager.algorithm": "OpenSSL is used",
    "ssl.secure.random.implementation": "OpenSSL is used",
    "sasl.login.class": "Java classes are not supported",
    "sasl.login.connect.timeout.ms": "the request's timeout counts",
    "sasl.login.read.timeout.ms": "the request's timeout counts",
    "sasl.login.refresh.buffer.seconds": "the client requests tokens on demand",
    "sasl.login.refresh.min.period.seconds": "the client requests tokens on demand",
    "sasl.login.refresh.window.factor": "the client requests tokens on demand",
    "sasl.login.refresh.window.jitter": "the client requests tokens on demand",
    "sasl.login.retry.backoff.ms": "requests are retried as a whole",
    "sasl.login.retry.backoff.max.ms": "requests are retried as a whole",
    "sasl.oauthbearer.method": "the token endpoint issues tokens",
}
"""Settings of Kafka's clients that are ignored, because ignoring them does no harm, with the reason."""
_PEM_ONLY = f"only PEM stores are supported, and they have no password: leave it out. {TO_PEM}"
_NO_KERBEROS = "Kerberos (GSSAPI) is not supported: use SCRAM-SHA-512, OAUTHBEARER, or a client's certificate"
REFUSED = {
    "ssl.keystore.password": _PEM_ONLY,
    "ssl.truststore.password": _PEM_ONLY,
    "ssl.cipher.suites": "OpenSSL's suites with forward secrecy are always used: leave it out",
    "ssl.engine.factory.class": "Java classes are not supported: leave it out",
    "enable.ssl.certificate.verification": "certificates are always verified: set ssl.ca.location to the authority's",
    "sasl.client.callback.handler.class": "Java classes are not supported: leave it out",
    "sasl.kerberos.service.name": _NO_KERBEROS,
    "sasl.kerberos.kinit.cmd": _NO_KERBEROS,
    "sasl.kerberos.min.time.before.relogin": _NO_KERBEROS,
    "sasl.kerberos.ticket.renew.jitter": _NO_KERBEROS,
    "sasl.kerberos.ticket.renew.window.factor": _NO_KERBEROS,
}
"""Settings of Kafka's clients that are refused, with the remedy."""

_SO_ANYWAY = {"enable.ssl.certificate.verification": "true"}

_JAAS = "sasl.jaas.config"
_LOGIN = ("sasl.username", "sasl.password")
_TOKEN = (
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "https.ca.location",
)


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """Source of OAUTHBEARER's tokens.

    `url`: https://… for an endpoint that issues tokens for `client_id` and `client_secret` (RFC 6749 section 4.4);
    file:///path for a file with a token; "" if `client_secret` itself is the token. `ca_location`: PEM file of the
    trusted authorities for the endpoint's certificate; "": those of the system.
    """

    url: str
    client_id: str = ""
    client_secret: Secret = field(default_factory=lambda: Secret(""))
    scope: str = ""
    ca_location: str = ""


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """Resolved security of a client's connections. `mechanism`: SASL mechanism; "": no SASL. `tls`: the `ssl.*`
    settings that are set, sorted by name, for `tls.client_context`."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    mechanism: str = ""
    username: str = ""
    password: Secret = field(default_factory=lambda: Secret(""))
    token_endpoint: TokenEndpoint | None = None
    tls: tuple[tuple[str, str | Secret], ...] = ()

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets that must not appear in texts, for `redact`."""
        endpoint = (self.token_endpoint.client_secret,) if self.token_endpoint else ()
        keys = tuple(value for _, value in self.tls if isinstance(value, Secret))
        return tuple(secret for secret in (self.password, *endpoint, *keys) if secret)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ClientSecurity holds secrets and cannot be pickled: send its SecuritySettings")


class SecuritySettings:
    """The given security settings of a client, by their dotted names. Immutable.

    It can be pickled together with literal secrets, for processes that need them. For a secret that is given as
    `${file:/path}` or `${env:NAME}`, only the reference is sent.
    """

    __slots__ = ("_settings",)

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        """Take settings under the names of `settings.Scope.CLIENT`, or under those of Kafka's and librdkafka's clients.
        Values of None are left out. Raises InvalidConfigError for an unknown, refused or repeated name."""
        self._settings: dict[str, str] = {}
        for name, value in (values or {}).items():
            if is_without_effect(name, value):
                continue
            setting = _setting_name(name)
            if setting is None or value is None:
                continue
            if setting in self._settings:
                raise InvalidConfigError(f"{name} is given twice, also as {setting}; leave one of them out")
            self._settings[setting] = value.reveal() if isinstance(value, Secret) else str(value)

    def resolve(
        self, environment: Mapping[str, str] | None = None, read_file: Callable[[str], str] | None = None
    ) -> ClientSecurity:
        """Resolve and check the settings on this machine. `environment` None: that of the process; `read_file` None:
        reads the file system. Raises InvalidConfigError, which names the setting and never shows a secret."""
        if not self._settings:
            return PLAINTEXT
        variables = os.environ if environment is None else environment

        def look_up(name: str, text: str) -> object:
            return resolve_secrets({name: text}, variables, read_file)[name]

        return _check(
            {name: look_up(name, text) for name, text in self._settings.items() if name != _JAAS}, self._jaas(look_up)
        )

    def _jaas(self, look_up: Callable[[str, str], object]) -> Callable[[str], dict[str, object]] | None:
        """Return a function from the mechanism to the settings in `sasl.jaas.config`; None if it is not set. References
        inside the text are resolved after parsing, because a password can contain quotation marks."""
        text = self._settings.get(_JAAS, "")
        if not text.strip():
            return None

        def settings(mechanism: str) -> dict[str, object]:
            if is_reference(text):
                return dict(parse_jaas(_text(look_up(_JAAS, text)), mechanism))
            return {name: look_up(_JAAS, value.reveal()) for name, value in parse_jaas(text, mechanism).items()}

        return settings

    @property
    def literal_secrets(self) -> tuple[str, ...]:
        """Names of the settings that have a secret literally, not as a reference."""
        return tuple(
            name for name, text in self._settings.items() if is_sensitive(name) and not self._refers(name, text)
        )

    def _refers(self, name: str, text: str) -> bool:
        if name != _JAAS or is_reference(text):
            return is_reference(text)
        try:
            said = parse_jaas(text, self._settings.get("sasl.mechanism", ""))
        except InvalidConfigError:
            return False
        return all(is_reference(value.reveal()) for option, value in said.items() if is_sensitive(option))

    def items(self) -> tuple[tuple[str, str], ...]:
        """Return all settings, including literal secrets. The caller is responsible for their use."""
        return tuple(sorted(self._settings.items()))

    def __bool__(self) -> bool:
        return bool(self._settings)

    def __eq__(self, other: object) -> bool:
        return self._settings == other._settings if isinstance(other, SecuritySettings) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.items())

    def __repr__(self) -> str:
        hidden = self.literal_secrets
        shown = (f"{name}={HIDDEN if name in hidden else text}" for name, text in self.items())
        return f"SecuritySettings({', '.join(shown)})"

    def __getstate__(self) -> dict[str, str]:
        return self._settings

    def __setstate__(self, state: dict[str, str]) -> None:
        self._settings = state


PLAINTEXT = ClientSecurity()
"""The security of connections without encryption and authentication."""

Security = ClientSecurity | SecuritySettings | Mapping[str, Any] | str | os.PathLike[str] | None
"""Forms in which a client's security can be given: settings by their dotted names, or the path of a file of Java
properties, as for --command-config of Kafka's tools; None: plaintext."""


def client_security(security: Security) -> ClientSecurity:
    """Return the given security, resolved and checked; None: PLAINTEXT. Raises InvalidConfigError."""
    if security is None:
        return PLAINTEXT
    if isinstance(security, ClientSecurity):
        return security
    return security_settings(security).resolve()


def security_settings(settings: SecuritySettings | Mapping[str, Any] | str | os.PathLike[str]) -> SecuritySettings:
    """Return the given security, unresolved. A path is read as a client's configuration file. Raises
    InvalidConfigError."""
    if isinstance(settings, SecuritySettings):
        return settings
    if isinstance(settings, Mapping):
        return SecuritySettings(settings)
    if isinstance(settings, str | os.PathLike):
        return read_client_file(os.fspath(settings)).security
    raise InvalidConfigError(
        f"security: settings such as {{'security.protocol': 'SASL_SSL'}}, or the path of a file, are needed, not "
        f"{type(settings).__name__}"
    )


MISSPELT_RATIO = 0.9
"""Similarity (0 to 1) from which an unknown name counts as a misspelt known one. Kafka's names of other settings are
less similar."""


@dataclass(frozen=True)
class ClientFile:
    """Content of a client's configuration file. `bootstrap_servers`: "" if the file does not set it."""

    bootstrap_servers: str
    security: SecuritySettings


def read_client_file(path: str, read_file: Callable[[str], str] = read_text_file) -> ClientFile:
    """Read a client's configuration file, in the format of Kafka's tools. Settings that are neither about security nor
    the bootstrap servers are ignored, because such files are shared with other clients. Raises InvalidConfigError,
    which names the file."""
    try:
        properties = parse_properties(read_file(path))
        _check_spelling(properties)
        bootstrap = str(resolve_secrets({BOOTSTRAP: properties.get(BOOTSTRAP, "")}, os.environ, read_file)[BOOTSTRAP])
        return ClientFile(bootstrap, SecuritySettings({n: v for n, v in properties.items() if is_about_security(n)}))
    except InvalidConfigError as e:
        message = str(e) if path in str(e) else f"{path}: {e}"
        raise InvalidConfigError(message) from None


def _check_spelling(names: Iterable[str]) -> None:
    """Raise InvalidConfigError for an unknown name that is similar to `bootstrap.servers` or to a setting of clients.
    If a misspelt `bootstrap.servers` were ignored, the client would connect to the default address."""
    spellings = [BOOTSTRAP, *settings_of(Scope.CLIENT)]
    for name in names:
        if name != BOOTSTRAP and not is_about_security(name):
            from difflib import get_close_matches  # for mistakes only

            near = get_close_matches(name.lower(), spellings, n=1, cutoff=MISSPELT_RATIO)
            if near:
                raise InvalidConfigError(f"unknown setting {name!r}: did you mean {near[0]!r}?")


def is_about_security(name: str) -> bool:
    """Return True if this dotted name is one of a security setting, known or not."""
    return name.startswith(PREFIXES) or name in REFUSED


def is_without_effect(name: str, value: object) -> bool:
    """Return True if the setting is one of REFUSED, and its value is empty or the behaviour that exists anyway."""
    return name in REFUSED and str(value or "").strip().lower() in ("", _SO_ANYWAY.get(name))


def with_parameters(security: Security, parameters: Mapping[str, Any]) -> tuple[Security, dict[str, Any]]:
    """Split the Python parameters of a client. Return its security, and the other parameters.

    The security is `security`, or the parameters about security (their names have underscores for dots). Raises
    InvalidConfigError if both are given.
    """
    names = {setting.parameter: name for name, setting in settings_of(Scope.CLIENT).items()}
    chosen = {names[p]: value for p, value in parameters.items() if p in names and value is not None}
    others = {p: value for p, value in parameters.items() if p not in names}
    if chosen and security is not None:
        raise InvalidConfigError(f"{next(iter(chosen))} is given beside security: put it there, too")
    return (chosen or security), others


def _setting_name(name: str) -> str | None:
    """Return our name of a setting; None if the setting has no effect. Raises InvalidConfigError for an unknown or
    refused setting."""
    name = ALIASES.get(name, name)
    if name in WITHOUT_EFFECT:
        return None
    if name in REFUSED:
        raise InvalidConfigError(f"{name}: {REFUSED[name]}")
    settings = settings_of(Scope.CLIENT)
    if name == "sasl.login.callback.handler.class" or name in settings:
        return name
    raise InvalidConfigError(f"unknown security setting {name!r}{did_you_mean(name, settings)}")


def _check(settings: dict[str, object], jaas: Callable[[str], dict[str, object]] | None) -> ClientSecurity:
    handler = _text(settings.pop("sasl.login.callback.handler.class", ""))
    if handler and handler.rpartition(".")[2] != CALLBACK_CLASS:
        raise InvalidConfigError(
            f"sasl.login.callback.handler.class: Java classes are not supported; only {CALLBACK_CLASS} is allowed"
        )
    definitions = settings_of(Scope.CLIENT)
    settings["security.protocol"] = _text(settings.get("security.protocol", "")).upper() or "PLAINTEXT"  # as in Kafka
    if _HOST_NAMES in settings:
        settings[_HOST_NAMES] = _text(settings[_HOST_NAMES]).lower()  # many write HTTPS, as Java does
    for name, value in settings.items():
        _check_value(definitions[name], value)
    settings = {name: value for name, value in settings.items() if _text(value) or name in _EMPTY_COUNTS}
    protocol = SecurityProtocol(_text(settings.pop("security.protocol")))
    tls = tuple((n, v) for n, v in sorted(settings.items()) if n.startswith("ssl.") and isinstance(v, str | Secret))
    sasl = {name: value for name, value in settings.items() if name.startswith("sasl.") or name in _TOKEN}
    _check_used(protocol, [n for n, _ in tls if n not in _EMPTY_COUNTS], [*sasl, *([_JAAS] if jaas else [])])
    mechanism = _text(sasl.pop("sasl.mechanism", ""))
    if not protocol.sasl:
        return ClientSecurity(protocol, tls=tls if protocol.tls else ())
    _check_mechanism(protocol, mechanism, sasl)
    login = _login(mechanism, sasl, jaas(mechanism) if jaas else {})
    return ClientSecurity(
        protocol,
        mechanism,
        _text(login.get("sasl.username", "")),
        Secret(_text(login.get("sasl.password", ""))),
        _token_endpoint(login) if mechanism == OAUTHBEARER else None,
        tls if protocol.tls else (),
    )


_HOST_NAMES = "ssl.endpoint.identification.algorithm"
_EMPTY_COUNTS = (_HOST_NAMES,)
"""Settings whose empty value has a meaning of its own."""


def _check_value(setting: Setting, value: object) -> None:
    """Check the value against the setting's choices. Raises InvalidConfigError, without the value if it can be a
    secret."""
    text = _text(value)
    if setting.name.endswith("store.type"):
        if text.upper() not in ("", "PEM"):
            raise InvalidConfigError(f"{setting.name} = {text!r}: {_PEM_ONLY}")
    elif setting.choices and text not in setting.choices:
        shown = "" if isinstance(value, Secret) else f" = {text!r}"
        also = f"; {_NO_KERBEROS}" if text == "GSSAPI" else ""
        raise InvalidConfigError(
            f"{setting.name}{shown}: use one of {', '.join(c for c in setting.choices if c)}{also}"
        )


def _check_used(protocol: SecurityProtocol, tls: list[str], sasl: list[str]) -> None:
    """Raise InvalidConfigError for settings that have no meaning with this `security.protocol`."""
    if sasl and not protocol.sasl:
        better = "SASL_SSL" if protocol.tls or tls else "SASL_SSL (or SASL_PLAINTEXT)"
        raise InvalidConfigError(
            f"{sasl[0]} is set, but security.protocol = {protocol} has no SASL: set {better}, or leave {sasl[0]} out"
        )
    if tls and not protocol.tls:
        better = "SASL_SSL" if protocol.sasl else "SSL or SASL_SSL"
        raise InvalidConfigError(
            f"{tls[0]} is set, but security.protocol = {protocol} does not encrypt: set {better}, or leave {tls[0]} out"
        )


def _check_mechanism(protocol: SecurityProtocol, mechanism: str, sasl: Mapping[str, object]) -> None:
    if not mechanism:
        raise InvalidConfigError(
            f"security.protocol = {protocol} needs sasl.mechanism: {', '.join(SCRAM_MECHANISMS)}, PLAIN or OAUTHBEARER "
            "(Kafka's default, GSSAPI, is not supported)"
        )
    if mechanism in (PLAIN, OAUTHBEARER) and not protocol.tls:
        shown = "password" if mechanism == PLAIN else "token"
        raise InvalidConfigError(
            f"sasl.mechanism = {mechanism} shows the {shown} to the network: set security.protocol = SASL_SSL, or use "
            "SCRAM-SHA-512"
        )
    wrong = [n for n in sasl if n in (_LOGIN if mechanism == OAUTHBEARER else _TOKEN)]
    if wrong:
        raise InvalidConfigError(f"{wrong[0]} is set, but does not apply to sasl.mechanism = {mechanism}: leave it out")


def _login(mechanism: str, sasl: Mapping[str, object], jaas: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of the login, from `sasl.jaas.config` and the separate settings. Raises InvalidConfigError if
    one of them is set twice, or is missing."""
    both = [name for name in jaas if name in sasl]
    if both:
        raise InvalidConfigError(f"{both[0]} and {_JAAS} are both set: leave one of them out")
    login = {**sasl, **jaas}
    missing = [name for name in _LOGIN if not _text(login.get(name, ""))]
    if mechanism != OAUTHBEARER and missing:
        raise InvalidConfigError(
            f"sasl.mechanism = {mechanism} needs {' and '.join(missing)}, or {_JAAS} with username and password"
        )
    return login


def _token_endpoint(login: Mapping[str, object]) -> TokenEndpoint:
    client_id, client_secret, scope, url, ca_location = (_text(login.get(name, "")) for name in _TOKEN)
    if url.startswith("file:///"):
        if client_id or client_secret or scope or ca_location:
            raise InvalidConfigError(
                f"{_TOKEN[3]}: a file holds the token itself: leave the client's id, secret, scope and "
                "https.ca.location out"
            )
    elif not url.startswith("https://"):
        raise InvalidConfigError(
            f"sasl.mechanism = OAUTHBEARER needs {_TOKEN[3]}: https://… gives tokens, file:///path holds one"
        )
    elif not client_id or not client_secret:
        raise InvalidConfigError(
            f"{_TOKEN[3]} needs the client's id and secret: set {_TOKEN[0]} and {_TOKEN[1]}, or clientId and "
            "clientSecret in sasl.jaas.config"
        )
    return TokenEndpoint(url, client_id, Secret(client_secret), scope, ca_location)


def _text(value: object) -> str:
    return value.reveal() if isinstance(value, Secret) else "" if value is None else str(value)
