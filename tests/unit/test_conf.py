"""conf/ agrees with the settings table."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sparklog.cli.conf import broker_toml, facts, settings_toml, toml_value
from sparklog.settings import Scope, check, flatten, settings_of
from tests.support.cases import for_each

CONF = Path(__file__).resolve().parents[2] / "conf"


def uncommented(text: str) -> str:
    """The file with every setting switched on."""
    return re.sub(r'(?m)^# ("?[a-z.]+"? = )', r"\1", text)


def test_broker_toml_is_the_generators() -> None:
    assert (CONF / "broker.toml").read_text(encoding="utf-8") == broker_toml(), "make conf"


def test_broker_toml_has_the_defaults() -> None:
    assert tomllib.loads(broker_toml()) == {"topic": {}}


def test_every_setting_is_listed_with_its_default() -> None:
    table = tomllib.loads(uncommented(broker_toml()))
    topic = flatten(table.pop("topic"))
    assert check(Scope.TOPIC, topic) == {n: s.default for n, s in settings_of(Scope.TOPIC).items()}
    assert check(Scope.BROKER, flatten(table)) == {n: s.default for n, s in settings_of(Scope.BROKER).items()}


@for_each("scope", list(Scope))
def test_every_scope_can_be_printed(scope: Scope) -> None:
    given = flatten(tomllib.loads(uncommented(settings_toml(scope))))
    assert set(given) == set(settings_of(scope))


def test_facts_and_values() -> None:
    topic = settings_of(Scope.TOPIC)
    assert facts(topic["message.timestamp.type"]) == "one of CreateTime, LogAppendTime"
    assert facts(topic["max.message.bytes"]) == "whole number, bytes, 1024 to 1073741824, dynamic"
    assert toml_value('a"b\\') == '"a\\"b\\\\"'
    assert toml_value(True) == "true"


def test_spark_defaults_are_settings_with_values() -> None:
    lines = (CONF / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    settings = [line.lstrip("# ") for line in lines if re.match(r"(# )?spark\.", line)]
    assert len(settings) >= 8
    assert all(re.fullmatch(r"spark\.[A-Za-z._]+ +\S+", line) for line in settings), settings
    names = [line.split()[0] for line in settings]
    assert len(names) == len(set(names))
