"""The topics that a mirror creates: those of its source that do not exist here, and that its user may read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from sparklog.client.admin.mirror_groups import Groups
from sparklog.client.admin.mirror_rights import require_rights
from sparklog.client.admin.sparklog_source import SparklogSource
from sparklog.client.kafka.source import KafkaSource
from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import BrokerNotAvailableError, InvalidConfigError, SparklogError, TopicAlreadyExistsError
from sparklog.metadata.mirror_settings import NAME, REFUSED_OF
from sparklog.metadata.refused_topics import REFUSED_SCHEMA, refused_topic
from sparklog.mirror.definition import AVRO, PROTOBUF, MirrorDefinition, mirrored_topic
from sparklog.mirror.plan import INTERNAL_PREFIX, NO_REGISTRY, PlannedTopic, Registered, chosen_topics, planned_topic
from sparklog.mirror.readers import registered_columns, registered_key
from sparklog.mirror.source import MirrorSource, SourceTopic
from sparklog.security.client_security import ClientSecurity, client_security

NAMED_MAX = 10


class Topics(Groups, Protocol):
    """The calls of `Admin` that a mirror needs."""

    def list_topics(self) -> list[str]: ...

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        schema: Any,
        key_columns: Iterable[str],
        timestamp_column: str | None,
        configs: Mapping[str, object],
    ) -> Any: ...

    def alter_schema(self, name: str, *, schema: Any) -> Any: ...

    def alter_topic(self, name: str, configs: Mapping[str, object | None]) -> Any: ...


def source_security(definition: MirrorDefinition) -> ClientSecurity:
    """Return the security of the connections to a mirror's source, as its file has it now. Raises
    InvalidConfigError."""
    return client_security(definition.source_config or None)


def open_source(definition: MirrorDefinition, timeout_ms: int, security: ClientSecurity | None = None) -> MirrorSource:
    """Return the client of a mirror's source. `security`: that of its connections; None: that of its file now. Raises
    InvalidConfigError."""
    security = source_security(definition) if security is None else security
    if definition.is_of_sparklog:
        return SparklogSource(definition.bootstrap_servers, security, timeout_ms=timeout_ms)
    return KafkaSource(definition.bootstrap_servers, security, timeout_ms=timeout_ms)


class MirrorPlan(NamedTuple):
    """The topics of the source that do not exist here."""

    topics: tuple[PlannedTopic, ...]
    """Topics that the mirror can create."""
    refused: dict[str, str]
    """Reasons why the other topics cannot be created, by name."""


def plan_mirror(definition: MirrorDefinition, source: MirrorSource, here: Iterable[str]) -> MirrorPlan:
    """Return the topics that the mirror would create; those of `here`, which exist, are left out. Raises errors of the
    source that concern all topics."""
    all_topics = source.topics()
    existing = set(here)
    taken = {refused_topic(name) for name in all_topics} if definition.is_typed else set()
    names = [name for name in chosen_topics(definition, all_topics, _internal(all_topics)) if name not in existing]
    settings = source.settings(names)
    planned, refused = [], {}
    registered = NO_REGISTRY
    if definition.registry:
        from sparklog.client.net.registry_reader import registry_schemas  # late: the parsers of schemas load for long

        schemas = registry_schemas(definition.registry)
        registered = Registered(
            partial(registered_columns, schemas) if definition.value_format in (AVRO, PROTOBUF) else None,
            partial(registered_key, schemas, form=definition.key_format) if definition.key_format else None,
        )
    for name in names:
        topic, configs = all_topics[name], settings.get(name, {})
        try:
            if isinstance(configs, SparklogError):
                raise configs
            if name in taken:
                raise InvalidConfigError("its name is that of the refused records of another topic: leave it out")
            planned.append(planned_topic(definition, topic, configs, registered))
        except BrokerNotAvailableError:
            raise  # the registry does not answer
        except SparklogError as e:
            refused[name] = str(e)
    return MirrorPlan(tuple(planned), refused)


def create_missing_topics(
    admin: Topics,
    definition: MirrorDefinition,
    source: MirrorSource,
    proceeds: Callable[[], bool] = lambda: True,
) -> dict[str, str]:
    """Create the topics that the source has and that do not exist here. `proceeds`: asked before each topic; False ends
    the work. Returns the reasons for topics that were not created, by name. Raises errors of the source."""
    planned, refused = plan_mirror(definition, source, admin.list_topics())
    reasons = dict(refused)
    for topic in planned:
        if not proceeds():
            break
        try:
            if topic.refused is not None:
                create_refused_topic(admin, topic.name, topic.partitions, topic.refused)
            with contextlib.suppress(TopicAlreadyExistsError):  # another worker has created it
                admin.create_topic(
                    topic.name,
                    partitions=topic.partitions,
                    schema=topic.schemas[0] if topic.schemas else None,
                    key_columns=topic.key_columns,
                    timestamp_column=topic.timestamp_column,
                    configs=topic.configs,
                )
                for schema in topic.schemas[1:]:
                    admin.alter_schema(topic.name, schema=schema)
        except SparklogError as e:
            if e.retriable:
                raise
            reasons[topic.name] = str(e)
    return reasons


def create_refused_topic(admin: Topics, topic: str, partitions: int, configs: Mapping[str, object]) -> None:
    """Create the topic of a typed topic's refused records, unless it exists."""
    with contextlib.suppress(TopicAlreadyExistsError):
        admin.create_topic(
            refused_topic(topic),
            partitions=partitions,
            schema=REFUSED_SCHEMA,
            key_columns=(),
            timestamp_column=None,
            configs=configs,
        )


def require_topics(definition: MirrorDefinition, source: MirrorSource, here: Mapping[str, TopicInfo]) -> list[str]:
    """Return the source's topics that the mirror copies. `here`: the topics here. Raises InvalidConfigError if there is
    none, one exists here that the mirror has not created, or the mirror has another definition;
    TopicAuthorizationFailedError for a right that the mirror's user lacks; and errors of the source."""
    _check_same_definition(definition, here)
    names = chosen_topics(definition, (all_topics := source.topics()), _internal(all_topics))
    if not names:
        raise InvalidConfigError(
            f"no topic of {definition.source} matches {definition.topics!r}, or the mirror's user cannot describe it; the "
            "expressions match whole names, such as 'orders,logs-.*'. Topics whose names begin with "
            f"{INTERNAL_PREFIX} are never mirrored"
        )
    _check_names(definition, names, here)
    require_rights(source, definition, all_topics, names)
    return names


def _internal(topics: Mapping[str, SourceTopic]) -> list[str]:
    return [name for name, topic in topics.items() if topic.is_internal]


def _check_same_definition(definition: MirrorDefinition, here: Mapping[str, TopicInfo]) -> None:
    """Raise InvalidConfigError if topics of a mirror with this name have another definition. A worker uses one
    definition for all topics of a mirror, so that it would look for some of them at the wrong source."""
    for name in sorted(here):
        topic = mirrored_topic(name, here[name].configs)
        if topic is None or topic.definition.name != definition.name or topic.definition == definition:
            continue
        stored, chosen = topic.definition.settings(""), definition.settings("")
        differences = [
            f"{setting} = {str(stored.get(setting, ''))!r:.200} instead of {str(chosen.get(setting, ''))!r:.200}"
            for setting in {**stored, **chosen}
            if stored.get(setting) != chosen.get(setting)
        ]
        raise InvalidConfigError(
            f"mirror {definition.name!r} exists with {', '.join(differences)}; use another name. 'sparklog mirror "
            f"delete {definition.name}' deletes the mirror with its topics"
        )


def _check_names(definition: MirrorDefinition, names: Sequence[str], here: Mapping[str, TopicInfo]) -> None:
    """Raise InvalidConfigError if a topic exists here that the mirror has not created."""
    taken = []
    for name in names:
        if name not in here:
            continue
        topic = mirrored_topic(name, here[name].configs)
        if topic is None or topic.definition.name != definition.name:
            taken.append(name)
        elif definition.is_typed and not is_refused_topic(here.get(refused_topic(name)), definition.name, name):
            taken.append(refused_topic(name))
    if taken:
        more = f" and {len(taken) - NAMED_MAX} more" if len(taken) > NAMED_MAX else ""
        raise InvalidConfigError(
            f"topics of the source exist here already: {', '.join(taken[:NAMED_MAX])}{more}. A mirror keeps the "
            "offsets of its source, so it begins with new topics: delete them, or leave them out of --topics"
        )


def is_refused_topic(info: TopicInfo | None, mirror: str, topic: str) -> bool:
    """Return True if the topic has the refused records of the mirror's typed topic, or does not exist."""
    return info is None or (info.configs.get(NAME) == mirror and info.configs.get(REFUSED_OF) == topic)
