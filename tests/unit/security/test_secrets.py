"""Secrets: where they come from, and that nothing shows them."""

from __future__ import annotations

import base64
import html
import json
import logging
import os
import pickle
import re
import traceback
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparklog_broker.config import load_config

from sparklog.errors import InvalidConfigError
from sparklog.security.jaas import parse_jaas
from sparklog.security.secrets import (
    HIDDEN,
    Secret,
    is_sensitive,
    parse_properties,
    read_text_file,
    redact,
    resolve_secrets,
)
from tests.support.cases import for_each

PASSWORD = "s3cr€t \"pass\" 'word'"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def test_a_secret_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret(PASSWORD)
    logging.getLogger("x").warning("%s %r", secret, [secret])
    shown = [
        str(secret),
        repr(secret),
        f"{secret}",
        f"{secret:>40}",
        f"{secret!r}",
        "{}".format(secret),  # noqa: UP032
        str({"p": secret}),
        caplog.text,
    ]
    assert not any("s3cr" in text for text in shown)
    assert secret.reveal() == PASSWORD
    for encode in (pickle.dumps, json.dumps, msgspec.msgpack.encode):
        with pytest.raises(TypeError) as e:
            encode(secret)
        assert "s3cr" not in str(e.value)
    assert (secret == Secret(PASSWORD), secret == Secret("x"), secret == PASSWORD) == (True, False, False)
    assert len({secret, Secret(PASSWORD)}) == 1
    assert not hasattr(secret, "__len__")
    assert (bool(secret), bool(Secret(""))) == (True, False)


def test_references(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("from-file\n")
    (tmp_path / "all.properties").write_text("! c\n# d\na = 1\nb:2\nc 3\nlong=x\\\n   y\nuni\\u00fc=\\t\\\\\n")
    resolved = resolve_secrets(
        {
            "ssl.key.password": "plain",
            "a": "x-${env:NAME}-${env:NAME}",
            "b": f"${{file:{tmp_path}/password}}",
            "c": f"${{file:{tmp_path}/all.properties:long}}",
            "plain": "10",
            "number": 10,
        },
        {"NAME": "${env:OTHER}"},
    )
    revealed = {k: v.reveal() if isinstance(v, Secret) else v for k, v in resolved.items()}
    assert revealed == {
        "ssl.key.password": "plain",
        "a": "x-${env:OTHER}-${env:OTHER}",
        "b": "from-file",
        "c": "xy",
        "plain": "10",
        "number": 10,
    }
    assert {k for k, v in resolved.items() if isinstance(v, Secret)} == {"ssl.key.password", "a", "b", "c"}
    assert parse_properties((tmp_path / "all.properties").read_text()) == {
        "a": "1", "b": "2", "c": "3", "long": "xy", "uniü": "\t\\"
    }  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        "${env:MISSING}",
        "${vault:x}",
        "${file:relative}",
        "${file:DIR/none}",
        "${file:DIR/p:none}",
        "${file:DIR}",
        "${file:DIR/bytes}",
    ],
)
def test_references_that_lead_nowhere_are_errors_without_values(tmp_path: Path, value: str) -> None:
    (tmp_path / "p").write_text("key=s3cret")
    (tmp_path / "bytes").write_bytes(b"s3cret\xff")
    with pytest.raises(InvalidConfigError) as e:
        resolve_secrets({"sasl.password": value.replace("DIR", str(tmp_path))}, {"OTHER": "s3cret"})
    assert "sasl.password" in str(e.value)
    assert "s3cret" not in "".join(traceback.format_exception_only(e.value))
    assert e.value.__suppress_context__


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="is a device, no regular file"):
        resolve_secrets({"a": "${file:/dev/zero}"}, {})


def test_names_that_are_sensitive() -> None:
    for name in (
        "sasl.jaas.config",
        "ssl.key.password",
        "ssl.keystore.key",
        "kafka.ssl.truststore.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
    ):
        assert is_sensitive(name), name
    for name in (
        "ssl.keystore.location",
        "ssl.key.location",
        "ssl.keystore.type",
        "key.serializer",
        "sasl.mechanism",
        "sasl.oauthbearer.token.endpoint.url",
    ):
        assert not is_sensitive(name), name


def test_a_single_line_of_a_secret_is_hidden_if_it_is_long() -> None:
    short, long = "BEGIN OF THE KEY", "BEGIN OF THE KEYS"
    redacted = redact(f"{short}; {long}", [Secret(f"{short}\n{long}\nwithout an end")])
    assert redacted == f"{short}; {HIDDEN}"


@given(st.text("abcé\"'\\/ \n", min_size=4), st.text("0123456789"), st.text("0123456789"))
def test_redaction_takes_every_form_out(value: str, before: str, after: str) -> None:
    text = f"{before}{value}{after}"
    redacted = redact(f"{text}|{json.dumps(text)}|{quote(text, safe='')}", [Secret(value)])
    assert redacted == f'{before}{HIDDEN}{after}|"{before}{HIDDEN}{after}"|{before}{HIDDEN}{after}'


@given(st.text("abcdefgh/+&<é", min_size=8), st.text("xyz", max_size=4), st.text("xyz", max_size=4))
def test_redaction_knows_the_notations_of_other_programs(value: str, before: str, after: str) -> None:
    """A secret inside Base64 keeps at most a part of a byte at each end."""
    lower = re.sub("%..", lambda m: m[0].lower(), quote(value, safe=""))
    slashes, in_html = json.dumps(value)[1:-1].replace("/", "\\/"), html.escape(value)
    for text in (lower, quote(value), slashes, in_html, value.encode().hex(), value.encode().hex().upper()):
        assert redact(f"|{text}|", [Secret(value)]) == f"|{HIDDEN}|"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        left, right = redact(encode(f"{before}{value}{after}".encode()).decode(), [Secret(value)]).split(HIDDEN)
        assert len(left) <= len(before) * 8 // 6 + 1
        assert len(right.rstrip("=")) <= len(after) * 8 // 6 + 2


def test_redaction_knows_the_forms_of_secrets() -> None:
    text = f'{SCRAM} required username="a" password="x\\"y z"; Authorization: Bearer abc.def-_ {PASSWORD!r} {json.dumps(PASSWORD)}'
    text += "\n-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nend"
    redacted = redact(text, [Secret(PASSWORD)])
    for part in ("x\\", "y z", "abc", "s3cr", "MIIE"):
        assert part not in redacted
    assert 'username="a"' in redacted
    assert redacted.endswith("end")


def test_jaas() -> None:
    text = f"""
        {SCRAM} required  // a comment; with marks "
        username="alice" password="a\\"b;c=d" ;"""
    settings = parse_jaas(text, "SCRAM-SHA-512")
    assert {k: v.reveal() for k, v in settings.items()} == {"sasl.username": "alice", "sasl.password": 'a"b;c=d'}
    shaded = "kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule REQUIRED username=a password=b;"
    assert parse_jaas(shaded, "PLAIN") == {"sasl.username": Secret("a"), "sasl.password": Secret("b")}
    oauth = (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId='i' clientSecret='s';"
    )
    assert parse_jaas(oauth, "OAUTHBEARER") == {
        "sasl.oauthbearer.client.id": Secret("i"),
        "sasl.oauthbearer.client.secret": Secret("s"),
    }


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"a\\b", "a\\b"),
        (r"a\"b\'c", "a\"b'c"),
        (r"a\tb\nc\rd\fe\bf\ag\vh", "a\tb\nc\rd\fe\bf\ag\vh"),
        (r"\101\60\0", "A0\0"),
        (r"\400\3777", " 0\xff7"),
        (r"\8\x\é", "8xé"),
    ],
)
def test_escapes_in_jaas_are_those_of_javas_tokenizer(written: str, read: str) -> None:
    settings = parse_jaas(f'{SCRAM} required username="alice" password="{written}";', "SCRAM-SHA-512")
    assert settings["sasl.password"].reveal() == read


@for_each(
    "text",
    [
        "",
        "s3cret",
        f'{SCRAM} required username="a" password="s3cret"',
        f'{SCRAM} required username="a" password="s3cret;',
        f'{SCRAM} username="a" password="s3cret";',
        f'{SCRAM} s3cret username="a";',
        f'{SCRAM} required username="a" password "s3cret";',
        f'{SCRAM} required username="a" s3cret="b" password="c";',
        f'{SCRAM} required password="s3cret";',
        f'{SCRAM} required username="a" password="s3cret" tokenauth="true";',
        f'{SCRAM} required username="a" password="s3cret"; {SCRAM} required username="a" password="b";',
        's3cret.Krb5LoginModule required password="s3cret";',
        'x.PlainLoginModule required username="a" password="s3cret";',
        "s3cret" * 20_000,
    ],
)
def test_jaas_that_is_wrong_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(InvalidConfigError) as e:
        parse_jaas(text, "SCRAM-SHA-256")
    shown = "".join(traceback.format_exception_only(e.value))
    assert "s3cret" not in shown
    assert "sasl.jaas.config" in shown


@given(st.text(max_size=60))
def test_jaas_never_fails_otherwise(text: str) -> None:
    with pytest.raises(InvalidConfigError):
        parse_jaas(text, "PLAIN")


@given(st.text(), st.text(min_size=1))
def test_any_password_can_be_quoted(user: str, password: str) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = f"a.PlainLoginModule required username={quoted('u' + user)} password={quoted(password)};"
    assert parse_jaas(text, "PLAIN") == {"sasl.username": Secret("u" + user), "sasl.password": Secret(password)}


def test_a_file_of_settings_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(1 << 40)
    for name, reason in {"pipe": "is a pipe", "huge": "is larger than 1048576 bytes", "": "is a directory"}.items():
        with pytest.raises(InvalidConfigError, match=reason):
            read_text_file(str(tmp_path / name))
        with pytest.raises(InvalidConfigError, match=reason):
            load_config(tmp_path / name)
