"""The broker's security settings: its listeners, and the rules for their connections.

`listener.name.<name in lower case>.x` overrides `x` for one listener. A value can refer to a file or variable
(`${file:/path}`, `${env:NAME}`). Such values, and the values of settings with secret names, are `Secret` objects.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from sparklog.errors import InvalidConfigError
from sparklog.metadata.coordination import ZooKeeperTls
from sparklog.security.client_security import ClientSecurity, client_security
from sparklog.security.handshake import ListenerRules
from sparklog.security.listeners import (
    GATEWAY_PREFIX,
    REGISTRY_NAMES,
    Listener,
    Listeners,
    SecurityProtocol,
    check_exposure,
    is_local,
    listener_settings,
    parse_listeners,
    parse_protocol_map,
)
from sparklog.security.optional import require
from sparklog.security.sasl import MECHANISMS
from sparklog.security.secrets import Secret
from sparklog.security.users import Credentials, parse_initial
from sparklog.settings import Scope, Value, did_you_mean, settings_of

_ZOOKEEPER = ("zookeeper.username", "zookeeper.password", "zookeeper.set.acl")
_ZOOKEEPER_TLS = (
    "zookeeper.ssl.client.enable",
    "zookeeper.ssl.truststore.location",
    "zookeeper.ssl.keystore.location",
    "zookeeper.ssl.endpoint.identification.algorithm",
)
_NAMES = (
    "listeners",
    "listener.security.protocol.map",
    "kafka.listeners",
    "schema.registry.listeners",
    "kafka.advertised.listeners",
    "inter.broker.listener.name",
    "allow.insecure",
    *_ZOOKEEPER,
    *_ZOOKEEPER_TLS,
)
_PREFIXES = ("ssl.", "sasl.", "https.", "connection.failed.", "connections.max.reauth.", "connections.authenticat")
LISTENER_PREFIX = "listener.name."
_NOT_PER_LISTENER = ("ssl.reload.interval.ms", "connections.authenticating.max")
PLAIN_NAME = SecurityProtocol.PLAINTEXT.value
"""Name of the listener that the setting `listen` defines."""


def is_security_setting(name: str) -> bool:
    """True if the broker setting belongs to `BrokerSecurity`."""
    return name in _NAMES or name.startswith(_PREFIXES)


def parse_listener_setting(name: str, value: object) -> Value | Secret:
    """Parse the value of `listener.name.<name>.x`. Raises InvalidConfigError."""
    listener, dot, inner = name.removeprefix(LISTENER_PREFIX).partition(".")
    settings = {
        n: s for n, s in settings_of(Scope.BROKER).items() if n.startswith(_PREFIXES) and n not in _NOT_PER_LISTENER
    }
    if not dot or inner not in settings:
        raise InvalidConfigError(f"unknown setting {inner!r} of listener {listener!r}{did_you_mean(inner, settings)}")
    return parse_value(inner, value)


def parse_value(name: str, value: object) -> Value | Secret:
    """Parse a broker setting's value. A secret text stays a `Secret`; an error for another referenced value does not
    quote it. Raises InvalidConfigError.
    """
    setting = settings_of(Scope.BROKER)[name]
    if not isinstance(value, Secret):
        return setting.parse(value)
    if isinstance(setting.default, str) and not setting.choices:
        return value
    try:
        return setting.parse(value.reveal())
    except InvalidConfigError:
        raise InvalidConfigError(f"{name}: the referenced value is not valid for this setting") from None


class BrokerSecurity(Struct, frozen=True):
    """The security settings, created by `make_security`. `settings`: values by dotted name, with the settings of
    single listeners (`listener.name.…`)."""

    listeners: Listeners
    settings: Mapping[str, object]
    is_advertised: bool = False
    """True if `advertised.listeners` is set."""
    kafka: Listeners | None = None
    """The listeners of `kafka.listeners` and `schema.registry.listeners`; None without a gateway."""

    @property
    def gateways(self) -> tuple[Listener, ...]:
        """The gateway's listeners, under the names that brokers use for them."""
        bound = () if self.kafka is None else self.kafka.bound
        return tuple(one._replace(name=GATEWAY_PREFIX + one.name) for one in bound)

    def advertised_of(self, listener: str) -> tuple[str, int] | None:
        """Return a listener's address in `advertised.listeners`, or in `kafka.advertised.listeners` for a listener of
        the gateway; None if it has none there."""
        if self.kafka is not None and listener.startswith(GATEWAY_PREFIX):
            name = listener.removeprefix(GATEWAY_PREFIX)
            explicit = bool(self.settings["kafka.advertised.listeners"])
            announced = self.kafka.advertised if explicit else ()
            return next(((one.host, one.port) for one in announced if one.name == name), None)
        if not self.is_advertised:
            return None
        return next(((one.host, one.port) for one in self.listeners.advertised if one.name == listener), None)

    def as_client(self) -> ClientSecurity:
        """Return this broker's security as a client of the inter-broker listener: the listener's certificates, and the
        user of `sasl.jaas.config`. Raises InvalidConfigError.
        """
        listener = self.listeners.inter_broker
        own = self.of(listener)
        values: dict[str, object] = {"security.protocol": listener.protocol.value}
        if listener.protocol.tls:
            settings = settings_of(Scope.CLIENT)
            values |= {n: v for n, v in own.items() if n.startswith("ssl.") and n in settings and v not in ("", None)}
            values["ssl.endpoint.identification.algorithm"] = own["ssl.endpoint.identification.algorithm"]
        if listener.protocol.sasl:
            values["sasl.mechanism"] = own["sasl.mechanism.inter.broker.protocol"]
            values["sasl.jaas.config"] = own["sasl.jaas.config"]
        try:
            return client_security(values)
        except InvalidConfigError as e:
            raise InvalidConfigError(f"inter.broker.listener.name = {listener.name}: {e}") from None

    def of(self, listener: Listener) -> dict[str, object]:
        """Return the settings in effect for a listener, by dotted name."""
        return listener_settings(self.settings, listener.name.removeprefix(GATEWAY_PREFIX))

    def rules(self, listener: Listener) -> ListenerRules:
        """Return the rules for the listener's connections. Raises InvalidConfigError."""
        own = self.of(listener)
        return ListenerRules(
            listener.name,
            parse_mechanisms(str(own["sasl.enabled.mechanisms"])) if listener.protocol.sasl else (),
            tls=listener.protocol.tls,
            failed_delay_ms=_number(own, "connection.failed.authentication.delay.ms"),
            reauthentication_ms_max=_number(own, "connections.max.reauth.ms"),
            authentication_timeout_ms=_number(own, "connections.authentication.timeout.ms"),
        )

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings to log at every start. Raises InvalidConfigError for a listener that gives every client
        on other hosts access, unless `allow.insecure` is set.
        """
        warnings: tuple[str, ...] = ()
        for listeners in (self.listeners, self.kafka):
            if listeners is not None:
                warnings += check_exposure(
                    listeners,
                    lambda listener: str(self.of(listener)["ssl.client.auth"]),
                    bool(self.settings["allow.insecure"]),
                )
        return warnings

    @property
    def zookeeper_login(self) -> tuple[str, Secret] | None:
        """Name and password for ZooKeeper; None without a login. Raises InvalidConfigError if only one of the two is
        set, for a name with a colon, and for `zookeeper.set.acl` without a login."""
        name, password, set_acl = (self.settings[setting] for setting in _ZOOKEEPER)
        login = name.reveal() if isinstance(name, Secret) else str(name)
        secret = password if isinstance(password, Secret) else Secret(str(password))
        if bool(login) != bool(secret) or ":" in login or (set_acl and not login):
            raise InvalidConfigError(
                "zookeeper.username (without a colon) and zookeeper.password belong together; zookeeper.set.acl needs "
                "both"
            )
        return (login, secret) if login else None

    @property
    def zookeeper_tls(self) -> ZooKeeperTls | None:
        """Settings of TLS to ZooKeeper; None for plain text. Raises InvalidConfigError if files are set without
        `zookeeper.ssl.client.enable`."""
        enabled, trusted, own, algorithm = (self.settings[name] for name in _ZOOKEEPER_TLS)
        if not enabled and (trusted or own):
            raise InvalidConfigError(
                f"{_ZOOKEEPER_TLS[1 if trusted else 2]} is set, but {_ZOOKEEPER_TLS[0]} is not: nothing would be "
                "encrypted"
            )
        return ZooKeeperTls(str(trusted), str(own), algorithm == "https") if enabled else None

    @property
    def initial_users(self) -> dict[str, Credentials]:
        """Users of `sasl.scram.initial.credentials`. Raises InvalidConfigError."""
        text = self.settings["sasl.scram.initial.credentials"]
        return parse_initial(text.reveal() if isinstance(text, Secret) else str(text))

    @property
    def authenticating_max(self) -> int:
        """The value of `connections.authenticating.max`."""
        return _number(self.settings, "connections.authenticating.max")


def make_security(settings: Mapping[str, object], listen: str, advertised: str) -> BrokerSecurity:
    """Return the security for parsed settings. `listen` and `advertised` are the texts of their settings. Raises
    InvalidConfigError.
    """
    names = str(settings["listeners"]) or f"{PLAIN_NAME}://{listen}"
    if advertised and "://" not in advertised:
        first = names.partition("://")[0].strip()
        advertised = f"{first}://{advertised}"
    listeners = parse_listeners(
        names,
        str(settings["listener.security.protocol.map"]),
        advertised,
        str(settings["inter.broker.listener.name"]),
    )
    has_sasl = any(listener.protocol.sasl for listener in listeners.bound)
    kafka = _gateway_listeners(settings, has_sasl=has_sasl)
    security = BrokerSecurity(listeners, settings, bool(advertised), kafka)
    owners = {listener.name.lower() for listener in (*listeners.bound, *(kafka.bound if kafka is not None else ()))}
    for name in settings:
        owner = name.removeprefix(LISTENER_PREFIX).partition(".")[0]
        if name.startswith(LISTENER_PREFIX) and owner not in owners:
            raise InvalidConfigError(f"{name}: unknown listener{did_you_mean(owner, owners)}")
    for listener in (*listeners.bound, *security.gateways):
        security.rules(listener)
    _ = (
        security.zookeeper_login,
        security.zookeeper_tls,
        security.initial_users,
    )  # evaluated now, so that errors are raised at the start
    return security


def _gateway_listeners(settings: Mapping[str, object], *, has_sasl: bool) -> Listeners | None:
    """Return the listeners of `kafka.listeners` and `schema.registry.listeners`; None if neither is set. `has_sasl`:
    True if a listener of the broker has SASL. Raises InvalidConfigError."""
    names, advertised = str(settings["kafka.listeners"]), str(settings["kafka.advertised.listeners"])
    registry, protocol_map = str(settings["schema.registry.listeners"]), str(settings["listener.security.protocol.map"])
    if not names and advertised:
        raise InvalidConfigError("kafka.advertised.listeners is set, but kafka.listeners is not")
    try:
        kafka = parse_listeners(names, protocol_map, advertised) if names else None
    except InvalidConfigError as e:
        raise InvalidConfigError(f"kafka.listeners = {names!r}: {e}") from None
    if not registry:
        return kafka
    bound = () if kafka is None else kafka.bound
    if any(listener.name.lower() in REGISTRY_NAMES for listener in bound):
        raise InvalidConfigError("kafka.listeners: http and https are names of schema.registry.listeners")
    has_sasl = has_sasl or any(listener.protocol.sasl for listener in bound)
    try:
        ours = _registry_listeners(registry, protocol_map, has_sasl=has_sasl, is_open=bool(settings["allow.insecure"]))
        both = parse_listeners(f"{names},{registry}", f"{protocol_map},{ours}") if names else None
    except InvalidConfigError as e:
        raise InvalidConfigError(f"schema.registry.listeners = {registry!r}: {e}") from None
    if kafka is None or both is None:
        return parse_listeners(registry, f"{protocol_map},{ours}")
    return both._replace(advertised=kafka.advertised) if advertised else both


def _registry_listeners(registry: str, protocol_map: str, *, has_sasl: bool, is_open: bool) -> str:
    """Check `schema.registry.listeners`, and return the protocols of its names, in the form of
    `listener.security.protocol.map`. Raises InvalidConfigError."""
    require("h11", "the schema registry", "schemas")
    defaults = ("SASL_PLAINTEXT", "SASL_SSL") if has_sasl else ("PLAINTEXT", "SSL")
    protocols = dict(zip(REGISTRY_NAMES, map(SecurityProtocol, defaults), strict=True))
    protocols |= {name: one for name, one in parse_protocol_map(protocol_map).items() if name in REGISTRY_NAMES}
    text = ",".join(f"{name}:{protocol}" for name, protocol in protocols.items())
    for listener in parse_listeners(registry, text).bound:
        if listener.name not in REGISTRY_NAMES or listener.protocol.tls != (listener.name == "https"):
            raise InvalidConfigError(
                f"{listener} has the protocol {listener.protocol}: use http:// without TLS, or https:// with TLS"
            )
        if listener.protocol is SecurityProtocol.SASL_PLAINTEXT and not is_local(listener.host) and not is_open:
            raise InvalidConfigError(
                f"clients would send passwords to {listener} without encryption: use https://, listen on localhost, or "
                "set allow.insecure = true"
            )
    return text


def parse_mechanisms(text: str) -> tuple[str, ...]:
    """Parse `sasl.enabled.mechanisms`. Raises InvalidConfigError for an empty list; ListenerRules checks the names."""
    mechanisms = tuple(dict.fromkeys(part.strip().upper() for part in text.split(",") if part.strip()))
    if not mechanisms:
        raise InvalidConfigError(f"sasl.enabled.mechanisms is empty: name some of {', '.join(MECHANISMS)}")
    return mechanisms


def _number(settings: Mapping[str, object], name: str) -> int:
    value = settings[name]
    assert isinstance(value, int)
    return value
