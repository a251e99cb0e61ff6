"""TLS from settings: contexts for servers and clients, and their renewal while connections are open.

The settings are Kafka's, with PEM stores (KIP-651), or librdkafka's:

    content                   text in the setting              path of a file
    certificate and chain     ssl.keystore.certificate.chain   ssl.keystore.location (key and chain in one file)
                              ssl.certificate.pem              ssl.certificate.location
    its private key           ssl.keystore.key, ssl.key.pem    ssl.keystore.location, ssl.key.location
    the key's password        ssl.key.password
    authorities               ssl.truststore.certificates      ssl.truststore.location, ssl.ca.location
                              ssl.ca.pem

Only TLS 1.2 and 1.3 are used, and with 1.2 only cipher suites with forward secrecy and authenticated encryption. On
Linux, a key that is given as text is never written to a disk: OpenSSL reads it from an anonymous file in memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sparklog.errors import InvalidConfigError
from sparklog.security.secrets import NotTextError, Secret, read_text_file

log = logging.getLogger(__name__)

CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
"""Values of `ssl.client.auth`. With "requested", a client may connect without a certificate, but a certificate that it
sends must be valid."""
PROTOCOLS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
TO_PEM = (
    "`openssl pkcs12 -in STORE.p12 -nodes -out STORE.pem` writes a PKCS12 store as PEM, "
    "`keytool -importkeystore -srckeystore STORE.jks -destkeystore STORE.p12 -deststoretype PKCS12` a JKS store as "
    "PKCS12"
)
"""Remedy for a keystore in a format of Java."""
TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"

_CHAIN = ("ssl.keystore.certificate.chain", "ssl.certificate.pem")
_CHAIN_FILES = ("ssl.certificate.location", "ssl.keystore.location")
_KEY = ("ssl.keystore.key", "ssl.key.pem")
_KEY_FILES = ("ssl.key.location", "ssl.keystore.location")
_TRUST = ("ssl.truststore.certificates", "ssl.ca.pem")
_TRUST_FILES = ("ssl.ca.location", "ssl.truststore.location")
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s+([A-Za-z0-9+/=\s]+)-----END \1-----")


class TlsMaterial(NamedTuple):
    """Content of the settings and their files, as PEM texts. `chain` and `key` are empty without a certificate.
    `authorities` is empty if none are named."""

    chain: str
    key: Secret
    key_password: Secret
    authorities: str


def read_material(settings: Mapping[str, object]) -> TlsMaterial:
    """Read the settings and the files that they name. Raises InvalidConfigError if a file cannot be read, a store is
    not PEM, or the certificate or its key is missing."""
    for name in ("ssl.keystore.type", "ssl.truststore.type"):
        kind = _text(settings, name) or "PEM"
        if kind.upper() != "PEM":
            raise InvalidConfigError(f"{name} = {kind!r}: only PEM is supported. {TO_PEM}")
    chain = _pem(settings, _CHAIN, _CHAIN_FILES, "CERTIFICATE")
    key = _pem(settings, _KEY, _KEY_FILES, "PRIVATE KEY")
    if bool(chain) != bool(key):
        missing = "its private key" if chain else "the certificate"
        raise InvalidConfigError(
            f"TLS: {missing} is missing; set {_CHAIN_FILES[0]} and {_KEY_FILES[0]}, or ssl.keystore.location"
        )
    return TlsMaterial(
        chain,
        Secret(key),
        Secret(_text(settings, "ssl.key.password")),
        _pem(settings, _TRUST, _TRUST_FILES, "CERTIFICATE"),
    )


def server_context(settings: Mapping[str, object]) -> ssl.SSLContext:
    """Return the context for a listener's new connections. Raises InvalidConfigError."""
    material = read_material(settings)
    client_auth = _text(settings, "ssl.client.auth") or "none"
    if client_auth not in CLIENT_AUTH:
        raise InvalidConfigError(f"ssl.client.auth = {client_auth!r}: use one of {', '.join(CLIENT_AUTH)}")
    if not material.chain:
        raise InvalidConfigError(
            "TLS: a listener needs a certificate: set ssl.certificate.location and ssl.key.location"
        )
    if client_auth != "none" and not material.authorities:
        raise InvalidConfigError(
            f"ssl.client.auth = {client_auth}: ssl.ca.location has to name the authority of the clients' certificates"
        )
    context = _context(ssl.PROTOCOL_TLS_SERVER, settings, material)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0  # a resumed session would bring a client's certificate without another check
    context.verify_mode = CLIENT_AUTH[client_auth]
    return context


def client_context(settings: Mapping[str, object]) -> ssl.SSLContext:
    """Return the context for connections to brokers. The broker's certificate is always verified with the named
    authorities, or, if none are named, with those of the system. Its host name is verified, too, unless
    `ssl.endpoint.identification.algorithm` is empty or "none". Raises InvalidConfigError."""
    material = read_material(settings)
    algorithm = settings.get("ssl.endpoint.identification.algorithm", "https")
    if algorithm not in ("https", "", "none"):
        raise InvalidConfigError(f"ssl.endpoint.identification.algorithm = {algorithm!r}: use https, or nothing")
    context = _context(ssl.PROTOCOL_TLS_CLIENT, settings, material)
    context.check_hostname = algorithm == "https"
    context.hostname_checks_common_name = False  # names of hosts stand in the SANs alone (RFC 9525)
    context.verify_mode = ssl.CERT_REQUIRED
    if not material.authorities:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _context(side: ssl._SSLMethod, settings: Mapping[str, object], material: TlsMaterial) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    enabled = [p.strip() for p in (_text(settings, "ssl.enabled.protocols") or "TLSv1.2,TLSv1.3").split(",")]
    if not enabled or not set(enabled) <= set(PROTOCOLS):
        raise InvalidConfigError(f"ssl.enabled.protocols = {','.join(enabled)!r}: use {' and '.join(PROTOCOLS)}")
    versions = [PROTOCOLS[p] for p in enabled]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.set_ciphers(TLS_1_2_CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION
    try:
        if material.authorities:
            context.load_verify_locations(cadata=material.authorities)
        if material.chain:
            with _as_file(f"{material.chain}\n{material.key.reveal()}\n") as path:
                # always a password, or OpenSSL asks for one on the terminal
                context.load_cert_chain(path, password=material.key_password.reveal)
    except (ssl.SSLError, OSError, ValueError) as e:
        reason = getattr(e, "reason", None) or type(e).__name__
        raise InvalidConfigError(
            f"TLS: OpenSSL does not accept the certificates or the key ({reason}): do they belong together, is "
            "ssl.key.password correct?"
        ) from None
    return context


def _pem(settings: Mapping[str, object], texts: tuple[str, ...], files: tuple[str, ...], kind: str) -> str:
    """Return the PEM text of the first setting with a value: a text of `texts`, or the content of a path of `files`; ""
    if none has a value. Raises InvalidConfigError if the text has no block of this kind."""
    for name in texts:
        text = _text(settings, name)
        if text:
            # in one line of a properties file the line ends are written as \n
            return _check(name, _BLOCK.sub(_in_lines, text.replace("\\n", "\n")), kind)
    for name in files:
        path = _text(settings, name)
        if path:
            return _check(name, _read(name, path), kind)
    return ""


def _in_lines(block: re.Match[str]) -> str:
    """Return a PEM block in lines: Kafka's clients also take blocks whose lines end with spaces alone, as lines that a
    backslash continues in a properties file."""
    body = "".join(block[2].split())
    lines = "".join(f"{body[i : i + 64]}\n" for i in range(0, len(body), 64))
    return f"-----BEGIN {block[1]}-----\n{lines}-----END {block[1]}-----\n"


def _check(name: str, text: str, kind: str) -> str:
    if f"{kind}-----" not in text or "-----BEGIN " not in text:
        raise InvalidConfigError(f"{name}: no PEM block of the kind {kind!r} found")
    return text


def _read(name: str, path: str) -> str:
    try:
        return read_text_file(path)
    except NotTextError as e:
        raise InvalidConfigError(f"{name}: {e}, so it is no PEM file. {TO_PEM}") from None
    except InvalidConfigError as e:
        raise InvalidConfigError(f"{name}: {e}") from None


def _text(settings: Mapping[str, object], name: str) -> str:
    value = settings.get(name)
    return value.reveal() if isinstance(value, Secret) else "" if value is None else str(value)


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yield a path from which `text` can be read. On Linux this is an anonymous file in memory; elsewhere a temporary
    file that only its owner can read, deleted at the end."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "w", encoding="ascii", errors="replace", closefd=False) as memory:
                memory.write(text)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    import tempfile  # slow to import, and Linux does not need it

    with tempfile.NamedTemporaryFile("w", encoding="ascii", errors="replace", suffix=".pem") as file:
        file.write(text)
        file.flush()
        yield file.name


class RenewedContext:
    """The TLS context for new connections, which is created again when its sources have changed.

    Open connections keep their certificates. The owner uses `current` for each new connection, and has to call `renew`
    at intervals, or after a signal. `renew` reads files, so it must not run on the event loop.
    """

    def __init__(self, make: Callable[[Mapping[str, object]], ssl.SSLContext], settings: Mapping[str, object]) -> None:
        """`make`: `server_context` or `client_context`. Raises InvalidConfigError if the settings or their files are
        invalid."""
        self._make = make
        self._settings = dict(settings)
        self._material = read_material(settings)
        self.current = make(settings)

    def renew(self) -> bool:
        """Read all sources again. Returns True if they have changed.

        Raises InvalidConfigError if they are invalid. `current` is then unchanged, so files that are only half copied
        do no harm.
        """
        material = read_material(self._settings)
        if material == self._material:
            return False
        self.current = self._make(self._settings)
        self._material = material
        return True


def renew_listeners(contexts: Mapping[str, RenewedContext]) -> None:
    """Renew the contexts of listeners, by the listeners' names. Changed certificates that cannot be used are logged,
    and the context stays. Reads files."""
    for name, context in contexts.items():
        try:
            if context.renew():
                log.info("listener %s: new connections use the new certificates", name)
        except InvalidConfigError as e:
            log.error("listener %s: the changed certificates cannot be used: %s", name, e)  # noqa: TRY400


def handshake_error(error: ssl.SSLError, broker: str = "the broker") -> InvalidConfigError:
    """Return a client's error for a failed TLS handshake with `broker`. It is an InvalidConfigError, because wrong
    certificates need a change of the configuration, not a retry."""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _REMEDIES.get(error.verify_code, "")
        return InvalidConfigError(f"the certificate of {broker} is not valid here: {error.verify_message}{remedy}")
    reason = error.reason or type(error).__name__
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return InvalidConfigError(
            f"{broker} closed the TLS handshake ({reason}): it may require a client's certificate: "
            "set ssl.certificate.location and ssl.key.location"
        )
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return InvalidConfigError(
            f"{broker} does not accept this client's certificate, or the client has none ({reason}): set "
            "ssl.certificate.location to a certificate that has not expired, of an authority that the broker trusts"
        )
    return InvalidConfigError(
        f"the TLS handshake with {broker} has failed ({reason}): does security.protocol fit the listener?"
    )


_REMEDIES = {
    10: ": the certificate has to be renewed",
    18: ": set ssl.ca.location to the authority that has signed it",
    19: ": set ssl.ca.location to the authority that has signed it",
    20: ": set ssl.ca.location to the authority that has signed it",
    62: ": connect by a name in the certificate, or create a certificate for this name",
    64: ": connect by an address in the certificate, or create a certificate for this address",
}
"""Remedies by OpenSSL's verification code: 10 expired; 18 and 19 self-signed; 20 unknown authority; 62 other host name;
64 other IP address."""
