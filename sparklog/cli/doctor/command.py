"""`sparklog doctor`: the options, and the choice of the checked objects."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.client_command import ENV_BOOTSTRAP, client_security, client_settings
from sparklog.cli.durations import parse_seconds
from sparklog.cli.options import DEFAULT_BOOTSTRAP, timeout_ms
from sparklog.cli.sizes import parse_size_bytes

if TYPE_CHECKING:
    from sparklog.cli.doctor.facts import ConfigFacts, Facts

EPILOG = """\
**Examples**

`sparklog doctor`

`sparklog doctor --bootstrap-servers broker-1:9292 --metrics http://broker-1:9293/metrics`

`sparklog doctor --data-dir /var/lib/sparklog`

`sparklog doctor --config broker.toml --json | jq '.findings[] | select(.severity == "error")'`

`sparklog doctor --config broker.toml --bundle bundle.tar.gz`

`sparklog doctor --plan --rows 50k --row-bytes 200B --retention 7d --replicas 3`

Without options the command checks the cluster at 127.0.0.1:9292; with `--data-dir` or `--config` alone it checks only
these. It changes and locks nothing; the broker may be running or stopped.

A bundle is an archive to attach to a question. Settings with secrets, passwords in addresses, and everything that looks
like a secret are removed; records are never part of it. It has names of topics, groups, users and hosts: look into it
before you send it.

**Exit status**: 0 no fault (notes do not count), 1 warnings, 2 errors.
"""
INTERVAL_S_MAX = 3600.0
COUNT_MAX = 1_000_000
_PLAN = "Sizing (--plan)"


def doctor(
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-servers", "-b", envvar=ENV_BOOTSTRAP, metavar="HOST:PORT,…", help="Check this cluster."
        ),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Check this data directory, on its host.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Check this broker configuration, and its data directory.")
    ] = None,
    metrics: Annotated[
        str, typer.Option(metavar="URL", help="A broker's metrics page, as in http://127.0.0.1:9293/metrics.")
    ] = "",
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify", help="Read all files. [default: if they have at most 1 GiB]", show_default=False
        ),
    ] = None,
    interval: Annotated[
        str, typer.Option(metavar="TIME", help="Time between two checks of groups with lag; 0s: one check.")
    ] = "6s",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object for scripts.")] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE.tar.gz", help="Write findings, settings, metrics and logs here, without secrets."),
    ] = None,
    bundle_logs: Annotated[str, typer.Option(metavar="SIZE", help="With --bundle: the end of each log.")] = "512kB",
    plan: Annotated[
        bool, typer.Option("--plan", help="Check nothing, but compute the needs of a load.", rich_help_panel=_PLAN)
    ] = False,
    rows: Annotated[str, typer.Option(metavar="N", help="Rows a second, as 50k.", rich_help_panel=_PLAN)] = "",
    row_bytes: Annotated[str, typer.Option(metavar="SIZE", help="Bytes of a row.", rich_help_panel=_PLAN)] = "",
    retention: Annotated[str, typer.Option(metavar="TIME", help="Time that rows stay.", rich_help_panel=_PLAN)] = "7d",
    replicas: Annotated[int, typer.Option(min=1, max=100, help="Replicas.", rich_help_panel=_PLAN)] = 1,
    brokers: Annotated[
        int | None, typer.Option(min=1, max=1_000, help="Brokers. [default: as replicas]", rich_help_panel=_PLAN)
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=0, max=COUNT_MAX, help="Partitions; 0: chosen.", rich_help_panel=_PLAN)
    ] = 0,
    readers: Annotated[
        int, typer.Option(min=1, max=COUNT_MAX, help="Tasks or consumers of a group at once.", rich_help_panel=_PLAN)
    ] = 1,
    groups: Annotated[
        int, typer.Option(min=0, max=COUNT_MAX, help="Groups and queries that read all.", rich_help_panel=_PLAN)
    ] = 1,
    connections: Annotated[
        int, typer.Option(min=1, max=COUNT_MAX, help="Connections of a broker.", rich_help_panel=_PLAN)
    ] = 100,
    compression: Annotated[
        str, typer.Option(metavar="none|lz4|zstd", help="Compression of the producers.", rich_help_panel=_PLAN)
    ] = "none",
) -> None:
    """Find the faults of a cluster or a data directory, with their remedies."""
    from sparklog.cli.doctor.checks import CHECKS
    from sparklog.cli.doctor.facts import Facts
    from sparklog.cli.doctor.findings import examine, exit_status
    from sparklog.cli.doctor.report import as_json, as_text
    from sparklog.cli.top.page import check_url

    if plan:
        from sparklog.cli.doctor.plan_command import load_of, run_plan

        if not rows or not row_bytes:
            raise typer.BadParameter("--plan needs --rows and --row-bytes, as in --plan --rows 50k --row-bytes 200B")
        planned_brokers = brokers or replicas
        counts = partitions, readers, groups, connections
        run_plan(
            load_of(rows, row_bytes, retention, replicas, planned_brokers, *counts, compression), data_dir, json=json
        )
        return
    if rows or row_bytes:
        raise typer.BadParameter("--rows and --row-bytes belong to --plan")
    log_bytes = parse_size_bytes(bundle_logs, "--bundle-logs")
    interval_s = parse_seconds(interval, "--interval", 0.0, INTERVAL_S_MAX)
    url = check_url(metrics) if metrics else ""
    if bootstrap_servers is None and data_dir is None and config is None:
        bootstrap_servers = DEFAULT_BOOTSTRAP
    config_facts: ConfigFacts | None = None
    log_dirs: tuple[Path, ...] = ()
    if config is not None:
        from sparklog.cli.doctor.process_facts import look_at_config

        config_facts, configured, log_dirs = look_at_config(config)
        data_dir = data_dir or configured
    facts = Facts(config=config_facts)
    facts = _with_data_dir(facts, data_dir, log_dirs, verify) if data_dir is not None else facts
    facts = _with_cluster(facts, bootstrap_servers, interval_s) if bootstrap_servers is not None else facts
    facts = _with_page(facts, url) if url else facts
    findings = examine(facts, CHECKS)
    if json:
        import msgspec

        print(msgspec.json.encode(as_json(findings, facts, [check.name for check in CHECKS])).decode())
    else:
        for line in as_text(findings, facts, len(CHECKS), colours=sys.stdout.isatty()):
            print(line)
    if bundle is not None:
        from sparklog.cli.doctor.collect import Sources, write_bundle
        from sparklog.environment.clock import SystemClock

        names = [check.name for check in CHECKS]
        security = client_settings(), client_security()
        sources = Sources(facts, findings, names, bootstrap_servers, config, url, log_bytes, timeout_ms(), *security)
        write_bundle(bundle, sources, SystemClock(), os.environ)
    if findings:
        raise typer.Exit(exit_status(findings))


def _with_data_dir(facts: Facts, path: Path, log_dirs: tuple[Path, ...], deep: bool | None) -> Facts:
    from sparklog.cli.doctor.directory_facts import data_dir_facts, host_facts

    return facts._replace(data_dir=data_dir_facts(path, log_dirs, deep=deep), host=host_facts())


def _with_cluster(facts: Facts, bootstrap_servers: str, interval_s: float) -> Facts:
    import time

    from sparklog.cli.doctor.cluster_facts import ClusterLook
    from sparklog.environment.clock import SystemClock

    look = ClusterLook(
        bootstrap_servers, SystemClock(), time.sleep, timeout_ms=timeout_ms(), security=client_security()
    )
    cluster, clock = look.take(interval_s)
    return facts._replace(cluster=cluster, clock=clock)


def _with_page(facts: Facts, url: str) -> Facts:
    from sparklog.cli.doctor.process_facts import look_at_page
    from sparklog.environment.clock import SystemClock

    page, clock = look_at_page(url, SystemClock(), timeout_ms() / 1000)
    return facts._replace(page=page, clock=clock or facts.clock)
