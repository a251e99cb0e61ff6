"""The configuration file and flags."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sparklog_broker.config import BrokerConfig, format_address, load_config, make_config, parse_address
from sparklog_broker.security_config import is_security_setting

import sparklog
from sparklog.cli.doctor.directory_facts import data_dir_facts
from sparklog.errors import InvalidConfigError
from sparklog.settings import Scope, settings_of
from tests.support.cases import for_each


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    return path


def test_every_broker_setting_has_its_field_and_default() -> None:
    config = load_config()
    of_security = {name for name in settings_of(Scope.BROKER) if is_security_setting(name)}
    assert set(config.security.settings) == of_security
    for name, setting in settings_of(Scope.BROKER).items():
        value = config.security.settings[name] if name in of_security else getattr(config, setting.parameter)
        if name == "data.dir":
            assert value == Path(str(setting.default)).absolute()
        elif name == "log.dirs":
            assert value == ()
        else:
            assert value == setting.default
    assert set(BrokerConfig.__struct_fields__) == {
        s.parameter for s in settings_of(Scope.BROKER).values() if s.name not in of_security
    } | {"topic_defaults", "security", "configured"}


def test_a_file_with_dotted_names_and_tables(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        listen = "0.0.0.0:1234"
        log.flush.interval.ms = 2000
        [fetch]
        max.bytes = 2_000_000
        [topic]
        segment.bytes = 8192
        "max.message.bytes" = 4096
        """,
    )
    config = load_config(path)
    assert config.address == ("0.0.0.0", 1234)
    assert config.log_flush_interval_ms == 2000
    assert config.fetch_max_bytes == 2_000_000
    assert config.topic_defaults == {"segment.bytes": 8192, "max.message.bytes": 4096}


def test_the_form_of_keys_has_no_default() -> None:
    assert make_config({}, {"kafka.key.format": ""}).topic_defaults == {"kafka.key.format": ""}
    with pytest.raises(InvalidConfigError, match=r"kafka\.key\.format has no default"):
        make_config({}, {"kafka.key.format": "json"})


def test_names_of_which_one_begins_another(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("max.connections = 50\nmax.connections.per.ip = 5\n")
    config = load_config(path)
    assert (config.max_connections, config.max_connections_per_ip) == (50, 5)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'listen = "127.0.0.1:1"\ndata.dir = "/a"\nnum.io.threads = 3')
    config = load_config(path, data_dir=str(tmp_path), listen="127.0.0.1:2", max_connections=7)
    assert (config.address, config.data_dir) == (("127.0.0.1", 2), tmp_path)
    assert (config.num_io_threads, config.max_connections) == (3, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fetch.max.byte = 1", "did you mean 'fetch.max.bytes'"),
        ("[topic]\nsegment.byte = 1", "did you mean 'segment.bytes'"),
        ("linger.ms = 1", "unknown broker setting 'linger.ms'"),
        ("num.io.threads = 0", "at least 1"),
        ("num.io.threads = 'many'", "a whole number"),
        ("listen = 'here'", "HOST:PORT"),
        ("topic = 3", r"\[topic\]"),
        ("listen = ", "is not TOML"),
    ],
)
def test_mistakes_name_the_file_and_the_remedy(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message) as e:
        load_config(written(tmp_path, text))
    assert "broker.toml" in str(e.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="cannot be read"):
        load_config(tmp_path / "no.toml")


@pytest.mark.parametrize(
    ("text", "address"),
    [("h:0", ("h", 0)), ("127.0.0.1:65535", ("127.0.0.1", 65535)), ("[::1]:9292", ("::1", 9292))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert format_address(*address) == text


@for_each("text", ["", "h", ":1", "h:", "h:x", "h:65536", "h:-1", "::1:9292", "h:²"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(InvalidConfigError):
        parse_address(text)


def test_log_dirs_are_absolute_and_apart(tmp_path: Path) -> None:
    config = load_config(log_dirs=f"{tmp_path}/a, {tmp_path}/b,")
    assert config.log_dirs == (tmp_path / "a", tmp_path / "b")
    with pytest.raises(InvalidConfigError, match="named twice"):
        load_config(log_dirs=f"{tmp_path}/a,{tmp_path}/x/../a")
    for text in (f"{tmp_path},{tmp_path}/a", f"{tmp_path}/a,{tmp_path}"):
        with pytest.raises(InvalidConfigError, match="contain one another"):
            load_config(log_dirs=text)


def test_settings_that_form_no_cluster() -> None:
    cluster = {"zookeeper.connect": "zk:2181/sparklog"}
    for wrong, why in (
        ({"zookeeper.session.timeout.ms": 30_000}, "must be below replica.lag.time.max.ms"),
        ({"listen": "0.0.0.0:9292"}, "advertised.listeners"),
        ({"listen": "[::]:9292"}, "advertised.listeners"),
        ({"advertised.listeners": "nowhere"}, "advertised.listeners"),
    ):
        with pytest.raises(InvalidConfigError, match=why):
            make_config({**cluster, **wrong})
    made = make_config({**cluster, "listen": "0.0.0.0:9292", "advertised.listeners": "broker-1:9292"})
    assert made.zookeeper_connect == "zk:2181/sparklog"
    assert make_config({"listen": "0.0.0.0:9292"}).zookeeper_connect == ""


def test_super_users_without_an_authorizer_are_warned_of() -> None:
    given = {"super.users": "User:admin"}
    assert ["super.users is set, but authorizer is not" in text for text in make_config(given).warnings()] == [True]
    assert make_config(given | {"authorizer": "acl"}).warnings() == ()
    assert make_config({}).warnings() == ()


def test_a_relative_directory_below_a_removed_one_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    calls: tuple[Callable[[], object], ...] = (
        lambda: load_config(data_dir="x"),
        lambda: load_config(data_dir="/x", log_dirs="x"),
        lambda: sparklog.start_local("x"),
        lambda: sparklog.start_local("x", brokers=2),
        lambda: data_dir_facts(Path("x")),
    )
    for call in calls:
        with pytest.raises(InvalidConfigError, match="path 'x': the working directory has been removed"):
            call()
    assert load_config(data_dir="/x").data_dir == Path("/x")
