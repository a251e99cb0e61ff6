"""Options of Kafka's tools, and options at the wrong place, with advice for the error messages of unknown options."""

from __future__ import annotations

from collections.abc import Collection

_GROUP = (
    "this command reads without a group, commits nothing and leaves groups as they are; `sparklog group describe GROUP` "
    "shows a group's offsets, and sparklog.Consumer(group_id=…) reads as its member"
)
_BY_COMMAND = {
    "consume": {
        "--group": _GROUP,
        "--from-beginning": "the first record is the default; --from latest begins at the end",
        "--offset": "use --from, as in --from 100",
        "--max-messages": "use --max-records",
        "--property": "use --metadata, or --output-format as in '%t %p %o %T %k %s\\n'",
        "--formatter-property": "use --metadata, or --output-format as in '%t %p %o %T %k %s\\n'",
        "--consumer-property": "use --config NAME=VALUE",
        "--include": "give a pattern in place of the topic, as in 'orders-*'",
        "--whitelist": "give a pattern in place of the topic, as in 'orders-*'",
        "--isolation-level": "use --config isolation.level=read_committed",
        "--local": "use --config local.read=off, or local.read=auto",
        "--timeout-ms": "use --no-follow, which stops at the end, or --max-records",
    },
    "produce": {
        "--file": "give the file behind the topic: sparklog produce TOPIC FILE",
        "--property": "use --key-separator",
        "--producer-property": "use --config NAME=VALUE",
        "--compression-codec": "use --config compression=lz4 or zstd",
    },
    "topic alter": {"--partitions": "use `sparklog topic add-partitions TOPIC`"},
    "elect-leaders": {
        "--election-type": "give preferred or unclean without an option: sparklog elect-leaders preferred",
        "--all-topic-partitions": "use --all",
        "--partition": "give it behind the topic: TOPIC:PARTITION, as in events:0",
        "--topic": "give partitions behind the kind: sparklog elect-leaders preferred events:0",
    },
    "group reset-offsets": {
        "--by-duration": "use --to, as in --to -1h",
        "--to-current": "leave the group as it is",
        "--dry-run": "leave out --execute",
        "--group": "give the group without an option",
    },
    "offsets": {"--time": "use --at, as in --at -1h, --at earliest or --at latest"},
}
_BY_OPTION = {
    "--bootstrap-server": "use --bootstrap-servers",
    "--broker-list": "use --bootstrap-servers",
    "--zookeeper": "commands talk to brokers: use --bootstrap-servers",
    "--topic": "give the topic without an option",
    "--group": "give the group without an option",
    "--partitions": "use --partition",
    "--consumer.config": "use --command-config",
    "--producer.config": "use --command-config",
    "--config-file": "use --command-config",
}
_BEFORE_COMMAND = ("--profile", "--timeout", "--debug", "--version")
"""Options of `sparklog` itself, which people write behind the command, too."""


def meant_for(command: str, option: str, options: Collection[str]) -> str:
    """Return the advice for an option that the command lacks and Kafka's tools or `sparklog` have; "" for others.
    `command`: the words of the command, such as "topic alter". `options`: the options of the command. General advice to
    use an option outside of these is not returned."""
    text = _BY_COMMAND.get(command, {}).get(option)
    if text is not None:
        return text
    if option in _BEFORE_COMMAND:
        return f"it stands before the command: sparklog {option} … {command}"
    text = _BY_OPTION.get(option, "")
    named = [word.rstrip(",:;") for word in text.split() if word.startswith("--")]
    return text if all(name in options for name in named) else ""
