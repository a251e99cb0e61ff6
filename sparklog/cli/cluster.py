"""`sparklog cluster`: starts brokers on this machine, describes a cluster, restores its metadata in ZooKeeper."""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparklog.cli.errors import report
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, open_admin, parse_pairs
from sparklog.errors import InvalidConfigError
from sparklog.settings import Scope, settings_of

if TYPE_CHECKING:
    from sparklog.client.local_cluster import BrokerProcess, ClusterBroker

RETENTION = {"topic.retention.ms": settings_of(Scope.TOPIC)["retention.ms"].default}
"""The retention of production brokers, in place of `start_cluster`'s default, which keeps records forever."""

app = typer.Typer(help="Start, describe and extend a cluster of brokers.", no_args_is_help=True)

_START_EPILOG = """\
**Examples**

`sparklog cluster start --brokers 3 --data-dir ./cluster`

`sparklog cluster start --brokers 3 --data-dir ./cluster --zookeeper zk1:2181,zk2:2181/dev --config default.replication.factor=2`

`sparklog cluster start --brokers 3 --data-dir ./cluster --secure-setup`

For development: all brokers run on this machine, on loopback. A later start on the same directory continues the same
cluster on the same ports. While the cluster runs, the same command starts the brokers that have ended, leaves the others
alone, and prints the process of each broker. Ctrl-C stops everything cleanly. Unless you name a ZooKeeper, one is started
from PySpark's jars, which needs Java 17. The brokers have zookeeper.session.timeout.ms = 6000, below the default of 12000,
so that the loss of a broker is noticed sooner.
"""
_DESCRIBE_EPILOG = """\
**Examples**

`sparklog cluster describe`

`sparklog cluster describe --check || page-somebody`

`sparklog cluster describe --json | jq .under_replicated`

With --check the exit status is 1 if a partition is offline or lacks in-sync replicas, if a broker with replicas is
missing, or if there is no controller.
"""


@app.command("start", epilog=_START_EPILOG)
def start(
    data_dir: Annotated[Path, typer.Option(help="Directory of the cluster's data.")],
    brokers: Annotated[
        int | None, typer.Option(min=1, max=20, help="Number of brokers (default: those in the directory, or 3).")
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,…/PATH", help="A ZooKeeper that runs already (default: started here)."),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="K=V", help="A setting of all brokers; repeatable.")
    ] = None,
    secure_setup: Annotated[
        bool,
        typer.Option(
            "--secure-setup", help="With TLS, SCRAM and ACLs: a new cluster's certificates, super user, settings."
        ),
    ] = False,
) -> None:
    """Start brokers and a ZooKeeper on this machine, until Ctrl-C."""
    from sparklog.client.local_cluster import is_running, request_start, start_cluster

    if is_running(data_dir):
        if config or zookeeper or secure_setup:
            raise InvalidConfigError(
                f"the cluster in {data_dir} runs already, and --config, --zookeeper and --secure-setup are for its start: "
                "stop it (Ctrl-C where it was started) and start it with them, or leave them out to start brokers that "
                "have ended"
            )
        answer = request_start(data_dir, brokers)
        named = ", ".join(map(str, answer.started))
        print(f"the cluster in {data_dir} runs already: " + (f"started {named}" if named else "all brokers are up"))
        for process in answer.brokers:
            print(_broker_line(process))
        return
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    settings: dict[str, object] = {**RETENTION, **parse_pairs(config or [], "--config")}
    print("starting …", file=sys.stderr, flush=True)
    with start_cluster(brokers, data_dir, settings=settings, zookeeper=zookeeper, secure=secure_setup) as cluster:
        for broker in cluster.brokers:
            print(_broker_line(broker))
        print(f"zookeeper  {cluster.zookeeper_connect}")
        if cluster.security is not None:
            print(f"\nexport SPARKLOG_COMMAND_CONFIG={cluster.security}")
        else:
            print(f"\nexport SPARKLOG_BOOTSTRAP_SERVERS={cluster.bootstrap_servers}")
        print("\nCtrl-C stops all of it", flush=True)
        down: set[int] = set()
        while not ended.wait(1.0):
            for broker_id in cluster.answer_requests():
                down.discard(broker_id)
                pid = next(broker.pid for broker in cluster.brokers if broker.broker_id == broker_id)
                print(f"broker {broker_id} has been started again, pid {pid}", file=sys.stderr, flush=True)
            for broker in cluster.brokers:
                if not broker.running and broker.broker_id not in down:
                    down.add(broker.broker_id)
                    print(f"broker {broker.broker_id} has ended:\n{broker.log}", file=sys.stderr, flush=True)
        print("stopping …", file=sys.stderr, flush=True)


def _broker_line(broker: ClusterBroker | BrokerProcess) -> str:
    return f"broker {broker.broker_id}   {broker.bootstrap_servers}   pid {broker.pid}   {broker.data_dir}"


_RESTORE_EPILOG = """\
**Examples**

`sparklog cluster restore-metadata --data-dir /var/lib/sparklog --zookeeper zk1:2181,zk2:2181/sparklog`

`sparklog cluster restore-metadata --data-dir /mnt/broker-1 --data-dir /mnt/broker-2 --zookeeper zk1:2181/sparklog --yes`

Use this command if ZooKeeper's data are lost, or were replaced by an older copy. Each broker keeps a copy of the newest
metadata that it has seen, and refuses an older store: it deletes nothing, and continues to lead its partitions. This
command writes the copy back: topics with their placement, schemas and settings, users, ACLs and quotas. Topics whose files
brokers have put aside come back with their files. Brokers may run; they follow by themselves.

Name the directories of as many brokers as you can reach: the newest copy counts. Without --yes nothing is written.
"""


@app.command("restore-metadata", epilog=_RESTORE_EPILOG)
def restore_metadata(
    zookeeper: Annotated[str, typer.Option(metavar="HOST:PORT,…/PATH", help="ZooKeeper of the cluster.")],
    data_dir: Annotated[list[Path], typer.Option(help="A broker's data directory; repeatable.")],
    config: Annotated[Path | None, typer.Option(help="A broker's configuration file (for zookeeper.…).")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write the changes.")] = False,
) -> None:
    """Write the cluster's metadata back into ZooKeeper, from the copies that its brokers keep."""
    from sparklog_broker.cluster import restoration
    from sparklog_broker.config import load_config

    from sparklog.environment.files import RealFiles
    from sparklog.replication.restoration import changes_of

    broker_config = load_config(config, data_dir=str(data_dir[0]), zookeeper_connect=zookeeper)
    copy = restoration.newest_copy(RealFiles(), data_dir)
    coordination = _connect(broker_config, zookeeper)
    try:
        done = restoration.write_back(coordination, copy) if yes else restoration.plan(coordination, copy)
    finally:
        coordination.close()
    print(f"cluster  {copy.cluster_id}")
    print(f"store    {'older than the copy: ' + done.why if done.why else 'not older than the copy'}")
    for name in done.decided.restored:
        print(f"topic    {name} {'is back' if yes else 'is to come back'}")
    for name, change in changes_of(done.stored, done.decided.after):
        print(f"{name}: {change}")
    for name in done.decided.refused:
        print(
            f"topic    {name} stays away: another topic has the name. Copy its records elsewhere, delete it, run this again"
        )
    if not done.is_needed:
        print("no change is needed")
    elif not yes:
        report("not written", "this was a dry run", "run the command again with --yes; brokers may run")
        raise typer.Exit(1)
    if done.decided.refused:
        raise typer.Exit(1)


def _connect(broker_config: Any, zookeeper: str) -> Any:
    """Connect to ZooKeeper with the login, ACL and TLS settings of a broker. Raises StorageUnavailableError."""
    from sparklog.errors import StorageUnavailableError
    from sparklog.metadata.coordination import CoordinationError
    from sparklog.metadata.zookeeper import ZooKeeper

    try:
        return ZooKeeper.connect(
            zookeeper,
            login=broker_config.security.zookeeper_login,
            set_acl=bool(broker_config.security.settings["zookeeper.set.acl"]),
            tls=broker_config.security.zookeeper_tls,
        )
    except CoordinationError as e:
        raise StorageUnavailableError(str(e)) from e


@app.command("describe", epilog=_DESCRIBE_EPILOG)
def describe(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit status 1 if something is wrong.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show brokers, racks, the controller, and partitions that are offline or under-replicated."""
    from sparklog.cli.cluster_summary import summarize

    with open_admin(bootstrap_servers) as admin:
        cluster = admin.describe_cluster()
        topics = admin.describe_topics(admin.list_topics(include_internal=True))
    summary = summarize(cluster, topics.values())
    if as_json:
        print(json.dumps(summary))
    else:
        _show(summary)
    if check and summary["problems"]:
        raise typer.Exit(1)


def _show(summary: dict[str, Any]) -> None:
    from sparklog.cli import console

    controller = summary["controller"]
    print(f"cluster           {summary['cluster_id']}")
    print(f"controller        {'broker ' + str(controller) if controller >= 0 else 'none at the moment'}")
    print(f"partitions        {console.number(summary['partitions'])} of {console.number(summary['topics'])} topics")
    for name in ("offline", "under_min_insync", "under_replicated", "not_preferred"):
        print(f"{name.replace('_', ' '):<18}{_partitions(summary[name])}")
    if summary["reassigning"]:
        limit = f", at most {console.size(summary['throttle_bytes'])}/s per broker" if summary["throttle_bytes"] else ""
        print(f"being reassigned  {_partitions(summary['reassigning'])}{limit}")
    print(
        f"skew              leaders {summary['leader_skew']:.2f}, replicas {summary['replica_skew']:.2f} (most over mean)"
    )
    print()
    table = console.table(
        "broker", "address", "rack", "state", "leads", "replicas", "in sync", right=("leads", "replicas", "in sync")
    )
    for broker in summary["brokers"]:
        table.add_row(
            f"{broker['broker_id']}{' *' if broker['broker_id'] == controller else ''}",
            broker["address"] or "-",
            broker["rack"] or "-",
            broker["state"],
            *(console.number(broker[name]) for name in ("leads", "replicas", "in_sync")),
        )
    console.stdout().print(table)
    for problem in summary["problems"]:
        print(f"problem: {problem}")


def _partitions(names: list[str]) -> str:
    """Return the number of partitions, and the names of the first five."""
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"{len(names):,}" + (f"  ({shown})" if names else "")
