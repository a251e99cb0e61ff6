"""The translation of given options to those of the table: aliases, Kafka's settings, misspellings.

Spark hands option names over in lower case; messages show them as documented.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import NamedTuple

from pyspark_sparklog.options.kafka_settings import (
    CALLBACK_HANDLER,
    KAFKA_SETTINGS,
    SECURITY_PROTOCOL,
    UNDER_PLAINTEXT,
    KafkaSetting,
    Treatment,
    is_plaintext,
    kafka_setting,
)
from pyspark_sparklog.options.option_table import (
    ADDED_BY_SPARK,
    ALIASES,
    NOT_IN_A_STREAM,
    WITHOUT_EFFECT,
    OptionUse,
    options_for,
)
from sparklog.errors import InvalidConfigError
from sparklog.security.client_security import SecuritySettings, is_without_effect
from sparklog.settings import Scope, settings_of

log = logging.getLogger("pyspark_sparklog")

KAFKA, OWN = "kafka.", "sparklog."
WARNED_MAX = 1_000
NEAR = 0.7
"""Smallest likeness of a misspelling and a known name for a suggestion (difflib's ratio)."""


class RecognisedOptions(NamedTuple):
    """The options in effect, by their names in lower case. `remarks`: notes for the user about options without effect
    and about values that differ from those given."""

    values: dict[str, str]
    remarks: tuple[str, ...]


def recognised(options: Mapping[str, str], where: OptionUse) -> RecognisedOptions:
    """Return the options by lower-case name, with aliases and Kafka's settings resolved, without those that have no
    meaning in `where`.

    Raises InvalidConfigError for an unknown name, a name with two different values, and a refused option.
    """
    lower = {written.lower(): value for written, value in options.items()}
    here, everywhere = options_for(where), options_for(OptionUse.ALL)
    values: dict[str, str] = {}
    remarks: list[str] = []
    for written, value in lower.items():
        if written in ADDED_BY_SPARK:
            continue
        setting = kafka_setting(written.removeprefix(KAFKA), value) if written.startswith(KAFKA) else None
        name = written
        if setting is not None:
            name, value, remark = _of_kafka(setting, value, where, lower)
            if remark:
                remarks.append(f"{written} ({remark})")
        else:
            name = _own_name(written)
        if not name:
            continue
        if name not in here:
            remarks.append(_without_effect(written, name, where))
            continue
        if values.setdefault(name, value) != value:
            raise InvalidConfigError(f"{everywhere[name].name} is given twice with different values: give it once")
    return RecognisedOptions(values, tuple(remarks))


def _of_kafka(setting: KafkaSetting, value: str, where: OptionUse, options: Mapping[str, str]) -> tuple[str, str, str]:
    """Return three values for one of Kafka's settings: the option that it stands for ("" if none), the option's value,
    and the remark about it."""
    if setting.about_security and setting.name != SECURITY_PROTOCOL:
        protocol = options.get(KAFKA + SECURITY_PROTOCOL, options.get(OWN + SECURITY_PROTOCOL))
        if is_plaintext(protocol):
            return "", "", UNDER_PLAINTEXT
        if setting.name == CALLBACK_HANDLER:
            SecuritySettings({setting.name: value}).resolve()  # raises for a class that does something else
    if not setting.where & where:
        return "", "", setting.elsewhere
    if setting.treatment is Treatment.REFUSED:
        if is_without_effect(setting.name, value):
            return "", "", ""
        raise InvalidConfigError(setting.text)
    if setting.convert is None:
        return "", "", setting.text
    own = settings_of(Scope.CONSUMER if where & OptionUse.SOURCE else Scope.PRODUCER)
    bounds = own.get(setting.text.removeprefix(OWN))
    try:
        taken = setting.convert(value, bounds)
    except InvalidConfigError as e:
        raise InvalidConfigError(f"{KAFKA}{setting.name} = {e}") from None
    return setting.text, taken.value, taken.remark


def _own_name(written: str) -> str:
    """Return the option's name in the table, with aliases resolved; an unknown name is returned with its prefix
    `sparklog.` or unchanged."""
    name = OWN + written.removeprefix(KAFKA) if written.startswith(KAFKA) else written
    return ALIASES.get(name, name)


def _without_effect(written: str, name: str, where: OptionUse) -> str:
    """Return the remark about an option without effect in `where`. Raises InvalidConfigError if there is no such
    option, or if it must not be given there."""
    if where is OptionUse.STREAM and name in NOT_IN_A_STREAM:
        raise InvalidConfigError(NOT_IN_A_STREAM[name])
    if name in WITHOUT_EFFECT:
        return f"{written} ({WITHOUT_EFFECT[name]})"
    option = options_for(OptionUse.ALL).get(name)
    if option is None:
        raise InvalidConfigError(f"unknown option {written!r}{_hint(written, where)}")
    return f"{option.name} (only {option.where.describe()} use it)"


def _hint(written: str, where: OptionUse) -> str:
    """Return the end of the error for an unknown name: the most similar known name, or a note that Kafka has no such
    setting, or all known names. Prefixes are not compared, because they make any two names similar."""
    kafka = {name: KAFKA + name for name in KAFKA_SETTINGS}
    own = {_without_prefix(lower): option.name for lower, option in options_for(where).items()}
    by_rest = {**own, **kafka} if written.startswith(KAFKA) else {**kafka, **own}
    near = difflib.get_close_matches(_without_prefix(written), by_rest, n=1, cutoff=NEAR)
    if near:
        return f": did you mean {by_rest[near[0]]!r}?"
    if written.startswith(KAFKA):
        return ": Kafka's clients document no such setting"
    return f" (known: {', '.join(sorted(o.name for o in options_for(where).values()))})"


def _without_prefix(name: str) -> str:
    return name.removeprefix(KAFKA).removeprefix(OWN)


_warned: set[tuple[str, ...]] = set()


def warn_once(remarks: tuple[str, ...]) -> None:
    """Log all remarks about a query's options in one warning. The same remarks are logged once per process, because
    Spark creates a query's writer again for every micro-batch."""
    if not remarks or remarks in _warned or len(_warned) >= WARNED_MAX:
        return
    _warned.add(remarks)
    log.warning("options without effect, or with another effect than in Kafka: %s", "; ".join(remarks))
