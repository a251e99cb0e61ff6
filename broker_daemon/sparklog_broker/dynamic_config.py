"""Dynamic settings: applies the values of the cluster's images to this broker, and informs the parts that use them.

The parts of a broker share one `BrokerConfig`, and read most settings at each use. A part that derives a value from a
setting registers here, and derives it again after a change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from sparklog.protocol.operation_messages import BrokerConfigEntry
from sparklog.replication.dynamic_settings import (
    ALL_BROKERS,
    TOPIC_PREFIX,
    Source,
    effective_values,
    settings_by_name,
    stored_values,
)
from sparklog.security.secrets import is_sensitive, redact
from sparklog.settings import Value
from sparklog_broker.config import BrokerConfig

log = logging.getLogger(__name__)


class DynamicConfig:
    """Applies values of images to the broker's configuration. Event-loop thread only."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._static = {name: _of_file(config, name) for name, one in settings_by_name().items() if one.dynamic}
        """Values of the file, the command line and the defaults, without the values of images."""
        self._configs: Mapping[str, Value] = {}
        self._values: dict[str, Value] = {}
        self._watchers: list[tuple[frozenset[str], Callable[[], None]]] = []

    def watch(self, names: Iterable[str], watcher: Callable[[], None]) -> None:
        """Call `watcher` after each change of a setting, and now if an image has changed it already. `names`: settings
        by their dotted names; TOPIC_PREFIX stands for all defaults of topics."""
        self._watchers.append((frozenset(names), watcher))
        if self._watched(self._values) & frozenset(names):  # an image has a value already
            self._call_watcher(frozenset(names), watcher)

    def follow(self, configs: Mapping[str, Value]) -> None:
        """Apply the values of an image. `configs`: settings of the cluster, as in the image."""
        if configs is self._configs:
            return
        self._configs = configs
        values = effective_values(configs, self._config.broker_id)
        changed = {n for n in {*values, *self._values} if values.get(n) != self._values.get(n)}
        if not changed:
            return
        self._config.change({name: values.get(name, self._static[name]) for name in changed})
        self._values = values
        log.info("settings changed: %s", ", ".join(f"{n}={values.get(n, self._static[n])}" for n in sorted(changed)))
        for names, watcher in self._watchers:
            if names & self._watched(changed):
                self._call_watcher(names, watcher)

    @staticmethod
    def _watched(names: Iterable[str]) -> set[str]:
        return {TOPIC_PREFIX if name.startswith(TOPIC_PREFIX) else name for name in names}

    @staticmethod
    def _call_watcher(names: frozenset[str], watcher: Callable[[], None]) -> None:
        try:
            watcher()
        except Exception:
            log.exception("a change of %s is not in effect", ", ".join(sorted(names)))

    def describe(self, broker_id: int) -> Iterator[BrokerConfigEntry]:
        """Yield every setting of this broker, with the value in effect and its source. With ALL_BROKERS, yield only the
        values that are stored for all brokers."""
        settings, of_all = settings_by_name(), stored_values(self._configs, ALL_BROKERS)
        if broker_id == ALL_BROKERS:
            for name in sorted(of_all):
                yield BrokerConfigEntry(
                    name, _text(name, of_all[name]), Source.ALL_BROKERS, name in settings and settings[name].dynamic
                )
            return
        own, configured = stored_values(self._configs, broker_id), self._config.configured
        for name in [*settings, *(name for name in configured if name not in settings)]:
            value: Value | None
            if name in self._values:
                source, value = Source.BROKER if name in own else Source.ALL_BROKERS, self._values[name]
            elif name in configured:
                source, value = Source.FILE, configured[name]
            else:
                source, value = Source.DEFAULT, settings[name].default
            yield BrokerConfigEntry(name, _text(name, value), source, name in settings and settings[name].dynamic)


def _of_file(config: BrokerConfig, name: str) -> Value:
    if name.startswith(TOPIC_PREFIX):
        return config.topic_defaults.get(name.removeprefix(TOPIC_PREFIX), settings_by_name()[name].default)
    value: Value = getattr(config, name.replace(".", "_"))
    return value


def _text(name: str, value: Value | None) -> str | None:
    """Return a value as text with secrets redacted; None if the whole value is a secret."""
    if value is None or (is_sensitive(name) and value != ""):
        return None
    return str(value).lower() if isinstance(value, bool) else redact(str(value))
