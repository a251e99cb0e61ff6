"""`sparklog testing`: a broker for tests in any language, and cases of production data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparklog.cli.client_command import client_settings
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, TopicName, parse_list

app = typer.Typer(
    no_args_is_help=True,
    help="Test programs that use topics: brokers with faults on order, and recorded cases.",
    epilog="""\
**For pytest** the package has fixtures: `pip install 'sparklog[testing]'`.
""",
)

BROKER_EPILOG = """\
**Examples**

`sparklog testing broker --faults-listen 127.0.0.1:9293 --kafka-listen 127.0.0.1:9092`

`curl -d '{"fault": "lose_response", "api": "PRODUCE"}' 127.0.0.1:9293/faults`

`curl -d '{"advance_ms": 86400000}' 127.0.0.1:9293/clock`

`curl -X DELETE 127.0.0.1:9293/faults`

The broker prints its addresses. Never use it in production: every process of the machine can let its requests fail.
"""
RECORD_EPILOG = """\
**Examples**

`sparklog testing record orders --last 1h --mask email,name --out cases/`

A test replays the case with the fixture `replay`: `replay("cases/orders.parquet")`. Masked values are pseudonyms, the
same for the same value. The secret behind them is created once, in ~/.config/sparklog/mask.key: keep it out of the
repository.
"""


@app.command("broker", epilog=BROKER_EPILOG)
def broker(
    faults_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of this machine that takes orders for faults, by HTTP.")
    ] = "127.0.0.1:9293",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 = any free one.")
    ] = "127.0.0.1:9292",
    kafka_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address for Kafka's clients. [default: none]")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Directory of the topics. [default: a temporary one]", show_default=False)
    ] = None,
) -> None:
    """Run a broker whose clock tests move, and whose requests tests let fail."""
    import contextlib
    import json
    import tempfile

    from sparklog_broker.main import main

    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparklog-testing-")))
        config = work / "broker.toml"
        listeners = f'"kafka.listeners" = {json.dumps(f"PLAINTEXT://{kafka_listen}")}\n' if kafka_listen else ""
        config.write_text(listeners, encoding="utf-8")
        directory = work / "data" if data_dir is None else data_dir
        control = ["--testing", "--faults-listen", faults_listen]
        code = main([*control, "--listen", listen, "--config", str(config), "--data-dir", str(directory)])
    raise typer.Exit(code)


@app.command("record", epilog=RECORD_EPILOG)
def record(
    topic: TopicName,
    last: Annotated[str, typer.Option(metavar="TIME", help="Age of the oldest record, such as 15m or 1h.")] = "1h",
    mask: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="Columns or fields (who.email) to mask; in topics without a schema also fields of JSON values.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the case.")] = Path("cases"),
    limit: Annotated[int, typer.Option(min=1, help="Largest number of records; the first ones are kept.")] = 10_000,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write the last records of a topic to a file for tests, with masked columns."""
    from sparklog.testing._cases import record as record_case

    path = record_case(
        topic,
        out,
        bootstrap_servers=bootstrap_servers,
        last=last,
        mask=parse_list(mask),
        limit=limit,
        security=client_settings(),
    )
    import pyarrow.parquet as pq

    print(f"{path}: {pq.read_metadata(path).num_rows} records of {topic}")
