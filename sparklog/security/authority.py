"""A certificate authority of one's own, for a first secure cluster: `sparklog broker --secure-setup DIR`.

Files of the directory (mode 0700), which has to be new or empty:

    ca.pem             0644  the authority's certificate: what clients and brokers trust
    ca-key.pem         0600  its private key: needed to make more certificates; keep it elsewhere
    broker.pem         0600  private key and certificate of the broker, for its names and addresses
    admin.pem          0600  private key and certificate of the first super user, for listeners with SSL
    broker.toml        0600  the broker's settings, with the super user's salted credential
    client.properties  0600  the super user's client settings, with the password

Keys are on the curve P-256. The library `cryptography` makes the certificates.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import secrets as random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparklog.errors import InvalidConfigError
from sparklog.security.optional import require
from sparklog.security.principals import check_name
from sparklog.security.sasl import SCRAM_SHA_512
from sparklog.security.scram import credential_text, make_credential
from sparklog.security.secrets import Secret

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY_DAYS = 3_650
CERTIFICATE_DAYS = 825
PASSWORD_BYTES = 24
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CLOCKS_DIFFER = datetime.timedelta(hours=1)


class Identity(NamedTuple):
    """A certificate with its key, as PEM texts."""

    certificate: str
    key: Secret


class Authority:
    """A certificate authority that signs for brokers and clients."""

    def __init__(self, name: str, now: datetime.datetime) -> None:
        """A new one. `now`: aware. Raises InvalidConfigError without the library."""
        require("cryptography.x509", "certificates")
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(name)
        builder = _builder(self._name, self._name, self._key.public_key(), now, AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        self.identity = _signed(builder, self._key, self._key)
        self._certificate = x509.load_pem_x509_certificate(self.identity.certificate.encode())

    def issue(
        self, name: str, hosts: Iterable[str], now: datetime.datetime, days: float = CERTIFICATE_DAYS, *, broker: bool
    ) -> Identity:
        """A certificate for `name`. `hosts`: names and IP addresses under which a broker is reached; with `broker` it
        is good for both sides of a connection, else for clients."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_subject(name), self._name, key.public_key(), now, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if broker else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        names = [_general_name(host) for host in hosts]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _signed(builder, self._key, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime.datetime, days: float
) -> x509.CertificateBuilder:
    from cryptography import x509

    builder = x509.CertificateBuilder(issuer, subject, public_key, x509.random_serial_number())
    builder = builder.not_valid_before(now - _CLOCKS_DIFFER).not_valid_after(now + datetime.timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)


def _signed(
    builder: x509.CertificateBuilder, signer: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePrivateKey
) -> Identity:
    from cryptography.hazmat.primitives import hashes, serialization

    pem = serialization.Encoding.PEM
    encoded = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Identity(builder.sign(signer, hashes.SHA256()).public_bytes(pem).decode(), Secret(encoded.decode()))


def _subject(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    if len(check_name(name)) > 64:
        raise InvalidConfigError(f"a certificate's name has at most 64 characters, {name!r} has {len(name)}")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host.encode("idna").decode())
    except UnicodeError:
        raise InvalidConfigError(f"{host!r} is neither an IP address nor a host name") from None


class SecureSetup(NamedTuple):
    """What `secure_setup` has made. `files`: their names, in the order of the module's table. `credential`: the super
    user's, for SCRAM-SHA-512."""

    directory: Path
    user: str
    credential: str
    files: tuple[str, ...]


class Place(NamedTuple):
    """Where the broker will be. `host` "": it listens on all addresses; `names`: how clients name it, the first one
    goes into the client's settings, localhost is always added; `advertised` "": as in `host`; `data_dir` None: where it
    is started."""

    host: str
    port: int
    names: tuple[str, ...]
    advertised: str = ""
    data_dir: Path | None = None


def secure_setup(directory: Path, place: Place, now: datetime.datetime, user: str = "admin") -> SecureSetup:
    """Makes everything that a first secure cluster needs.

    Raises InvalidConfigError if the directory is not empty or cannot be written, or the user's name would have to be
    quoted.
    """
    if not _PLAIN_NAME.fullmatch(user):
        raise InvalidConfigError(
            f"{user!r}: choose a name of letters, digits, '.', '_' and '-' for the first super user"
        )
    named = list(dict.fromkeys(place.names)) or ["localhost"]
    authority = Authority("sparklog CA", now)
    everywhere = list(dict.fromkeys([*named, "localhost", "127.0.0.1", "::1"]))
    broker = authority.issue("broker", everywhere, now, broker=True)
    admin = authority.issue(user, [], now, broker=False)
    password = Secret(random.token_urlsafe(PASSWORD_BYTES))
    credential = credential_text(make_credential(SCRAM_SHA_512, password))
    files = {
        "ca.pem": (0o644, authority.identity.certificate),
        "ca-key.pem": (0o600, authority.identity.key.reveal()),
        "broker.pem": (0o600, broker.key.reveal() + broker.certificate),
        "admin.pem": (0o600, admin.key.reveal() + admin.certificate),
        "broker.toml": (0o600, _broker_toml(directory, place, user, credential)),
        "client.properties": (0o600, _client_properties(directory, named[0], place.port, user, password)),
    }
    _write_all(directory, files)
    return SecureSetup(directory, user, credential, tuple(files))


def _broker_toml(directory: Path, place: Place, user: str, credential: str) -> str:
    where = directory.absolute()
    host = f"[{place.host}]" if ":" in place.host else place.host
    settings = {
        "listeners": f"SASL_SSL://{host}:{place.port}",
        **({"advertised.listeners": place.advertised} if place.advertised else {}),
        **({"data.dir": str(place.data_dir.expanduser().absolute())} if place.data_dir else {}),
        "sasl.enabled.mechanisms": SCRAM_SHA_512,
        "sasl.scram.initial.credentials": f"{user}={SCRAM_SHA_512}:{credential}",
        "ssl.keystore.location": str(where / "broker.pem"),
        "ssl.truststore.location": str(where / "ca.pem"),
        "ssl.client.auth": "requested",
        "authorizer": "acl",
        "super.users": f"User:{user};User:CN={user}",
    }
    head = f"# A secure broker: sparklog broker --config {where / 'broker.toml'}\n"
    return head + "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


def _client_properties(directory: Path, host: str, port: int, user: str, password: Secret) -> str:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return (
        f"bootstrap.servers={address}\n"
        "security.protocol=SASL_SSL\n"
        f"sasl.mechanism={SCRAM_SHA_512}\n"
        f'sasl.jaas.config={module} required username="{user}" password="{password.reveal()}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={directory.absolute() / 'ca.pem'}\n"
    )


def _write_all(directory: Path, files: dict[str, tuple[int, str]]) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise InvalidConfigError(f"{directory} is not empty: choose a directory that is")
        directory.chmod(0o700)
        for name, (mode, content) in files.items():
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 (a descriptor)
                file.write(content)
                file.flush()
                os.fchmod(descriptor, mode)  # whatever the umask is
                os.fsync(descriptor)
    except OSError as e:
        raise InvalidConfigError(f"{directory} cannot be written: {e.strerror}") from e
