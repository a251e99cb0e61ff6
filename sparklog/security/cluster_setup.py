"""Files for a first secure cluster of several brokers, and for brokers that are added later.

Files of the directory (mode 0700), which has to be new or empty:

    ca.pem             0644  the authority's certificate; during a replacement the new one, then the old one
    ca-key.pem         0600  its private key: needed to issue more certificates; keep it elsewhere
    client.properties  0600  the super user's client settings, with the password
    cluster.toml       0600  the common settings of all brokers, also of those that are added later
    broker-N/          0700  all files that broker N needs: copy it to its machine, to the same path
      broker.toml              0600  its settings
      broker.pem               0600  private key and certificate, for its names and addresses
      ca.pem                   0644  a copy of the file above
      zookeeper-password       0600  password of the brokers at ZooKeeper, the same for all

Each broker has two listeners: CLIENTS (SASL_SSL, SCRAM) and INTERNAL (SSL). INTERNAL accepts only certificates with the
name broker-N; all of these are the principal User:brokers, one of `super.users`. Only the brokers' login has access to
the nodes in ZooKeeper (scheme digest).
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sparklog.environment.files import read_regular
from sparklog.errors import InvalidConfigError
from sparklog.security.authority import Authority
from sparklog.security.listeners import is_local
from sparklog.security.sasl import SCRAM_SHA_512
from sparklog.security.secrets import FILE_BYTES_MAX, Secret
from sparklog.security.secure_setup import (
    EVERY_LOCAL_HOST,
    address,
    client_properties,
    load_authority,
    new_password,
    new_super_user,
    renew_certificate,
    replace_file,
    toml,
    write_new,
)
from sparklog.settings import flatten

COMMON_FILE = "cluster.toml"
PASSWORD_FILE = "zookeeper-password"
ZOOKEEPER_USER = "sparklog"
BROKERS = "brokers"
CLIENTS, INTERNAL = "CLIENTS", "INTERNAL"
FIRST_ID = 1
_DIRECTORY = re.compile(r"broker-(\d{1,10})")
_CERTIFICATE = "-----END CERTIFICATE-----\n"


class BrokerPlace(NamedTuple):
    """Place of a future broker. `name`: name of its host for clients and other brokers. `port`: port for clients; the
    brokers' port is the next one; 0: any free ports. `data_dir` None: the directory in which the broker is started."""

    name: str
    port: int
    data_dir: Path | None = None


def places(names: Sequence[str], port: int, data_dir: Path | None = None) -> list[BrokerPlace]:
    """Return a place for each host name. Brokers with the same name get different ports, two apart, and different
    directories below `data_dir`."""
    seen: Counter[str] = Counter()
    broker_places = []
    for broker_id, name in enumerate(names, FIRST_ID):
        own = data_dir if data_dir is None or names.count(name) == 1 else data_dir / f"broker-{broker_id}"
        broker_places.append(BrokerPlace(name, port + 2 * seen[name], own))
        seen[name] += 1
    return broker_places


def secure_cluster_setup(
    directory: Path, brokers: Sequence[BrokerPlace], zookeeper: str, now: datetime.datetime, user: str = "admin"
) -> tuple[str, ...]:
    """Create all files for brokers 1, 2, … at the places `brokers`. Returns the names of the brokers' directories.
    `zookeeper`: value of `zookeeper.connect`.

    Raises InvalidConfigError if the directory is not empty or cannot be written, or a name is invalid.
    """
    super_user = new_super_user(user)
    if user == BROKERS:
        raise InvalidConfigError(f"{user!r} is the brokers' own name: choose another name for the super user")
    authority = Authority("sparklog CA", now)
    common = {
        "zookeeper.connect": zookeeper,
        "zookeeper.username": ZOOKEEPER_USER,
        "zookeeper.set.acl": True,
        "listener.security.protocol.map": f"{CLIENTS}:SASL_SSL,{INTERNAL}:SSL",
        "inter.broker.listener.name": INTERNAL,
        "listener.name.internal.ssl.client.auth": "required",
        "listener.name.internal.ssl.principal.mapping.rules": f"RULE:^CN=broker-[0-9]+$/{BROKERS}/",
        "sasl.enabled.mechanisms": SCRAM_SHA_512,
        "sasl.scram.initial.credentials": f"{user}={SCRAM_SHA_512}:{super_user.credential}",
        "authorizer": "acl",
        "super.users": f"User:{user};User:{BROKERS}",
    }
    servers = [address(one.name, one.port) for one in brokers]
    password = new_password()
    files = {
        "ca.pem": (0o644, authority.identity.certificate),
        "ca-key.pem": (0o600, authority.identity.key.reveal()),
        "client.properties": (0o600, client_properties(directory, servers, super_user)),
        COMMON_FILE: (0o600, toml(common)),
    }
    names = [f"broker-{broker_id}" for broker_id in range(FIRST_ID, FIRST_ID + len(brokers))]
    for broker_id, place in enumerate(brokers, FIRST_ID):
        contents = _broker_files(directory, broker_id, place, common, authority, now, password)
        files |= {f"broker-{broker_id}/{name}": content for name, content in contents.items()}
    write_new(directory, files)
    return tuple(names)


def add_broker(directory: Path, broker_id: int, place: BrokerPlace, now: datetime.datetime) -> Path:
    """Create the files of one more broker. Returns its directory. Raises InvalidConfigError if the authority's key is
    missing, the broker exists already, or `directory` is not that of a cluster."""
    path = directory / f"broker-{broker_id}"
    if path.exists():
        raise InvalidConfigError(
            f"{path} already exists: use another number, or `sparklog certificate renew` for this broker"
        )
    authority = load_authority(directory)
    try:
        common = flatten(tomllib.loads(read_regular(directory / COMMON_FILE, FILE_BYTES_MAX).decode()))
        password = Secret(
            read_regular(broker_directories(directory)[0] / PASSWORD_FILE, FILE_BYTES_MAX).decode().strip()
        )
    except (OSError, ValueError, IndexError) as e:
        raise InvalidConfigError(
            f"{directory} was not created by `sparklog broker --secure-setup DIR --brokers N` ({e})"
        ) from e
    write_new(path, _broker_files(directory, broker_id, place, common, authority, now, password))
    return path


def _broker_files(
    directory: Path,
    broker_id: int,
    place: BrokerPlace,
    common: Mapping[str, object],
    authority: Authority,
    now: datetime.datetime,
    password: Secret,
) -> dict[str, tuple[int, str]]:
    where = directory.absolute() / f"broker-{broker_id}"
    hosts = list(dict.fromkeys([place.name, *EVERY_LOCAL_HOST]))
    identity = authority.issue(f"broker-{broker_id}", hosts, now, broker=True)
    bound = place.name if is_local(place.name) else ""
    ports = {CLIENTS: place.port, INTERNAL: place.port + 1 if place.port else 0}
    advertised = (
        {} if not place.port else {name: f"{name}://{address(place.name, port)}" for name, port in ports.items()}
    )
    settings = {
        "broker.id": broker_id,
        "listeners": ",".join(f"{name}://{address(bound, port)}" for name, port in ports.items()),
        **({"advertised.listeners": ",".join(advertised.values())} if advertised else {}),
        **({"data.dir": str(place.data_dir.expanduser().absolute())} if place.data_dir else {}),
        "ssl.keystore.location": str(where / "broker.pem"),
        "ssl.truststore.location": str(where / "ca.pem"),
        "zookeeper.password": f"${{file:{where / PASSWORD_FILE}}}",
        **common,
    }
    head = f"# A broker of a secure cluster: sparklog broker --config {where / 'broker.toml'}\n"
    return {
        "broker.toml": (0o600, head + toml(settings)),
        "broker.pem": (0o600, identity.key.reveal() + identity.certificate),
        "ca.pem": (0o644, authority.identity.certificate),
        PASSWORD_FILE: (0o600, password.reveal() + "\n"),
    }


def broker_directories(directory: Path) -> list[Path]:
    """Return the directories of the brokers, sorted by broker id; empty if `directory` does not exist or has none."""
    inside = directory.iterdir() if directory.is_dir() else ()
    directories = {int(m[1]): path for path in inside if (m := _DIRECTORY.fullmatch(path.name))}
    return [directories[number] for number in sorted(directories)]


def renew(directory: Path, now: datetime.datetime, broker_id: int | None = None) -> list[Path]:
    """Create a new key and certificate, with the same name and hosts, for one broker. `broker_id` None: for all
    brokers, or for the broker and the super user of a set-up with one broker. Returns the changed files. Raises
    InvalidConfigError."""
    authority = load_authority(directory)
    paths = [path / "broker.pem" for path in broker_directories(directory)]
    paths = paths or [directory / "broker.pem", directory / "admin.pem"]  # of a broker that is alone
    if broker_id is not None:
        paths = [directory / f"broker-{broker_id}" / "broker.pem"]
    for path in paths:
        renew_certificate(path, authority, now)
    return paths


def new_authority(directory: Path, now: datetime.datetime) -> list[Path]:
    """Create a new authority. From then on both authorities are trusted, but only the new one signs, because the old
    one's private key is deleted. Returns the changed files of trusted authorities. Raises InvalidConfigError if there
    are two authorities already."""
    trusted = _trusted_certificates(directory)
    if len(trusted) != 1:
        raise InvalidConfigError(
            f"{directory / 'ca.pem'} has {len(trusted)} authorities: retire the old authority first"
        )
    identity = Authority("sparklog CA", now).identity
    # trusted before it signs: a crash in between leaves an unused authority
    paths = _trust(directory, identity.certificate + trusted[0])
    replace_file(directory / "ca-key.pem", 0o600, identity.key.reveal())
    return paths


def retire_authority(directory: Path) -> list[Path]:
    """Remove all authorities except the newest from the trusted ones. Returns the changed files. Raises
    InvalidConfigError if there is only one."""
    trusted = _trusted_certificates(directory)
    if len(trusted) < 2:
        raise InvalidConfigError(
            f"{directory / 'ca.pem'} has one authority: run `sparklog certificate new-authority` first"
        )
    return _trust(directory, trusted[0])


def _trusted_certificates(directory: Path) -> list[str]:
    """Return the certificates of the trusted authorities, the newest first. Raises InvalidConfigError."""
    try:
        text = read_regular(directory / "ca.pem", FILE_BYTES_MAX).decode("ascii")
    except (OSError, ValueError) as e:
        raise InvalidConfigError(f"{directory / 'ca.pem'} cannot be read: {e}") from e
    return [part + _CERTIFICATE for part in text.split(_CERTIFICATE) if part.strip()]


def _trust(directory: Path, authorities: str) -> list[Path]:
    paths = [path / "ca.pem" for path in (directory, *broker_directories(directory))]
    for path in paths:
        replace_file(path, 0o644, authorities)
    return paths
