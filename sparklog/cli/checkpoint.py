"""`sparklog checkpoint`: the checkpoints of Spark queries."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklog.cli.client_command import client_security
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, TextFormat, timeout_ms

app = typer.Typer(help="Move the checkpoint of a Spark query to another cluster.", no_args_is_help=True)

TEXT_CHARS_MAX = 1_000

_MOVE_EPILOG = """\
**Examples**

`sparklog checkpoint move /checkpoints/orders /checkpoints/orders-paris --bootstrap-servers paris:9092`

`sparklog checkpoint move /checkpoints/orders /checkpoints/orders-paris -b paris:9092 --dry-run`

Stop the query first. The topics of the cluster that `--bootstrap-servers` names are copies that `sparklog mirror` has
filled. Their offsets are those of the source, their ids are others: the new checkpoint has these ids in its offsets, and
is otherwise a copy. Then start the query with the new checkpoint, and the address of that cluster.

Nothing is written if the copies lack records that the query has read or planned, if the topics there are no copies, or
if the query runs. A checkpoint of `format("kafka")` has no ids: the query goes on with it, and the copy is unchanged.
"""


@app.command("move", epilog=_MOVE_EPILOG)
def move(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint of the stopped query: its checkpointLocation.")],
    target: Annotated[str, typer.Argument(help="Directory of the new checkpoint, which does not exist yet.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show the changes, and write nothing.")] = False,
    format: Annotated[TextFormat, typer.Option(help="Output format.")] = TextFormat.text,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Copy the checkpoint of a query, for the copies of its topics in another cluster."""
    from sparklog.cli.printing import printable
    from sparklog.client.admin.checkpoint_move import move_checkpoint
    from sparklog.client.net.cluster import cluster

    moved = move_checkpoint(
        cluster(bootstrap_servers, client_security()), checkpoint, target, timeout_ms=timeout_ms(), dry_run=dry_run
    )
    if format is TextFormat.json:
        import json
        from dataclasses import asdict

        print(json.dumps({**asdict(moved), "dry_run": dry_run}))
        return
    print(
        f"query   {printable(moved.query_id, TEXT_CHARS_MAX)}, batch {moved.batch}{' (no commit)' if moved.is_planned else ''}"
    )
    for topic, (old, new) in sorted(moved.topics.items()):
        print(f"topic   {topic}: id {printable(old, TEXT_CHARS_MAX)} -> {new}")
    for remark in moved.remarks:
        print(f"note    {printable(remark, TEXT_CHARS_MAX)}")
    files = f"{moved.changed_files} {'file' if moved.changed_files == 1 else 'files'} of offsets"
    if dry_run:
        print(f"{files} would change; nothing was written")
    else:
        print(f"{printable(moved.target, TEXT_CHARS_MAX)} is written; {files} changed, all others are the same")
