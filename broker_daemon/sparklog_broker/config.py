"""The broker's configuration: a TOML file, overridden by command-line flags, checked against the table of settings.

The top level of the file has broker settings. Its table `[topic]` has defaults of topic settings, for topics without
their own. Dotted names can be written as one key (`log.flush.interval.ms = 1000`) or as nested tables.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import force_setattr

from sparklog.environment.files import OddFileError, absolute, read_regular
from sparklog.errors import InvalidConfigError
from sparklog.format.key_format import KEY_FORMAT_SETTING, KEY_SCHEMA_SETTING
from sparklog.security.listeners import LOCALHOST, is_any_address, is_local
from sparklog.security.principals import parse_super_users
from sparklog.security.secrets import FILE_BYTES_MAX, Secret, is_sensitive, resolve_secrets
from sparklog.settings import Scope, Value, check, check_names, flatten, settings_of
from sparklog_broker.security_config import (
    LISTENER_PREFIX,
    BrokerSecurity,
    is_security_setting,
    make_security,
    parse_listener_setting,
    parse_value,
)

TOPIC_TABLE = "topic"
_DOTTED_KEY = re.compile(r"^([ \t]*)([\w-]+(?:\.[\w-]+)+)([ \t]*=)", re.MULTILINE)


class BrokerConfig(Struct, frozen=True):
    """The broker settings under their Python names. `security` has the security settings; `topic_defaults` has the
    defaults of topic settings, under Kafka's names.
    """

    broker_id: int
    listen: str
    authorizer: str
    super_users: str
    audit_log_file: str
    audit_log_max_bytes: int
    audit_log_backups: int
    quota_window_num: int
    quota_window_size_seconds: int
    allow_everyone_if_no_acl_found: bool
    zookeeper_connect: str
    zookeeper_session_timeout_ms: int
    broker_rack: str
    replica_selector_class: str
    advertised_listeners: str
    default_replication_factor: int
    replica_lag_time_max_ms: int
    replica_fetch_wait_max_ms: int
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_response_max_bytes: int
    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_seconds: int
    leader_imbalance_per_broker_percentage: int
    data_dir: Path
    log_dirs: tuple[Path, ...]
    log_open_files_max: int
    num_partitions: int
    auto_create_topics_enable: bool
    auto_create_typed_topics: bool
    schema_registry_url: str
    num_io_threads: int
    num_network_threads: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: str
    max_connection_creation_rate: int
    connections_max_idle_ms: int
    request_read_timeout_ms: int
    request_read_stall_ms: int
    socket_request_max_bytes: int
    response_write_timeout_ms: int
    response_max_bytes: int
    queued_max_request_bytes: int
    queued_max_inflated_bytes: int
    fetch_max_bytes: int
    fetch_purgatory_max: int
    local_socket_enabled: bool
    local_read_enabled: bool
    log_flush_interval_ms: int
    data_file_mode: str
    data_file_group: str
    log_retention_check_interval_ms: int
    log_retention_clock_catch_up_rate: int
    log_cleaner_threads: int
    log_cleaner_dedupe_buffer_bytes: int
    log_cleaner_io_max_bytes_per_second: int
    log_cleaner_backoff_ms: int
    transaction_state_log_num_partitions: int
    producer_id_expiration_ms: int
    transaction_max_timeout_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transactional_id_expiration_ms: int
    transactional_app_expiration_ms: int
    max_transactional_ids_per_partition: int
    offsets_topic_num_partitions: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    group_consumer_session_timeout_ms: int
    group_consumer_heartbeat_interval_ms: int
    group_max_size: int
    max_groups_per_partition: int
    max_offsets_per_partition: int
    remote_log_storage_url: str
    remote_log_storage_options: str
    remote_log_manager_task_interval_ms: int
    remote_log_reader_threads: int
    remote_log_reader_cache_bytes: int
    lake_worker_enable: bool
    lake_worker_config: str
    mirror_worker_enable: bool
    mirror_worker_config: str
    metrics_listen: str
    metrics_allowed_hosts: str
    metrics_topics_max: int
    metrics_groups_max: int
    metrics_partitions_max: int
    slow_request_threshold_ms: int
    log_level: str
    log_file: str
    log_file_max_bytes: int
    log_file_backups: int
    log_format: str
    topic_defaults: Mapping[str, Value]
    security: BrokerSecurity
    configured: Mapping[str, Value | None]
    """Values from the file and the command line by dotted name, with defaults of topics under the prefix `topic.`; None
    for a secret."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `listen`."""
        return parse_address(self.listen)

    def change(self, values: Mapping[str, Value]) -> None:
        """Set new values of dynamic settings in place, because all parts of the broker share this object. `values`:
        values by dotted name, defaults of topics with the prefix `topic.`."""
        prefix = f"{TOPIC_TABLE}."
        of_topics = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
        for name, value in values.items():
            if not name.startswith(prefix):
                force_setattr(self, name.replace(".", "_"), value)
        if of_topics:
            force_setattr(self, "topic_defaults", {**self.topic_defaults, **of_topics})

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings to log at every start. Raises InvalidConfigError for an insecure configuration, as
        `BrokerSecurity.warnings` does."""
        host = parse_address(self.metrics_listen, "metrics.listen")[0] if self.metrics_listen else LOCALHOST
        warnings = list(self.security.warnings())
        if not is_local(host):
            pages = (
                f"metrics.listen: every client that reaches {self.metrics_listen} sees the names of topics and groups"
            )
            warnings.append(f"{pages}: served without a password")
        if self.super_users and not self.authorizer:
            warnings.append(
                'super.users is set, but authorizer is not: every principal has all rights (set authorizer = "acl")'
            )
        return tuple(warnings)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the fields without `remote_log_storage_options`, which can contain secrets."""
        return [(f, getattr(self, f)) for f in self.__struct_fields__ if f != "remote_log_storage_options"]

    def __repr__(self) -> str:
        return f"BrokerConfig({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


def load_config(
    path: Path | None = None, *, data_dir: str | None = None, listen: str | None = None, **overrides: object
) -> BrokerConfig:
    """Return the configuration of the file at `path`; None for the defaults. Arguments override the file.

    `overrides` are broker settings by their Python names. Raises InvalidConfigError, which names the file.
    """
    values: dict[str, Any] = {}
    topic_values: dict[str, Any] = {}
    if path is not None:
        values, topic_values = _read(path)
    values |= {"data.dir": data_dir} if data_dir is not None else {}
    values |= {"listen": listen} if listen is not None else {}
    try:
        return make_config(values | {k.replace("_", "."): v for k, v in overrides.items()}, topic_values)
    except InvalidConfigError as e:
        raise InvalidConfigError(f"{path}: {e}" if path is not None else str(e)) from e


def make_config(configured: Mapping[str, object], topic_defaults: Mapping[str, object] | None = None) -> BrokerConfig:
    """Return the configuration with settings by their dotted names. Raises InvalidConfigError."""
    secret = resolve_secrets(configured, os.environ)
    own = {name: parse_listener_setting(name, value) for name, value in secret.items() if _is_of_listener(name)}
    common = {name: value for name, value in secret.items() if not _is_of_listener(name)}
    check_names(Scope.BROKER, common)
    parsed = {name: parse_value(name, value) for name, value in common.items()}
    everything = {n: s.default for n, s in settings_of(Scope.BROKER).items()} | parsed
    values = {name: _shown(value) for name, value in everything.items() if not is_security_setting(name)}
    security = {name: value for name, value in everything.items() if is_security_setting(name)} | own
    if security["listeners"] and "listen" in configured:
        raise InvalidConfigError("listen and listeners are both set: use one of them")
    parse_address(str(values["listen"]))
    _check_registry_url(str(values["schema.registry.url"]))
    if values["metrics.listen"]:
        parse_address(str(values["metrics.listen"]), "metrics.listen")
    _check_super_users(str(values["super.users"]))
    by_parameter: dict[str, Any] = {name.replace(".", "_"): value for name, value in values.items()}
    by_parameter["data_dir"] = absolute(Path(by_parameter["data_dir"]).expanduser())
    by_parameter["log_dirs"] = parse_log_dirs(by_parameter["log_dirs"])
    for setting, path in [("data.dir", by_parameter["data_dir"]), *(("log.dirs", p) for p in by_parameter["log_dirs"])]:
        _check_utf8(setting, path)
    by_parameter["topic_defaults"] = check(Scope.TOPIC, topic_defaults or {})
    for name in (KEY_FORMAT_SETTING, KEY_SCHEMA_SETTING):
        if by_parameter["topic_defaults"].get(name):
            raise InvalidConfigError(f"{name} has no default for all topics: set it when you create a topic")
    by_parameter["security"] = made_security = make_security(
        security, str(values["listen"]), str(values["advertised.listeners"])
    )
    _check_cluster(values, made_security)
    own_topic = {f"{TOPIC_TABLE}.{name}": value for name, value in by_parameter["topic_defaults"].items()}
    by_parameter["configured"] = {n: None if _is_secret(n, v) else v for n, v in {**parsed, **own, **own_topic}.items()}
    # A setting without a field here is read from the table by the part that uses it.
    return BrokerConfig(**{f: by_parameter[f] for f in BrokerConfig.__struct_fields__})


def _is_of_listener(name: str) -> bool:
    return name.startswith(LISTENER_PREFIX)


def _is_secret(name: str, value: object) -> bool:
    return isinstance(value, Secret) or is_sensitive(name)


def _shown(value: object) -> Any:
    """Return the value of a setting, revealed if it is a secret."""
    return value.reveal() if isinstance(value, Secret) else value


def _check_cluster(values: Mapping[str, Value], security: BrokerSecurity) -> None:
    """Check the settings that concern other brokers. Raises InvalidConfigError."""
    everywhere = [str(one) for one in security.listeners.bound if is_any_address(one.host)]
    if values["zookeeper.connect"] and not values["advertised.listeners"] and everywhere:
        raise InvalidConfigError(
            f"{everywhere[0]} is no address that clients can connect to: name one in advertised.listeners"
        )
    if values["zookeeper.connect"]:
        security.as_client()
    session_ms, lag_ms = int(values["zookeeper.session.timeout.ms"]), int(values["replica.lag.time.max.ms"])
    if values["zookeeper.connect"] and session_ms >= lag_ms:
        raise InvalidConfigError(
            f"zookeeper.session.timeout.ms = {session_ms} must be below replica.lag.time.max.ms = {lag_ms}: "
            "otherwise a dead broker would leave the in-sync replicas before another replica could lead"
        )


def _check_registry_url(url: str) -> None:
    """Raise InvalidConfigError unless the text is empty or the address of a web server."""
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query):
        raise InvalidConfigError(
            f"schema.registry.url = {url!r}: use http://HOST:PORT or https://HOST:PORT, without user and password"
        )


def _check_super_users(text: str) -> None:
    """Raise InvalidConfigError unless the text is a list of principals."""
    try:
        parse_super_users(text)
    except InvalidConfigError as e:
        raise InvalidConfigError(f"super.users: {e}") from e


def _check_utf8(setting: str, path: Path) -> None:
    """Raise InvalidConfigError for a path that is not UTF-8. Files and messages contain the paths of directories."""
    try:
        str(path).encode()
    except UnicodeEncodeError as e:
        raise InvalidConfigError(f"{setting} = {os.fsencode(path)!r} is not UTF-8: choose another directory") from e


def parse_log_dirs(text: str) -> tuple[Path, ...]:
    """Return the directories of `log.dirs`. Raises InvalidConfigError if a directory is repeated, or is inside another
    directory of the list."""
    paths = tuple(absolute(Path(part.strip()).expanduser()) for part in text.split(",") if part.strip())
    real = [path.resolve() for path in paths]
    for i, path in enumerate(real):
        for other in real[i + 1 :]:
            if path == other:
                raise InvalidConfigError(f"log.dirs = {text!r}: {paths[i]} is named twice")
            if path in other.parents or other in path.parents:
                raise InvalidConfigError(f"log.dirs = {text!r}: {path} and {other} contain one another")
    return paths


def parse_address(text: str, setting: str = "listen") -> tuple[str, int]:
    """Parse `HOST:PORT`, with an IPv6 host in brackets. Raises InvalidConfigError, which names `setting`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidConfigError(f"{setting} = {text!r}: put an IPv6 address in brackets, as in [::1]:9292")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise InvalidConfigError(
            f"{setting} = {text!r}: HOST:PORT is needed, as in 127.0.0.1:9292 (port 0: any free one)"
        )
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """Return `HOST:PORT`, the inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parse(text: str) -> dict[str, Any]:
    """Parse a file. TOML does not allow a number `max.connections` beside `max.connections.per.ip`, as Kafka's names
    have it. If the parser refuses the file, dotted names are read as plain keys. Raises TOMLDecodeError.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        try:
            return tomllib.loads(_DOTTED_KEY.sub(r'\1"\2"\3', text))
        except tomllib.TOMLDecodeError:
            pass
        raise


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the broker settings and topic defaults of a file. Raises InvalidConfigError."""
    try:
        table = _parse(read_regular(path, FILE_BYTES_MAX).decode().replace("\r\n", "\n"))
    except OSError as e:
        raise InvalidConfigError(f"the configuration file {path} cannot be read: {e.strerror}") from e
    except OddFileError as e:
        raise InvalidConfigError(f"the configuration file {e}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise InvalidConfigError(f"{path} is not TOML: {e}") from e
    topic = table.pop(TOPIC_TABLE, {})
    if not isinstance(topic, dict):
        raise InvalidConfigError(f"{path}: `{TOPIC_TABLE}` has to be a table: [topic]")
    return flatten(table), flatten(topic)
