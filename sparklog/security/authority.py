"""A private certificate authority, which signs the certificates of the brokers and clients of a secure cluster.

Keys are on the curve P-256. The library `cryptography` creates the certificates.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from sparklog.errors import InvalidConfigError
from sparklog.security.optional import require
from sparklog.security.principals import check_name
from sparklog.security.secrets import Secret

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY_DAYS = 3_650
CERTIFICATE_DAYS = 825
_CLOCKS_DIFFER = datetime.timedelta(hours=1)


class Identity(NamedTuple):
    """A certificate and its private key, as PEM texts."""

    certificate: str
    key: Secret


class Authority:
    """A certificate authority that signs for brokers and clients."""

    def __init__(self, name: str, now: datetime.datetime) -> None:
        """Create an authority with a new key. `now`: the present time, with a time zone. Raises InvalidConfigError if
        the library is missing or the name is not possible."""
        require("cryptography.x509", "certificates")
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(name)
        builder = _builder(self._name, self._name, self._key.public_key(), now, AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        self.identity = _sign(builder, self._key, self._key)

    @classmethod
    def load(cls, identity: Identity) -> Authority:
        """Load an existing authority. Raises InvalidConfigError if certificate or key cannot be read, or do not belong
        together."""
        require("cryptography.x509", "certificates")
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            certificate = x509.load_pem_x509_certificate(identity.certificate.encode())
            key = serialization.load_pem_private_key(identity.key.reveal().encode(), None)
        except (ValueError, TypeError):
            raise InvalidConfigError("the authority's certificate or its key cannot be read as PEM") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise InvalidConfigError("the authority's key is not the one of its certificate")
        authority = cls.__new__(cls)
        authority._key, authority._name, authority.identity = key, certificate.subject, identity
        return authority

    def reissue(self, certificate: str, now: datetime.datetime) -> Identity:
        """Issue a new key and certificate with the name, hosts and purposes of `certificate` (PEM). Raises
        InvalidConfigError if that certificate cannot be used."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        try:
            old = x509.load_pem_x509_certificate(certificate.encode())
            (name,) = old.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            extensions = {type(extension.value): extension.value for extension in old.extensions}
        except ValueError:
            raise InvalidConfigError(
                "the certificate cannot be read, or has no common name or several: use a PEM certificate with one"
            ) from None
        hosts = extensions.get(x509.SubjectAlternativeName, ())
        usages = extensions.get(x509.ExtendedKeyUsage, ())
        return self.issue(
            str(name.value),
            [str(host.value) for host in hosts],
            now,
            broker=ExtendedKeyUsageOID.SERVER_AUTH in usages,
        )

    def issue(
        self, name: str, hosts: Iterable[str], now: datetime.datetime, days: float = CERTIFICATE_DAYS, *, broker: bool
    ) -> Identity:
        """Issue a key and a certificate for `name`. `hosts`: names and IP addresses under which a broker is reached.
        `broker`: True to allow the certificate for servers and clients; False for clients only. Raises
        InvalidConfigError for an impossible name or host."""
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
        return _sign(builder, self._key, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime.datetime, days: float
) -> x509.CertificateBuilder:
    from cryptography import x509

    builder = x509.CertificateBuilder(issuer, subject, public_key, x509.random_serial_number())
    builder = builder.not_valid_before(now - _CLOCKS_DIFFER).not_valid_after(now + datetime.timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)


def _sign(
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
