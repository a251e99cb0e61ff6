"""The settings table and its readers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from sparklog import settings as s
from sparklog.errors import InvalidConfigError
from sparklog.settings import Scope
from sparklog.units import SIZE_HELP
from tests.support.cases import for_each

IDS = [f"{x.scope.value}:{x.name}" for x in s.SETTINGS]
NUMBERS = [x for x in s.SETTINGS if isinstance(x.default, int) and not isinstance(x.default, bool)]


@for_each("setting", s.SETTINGS, ids=IDS)
def test_every_setting_is_documented_and_its_default_is_valid(setting: s.Setting) -> None:
    assert re.fullmatch(r"[a-z]+(\.[a-z]+)*", setting.name)
    assert re.fullmatch(r"[A-Z0-9].+\.", setting.doc)
    assert setting.parse(setting.default) == setting.default
    assert setting.parse(str(setting.default)) == setting.default
    assert setting.parameter.isidentifier()
    assert setting.type_name in ("int", "float", "str", "bool")
    if setting.choices:
        assert setting.default in setting.choices


def test_names_are_unique_within_a_scope() -> None:
    keys = [(x.scope, x.name) for x in s.SETTINGS]
    assert len(keys) == len(set(keys))
    assert sum(len(s.settings_of(scope)) for scope in Scope) == len(s.SETTINGS)
    for scope in Scope:
        assert len({x.parameter for x in s.settings_of(scope).values()}) == len(s.settings_of(scope))


@for_each("setting", NUMBERS, ids=lambda x: f"{x.scope.value}:{x.name}")
def test_bounds(setting: s.Setting) -> None:
    assert setting.minimum is not None
    assert setting.maximum is not None
    assert setting.minimum <= setting.default <= setting.maximum  # type: ignore[operator]
    assert setting.parse(setting.minimum) == setting.minimum
    assert setting.parse(str(setting.maximum)) == setting.maximum
    below = rf"^{re.escape(setting.name)} = {setting.minimum - 1}: at least {setting.minimum}"
    with pytest.raises(InvalidConfigError, match=below):
        setting.parse(setting.minimum - 1)
    with pytest.raises(InvalidConfigError, match=f"at most {setting.maximum}( {setting.unit})?$"):
        setting.parse(str(setting.maximum + 1))


@for_each("setting", NUMBERS, ids=lambda x: f"{x.scope.value}:{x.name}")
def test_units_are_in_the_name(setting: s.Setting) -> None:
    if setting.name.endswith(".ms"):
        assert setting.unit == "ms"
    if setting.name.endswith(".bytes") or setting.name == "buffer.memory":
        assert setting.unit == "bytes"


WHOLE = s.Setting("n", Scope.BROKER, 5, "A number.", "bytes", 1, 10_000)
SHARE = s.Setting("f", Scope.BROKER, 0.5, "A share.", minimum=0, maximum=1)
FLAG = s.Setting("b", Scope.BROKER, True, "A flag.")
TEXT = s.Setting("t", Scope.BROKER, "x", "A text.")
CHOICE = s.Setting("c", Scope.BROKER, "all", "A choice.", choices=("0", "1", "all"))


@pytest.mark.parametrize(
    ("setting", "given", "parsed"),
    [
        (WHOLE, 7, 7),
        (WHOLE, "7", 7),
        (WHOLE, " 7 ", 7),
        (WHOLE, "1_000", 1000),
        (WHOLE, np.int64(7), 7),
        (SHARE, "0.25", 0.25),
        (SHARE, 1, 1.0),
        (SHARE, 0.25, 0.25),
        (FLAG, False, False),
        (FLAG, "false", False),
        (FLAG, "True", True),
        (TEXT, "y", "y"),
        (TEXT, Path("a") / "b", "a/b"),
        (CHOICE, 1, "1"),
        (CHOICE, "all", "all"),
    ],
)
def test_parse(setting: s.Setting, given: object, parsed: s.Value) -> None:
    found = setting.parse(given)
    assert found == parsed
    assert type(found) is type(setting.default)


@pytest.mark.parametrize(
    ("setting", "given", "message"),
    [
        *(
            (WHOLE, v, "a whole number is needed")
            for v in ("", "x", "1.5", 1.5, True, None, [1], "_", "0x10", "\uff11", b"7")
        ),
        *((SHARE, v, "a number is needed") for v in ("", "x", True, None, "nan", "inf", float("-inf"), {})),  # type: ignore[var-annotated]
        *((FLAG, v, "true or false is needed") for v in ("", "yes", 1, 0, "1", None, [True])),
        *((TEXT, v, "text is needed") for v in (None, ["x"], {"x": 1}, b"x")),
        *((CHOICE, v, "use one of 0, 1, all") for v in ("", "2", "ALL", "-1", "True")),
    ],
)
def test_parse_refuses(setting: s.Setting, given: object, message: str) -> None:
    with pytest.raises(InvalidConfigError) as e:
        setting.parse(given)
    units = f", or {SIZE_HELP}" if setting is WHOLE else ""
    assert str(e.value) == f"{setting.name} = {given!r}: {message}{units}"


def test_parse_refuses_a_very_long_number() -> None:
    with pytest.raises(InvalidConfigError, match="a whole number is needed"):
        WHOLE.parse("9" * 10_000)


def test_resolve_overlays_the_defaults() -> None:
    found = s.resolve(Scope.TOPIC, {"segment.bytes": "8192"})
    assert found == {n: x.default for n, x in s.settings_of(Scope.TOPIC).items()} | {"segment.bytes": 8192}
    assert s.check(Scope.TOPIC, {"segment.bytes": "8192"}) == {"segment.bytes": 8192}
    assert s.check(Scope.TOPIC, {}) == {}


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("segment.byte", "did you mean 'segment.bytes'?"),
        ("segment_bytes", "did you mean 'segment.bytes'?"),
        ("xyz", "(known: cleanup.policy, compression.type, "),
        ("linger.ms", ""),  # a producer's setting is none of a topic's
    ],
)
def test_unknown_names_get_a_suggestion(given: str, hint: str) -> None:
    with pytest.raises(InvalidConfigError) as e:
        s.check(Scope.TOPIC, {given: 1})
    assert str(e.value).startswith(f"unknown topic setting {given!r}")
    assert hint in str(e.value)


def test_a_hint_has_a_limited_number_of_names() -> None:
    known = [f"x{i:03}" for i in range(s.LISTED_NAMES_MAX + 7)]
    assert s.did_you_mean("other", known).endswith(f", x{s.LISTED_NAMES_MAX - 1:03} and 7 more)")


def test_parameters_have_underscores_and_none_means_absent() -> None:
    found = s.from_parameters(Scope.PRODUCER, {"linger_ms": 7, "acks": None})
    assert found == s.resolve(Scope.PRODUCER, {"linger.ms": 7})
    with pytest.raises(InvalidConfigError, match=r"'log.retention.ms': did you mean 'retention.ms'\?"):
        s.check(Scope.BROKER, {"log.retention.ms": 1})  # Kafka's name for the topics' default
    with pytest.raises(InvalidConfigError, match=r"'log.fil': did you mean 'log.file'\?"):
        s.check(Scope.BROKER, {"log.fil": 1})
    with pytest.raises(InvalidConfigError, match=r"unknown producer parameter 'linger': did you mean 'linger_ms'\?"):
        s.from_parameters(Scope.PRODUCER, {"linger": 7})
    with pytest.raises(InvalidConfigError, match=r"unknown producer parameter 'linger\.ms'"):
        s.from_parameters(Scope.PRODUCER, {"linger.ms": None})


def test_flatten_makes_dotted_names_of_toml_tables() -> None:
    text = 'listen = "h:1"\n"num.partitions" = 2\n[segment]\nbytes = 1\nindex.bytes = 2\n[a.b]\nc = [1]\n[empty]\n'
    assert s.flatten(tomllib.loads(text)) == {
        "listen": "h:1",
        "num.partitions": 2,
        "segment.bytes": 1,
        "segment.index.bytes": 2,
        "a.b.c": [1],
    }
