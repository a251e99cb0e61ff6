"""`sparklog quota`: what users and clients may take. Options are those of `kafka-configs` for client quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, open_admin, parse_list, parse_pairs

if TYPE_CHECKING:
    from sparklog.security.quotas import Entity

app = typer.Typer(
    no_args_is_help=True,
    help="Show and change quotas of users and client ids.",
    epilog="""\
**Quotas**: `producer_byte_rate` and `consumer_byte_rate` (bytes a second), `request_percentage` (100: one thread).

**Examples**

`sparklog quota alter --user loader --add-config producer_byte_rate=10485760`

`sparklog quota alter --user-defaults --add-config consumer_byte_rate=52428800,request_percentage=50`

`sparklog quota alter --user loader --delete-config producer_byte_rate`

`sparklog quota describe`

Nothing is refused: whoever takes more has to wait, and other clients do not.
""",
)

User = Annotated[str | None, typer.Option(metavar="NAME", help="The user of this name.")]
UserDefaults = Annotated[bool, typer.Option("--user-defaults", help="Every user that has none of its own.")]
ClientId = Annotated[
    str | None, typer.Option("--client-id", "--client", metavar="ID", help="Clients that call themselves so.")
]
ClientDefaults = Annotated[bool, typer.Option("--client-defaults", help="Every client id that has none of its own.")]


@app.command("describe")
def describe(
    user: User = None,
    user_defaults: UserDefaults = False,
    client_id: ClientId = None,
    client_defaults: ClientDefaults = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show quotas, all or those of some, and who has to wait at the moment."""
    import sys

    from sparklog.security.quotas import Entity

    wanted = _entity(user, client_id, user_defaults=user_defaults, client_defaults=client_defaults)
    with open_admin(bootstrap_servers) as admin:
        found = admin.describe_client_quotas()
    shown = {
        entity: quotas
        for entity, quotas in found.quotas.items()
        if wanted == Entity() or all(w in (None, e) for w, e in zip(wanted, entity, strict=True))
    }
    if not shown:
        print("no such quotas", file=sys.stderr)
        return
    from sparklog.cli import console

    table = console.table("user", "client id", "quota", "limit", right=("limit",))
    for entity in sorted(shown, key=lambda e: (e.user or "", e.client_id or "")):
        for name, limit in sorted(shown[entity].items()):
            table.add_row(_name(entity.user), _name(entity.client_id), name, f"{limit:g}")
    console.stdout().print(table)
    for group in found.throttled:
        who = ", ".join(
            f"{what} {name}" for what, name in (("user", group.user), ("client", group.client_id)) if name is not None
        )
        print(f"{who} has to wait for {group.throttle_ms} ms more ({group.quota})")


@app.command("alter")
def alter(
    user: User = None,
    user_defaults: UserDefaults = False,
    client_id: ClientId = None,
    client_defaults: ClientDefaults = False,
    add_config: Annotated[
        list[str] | None,
        typer.Option("--add-config", "--add", metavar="QUOTA=LIMIT,…", help="Set these; repeatable."),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", "--delete", metavar="QUOTA,…", help="Take these away; repeatable."),
    ] = None,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set quotas, or take them away."""
    from sparklog.security.quota_records import parse_key
    from sparklog.security.quotas import Entity

    entity = _entity(user, client_id, user_defaults=user_defaults, client_defaults=client_defaults)
    if entity == Entity():
        raise typer.BadParameter("name whose: --user, --user-defaults, --client-id or --client-defaults")
    added = [pair for text in add_config or [] for pair in parse_list(text)]
    changes: dict[str, float | None] = {
        parse_key(name): _limit(name, value) for name, value in parse_pairs(added, "--add-config").items()
    }
    changes |= {parse_key(name): None for text in delete_config or [] for name in parse_list(text)}
    if not changes:
        raise typer.BadParameter("say what: --add-config QUOTA=LIMIT or --delete-config QUOTA")
    with open_admin(bootstrap_servers) as admin:
        now = admin.alter_client_quotas(entity, changes)
    print(", ".join(f"{name}={limit:g}" for name, limit in sorted(now.items())) or "no quotas any more")


def _entity(user: str | None, client_id: str | None, *, user_defaults: bool, client_defaults: bool) -> Entity:
    """Raises typer.BadParameter for a name and the default at once."""
    from sparklog.security.quotas import DEFAULT, Entity

    if (user is not None and user_defaults) or (client_id is not None and client_defaults):
        raise typer.BadParameter("a name and the default cannot both be meant")
    if user == "" or client_id == "":
        raise typer.BadParameter("a name is not empty; the default is --user-defaults or --client-defaults")
    return Entity(DEFAULT if user_defaults else user, DEFAULT if client_defaults else client_id)


def _limit(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as e:
        raise typer.BadParameter(f"{name}={text}: a number is needed") from e


def _name(name: str | None) -> str:
    return "-" if name is None else name or "(default)"
