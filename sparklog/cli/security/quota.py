"""`sparklog quota`: shows and changes client quotas, with the options of `kafka-configs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sparklog.cli.option_groups import with_groups
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, open_admin, parse_changes, parse_list
from sparklog.cli.sizes import parse_size_bytes

if TYPE_CHECKING:
    from sparklog.security.quotas import Entity

app = typer.Typer(
    no_args_is_help=True,
    help="Show and change quotas of users, client ids and addresses.",
    epilog="""\
**Quotas** of users and client ids: `producer_byte_rate` and `consumer_byte_rate` (bytes a second),
`request_percentage` (100: one thread). Of users alone: `max_connections` (to one broker), `max_topics` and
`max_partitions` (the user that creates a topic owns it). Of users, or of addresses: `connection_creation_rate` (new
connections a second).

**Examples**

`sparklog quota alter --user loader --add-config producer_byte_rate=10MB`

`sparklog quota alter --user-defaults --add-config consumer_byte_rate=50MB,request_percentage=50`

`sparklog quota alter --user loader --delete-config producer_byte_rate`

`sparklog quota alter --user-defaults --add-config max_connections=100,max_topics=20`

`sparklog quota alter --ip-defaults --add-config connection_creation_rate=50`

`sparklog quota describe`

Beyond a rate, the client has to wait and nothing is refused; other clients do not wait. Beyond a number, the broker refuses
the request.
""",
)


class Owner(NamedTuple):
    """The options that name the owner of quotas."""

    user: Annotated[str | None, typer.Option(metavar="NAME", help="The user with this name.")] = None
    user_defaults: Annotated[
        bool, typer.Option("--user-defaults", help="Default: every user without quotas of its own.")
    ] = False
    client_id: Annotated[
        str | None, typer.Option("--client-id", "--client", metavar="ID", help="Clients with this client id.")
    ] = None
    client_defaults: Annotated[
        bool, typer.Option("--client-defaults", help="Default: every client id without quotas of its own.")
    ] = False
    ip: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Peers with this IP address.")] = None
    ip_defaults: Annotated[
        bool, typer.Option("--ip-defaults", help="Default: every address without quotas of its own.")
    ] = False

    def entity(self) -> Entity:
        """Return the owner. Raises typer.BadParameter for an empty name, and for a name together with the default."""
        from sparklog.security.quotas import DEFAULT, Entity

        named = (self.user, self.user_defaults), (self.client_id, self.client_defaults), (self.ip, self.ip_defaults)
        if any(name is not None and is_default for name, is_default in named):
            raise typer.BadParameter("give a name or the default, not both")
        if any(name == "" for name, _ in named):
            raise typer.BadParameter(
                "a name is not empty; the default is --user-defaults, --client-defaults, --ip-defaults"
            )
        return Entity(*(DEFAULT if is_default else name for name, is_default in named))


ANY_OWNER = Owner()


@app.command("describe")
@with_groups
def describe(
    owner: Owner = ANY_OWNER,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show all or some quotas, and the clients that have to wait at the moment."""
    import sys

    from sparklog.security.quotas import Entity

    selected = owner.entity()
    with open_admin(bootstrap_servers) as admin:
        described = admin.describe_client_quotas()
    shown = {
        entity: quotas
        for entity, quotas in described.quotas.items()
        if selected == Entity() or all(w in (None, e) for w, e in zip(selected, entity, strict=True))
    }
    if not shown:
        print("no such quotas", file=sys.stderr)
        return
    from sparklog.cli import console

    table = console.table("user", "client id", "address", "quota", "limit", "used", right=("limit", "used"))
    for entity in sorted(shown, key=lambda e: (e.user or "", e.client_id or "", e.ip or "")):
        for name, limit in sorted(shown[entity].items()):
            used = described.used.get(entity, {}).get(name)
            table.add_row(*map(_name, entity), name, f"{limit:.15g}", "" if used is None else str(used))
    console.stdout().print(table)
    for group in described.throttled:
        names = ", ".join(
            f"{noun} {name}" for noun, name in (("user", group.user), ("client", group.client_id)) if name is not None
        )
        print(f"{names} has to wait for another {group.throttle_ms} ms ({group.quota})")


@app.command("alter")
@with_groups
def alter(
    owner: Owner = ANY_OWNER,
    add_config: Annotated[
        list[str] | None,
        typer.Option("--add-config", "--add", metavar="QUOTA=LIMIT,…", help="Set these quotas; repeatable."),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", "--delete", metavar="QUOTA,…", help="Remove these quotas; repeatable."),
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set or remove quotas."""
    from sparklog.security.quota_records import parse_key
    from sparklog.security.quotas import Entity

    entity = owner.entity()
    if entity == Entity():
        raise typer.BadParameter(
            "name the owner: --user, --client-id, --ip, or --user-defaults, --client-defaults, --ip-defaults"
        )
    added = [pair for text in add_config or [] for pair in parse_list(text)]
    removed = [name for text in delete_config or [] for name in parse_list(text)]
    parsed = parse_changes(added, removed, "--add-config", "--delete-config")
    changes: dict[str, float | None] = {
        parse_key(name): None if value is None else _limit(name, value) for name, value in parsed.items()
    }
    if not changes:
        raise typer.BadParameter("name a quota: --add-config QUOTA=LIMIT or --delete-config QUOTA")
    with open_admin(bootstrap_servers) as admin:
        now = admin.alter_client_quotas(entity, changes)
    print(", ".join(f"{name}={limit:.15g}" for name, limit in sorted(now.items())) or "no quotas any more")


def _limit(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as e:
        if not name.endswith("_byte_rate"):
            raise typer.BadParameter(f"{name}={text}: a number is needed") from e
    return float(parse_size_bytes(text, f"{name}:"))


def _name(name: str | None) -> str:
    return "-" if name is None else name or "(default)"
