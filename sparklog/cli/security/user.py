"""`sparklog user`: adds, lists and removes users, and sets their passwords."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, open_admin

if TYPE_CHECKING:
    from sparklog.security.secrets import Secret

app = typer.Typer(help="Add, list and remove users with passwords (SASL SCRAM and PLAIN).", no_args_is_help=True)


class Mechanism(StrEnum):
    """SASL mechanisms whose credentials the cluster stores."""

    sha_256 = "SCRAM-SHA-256"
    sha_512 = "SCRAM-SHA-512"


Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name; the principal is User:NAME.")]
Mechanisms = Annotated[
    list[Mechanism] | None,
    typer.Option("--mechanism", help="SCRAM mechanism; repeatable. [default: both]", show_default=False),
]
Iterations = Annotated[
    int, typer.Option(min=4096, max=1_000_000, help="Rounds of hashing: more slow down guesses, and each login.")
]

_PASSWORD = (
    "The command asks for the password without showing it. If stdin is no terminal, its first line is the password."
)


@app.command(
    "add",
    epilog=f"**Examples**\n\n`sparklog user add alice`\n\n`pass show alice | sparklog user add alice`\n\n{_PASSWORD}",
)
def add(
    name: Name,
    mechanism: Mechanisms = None,
    iterations: Iterations = 4096,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Add a user. With an authorizer, the user has only the rights that ACLs give."""
    _check(name)
    password = read_password(name)
    with open_admin(bootstrap_servers) as admin:
        admin.set_user_password(name, password, _mechanism_names(mechanism), iterations=iterations, only_new=True)
    print(f"added user {name}")


@app.command(
    "set-password",
    epilog=f"**Examples**\n\n`sparklog user set-password alice`\n\n{_PASSWORD} "
    "Open sessions continue until they authenticate again (connections.max.reauth.ms).",
)
def set_password(
    name: Name,
    mechanism: Mechanisms = None,
    iterations: Iterations = 4096,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change a user's password."""
    _check(name)
    password = read_password(name)
    with open_admin(bootstrap_servers) as admin:
        admin.set_user_password(name, password, _mechanism_names(mechanism), iterations=iterations, only_existing=True)
    print(f"changed the password of {name}")


@app.command("list", epilog="**Examples**\n\n`sparklog user list`")
def list_users(bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """List the users, with their mechanisms."""
    import sys

    from sparklog.cli import console

    with open_admin(bootstrap_servers) as admin:
        users = admin.describe_users()
    if not users:
        print("no users yet: sparklog user add NAME", file=sys.stderr)
        return
    table = console.table("user", "mechanisms", "iterations")
    for user in users:
        table.add_row(user.name, ", ".join(user.mechanisms), ", ".join(str(i) for i in user.mechanisms.values()))
    console.stdout().print(table)


@app.command("remove", epilog="**Examples**\n\n`sparklog user remove alice`\n\nThe user's connections end at once.")
def remove(name: Name, bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Remove a user. ACLs with the user's name stay."""
    with open_admin(bootstrap_servers) as admin:
        admin.remove_user(name)
    print(f"removed user {name}")


def _check(name: str) -> None:
    """Raise InvalidConfigError for an invalid user name, before the command asks for a password."""
    from sparklog.security.scram import checked_name

    checked_name(name)


def read_password(name: str) -> Secret:
    """Read a password twice from the terminal without echo, or from the first line of stdin if it is no terminal.

    There is no option for passwords, because every user of the machine could see it. Raises typer.BadParameter.
    """
    import getpass
    import sys

    from sparklog.security.secrets import Secret

    if not sys.stdin.isatty():
        password = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
        if not password:
            raise typer.BadParameter("no password on stdin: write it in the first line")
        return Secret(password)
    password = getpass.getpass(f"password of {name}: ")
    if not password:
        raise typer.BadParameter("the password is empty")
    if getpass.getpass("again: ") != password:
        raise typer.BadParameter("the passwords differ")
    return Secret(password)


def _mechanism_names(mechanisms: list[Mechanism] | None) -> list[str]:
    return [m.value for m in mechanisms or Mechanism]
