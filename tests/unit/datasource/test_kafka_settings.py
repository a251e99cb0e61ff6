"""Kafka's settings as a job gives them: known, and taken over, without effect, or refused."""

from __future__ import annotations

import logging
import pickle
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from pyspark_sparklog.options.kafka_settings import KAFKA_SETTINGS, Treatment, markdown_table
from pyspark_sparklog.options.option_names import recognised, warn_once
from pyspark_sparklog.options.option_table import OptionUse, options_for
from pyspark_sparklog.options.options import parse_sink_options, parse_source_options
from pyspark_sparklog.options.table_options import of_new_table

from sparklog.client.net.cluster import forget
from sparklog.errors import InvalidConfigError
from sparklog.security.client_security import PLAINTEXT
from sparklog.settings import Scope, settings_of
from tests.support.cases import for_each

READ = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
WRITE = {"kafka.bootstrap.servers": "h:1", "topic": "t"}

SETTINGS_OF_TYPICAL_JOBS = {
    "security.protocol": "PLAINTEXT",
    "client.id": "etl",
    "client.dns.lookup": "use_all_dns_ips",
    "compression.type": "snappy",
    "batch.size": "65536",
    "linger.ms": "20",
    "acks": "1",
    "retries": "3",
    "max.request.size": "10485760",
    "request.timeout.ms": "60000",
    "session.timeout.ms": "30000",
    "heartbeat.interval.ms": "10000",
    "max.poll.records": "500",
    "max.partition.fetch.bytes": "10485760",
    "fetch.max.bytes": "52428800",
    "fetch.min.bytes": "1",
    "fetch.max.wait.ms": "500",
    "metadata.max.age.ms": "5000",
    "default.api.timeout.ms": "60000",
    "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
    "receive.buffer.bytes": "65536",
    "connections.max.idle.ms": "540000",
    "enable.idempotence": "false",
    "isolation.level": "read_committed",
}


@for_each("name", SETTINGS_OF_TYPICAL_JOBS)
def test_options_of_typical_jobs_are_accepted_in_both_directions(name: str) -> None:
    given = {f"kafka.{name}": SETTINGS_OF_TYPICAL_JOBS[name]}
    for streaming in (True, False, None):
        parse_source_options(READ | given, streaming=streaming)
    for streaming in (True, False):
        parse_sink_options(WRITE | given, streaming=streaming)


def test_settings_with_a_counterpart_are_taken_over() -> None:
    given = {
        "kafka.acks": "-1",
        "kafka.compression.type": "zstd",
        "kafka.batch.size": "65536",
        "kafka.linger.ms": "20",
        "kafka.buffer.memory": "1048576",
        "kafka.request.timeout.ms": "1000",
        "kafka.delivery.timeout.ms": "2000",
        "kafka.max.block.ms": "3000",
        "kafka.retry.backoff.ms": "10",
        "kafka.retry.backoff.max.ms": "20",
        "kafka.max.in.flight.requests.per.connection": "1",
    }
    parsed = parse_sink_options(WRITE | given, streaming=False)
    assert parsed.remarks == ()
    assert parsed.producer == {
        "compression": "zstd",
        "batch.size.bytes": 65536,
        "linger.ms": 20,
        "buffer.memory": 1048576,
        "request.timeout.ms": 1000,
        "delivery.timeout.ms": 2000,
        "max.block.ms": 3000,
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 20,
        "max.in.flight.requests.per.connection": 1,
    }
    read = {
        "kafka.isolation.level": "read_uncommitted",
        "kafka.check.crcs": "false",
        "kafka.group.id": "g",
        "kafka.fetch.max.bytes": "100000",
        "kafka.max.partition.fetch.bytes": "50000",
        "kafka.fetch.max.wait.ms": "100",
        "kafka.request.timeout.ms": "1234",
        "kafka.client.rack": "eu-1a",
    }
    source = parse_source_options(READ | read, streaming=True)
    assert source.remarks == ()
    assert (source.isolation, source.check_crcs, source.group_id) == (0, False, "g")
    assert (source.fetch_max_bytes, source.fetch_max_wait_ms, source.request_timeout_ms) == (50_000, 100, 1234)
    assert source.client_rack == "eu-1a"


@pytest.mark.parametrize(
    ("name", "value", "taken", "remark"),
    [
        ("compression.type", "gzip", {"compression": "zstd"}, "zstd is used, Arrow has no gzip"),
        ("compression.type", "snappy", {"compression": "lz4"}, "lz4 is used, Arrow has no snappy"),
        ("batch.size", "0", {"batch.size.bytes": 16384}, "16384 is used"),
        ("linger.ms", "86400000", {"linger.ms": 3600000}, "3600000 is used, the nearest level"),
        ("acks", "1", {}, "all is used: the sink waits for every in-sync replica"),
    ],
)
def test_a_value_without_an_equal_gets_the_nearest(name: str, value: str, taken: dict[str, Any], remark: str) -> None:
    parsed = parse_sink_options(WRITE | {f"kafka.{name}": value}, streaming=True)
    assert parsed.producer == taken
    (told,) = parsed.remarks
    assert told.startswith(f"kafka.{name} (") and remark in told


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"kafka.key.deserializer": "x"}, "Kafka option 'key.deserializer' is not supported as keys are deserialized"),
        ({"kafka.value.deserializer": "x"}, "Kafka option 'value.deserializer' is not supported as values are deseri"),
        ({"kafka.auto.offset.reset": "x"}, "Kafka option 'auto.offset.reset' is not supported.*'startingoffsets'"),
        ({"kafka.enable.auto.commit": "x"}, "Kafka option 'enable.auto.commit' is not supported"),
        ({"kafka.interceptor.classes": "x"}, "Kafka option 'interceptor.classes' is not supported"),
    ],
)
def test_a_read_refuses_the_settings_that_sparks_kafka_source_refuses(option: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        parse_source_options(READ | option, streaming=None)
    assert parse_sink_options(WRITE | option, streaming=False).remarks


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"kafka.key.serializer": "x"}, "Kafka option 'key.serializer' is not supported as keys are serialized"),
        ({"kafka.value.serializer": "x"}, "Kafka option 'value.serializer' is not supported as values are serialized"),
        ({"kafka.transactional.id": "x"}, "see txnAppId"),
        ({"kafka.compression.type": "brotli"}, "kafka.compression.type = 'brotli': use one of none, gzip, snappy"),
        ({"kafka.acks": "2"}, "kafka.acks = '2': use one of all"),
        ({"kafka.linger.ms": "fast"}, "kafka.linger.ms = 'fast': a whole number"),
        ({"kafka.linger.ms": "5", "sparklog.linger.ms": "6"}, "sparklog.linger.ms is given twice"),
    ],
)
def test_a_write_refuses_impossible_settings(option: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        parse_sink_options(WRITE | option, streaming=False)


SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SECURED = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": f'{SCRAM} required username="etl" password="hush-7261";',
    "kafka.ssl.truststore.location": "/etc/ca.pem",
    "kafka.ssl.truststore.type": "PEM",
    "kafka.ssl.endpoint.identification.algorithm": "https",
}


def test_security_moves_over_as_it_stands() -> None:
    for parsed in (
        parse_source_options(READ | SECURED, streaming=True),
        parse_source_options(READ | SECURED, streaming=None),
        parse_sink_options(WRITE | SECURED, streaming=True),
    ):
        assert parsed.remarks == ()
        security = parsed.address.security.resolve()
        assert (security.protocol, security.mechanism, security.username) == ("SASL_SSL", "SCRAM-SHA-512", "etl")
        assert security.password.reveal() == "hush-7261"
        assert dict(security.tls)["ssl.truststore.location"] == "/etc/ca.pem"
        assert parsed.address.connect().security == security
        assert "hush-7261" not in repr(parsed)
        arrived = pickle.loads(pickle.dumps(parsed))
        assert arrived.address.security.resolve() == security
    forget("h:1")


def test_every_security_setting_of_a_client_arrives() -> None:
    """No setting about trust or identity gets lost on its way through the options."""
    path, jaas = "/etc/some.pem", SECURED["kafka.sasl.jaas.config"]
    values = {name: path for name in settings_of(Scope.CLIENT) if name.startswith(("ssl.", "https."))}
    given = values | {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "sasl.oauthbearer.client.id": "etl",
        "sasl.oauthbearer.client.secret": "hush-7261",
        "sasl.oauthbearer.scope": "events",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.type": "PEM",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.enabled.protocols": "TLSv1.3",
    }
    alone = {"sasl.jaas.config": jaas, "sasl.username": "etl", "sasl.password": "hush-7261"}
    assert given.keys() | alone.keys() == settings_of(Scope.CLIENT).keys()
    for prefix in ("kafka.", "sparklog."):
        options = {prefix + name: value for name, value in given.items()}
        for address in (
            parse_source_options(READ | options, streaming=True).address,
            parse_sink_options(WRITE | options, streaming=True).address,
        ):
            assert dict(address.security.items()) == given
            endpoint = address.security.resolve().token_endpoint
            assert endpoint is not None
            assert endpoint.ca_location == path


def test_own_names_and_kafkas_are_the_same() -> None:
    own = {f"sparklog.{name.removeprefix('kafka.')}": value for name, value in SECURED.items()}
    by_own, by_kafka = (parse_source_options(READ | given, streaming=True).address for given in (own, SECURED))
    assert by_own == by_kafka
    with pytest.raises(InvalidConfigError, match=r"sparklog\.security\.protocol is given twice"):
        parse_source_options(READ | SECURED | {"sparklog.security.protocol": "SSL"}, streaming=True)


def test_providers_of_secrets_are_not_needed() -> None:
    """A job that reads secrets with Kafka's own providers moves over as it stands; others have no stand-in."""
    kafkas = "org.apache.kafka.common.config.provider."
    providers = {
        "kafka.config.providers": "file,env",
        "kafka.config.providers.file.class": f"{kafkas}FileConfigProvider",
        "kafka.config.providers.file.param.allowed.paths": "/run/secrets",
        "kafka.config.providers.env.class": f"{kafkas}EnvVarConfigProvider",
    }
    parsed = parse_source_options(READ | SECURED | providers, streaming=True)
    assert len(parsed.remarks) == len(providers)
    assert all("work without a provider" in remark for remark in parsed.remarks)
    with pytest.raises(
        InvalidConfigError, match=r"kafka\.config\.providers\.vault\.class: Java classes are not supported"
    ):
        parse_source_options(READ | {"kafka.config.providers.vault.class": "com.example.Vault"}, streaming=True)


@pytest.mark.parametrize(
    "option",
    [
        {"kafka.ssl.truststore.password": ""},
        {"kafka.enable.ssl.certificate.verification": "true"},
    ],
)
def test_options_without_an_effect_are_not_refused(option: dict[str, str]) -> None:
    with_it = parse_source_options(READ | SECURED | option, streaming=True)
    assert with_it.address == parse_source_options(READ | SECURED, streaming=True).address


def test_a_reference_is_sent_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hush-7261\n")
    jaas = f'{SCRAM} required username="etl" password="${{file:{tmp_path}/password}}";'
    parsed = parse_source_options(READ | SECURED | {"kafka.sasl.jaas.config": jaas}, streaming=True)
    assert b"hush-7261" not in pickle.dumps(parsed)
    arrived = pickle.loads(pickle.dumps(parsed))
    assert arrived.address.connect().security.password.reveal() == "hush-7261"
    (tmp_path / "password").unlink()
    with pytest.raises(
        InvalidConfigError, match=rf"password' cannot be read.*\(on {re.escape(socket.gethostname())}\)"
    ):
        arrived.address.connect()
    forget("h:1")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"kafka.security.protocol": "SASL_SSL"}, "needs sasl.mechanism"),
        ({"kafka.sasl.jaas.config": SECURED["kafka.sasl.jaas.config"]}, "security.protocol = PLAINTEXT has no SASL"),
        ({"kafka.ssl.truststore.location": "/s"}, "does not encrypt"),
        ({"kafka.ssl.truststore.password": "hush-7261"}, "kafka.ssl.truststore.password: only PEM stores"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "JKS"}, "keytool"),
        ({"kafka.sasl.kerberos.service.name": "kafka"}, "Kerberos"),
        ({"kafka.sasl.login.callback.handler.class": "com.example.Mine"}, "Java classes are not supported"),
        ({"kafka.sasl.oauthbearer.assertion.file": "/x"}, "not supported"),
    ],
)
def test_requested_security_is_never_ignored_silently(option: dict[str, str], message: str) -> None:
    for parse in (
        lambda: parse_source_options(READ | option, streaming=True),
        lambda: parse_sink_options(WRITE | option, streaming=True),
    ):
        with pytest.raises(InvalidConfigError, match=message) as raised:
            parse()
        assert "hush-7261" not in str(raised.value)


def test_plaintext_overrides_other_options_as_in_kafka() -> None:
    plain = SECURED | {"kafka.security.protocol": "plaintext"}
    parsed = parse_source_options(READ | plain, streaming=True)
    assert len(parsed.remarks) == len(SECURED) - 1
    assert all("(without effect with security.protocol" in r and "hush-7261" not in r for r in parsed.remarks)
    assert parsed.address.security.resolve() == PLAINTEXT


def test_the_environment_counts_only_if_the_options_are_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=secured:1\nsecurity.protocol=SSL\n")
    monkeypatch.delenv("SPARKLOG_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv("SPARKLOG_COMMAND_CONFIG", str(path))
    address = parse_source_options({"subscribe": "t"}, streaming=True).address
    assert (address.bootstrap_servers, address.security.resolve().protocol) == ("secured:1", "SSL")
    assert not parse_source_options(READ, streaming=True).address.security


def test_a_catalog_keeps_no_password() -> None:
    new = {"provider": "sparklog", "option.subscribe": "t"}
    for name in ("kafka.sasl.jaas.config", "sparklog.sasl.jaas.config"):
        with pytest.raises(InvalidConfigError, match="kept in the catalog") as raised:
            of_new_table(new | {f"option.{name}": SECURED["kafka.sasl.jaas.config"]})
        assert "hush-7261" not in str(raised.value)
    jaas = f'{SCRAM} required username="etl" password="${{file:/p}}";'
    kept = of_new_table(new | {"option.kafka.sasl.mechanism": "SCRAM-SHA-512", "option.kafka.sasl.jaas.config": jaas})
    assert kept
    assert kept["kafka.sasl.jaas.config"] == jaas


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("kafka.sasl.mechansim", "did you mean 'kafka.sasl.mechanism'"),
        ("kafka.bootstrap.server", "did you mean 'kafka.bootstrap.servers'"),
        ("kafka.max.poll.record", "did you mean 'kafka.max.poll.records'"),
        ("kafka.sesion.timeout.ms", "did you mean 'kafka.session.timeout.ms'"),
        ("kafka.compresion", "did you mean 'sparklog.compression'"),
        ("startingofset", "did you mean 'startingOffsets'"),
        ("kafka.frobnicate", "Kafka's clients document no such setting"),
    ],
)
def test_a_misspelling_gets_the_nearest_name(written: str, hint: str) -> None:
    where = OptionUse.SINK if "compres" in written else OptionUse.SOURCE
    with pytest.raises(InvalidConfigError, match=f"^unknown option '{written}': {hint}") as raised:
        recognised(READ | {written: "1"}, where)
    assert "\n" not in str(raised.value)


def test_one_warning_names_all(caplog: pytest.LogCaptureFixture) -> None:
    given = READ | {"kafka.retries": "3", "kafka.client.id": "x", "kafka.session.timeout.ms": "1"}
    remarks = parse_source_options(given, streaming=True).remarks
    with caplog.at_level(logging.WARNING):
        warn_once(remarks)
        warn_once(remarks)
    (record,) = caplog.records
    message = record.getMessage()
    assert all(f"kafka.{name} (" in message for name in ("retries", "client.id", "session.timeout.ms"))


def test_the_table_is_sound() -> None:
    options = options_for(OptionUse.ALL)
    for setting in KAFKA_SETTINGS.values():
        assert setting.text
        assert (setting.convert is not None) == (setting.treatment is Treatment.MAPPED)
        if setting.treatment is Treatment.MAPPED:
            assert setting.where & options[setting.text].where
    table = markdown_table()
    assert all(f"| `{name}` |" in table for name in KAFKA_SETTINGS)
