"""Every setting that Kafka's clients document, and its treatment when a job gives it as `kafka.NAME`.

The names are those of the consumer, the producer and the admin client of Kafka 4.3 (`ConsumerConfig`, `ProducerConfig`,
`AdminClientConfig`), and those of older clients. Settings that Spark's Kafka source and sink refuse are refused with
their words (`KafkaSourceProvider`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from pyspark_sparklog.options.option_table import OptionUse
from sparklog.errors import InvalidConfigError
from sparklog.security.client_security import ALIASES as SECURITY_ALIASES
from sparklog.security.client_security import CALLBACK_CLASS, REFUSED, WITHOUT_EFFECT, is_about_security
from sparklog.settings import Scope, Setting, settings_of


class Treatment(Enum):
    """The treatment of a setting; the value is its text in the documentation."""

    MAPPED = "taken over"
    IGNORED = "no effect"
    REFUSED = "refused"


class ConvertedValue(NamedTuple):
    """A value in the form of the option it stands for, and the difference from Kafka, if any."""

    value: str
    remark: str = ""


BATCH_SIZE_BYTES_MIN = 16_384
"""Smallest size of a batch in bytes that a given `batch.size` leads to. It is Kafka's default."""

Convert = Callable[[str, Setting | None], ConvertedValue]


class KafkaSetting(NamedTuple):
    """One setting of Kafka's clients.

    `where`: the side (read or write) to which the treatment applies; the setting has no effect on the other side.
    `text`: for MAPPED the option's name, else the reason, which for REFUSED is the whole message. `convert`: for MAPPED
    the conversion of Kafka's value to the option's. `elsewhere`: the reason why the setting has no effect on the other
    side.
    """

    name: str
    where: OptionUse
    treatment: Treatment
    text: str
    convert: Convert | None = None
    elsewhere: str = ""

    @property
    def about_security(self) -> bool:
        return is_about_security(self.name) or self.name in SECURITY_ALIASES


def within_bounds(text: str, setting: Setting | None) -> ConvertedValue:
    """Convert a whole number, and limit it to the bounds of `setting` (None: no bounds). Raises InvalidConfigError if
    the text is no whole number."""
    try:
        value = int(text)
    except ValueError as e:
        raise InvalidConfigError(f"{text!r}: a whole number is needed") from e
    lowest, highest = (None, None) if setting is None else (setting.minimum, setting.maximum)
    used = value
    if lowest is not None and value < lowest:
        used = lowest
    elif highest is not None and value > highest:
        used = highest
    return ConvertedValue(str(used), "" if used == value else f"{used} is used, the nearest level")


def _batch_size(text: str, setting: Setting | None) -> ConvertedValue:
    """Convert `batch.size`. A value below BATCH_SIZE_BYTES_MIN is raised to it, because an Arrow batch of a few records
    is several times as large as the records."""
    requested = within_bounds(text, setting)
    if int(requested.value) >= BATCH_SIZE_BYTES_MIN:
        return requested
    return ConvertedValue(
        str(BATCH_SIZE_BYTES_MIN), f"{BATCH_SIZE_BYTES_MIN} is used, the smallest useful size of an Arrow batch"
    )


def _take_unchanged(text: str, _: Setting | None) -> ConvertedValue:
    return ConvertedValue(text)


def _compression(text: str, _: Setting | None) -> ConvertedValue:
    nearest = {"gzip": "zstd", "snappy": "lz4"}
    codec = text.strip().lower()
    if codec in nearest:
        return ConvertedValue(nearest[codec], f"{nearest[codec]} is used, Arrow has no {codec}")
    if codec not in ("none", "lz4", "zstd"):
        raise InvalidConfigError(f"{text!r}: use one of none, gzip, snappy, lz4, zstd")
    return ConvertedValue(codec)


def _acks(text: str, _: Setting | None) -> ConvertedValue:
    if text in ("all", "-1"):
        return ConvertedValue("all")
    if text in ("0", "1"):
        return ConvertedValue("all", "all is used: the sink waits for every in-sync replica")
    raise InvalidConfigError(f"{text!r}: use one of all, -1, 0, 1")


_READ, _WRITE, _BOTH = OptionUse.SOURCE, OptionUse.SINK, OptionUse.ALL
_NUMBER = within_bounds

_MAPPED: tuple[tuple[str, OptionUse, str, Convert], ...] = (
    ("bootstrap.servers", _BOTH, "sparklog.bootstrap.servers", _take_unchanged),
    ("isolation.level", _READ, "sparklog.isolation.level", _take_unchanged),
    ("group.id", _READ, "sparklog.group.id", _take_unchanged),
    ("check.crcs", _READ, "sparklog.check.crcs", _take_unchanged),
    ("fetch.max.bytes", _READ, "sparklog.fetch.max.bytes", _NUMBER),
    ("max.partition.fetch.bytes", _READ, "sparklog.max.partition.fetch.bytes", _NUMBER),
    ("fetch.max.wait.ms", _READ, "sparklog.fetch.max.wait.ms", _NUMBER),
    ("client.rack", _READ, "sparklog.client.rack", _take_unchanged),
    ("request.timeout.ms", _BOTH, "sparklog.request.timeout.ms", _NUMBER),
    ("acks", _WRITE, "sparklog.acks", _acks),
    ("compression.type", _WRITE, "sparklog.compression", _compression),
    ("batch.size", _WRITE, "sparklog.batch.size.bytes", _batch_size),
    ("linger.ms", _WRITE, "sparklog.linger.ms", _NUMBER),
    ("buffer.memory", _WRITE, "sparklog.buffer.memory", _NUMBER),
    ("max.block.ms", _WRITE, "sparklog.max.block.ms", _NUMBER),
    ("delivery.timeout.ms", _WRITE, "sparklog.delivery.timeout.ms", _NUMBER),
    ("retry.backoff.ms", _WRITE, "sparklog.retry.backoff.ms", _NUMBER),
    ("retry.backoff.max.ms", _WRITE, "sparklog.retry.backoff.max.ms", _NUMBER),
    ("max.in.flight.requests.per.connection", _WRITE, "sparklog.max.in.flight.requests.per.connection", _NUMBER),
    ("transaction.timeout.ms", _WRITE, "sparklog.transaction.timeout.ms", _NUMBER),
)

_NOT_IN_A_GROUP = "Spark assigns ranges to tasks, which join no group"
_PLANNED = "a task reads a range of existing records, in whole batches"
_NO_METRICS = "sparklog's clients have no such metrics"
_CONNECTIONS = "the client library manages its connections"
_RETRIES = "sparklog.broker.wait.ms and sparklog.delivery.timeout.ms limit the time of retries"
_PLACEMENT = "the column partition chooses the partition, else the hash of the key, else partitions take turns"
_NO_CLASSES = "Java classes are not supported"
_TRANSACTIONS = "the sink manages its own transactions"
_PROVIDERS_SUPPORTED = ("FileConfigProvider", "EnvVarConfigProvider")
_REFERENCES = "${env:NAME}, ${file:/path} and ${file:/path:key} work without a provider"

_IGNORED: tuple[tuple[str, OptionUse, str], ...] = (
    ("client.id", _BOTH, "the client id of Spark's tasks is fixed; use quotas by user"),
    ("client.dns.lookup", _BOTH, _CONNECTIONS),
    ("send.buffer.bytes", _BOTH, _CONNECTIONS),
    ("receive.buffer.bytes", _BOTH, _CONNECTIONS),
    ("reconnect.backoff.ms", _BOTH, _CONNECTIONS),
    ("reconnect.backoff.max.ms", _BOTH, _CONNECTIONS),
    ("connections.max.idle.ms", _BOTH, _CONNECTIONS),
    ("socket.connection.setup.timeout.ms", _BOTH, _CONNECTIONS),
    ("socket.connection.setup.timeout.max.ms", _BOTH, _CONNECTIONS),
    ("bootstrap.controllers", _BOTH, "brokers answer all questions"),
    ("metadata.max.age.ms", _BOTH, "the topics are looked up for every micro-batch"),
    ("metadata.max.idle.ms", _WRITE, "the topics are looked up for every micro-batch"),
    ("metadata.recovery.strategy", _BOTH, _CONNECTIONS),
    ("metadata.recovery.rebootstrap.trigger.ms", _BOTH, _CONNECTIONS),
    ("default.api.timeout.ms", _BOTH, _RETRIES),
    ("retries", _BOTH, _RETRIES),
    ("enable.metrics.push", _BOTH, _NO_METRICS),
    ("metric.reporters", _BOTH, _NO_METRICS),
    ("auto.include.jmx.reporter", _BOTH, _NO_METRICS),
    ("metrics.num.samples", _BOTH, _NO_METRICS),
    ("metrics.recording.level", _BOTH, _NO_METRICS),
    ("metrics.sample.window.ms", _BOTH, _NO_METRICS),
    ("config.providers", _BOTH, _REFERENCES),
    ("group.instance.id", _READ, _NOT_IN_A_GROUP),
    ("group.protocol", _READ, _NOT_IN_A_GROUP),
    ("group.remote.assignor", _READ, _NOT_IN_A_GROUP),
    ("session.timeout.ms", _READ, _NOT_IN_A_GROUP),
    ("heartbeat.interval.ms", _READ, _NOT_IN_A_GROUP),
    ("max.poll.interval.ms", _READ, _NOT_IN_A_GROUP),
    ("partition.assignment.strategy", _READ, _NOT_IN_A_GROUP),
    ("share.acknowledgement.mode", _READ, _NOT_IN_A_GROUP),
    ("share.acquire.mode", _READ, _NOT_IN_A_GROUP),
    ("auto.commit.interval.ms", _READ, "Spark keeps the positions in its checkpoint"),
    ("exclude.internal.topics", _READ, "a pattern never matches internal topics"),
    ("allow.auto.create.topics", _READ, "a read creates no topics"),
    ("fetch.min.bytes", _READ, _PLANNED),
    ("max.poll.records", _READ, _PLANNED),
    ("compression.gzip.level", _WRITE, "codecs run at their default level"),
    ("compression.lz4.level", _WRITE, "codecs run at their default level"),
    ("compression.zstd.level", _WRITE, "codecs run at their default level"),
    ("max.request.size", _WRITE, "the topic's max.message.bytes decides"),
    ("partitioner.class", _WRITE, _PLACEMENT),
    ("partitioner.ignore.keys", _WRITE, _PLACEMENT),
    ("partitioner.adaptive.partitioning.enable", _WRITE, _PLACEMENT),
    ("partitioner.availability.timeout.ms", _WRITE, _PLACEMENT),
    ("enable.idempotence", _WRITE, "every write is idempotent; see sparklog.enable.idempotence"),
    ("transaction.two.phase.commit.enable", _WRITE, _TRANSACTIONS),
)

_STARTS = (
    "Kafka option 'auto.offset.reset' is not supported. Instead set the source option 'startingoffsets' to 'earliest' "
    "or 'latest' to specify where to start. Structured Streaming manages which offsets are consumed internally, "
    "rather than relying on the consumer to do it"
)
_DESERIALIZED = (
    "Kafka option '{0}.deserializer' is not supported as {0}s are deserialized as byte arrays. Use DataFrame "
    "operations to explicitly deserialize the {0}s"
)
_SERIALIZED = (
    "Kafka option '{0}.serializer' is not supported as {0}s are serialized as byte arrays. Use DataFrame operations to "
    "serialize the {0}s"
)
_REFUSED: tuple[tuple[str, OptionUse, str], ...] = (
    ("key.deserializer", _READ, _DESERIALIZED.format("key")),
    ("value.deserializer", _READ, _DESERIALIZED.format("value")),
    ("key.serializer", _WRITE, _SERIALIZED.format("key")),
    ("value.serializer", _WRITE, _SERIALIZED.format("value")),
    ("auto.offset.reset", _READ, _STARTS),
    ("enable.auto.commit", _READ, "Kafka option 'enable.auto.commit' is not supported: Spark keeps the positions in its checkpoint"),
    ("interceptor.classes", _READ, "Kafka option 'interceptor.classes' is not supported: interceptors could change the records"),
    ("transactional.id", _WRITE, "Kafka option 'transactional.id' is not supported: the sink's transactions are those of its micro-batches; see txnAppId for batch writes"),
)  # fmt: skip

_SSL = ["protocol", "provider", "cipher.suites", "enabled.protocols", "keystore.type", "keystore.location", "keystore.password", "key.password", "keystore.key", "keystore.certificate.chain", "truststore.certificates", "truststore.type", "truststore.location", "truststore.password", "keymanager.algorithm", "trustmanager.algorithm", "endpoint.identification.algorithm", "secure.random.implementation", "engine.factory.class"]  # fmt: skip
_SASL = ["kerberos.service.name", "kerberos.kinit.cmd", "kerberos.ticket.renew.window.factor", "kerberos.ticket.renew.jitter", "kerberos.min.time.before.relogin", "login.refresh.window.factor", "login.refresh.window.jitter", "login.refresh.min.period.seconds", "login.refresh.buffer.seconds", "mechanism", "jaas.config", "client.callback.handler.class", "login.callback.handler.class", "login.class", "login.connect.timeout.ms", "login.read.timeout.ms", "login.retry.backoff.max.ms", "login.retry.backoff.ms"]  # fmt: skip
_OAUTHBEARER = ["jwt.retriever.class", "jwt.validator.class", "scope", "client.credentials.client.id", "client.credentials.client.secret", "assertion.algorithm", "assertion.claim.aud", "assertion.claim.exp.seconds", "assertion.claim.iss", "assertion.claim.jti.include", "assertion.claim.nbf.seconds", "assertion.claim.sub", "assertion.file", "assertion.private.key.file", "assertion.private.key.passphrase", "assertion.template.file", "scope.claim.name", "sub.claim.name", "token.endpoint.url", "jwks.endpoint.url", "jwks.endpoint.refresh.ms", "jwks.endpoint.retry.backoff.max.ms", "jwks.endpoint.retry.backoff.ms", "clock.skew.seconds", "expected.audience", "expected.issuer", "header.urlencode"]  # fmt: skip

_ELSEWHERE = {"interceptor.classes": _NO_CLASSES, "retry.backoff.ms": _RETRIES, "retry.backoff.max.ms": _RETRIES}

SECURITY_PROTOCOL = "security.protocol"
PLAINTEXT = "PLAINTEXT"
UNDER_PLAINTEXT = "without effect with security.protocol = PLAINTEXT, as in Kafka"


def _security_row(name: str) -> KafkaSetting:
    alias = SECURITY_ALIASES.get(name, name)
    if alias in settings_of(Scope.CLIENT):
        return KafkaSetting(name, _BOTH, Treatment.MAPPED, f"sparklog.{alias}", _take_unchanged)
    if name in WITHOUT_EFFECT:
        return KafkaSetting(name, _BOTH, Treatment.IGNORED, WITHOUT_EFFECT[name])
    if name == CALLBACK_HANDLER:
        return KafkaSetting(
            name,
            _BOTH,
            Treatment.IGNORED,
            f"OAUTHBEARER works as {CALLBACK_CLASS} does; Java classes are not supported",
        )
    if name in _OF_BROKERS:
        return KafkaSetting(name, _BOTH, Treatment.IGNORED, "the broker verifies tokens")
    reason = REFUSED.get(name, "not supported: leave it out")
    return KafkaSetting(name, _BOTH, Treatment.REFUSED, f"kafka.{name}: {reason}")


_OF_BROKERS = frozenset(
    f"sasl.oauthbearer.{n}"
    for n in (
        "jwks.endpoint.url", "jwks.endpoint.refresh.ms", "jwks.endpoint.retry.backoff.max.ms", "jwks.endpoint.retry.backoff.ms",
        "clock.skew.seconds", "expected.audience", "expected.issuer", "scope.claim.name", "sub.claim.name",
    )
)  # fmt: skip
CALLBACK_HANDLER = "sasl.login.callback.handler.class"


def _table() -> dict[str, KafkaSetting]:
    rows = [KafkaSetting(n, w, Treatment.MAPPED, option, convert) for n, w, option, convert in _MAPPED]
    rows += [KafkaSetting(n, w, Treatment.IGNORED, reason) for n, w, reason in _IGNORED]
    rows += [KafkaSetting(n, w, Treatment.REFUSED, message) for n, w, message in _REFUSED]
    security = [SECURITY_PROTOCOL, *(f"ssl.{n}" for n in _SSL), *(f"sasl.{n}" for n in _SASL)]
    security += [f"sasl.oauthbearer.{n}" for n in _OAUTHBEARER]
    others = {
        n for n in (*WITHOUT_EFFECT, *REFUSED, *SECURITY_ALIASES, *settings_of(Scope.CLIENT)) if n not in security
    }
    rows += [_security_row(n) for n in (*security, *sorted(others))]
    only = {_READ: "only reads use it", _WRITE: "only writes use it", _BOTH: ""}
    return {row.name: row._replace(elsewhere=_ELSEWHERE.get(row.name, only[row.where])) for row in rows}


KAFKA_SETTINGS = _table()


def kafka_setting(name: str, value: str) -> KafkaSetting | None:
    """Return the setting of this name; None if Kafka has no such setting. `config.providers.X.…` (KIP-297) contains a
    name X that the user chooses, so any such name is a setting. The `value` decides if a provider's class is
    refused."""
    if not name.startswith("config.providers."):
        return KAFKA_SETTINGS.get(name)
    is_refused = name.endswith(".class") and value.strip().rpartition(".")[2] not in _PROVIDERS_SUPPORTED
    if is_refused:
        return KafkaSetting(name, _BOTH, Treatment.REFUSED, f"kafka.{name}: {_NO_CLASSES}; {_REFERENCES}")
    return KafkaSetting(name, _BOTH, Treatment.IGNORED, _REFERENCES)


def is_plaintext(protocol: str | None) -> bool:
    """True if `security.protocol` is PLAINTEXT: then the other security settings have no effect, as in Kafka."""
    return protocol is not None and protocol.strip().upper() == PLAINTEXT


def markdown_table() -> str:
    """Return all settings, their treatment and its reason, as a Markdown table."""
    sides = {_READ: "read", _WRITE: "write", _BOTH: "read, write"}
    lines = ["| `kafka.` | for | effect | |", "|---|---|---|---|"]
    for name in sorted(KAFKA_SETTINGS):
        row = KAFKA_SETTINGS[name]
        text = f"`{row.text}`" if row.treatment is Treatment.MAPPED else row.text.removeprefix(f"kafka.{name}: ")
        lines.append(f"| `{name}` | {sides[row.where]} | {row.treatment.value} | {text} |")
    return "\n".join(lines) + "\n"
