"""DESCRIBE_CONFIGS, ALTER_CONFIGS and INCREMENTAL_ALTER_CONFIGS: settings of topics and of brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from typing import Any, TypeVar

from sparklog.errors import (
    InvalidConfigError,
    InvalidGroupIdError,
    InvalidRequestError,
    SparklogError,
    UnknownTopicOrPartitionError,
)
from sparklog.errors import error_from_code as broker_error
from sparklog.format.key_format import KEY_FORMAT_SETTING, KEY_SCHEMA_SETTING
from sparklog.gateway.backend.topics import read_metadata
from sparklog.gateway.handlers.entries import check_entry, check_named_once
from sparklog.gateway.handlers.names import is_group_id
from sparklog.gateway.session import Session
from sparklog.kafka.topic_settings import FIXED, kafka_text, parse_settings
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, code_of, text_of
from sparklog.protocol.apis import Api
from sparklog.protocol.base import CONFIGS_MAX
from sparklog.protocol.operation_messages import (
    AlterBrokerConfigsRequest,
    AlterBrokerConfigsResponse,
    BrokerConfigEntry,
    DescribeBrokerConfigsRequest,
    DescribeBrokerConfigsResponse,
)
from sparklog.protocol.topic_messages import AlterTopicRequest, AlterTopicResponse, MetadataRequest, TopicState
from sparklog.replication.dynamic_settings import ALL_BROKERS, settings_by_name
from sparklog.replication.group_settings import settings_by_name as of_groups
from sparklog.settings import Scope, Setting, is_managed, settings_of
from sparklog.types import check_topic_name

TOPIC, BROKER, GROUP = 2, 4, 32
BROKER_LOGGER, CLIENT_METRICS = 8, 16
"""Kafka's numbers of the resource types."""
BROKER_DIGITS_MAX = 10
"""Largest number of digits of a broker's number, which is an int32 in Kafka."""
THROTTLES = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Kafka's settings of brokers that limit the copies of a reassignment."""
LISTS = frozenset(
    {"cleanup.policy", "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)
"""Kafka's settings of topics that are lists, to which INCREMENTAL_ALTER_CONFIGS can append."""
TOPIC_SOURCE, BROKER_SOURCE, DEFAULT_SOURCE = 1, 4, 5
_OF_KEYS = frozenset({KEY_FORMAT_SETTING, KEY_SCHEMA_SETTING})
"""Settings that a topic keeps for life."""

R = TypeVar("R", requests.AlterConfigsResource, requests.IncrementalAlterConfigsResource)


class Operation(IntEnum):
    """Operations of INCREMENTAL_ALTER_CONFIGS."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_TYPES = {bool: 1, str: 2, int: 5, float: 6}
"""Kafka's numbers of the types BOOLEAN, STRING, LONG and DOUBLE, by Python type."""


def config_entries(state: TopicState, names: list[str] | None = None) -> list[responses.DescribeConfigsResultConfig]:
    """Return the settings of a topic as Kafka's entries. `names` None: all settings."""
    entries: list[responses.DescribeConfigsResultConfig] = []
    for name, setting in settings_of(Scope.TOPIC).items():
        if names is None or name in names:
            entries.append(_entry(setting, state))
    for name, (value, reason) in FIXED.items():
        if names is None or name in names:
            entries.append(
                {
                    "name": name,
                    "value": value,
                    "read_only": True,
                    "config_source": DEFAULT_SOURCE,
                    "is_sensitive": False,
                    "config_type": _TYPES[str],
                    "documentation": f"Fixed: {reason}.",
                }
            )
    return entries


def _entry(setting: Setting, state: TopicState) -> responses.DescribeConfigsResultConfig:
    name = setting.name
    sources = [(TOPIC_SOURCE, state.configs), (BROKER_SOURCE, state.broker_defaults)]
    values = [(source, settings[name]) for source, settings in sources if name in settings]
    values.append((DEFAULT_SOURCE, setting.default))
    source, value = values[0]
    return {
        "name": name,
        "value": kafka_text(setting, value),
        "read_only": name in _OF_KEYS or is_managed(name),  # so that MirrorMaker does not copy it
        "config_source": source,
        "is_sensitive": False,
        "synonyms": [{"name": name, "value": kafka_text(setting, v), "source": s} for s, v in values],
        "config_type": _TYPES[type(setting.default)],
        "documentation": setting.doc,
    }


async def describe_configs(
    session: Session, request: requests.DescribeConfigs, version: int
) -> responses.DescribeConfigs:
    """Describe the settings of topics, of the gateway's broker and of groups. Secrets have no value."""
    results: list[responses.DescribeConfigsResult] = []
    for i, resource in enumerate(request["resources"]):
        outcome: responses.DescribeConfigsResult = {
            "error_code": Kafka.NONE,
            "error_message": None,
            "resource_type": resource["resource_type"],
            "resource_name": resource["resource_name"],
            "configs": [],
        }
        try:
            check_entry(i)
            outcome["configs"] = await _described(session, resource)
        except SparklogError as e:
            outcome["error_code"], outcome["error_message"] = code_of(e), text_of(e)
        if not request["include_synonyms"]:
            outcome["configs"] = [{**entry, "synonyms": []} for entry in outcome["configs"]]
        if not request.get("include_documentation"):
            outcome["configs"] = [{**entry, "documentation": None} for entry in outcome["configs"]]
        results.append(outcome)
    return {"results": results}


async def list_config_resources(
    session: Session, request: requests.ListConfigResources, version: int
) -> responses.ListConfigResources:
    """List the resources that have settings: topics, brokers, and groups with settings of their own (KIP-1142). There
    are no metrics of clients (KIP-714), which alone version 0 lists."""
    kinds = set(request.get("resource_types", ())) or {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}
    if version == 0:
        kinds = {CLIENT_METRICS}
    elif not kinds <= {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}:
        return {"error_code": Kafka.UNSUPPORTED_VERSION, "config_resources": []}
    try:
        broker = await session.broker()
        of_groups = DescribeBrokerConfigsRequest(ALL_BROKERS)  # needs the permission that Kafka requires for the list
        groups = (await broker.ask(Api.DESCRIBE_BROKER_CONFIGS, of_groups, DescribeBrokerConfigsResponse)).groups
        topics = MetadataRequest(None if TOPIC in kinds else [], paged=True, with_schemas=False, with_partitions=False)
        answer = await read_metadata(broker, topics)
    except SparklogError as e:
        return {"error_code": code_of(e), "config_resources": []}
    brokers = [str(b.broker_id) for b in answer.brokers]
    names = {
        TOPIC: [t.name for t in answer.topics if not t.error_code],
        BROKER: brokers,
        BROKER_LOGGER: brokers,
        GROUP: groups,
    }
    return {
        "error_code": Kafka.NONE,
        "config_resources": [
            {"resource_name": name, "resource_type": kind} for kind in sorted(kinds) for name in names.get(kind, ())
        ],
    }


async def _described(
    session: Session, resource: requests.DescribeConfigsResource
) -> list[responses.DescribeConfigsResultConfig]:
    """Return the requested settings of a topic or broker. Raises InvalidRequestError, and the broker's errors."""
    kind, name, keys = resource["resource_type"], resource["resource_name"], resource["configuration_keys"]
    if kind == BROKER:
        return await _described_broker(session, DescribeBrokerConfigsRequest(_broker_id(name)), keys)
    if kind == GROUP:
        return await _described_broker(session, DescribeBrokerConfigsRequest(ALL_BROKERS, group_id=_group(name)), keys)
    if kind != TOPIC:
        raise InvalidRequestError(
            f"resources of the type {kind} have no settings here; topics ({TOPIC}), brokers ({BROKER}) and groups "
            f"({GROUP}) have"
        )
    return config_entries(await _state(session, name), keys)


async def _described_broker(
    session: Session, request: DescribeBrokerConfigsRequest, keys: list[str] | None
) -> list[responses.DescribeConfigsResultConfig]:
    """Return the settings of a broker, of all brokers or of a group. Raises the broker's errors."""
    broker = await session.broker()
    answer = await broker.ask(Api.DESCRIBE_BROKER_CONFIGS, request, DescribeBrokerConfigsResponse)
    return [_broker_entry(entry) for entry in answer.configs if keys is None or entry.name in keys]


def _broker_entry(entry: BrokerConfigEntry) -> responses.DescribeConfigsResultConfig:
    setting = settings_by_name().get(entry.name) or of_groups().get(entry.name)
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": not entry.is_dynamic,
        "config_source": entry.source,
        "is_sensitive": entry.value is None,
        "synonyms": [{"name": entry.name, "value": entry.value, "source": entry.source}],
        "config_type": _TYPES[str] if setting is None else _TYPES[type(setting.default)],
        "documentation": None if setting is None else setting.doc,
    }


def _group(name: str) -> str:
    """Return the group id in a resource's name. Raises InvalidGroupIdError."""
    if not is_group_id(name):
        raise InvalidGroupIdError(f"a group id of {len(name)} characters: choose another one")
    return name


def _broker_id(name: str) -> int:
    """Return the broker id in a resource's name; ALL_BROKERS for the empty name. Raises InvalidRequestError."""
    if not name:
        return ALL_BROKERS
    if not name.isascii() or not name.isdigit() or len(name) > BROKER_DIGITS_MAX:
        raise InvalidRequestError(f"broker {name[:40]!r}: the number of a broker is needed, or nothing for all brokers")
    return int(name)


async def _state(session: Session, name: str) -> TopicState:
    """Return the state of a topic. Raises InvalidTopicError, UnknownTopicOrPartitionError, and the broker's errors."""
    check_topic_name(name)
    request = MetadataRequest([name], paged=True, with_schemas=False, with_partitions=False)
    answer = await read_metadata(await session.broker(), request)
    state = next((t for t in answer.topics if t.name == name), None)
    if state is None or state.error_code:
        code = UnknownTopicOrPartitionError.code if state is None else state.error_code
        raise broker_error(code, f"topic {name!r} cannot be used")
    return state


async def _state_to_alter(session: Session, name: str) -> TopicState:
    """Return the state of a topic whose settings the client may alter. The permission to describe it is not enough.
    Raises InvalidTopicError, UnknownTopicOrPartitionError, and the broker's errors."""
    check_topic_name(name)
    nothing = AlterTopicRequest(name, {}, validate_only=True)
    return (await (await session.broker()).ask(Api.ALTER_TOPIC, nothing, AlterTopicResponse)).topic


async def alter_configs(session: Session, request: requests.AlterConfigs, version: int) -> responses.AlterConfigs:
    """Replace all settings of topics. Settings that are missing in the request get their defaults, but for those that
    commands or the broker manage: a client that does not know them would remove a topic's Delta table."""

    async def change(resource: requests.AlterConfigsResource) -> dict[str, Any]:
        state = await _state_to_alter(session, resource["resource_name"])
        changes: dict[str, Any] = dict.fromkeys(
            name for name in state.configs if name not in _OF_KEYS and not is_managed(name)
        )
        return changes | parse_configs({c["name"]: c["value"] for c in resource["configs"]})

    return {"responses": await _alter(session, request["resources"], change, validate_only=request["validate_only"])}


async def incremental_alter_configs(
    session: Session, request: requests.IncrementalAlterConfigs, version: int
) -> responses.IncrementalAlterConfigs:
    """Change single settings of topics, brokers and groups."""
    validate_only = request["validate_only"]

    async def change(resource: requests.IncrementalAlterConfigsResource) -> dict[str, Any]:
        state = await _state_to_alter(session, resource["resource_name"])
        changes: dict[str, Any] = {}
        for config in resource["configs"]:
            operation, key, value = config["config_operation"], config["name"], config["value"] or ""
            if operation == Operation.DELETE:
                changes |= dict.fromkeys(parse_configs({key: None}, keep_null=True))
            elif operation == Operation.SET:
                changes |= parse_configs({key: value})
            else:
                changes |= parse_configs({key: _changed_list(state, key, value, append=operation == Operation.APPEND)})
        return changes

    async def change_broker(resource: requests.IncrementalAlterConfigsResource) -> None:
        is_group, name = resource["resource_type"] == GROUP, resource["resource_name"]
        target = (ALL_BROKERS, _group(name)) if is_group else (_broker_id(name), "")
        await _alter_broker(session, target, resource["configs"], validate_only=validate_only)

    changed = await _alter(session, request["resources"], change, change_broker, validate_only=validate_only)
    return {"responses": changed}


def _changed_list(state: TopicState, name: str, value: str, *, append: bool) -> str:
    entry = next((e for e in config_entries(state, [name])), None)
    if entry is None or name not in LISTS:
        raise InvalidConfigError(f"{name} is no list: set it as a whole")
    parts = [p for p in str(entry["value"]).split(",") if p]
    named = [p.strip() for p in value.split(",") if p.strip()]
    kept = parts + [p for p in named if p not in parts] if append else [p for p in parts if p not in named]
    return ",".join(sorted(kept))


def parse_configs(configs: dict[str, str | None], *, keep_null: bool = False) -> dict[str, Any]:
    """Return a topic's settings as `parse_settings`. Raises InvalidConfigError, also for too many settings."""
    if len(configs) > CONFIGS_MAX:
        raise InvalidConfigError(f"{len(configs)} settings; at most {CONFIGS_MAX} are allowed")
    return parse_settings(configs, keep_null=keep_null)


def _check_configs(resource: Mapping[str, Any]) -> None:
    """Raise InvalidRequestError for the settings of a resource, if one is named twice, an operation is unknown, or a
    value is null that is not deleted."""
    named = Counter(config["name"] for config in resource["configs"])
    repeated = sorted(name for name, times in named.items() if times > 1)
    if repeated:
        raise InvalidRequestError(f"{', '.join(repeated)}: the request names the setting twice; name it once")
    for config in resource["configs"]:
        operation = config.get("config_operation", Operation.SET)
        if operation not in iter(Operation):
            raise InvalidRequestError(
                f"{config['name']}: unknown operation {operation}; use {', '.join(f'{o.value} ({o.name})' for o in Operation)}"
            )
        if config["value"] is None and operation != Operation.DELETE:
            raise InvalidRequestError(f"{config['name']}: null is no value; delete the setting instead")


async def _alter_broker(
    session: Session,
    target: tuple[int, str],
    configs: list[requests.IncrementalAlterConfigsResourceConfig],
    *,
    validate_only: bool,
) -> None:
    """Set or delete settings of a broker or a group: `target` is the broker's id, and the group's id or "". Raises
    InvalidConfigError and the broker's errors."""
    changes: dict[str, Any] = {}
    for config in configs:
        operation = config["config_operation"]
        if operation not in (Operation.SET, Operation.DELETE):
            raise InvalidConfigError(f"{config['name']} is no list: set it as a whole, or delete it")
        if config["name"] in THROTTLES:
            if operation == Operation.SET:
                raise InvalidConfigError(f"{config['name']} is no setting here: use `sparklog reassign throttle`")
            continue  # Kafka's tool deletes them after each reassignment
        changes[config["name"]] = config["value"] if operation == Operation.SET else None
    if changes:
        broker = await session.broker()
        broker_id, group_id = target
        altered = AlterBrokerConfigsRequest(broker_id, changes, validate_only, group_id=group_id)
        try:
            await broker.ask(Api.ALTER_BROKER_CONFIGS, altered, AlterBrokerConfigsResponse)
        except InvalidConfigError as e:
            if group_id:
                raise
            raise InvalidRequestError(str(e)) from e  # Kafka's error for a broker's setting


async def _alter(
    session: Session,
    resources: list[R],
    change: Callable[[R], Awaitable[dict[str, Any]]],
    change_broker: Callable[[R], Awaitable[None]] | None = None,
    *,
    validate_only: bool,
) -> list[responses.AlterConfigsResponse]:
    """Change topics, and brokers and groups if there is `change_broker`. `change` returns the changes of a topic."""
    outcomes: list[responses.AlterConfigsResponse] = []
    named = Counter((resource["resource_type"], resource["resource_name"]) for resource in resources)
    for i, resource in enumerate(resources):
        kind, name = resource["resource_type"], resource["resource_name"]
        outcome: responses.AlterConfigsResponse = {
            "error_code": Kafka.NONE,
            "error_message": None,
            "resource_type": kind,
            "resource_name": name,
        }
        outcomes.append(outcome)
        try:
            check_entry(i)
            check_named_once(named[kind, name])
            _check_configs(resource)
            if kind in (BROKER, GROUP) and change_broker is not None:
                await change_broker(resource)
                continue
            if kind != TOPIC:
                raise InvalidRequestError(
                    f"resources of the type {kind} cannot be changed in this way: topics ({TOPIC}) can; brokers "
                    f"({BROKER}) and groups ({GROUP}) with INCREMENTAL_ALTER_CONFIGS"
                )
            changes = await change(resource)
            if changes:
                broker = await session.broker()
                message = AlterTopicRequest(name, changes, validate_only)
                await broker.ask(Api.ALTER_TOPIC, message, AlterTopicResponse)
                session.gateway.topics.forget(name)
        except SparklogError as e:
            outcome["error_code"], outcome["error_message"] = code_of(e), text_of(e)
    return outcomes
