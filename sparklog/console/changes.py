"""Changes of the cluster. The console first shows the plan of a change, and executes it when the user sends the form.

The form has the plan's `fields`, from which `plan_of` creates the same plan again. So the console executes the change
that the user has confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from sparklog.client.admin.admin import Admin
from sparklog.client.admin.offset_moves import AtTime, Move, OffsetTarget, ShiftBy, planned_moves
from sparklog.console.views.groups import moves_as_text, moves_from_text
from sparklog.console.views.numbers import number
from sparklog.environment.clock import SystemClock
from sparklog.errors import InvalidRequestError
from sparklog.format.column_names import column_names
from sparklog.format.ddl import parse_ddl
from sparklog.format.schema import canonical_schema, require_columns
from sparklog.times import parse_time_ms
from sparklog.types import TopicPartition

COLUMNS_IN_FORM = 8
"""Number of columns with form fields. The user enters further columns as Spark DDL."""
TARGETS = ("earliest", "latest", "offset", "time", "shift")


@dataclass(frozen=True)
class Plan:
    """A change before its execution, as the confirmation page shows it."""

    kind: str
    """A key of PLANS."""
    title: str
    question: str
    consequences: list[str]
    button: str
    fields: Mapping[str, str]
    """Fields of the form, from which `plan_of` creates the plan again."""
    back: str
    """Path of the page to show if the user cancels."""
    after: str
    """Path of the page to show after the change."""
    perform: Callable[[Admin], str]
    """Executes the change and returns a report."""
    typed: str = ""
    """Text that the user has to type as a confirmation; empty: none."""
    moves: Mapping[TopicPartition, Move] = field(default_factory=dict)
    """Offsets that a reset sets; empty for other changes."""


def plan_of(kind: str, fields: Mapping[str, str], admin: Admin) -> Plan:
    """Return the plan of the change `kind`, a key of PLANS. Raises InvalidRequestError, and the errors of Admin."""
    make = PLANS.get(kind)
    if make is None:
        raise InvalidRequestError(f"unknown change {kind!r}: use one of {', '.join(PLANS)}")
    return make(fields, admin)


def _required_field(fields: Mapping[str, str], name: str) -> str:
    value = fields.get(name, "").strip()
    if not value:
        raise InvalidRequestError(f"{name} is needed")
    return value


def _id(fields: Mapping[str, str], name: str) -> str:
    """Return an id unchanged, because an id can begin or end with spaces. Raises InvalidRequestError if it is
    blank."""
    _required_field(fields, name)
    return fields[name]


def _int(fields: Mapping[str, str], name: str) -> int:
    value = _required_field(fields, name)
    try:
        return int(value)
    except ValueError as e:
        raise InvalidRequestError(f"{name} = {value!r}: a whole number is needed") from e


def _target(fields: Mapping[str, str]) -> OffsetTarget:
    to = fields.get("to", "earliest")
    if to == "earliest":
        return "earliest"
    if to == "latest":
        return "latest"
    if to == "offset":
        return max(0, _int(fields, "value"))
    if to == "shift":
        return ShiftBy(_int(fields, "value"))
    if to == "time":
        return AtTime(parse_time_ms(_required_field(fields, "value"), SystemClock().now_ms()))
    raise InvalidRequestError(f"to = {to!r}: use one of {', '.join(TARGETS)}")


def _reset_offsets(fields: Mapping[str, str], admin: Admin) -> Plan:
    group = _id(fields, "group")
    page = f"/group?{urlencode({'id': group})}"
    if "moves" in fields:
        try:
            offsets = moves_from_text(fields["moves"])
        except ValueError as e:
            raise InvalidRequestError("the form's offsets cannot be read: start again on the group's page") from e
        moves = {tp: Move(None, offset) for tp, offset in offsets.items()}
    else:
        topic = fields.get("topic", "")
        committed = admin.list_group_offsets(group)
        tps = [tp for tp in sorted(committed) if topic in ("", tp.topic)]
        if topic and not tps:
            tps = [TopicPartition(topic, p) for p in range(admin.describe_topic(topic).partitions)]
        moves = planned_moves(admin, group, tps, _target(fields))
        offsets = {tp: move.offset for tp, move in moves.items()}
    if not moves:
        raise InvalidRequestError(f"group {group} has no committed offsets there")

    def perform(admin: Admin) -> str:
        admin.alter_group_offsets(group, offsets)
        return f"Set {len(offsets)} offset{'' if len(offsets) == 1 else 's'} of group {group}."

    return Plan(
        "reset-offsets",
        "Reset offsets",
        f"Set these {len(moves)} offsets of group {group}?",
        [
            "The group's consumers continue at the new offsets: behind the old ones they read records again, beyond "
            "them they skip records.",
            "The group must have no members: stop its consumers first.",
        ],
        "Set offsets",
        {"group": group, "moves": moves_as_text(moves)},
        page,
        page,
        perform,
        moves=moves,
    )


def _delete_group(fields: Mapping[str, str], admin: Admin) -> Plan:
    group = _id(fields, "group")

    def perform(admin: Admin) -> str:
        return f"Deleted group {group} with {admin.delete_group(group)} committed offsets."

    return Plan(
        "delete-group",
        "Delete a group",
        f"Delete group {group} with its committed offsets?",
        ["Consumers that join the group again begin at auto.offset.reset.", "The group must have no members."],
        "Delete group",
        {"group": group},
        f"/group?{urlencode({'id': group})}",
        "/groups",
        perform,
    )


def _abort_transaction(fields: Mapping[str, str], admin: Admin) -> Plan:
    transactional_id = _id(fields, "id")
    page = f"/transaction?{urlencode({'id': transactional_id})}"

    def perform(admin: Admin) -> str:
        partitions = admin.abort_transaction(transactional_id)
        return f"Aborted the transaction of {transactional_id} in {number(partitions)} partitions."

    return Plan(
        "abort-transaction",
        "Abort a transaction",
        f"Abort the open transaction of {transactional_id}?",
        [
            "Readers of committed records never see its records.",
            "Its producer gets an error at its next call.",
        ],
        "Abort transaction",
        {"id": transactional_id},
        page,
        page,
        perform,
    )


def _abort_hanging(fields: Mapping[str, str], admin: Admin) -> Plan:
    tp = TopicPartition(_required_field(fields, "topic"), _int(fields, "partition"))
    producer_id = _int(fields, "producer_id")
    page = f"/topics/{tp.topic}/producers?partition={tp.partition}"

    def perform(admin: Admin) -> str:
        admin.abort_hanging_transaction(tp, producer_id)
        return f"Aborted the transaction of producer {producer_id} in {tp}."

    return Plan(
        "abort-hanging",
        "Abort a hanging transaction",
        f"Abort the transaction of producer {producer_id} in partition {tp.partition} of {tp.topic}?",
        ["Readers of committed records skip the records of this transaction, and continue behind them."],
        "Abort transaction",
        {"topic": tp.topic, "partition": str(tp.partition), "producer_id": str(producer_id)},
        page,
        page,
        perform,
    )


def _columns(fields: Mapping[str, str]) -> str:
    """Return the columns of the form as Spark DDL; "" without columns. Raises InvalidRequestError."""
    columns = []
    for n in range(1, COLUMNS_IN_FORM + 1):
        column, type = fields.get(f"column{n}", "").strip(), fields.get(f"type{n}", "").strip()
        if bool(column) != bool(type):
            missing = "type" if column else "name"
            raise InvalidRequestError(f"column {n} ({column or type}) has no {missing}: give both, or none")
        if column:
            quoted = column.replace("`", "``")
            parsed = parse_ddl(f"`{quoted}` {type}")
            if len(parsed) != 1:
                raise InvalidRequestError(
                    f"the type of column {n} is {type!r}: one type is needed, such as DECIMAL(10,2)"
                )
            columns.append(f"`{quoted}` {type}")
    return ", ".join(filter(None, [*columns, fields.get("schema", "").strip()]))


def _create_topic(fields: Mapping[str, str], admin: Admin) -> Plan:
    name, partitions = _required_field(fields, "topic"), _int(fields, "partitions")
    ddl = _columns(fields)
    schema = parse_ddl(ddl) if ddl else None
    keys, timestamp_column = fields.get("key_columns", "").strip(), fields.get("timestamp_column", "").strip()
    if schema is None and (keys or timestamp_column):
        raise InvalidRequestError(
            "key columns and a timestamp column are for topics with columns: also name the columns"
        )
    key_columns = column_names(keys, "key columns")
    if schema is not None:
        require_columns(canonical_schema(schema), key_columns, timestamp_column or None)

    def perform(admin: Admin) -> str:
        admin.create_topic(name, partitions, schema, key_columns, timestamp_column or None)
        return f"Created topic {name}."

    consequences = ["It takes keys and values."]
    if schema is not None:
        consequences = [f"Its columns: {', '.join(f'{f.name} {f.type}' for f in schema)}."]
        consequences += [f"The partition of a row is chosen by {', '.join(key_columns)}."] if key_columns else []
        consequences += [f"The time of a row is its {timestamp_column}."] if timestamp_column else []

    return Plan(
        "create-topic",
        "Create a topic",
        f"Create topic {name} with {number(partitions)} partitions?",
        consequences,
        "Create topic",
        {
            "topic": name,
            "partitions": str(partitions),
            "schema": ddl,
            "key_columns": keys,
            "timestamp_column": timestamp_column,
        },
        "/topics",
        f"/topics/{name}",
        perform,
    )


def _add_partitions(fields: Mapping[str, str], admin: Admin) -> Plan:
    name, total = _required_field(fields, "topic"), _int(fields, "total")

    def perform(admin: Admin) -> str:
        admin.add_partitions(name, total)
        return f"Topic {name} has {number(total)} partitions now."

    return Plan(
        "add-partitions",
        "Add partitions",
        f"Give topic {name} {number(total)} partitions?",
        [
            "A key's next records may go to another partition than those before.",
            "Partitions cannot be removed later.",
        ],
        "Add partitions",
        {"topic": name, "total": str(total)},
        f"/topics/{name}",
        f"/topics/{name}",
        perform,
    )


def _set_config(fields: Mapping[str, str], admin: Admin) -> Plan:
    topic, name, value = (
        _required_field(fields, "topic"),
        _required_field(fields, "name"),
        fields.get("value", "").strip(),
    )

    def perform(admin: Admin) -> str:
        admin.alter_topic(topic, {name: value or None})
        return f"{name} of {topic} is now {value}." if value else f"{name} of {topic} has the broker's value again."

    question = (
        f"Set {name} = {value} for topic {topic}?" if value else f"Reset {name} of topic {topic} to the broker's value?"
    )
    consequences = ["It is in effect at once."]
    if name.startswith(("retention.", "cleanup.", "delete.", "local.retention.")):
        consequences.append("The change may delete records for good.")
    return Plan(
        "set-config",
        "Change a setting",
        question,
        consequences,
        "Change setting",
        {"topic": topic, "name": name, "value": value},
        f"/topics/{topic}",
        f"/topics/{topic}",
        perform,
    )


def _delete_topic(fields: Mapping[str, str], admin: Admin) -> Plan:
    name = _required_field(fields, "topic")

    def perform(admin: Admin) -> str:
        admin.delete_topic(name)
        return f"Deleted topic {name}."

    return Plan(
        "delete-topic",
        "Delete a topic",
        f"Delete topic {name} with all its records?",
        ["The records cannot be restored.", "Readers of the topic fail, and writers may create it again."],
        "Delete topic",
        {"topic": name},
        f"/topics/{name}",
        "/topics",
        perform,
        typed=name,
    )


PLANS: Mapping[str, Callable[[Mapping[str, str], Admin], Plan]] = {
    "reset-offsets": _reset_offsets,
    "delete-group": _delete_group,
    "abort-transaction": _abort_transaction,
    "abort-hanging": _abort_hanging,
    "create-topic": _create_topic,
    "add-partitions": _add_partitions,
    "set-config": _set_config,
    "delete-topic": _delete_topic,
}
