"""Files for a first secure broker, created by one command: `sparklog broker --secure-setup DIR`.

Files of the directory (mode 0700), which has to be new or empty:

    ca.pem             0644  the authority's certificate, which clients and brokers trust
    ca-key.pem         0600  its private key: needed to issue more certificates; keep it elsewhere
    broker.pem         0600  private key and certificate of the broker, for its names and addresses
    admin.pem          0600  private key and certificate of the first super user, for listeners with SSL
    broker.toml        0600  the broker's settings, with the super user's salted credential
    client.properties  0600  the super user's client settings, with the password

For several brokers, see `cluster_setup`.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import secrets as random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from sparklog.environment.files import read_regular
from sparklog.errors import InvalidConfigError
from sparklog.security.authority import Authority, Identity
from sparklog.security.sasl import SCRAM_SHA_512
from sparklog.security.scram import credential_text, make_credential
from sparklog.security.secrets import FILE_BYTES_MAX, Secret

PASSWORD_BYTES = 24
EVERY_LOCAL_HOST = ("localhost", "127.0.0.1", "::1")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class SecureSetup(NamedTuple):
    """Result of `secure_setup`. `files`: names of the files, in the order of the table above. `credential`: the super
    user's credential for SCRAM-SHA-512."""

    directory: Path
    user: str
    credential: str
    files: tuple[str, ...]


class Place(NamedTuple):
    """Addresses of the future broker.

    `host`: address to listen on; "": all addresses. `names`: names of the broker for clients, in its certificate; the
    first is in the client's settings, and localhost is always added. `advertised`: value of `advertised.listeners`; "":
    not set. `data_dir` None: the directory in which the broker is started.
    """

    host: str
    port: int
    names: tuple[str, ...]
    advertised: str = ""
    data_dir: Path | None = None


def secure_setup(directory: Path, place: Place, now: datetime.datetime, user: str = "admin") -> SecureSetup:
    """Create all files of a first secure broker. `user`: name of the super user.

    Raises InvalidConfigError if the directory is not empty or cannot be written, or the user's name has characters that
    would need quotation marks.
    """
    super_user = new_super_user(user)
    named = list(dict.fromkeys(place.names)) or ["localhost"]
    authority = Authority("sparklog CA", now)
    everywhere = list(dict.fromkeys([*named, *EVERY_LOCAL_HOST]))
    broker = authority.issue("broker", everywhere, now, broker=True)
    admin = authority.issue(user, [], now, broker=False)
    files = {
        "ca.pem": (0o644, authority.identity.certificate),
        "ca-key.pem": (0o600, authority.identity.key.reveal()),
        "broker.pem": (0o600, broker.key.reveal() + broker.certificate),
        "admin.pem": (0o600, admin.key.reveal() + admin.certificate),
        "broker.toml": (0o600, _broker_toml(directory, place, super_user)),
        "client.properties": (0o600, client_properties(directory, [address(named[0], place.port)], super_user)),
    }
    write_new(directory, files)
    return SecureSetup(directory, user, super_user.credential, tuple(files))


class SuperUser(NamedTuple):
    """The first super user. `credential`: the salted form of `password` for SCRAM-SHA-512."""

    name: str
    password: Secret
    credential: str


def new_super_user(name: str) -> SuperUser:
    """Return a user with a generated password. Raises InvalidConfigError if the name has characters that would need
    quotation marks."""
    if not _PLAIN_NAME.fullmatch(name):
        raise InvalidConfigError(
            f"{name!r}: choose a name of letters, digits, '.', '_' and '-' for the first super user"
        )
    password = new_password()
    return SuperUser(name, password, credential_text(make_credential(SCRAM_SHA_512, password)))


def new_password() -> Secret:
    """Return a random password of PASSWORD_BYTES bytes, in Base64."""
    return Secret(random.token_urlsafe(PASSWORD_BYTES))


def address(host: str, port: int) -> str:
    """Return HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _broker_toml(directory: Path, place: Place, super_user: SuperUser) -> str:
    where = directory.absolute()
    user = super_user.name
    settings = {
        "listeners": f"SASL_SSL://{address(place.host, place.port)}",
        **({"advertised.listeners": place.advertised} if place.advertised else {}),
        **({"data.dir": str(place.data_dir.expanduser().absolute())} if place.data_dir else {}),
        "sasl.enabled.mechanisms": SCRAM_SHA_512,
        "sasl.scram.initial.credentials": f"{user}={SCRAM_SHA_512}:{super_user.credential}",
        "ssl.keystore.location": str(where / "broker.pem"),
        "ssl.truststore.location": str(where / "ca.pem"),
        "ssl.client.auth": "requested",
        "authorizer": "acl",
        "super.users": f"User:{user};User:CN={user}",
    }
    head = f"# A secure broker: sparklog broker --config {where / 'broker.toml'}\n"
    return head + toml(settings)


def toml(settings: Mapping[str, object]) -> str:
    """Return the settings as TOML, one line for each."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


def client_properties(directory: Path, servers: Iterable[str], super_user: SuperUser) -> str:
    """Return the super user's client settings as the text of a properties file. `directory`: the directory of
    ca.pem."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    login = f'{module} required username="{super_user.name}" password="{super_user.password.reveal()}";'
    return (
        f"bootstrap.servers={','.join(servers)}\n"
        "security.protocol=SASL_SSL\n"
        f"sasl.mechanism={SCRAM_SHA_512}\n"
        f"sasl.jaas.config={login}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={directory.absolute() / 'ca.pem'}\n"
    )


def write_new(directory: Path, files: Mapping[str, tuple[int, str]]) -> None:
    """Write files into a new or empty directory. `files`: mode and content by name; a name can contain one directory.
    Raises InvalidConfigError."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise InvalidConfigError(f"{directory} is not empty: choose an empty directory")
        directory.chmod(0o700)
        for name, (mode, content) in files.items():
            (directory / name).parent.mkdir(mode=0o700, exist_ok=True)
            write_file(directory / name, mode, content)
    except OSError as e:
        raise InvalidConfigError(f"{directory} cannot be written: {e.strerror}") from e


def write_file(path: Path, mode: int, content: str) -> None:
    """Write and fsync a new file. Raises OSError, also if the file exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 (a descriptor)
        file.write(content)
        file.flush()
        os.fchmod(descriptor, mode)  # regardless of the umask
        os.fsync(descriptor)


def replace_file(path: Path, mode: int, content: str) -> None:
    """Replace the file atomically by `content`, so that readers get the old or the new content. Raises
    InvalidConfigError."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        write_file(fresh, mode, content)
        fresh.replace(path)
    except OSError as e:
        raise InvalidConfigError(f"{path} cannot be written: {e.strerror}") from e


def renew_certificate(path: Path, authority: Authority, now: datetime.datetime) -> None:
    """Replace the key and the certificate in the file `path` by new ones for the same name and hosts. Raises
    InvalidConfigError."""
    try:
        renewed = authority.reissue(read_regular(path, FILE_BYTES_MAX).decode("ascii"), now)
    except (OSError, ValueError) as e:
        raise InvalidConfigError(f"{path} cannot be read: {getattr(e, 'strerror', None) or 'it is not PEM'}") from e
    replace_file(path, 0o600, renewed.key.reveal() + renewed.certificate)


def load_authority(directory: Path) -> Authority:
    """Load the authority from ca.pem and ca-key.pem in `directory`. Raises InvalidConfigError."""
    try:
        certificate = read_regular(directory / "ca.pem", FILE_BYTES_MAX).decode("ascii")
        key = read_regular(directory / "ca-key.pem", FILE_BYTES_MAX).decode("ascii")
    except (OSError, ValueError) as e:
        raise InvalidConfigError(
            f"{directory}: to sign a certificate, ca.pem and ca-key.pem of --secure-setup have to be in the directory "
            f"({getattr(e, 'strerror', None) or 'not PEM'}); bring the key back for it"
        ) from e
    return Authority.load(Identity(certificate, Secret(key)))
