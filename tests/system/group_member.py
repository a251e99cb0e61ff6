"""A consumer in a process of its own: `python -m tests.system.group_member SERVERS GROUP TOPIC [INSTANCE]`.

Prints the events on stdout, a JSON object per line: assigned and revoked partitions, and for every commit the records
read before it. Commits after every poll. Ends when its stdin does.
"""

from __future__ import annotations

import json
import select
import sys
from typing import Any

from sparklog import Consumer
from sparklog.errors import CommitFailedError
from sparklog.types import TopicPartition


def report(what: str, **more: Any) -> None:
    print(json.dumps({"what": what, **more}), flush=True)


def numbers(partitions: list[TopicPartition]) -> list[int]:
    return [tp.partition for tp in partitions]


def main(servers: str, group: str, topic: str, instance: str = "") -> None:
    consumer = Consumer(
        servers,
        group_id=group,
        group_instance_id=instance,
        session_timeout_ms=1_000,
        enable_auto_commit=False,
        client_id="member",
    )
    consumer.subscribe(
        [topic],
        on_assign=lambda p: report("assigned", partitions=numbers(p)),
        on_revoke=lambda p: report("revoked", partitions=numbers(p)),
        on_lost=lambda p: report("lost", partitions=numbers(p)),
    )
    while not select.select([sys.stdin], [], [], 0)[0]:
        read = [[r.partition, r.offset] for r in consumer.poll(50)]
        if not read:
            continue
        report("read", records=read)
        try:
            consumer.commit()
        except CommitFailedError as e:
            report("refused", records=read, error=e.name)
        else:
            report("committed", records=read)
    consumer.close()
    report("closed")


if __name__ == "__main__":
    main(*sys.argv[1:])
