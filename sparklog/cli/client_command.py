"""`--command-config FILE`: the connection settings of every command that connects to brokers.

The file has the format of Java properties, as for Kafka's tools: `security.protocol`, `sasl.*`, `ssl.*`, and
`bootstrap.servers`, the default of `--bootstrap-servers`. Passwords belong in the file and not in options, because
every user of a machine can list the options of its processes.

`ClientCommand` adds the option to each command with `--bootstrap-servers`, so that no command lacks it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sparklog.cli.kafka_options import meant_for

if TYPE_CHECKING:
    from typer.models import TyperInfo

    from sparklog.security.client_security import ClientFile, ClientSecurity, SecuritySettings

ENV_COMMAND_CONFIG = "SPARKLOG_COMMAND_CONFIG"
BOOTSTRAP_PARAMETER = "bootstrap_servers"
ENV_BOOTSTRAP = "SPARKLOG_BOOTSTRAP_SERVERS"
_file: ClientFile | None = None
_profile: str | None = None


def client_security() -> ClientSecurity | None:
    """Return the resolved connection settings of this command; None if no option, profile or environment variable
    names a file. Raises InvalidConfigError."""
    return None if _file is None else _file.security.resolve()


def client_settings() -> SecuritySettings | None:
    """Return the connection settings of this command as the file has them; None if no file is named."""
    return None if _file is None else _file.security


def set_profile(name: str | None) -> None:
    """Select the settings file of a profile for this process; None selects none. Raises InvalidConfigError."""
    global _profile
    from sparklog.security.profiles import profile

    _profile = profile(name) if name else None


def _read(ctx: typer.Context, path: str | None) -> None:
    """Read the settings file: of the command line, else of the profile, else of the environment variable."""
    global _file
    _file = None
    source = ctx.get_parameter_source("command_config")
    if _profile is not None and getattr(source, "name", "") != "COMMANDLINE":
        path = _profile
    elif getattr(source, "name", "") == "COMMANDLINE":
        set_profile(None)
    if path:
        from sparklog.security.client_security import read_client_file

        _file = read_client_file(path)


def default_address(ctx: Any) -> str | None:
    """Return the brokers' addresses from the first source that has them: `--bootstrap-servers`, the profile, the
    environment variable, the settings file, the default.
    """
    address: str | None = ctx.params[BOOTSTRAP_PARAMETER]
    source = ctx.get_parameter_source(BOOTSTRAP_PARAMETER)
    weaker = ("DEFAULT", "DEFAULT_MAP") if _profile is None else ("DEFAULT", "DEFAULT_MAP", "ENVIRONMENT")
    if _file is not None and _file.bootstrap_servers and getattr(source, "name", "") in weaker:
        return _file.bootstrap_servers
    return address


class CommandGroup(TyperGroup):
    """A group whose error for an unknown command names the commands that begin with the typed word. Typer itself names
    only commands of similar spelling."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as e:
            longer = [repr(name) for name in self.commands if args[0] and name.startswith(args[0])]
            message = getattr(e, "message", "")  # typer's own copy of click does not export UsageError
            if longer and "Did you mean" not in message:
                e.message = f"{message} Did you mean {', '.join(longer)}?"  # type: ignore[attr-defined]
            raise


class ClientCommand(TyperCommand):
    """A command that gets the option `--command-config` in addition to `--bootstrap-servers`, if it has the latter."""

    def __init__(self, *args: Any, params: list[Any] | None = None, **kwargs: Any) -> None:
        params = list(params or [])
        where = next((i for i, p in enumerate(params) if p.name == BOOTSTRAP_PARAMETER), None)
        if where is not None:
            params.insert(where + 1, _command_config())
        super().__init__(*args, params=params, **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options. The error for an option of Kafka's tools names the equivalent option of this command."""
        try:
            return super().parse_args(ctx, args)
        except Exception as e:
            if not hasattr(e, "option_name"):  # typer's own copy of click does not export NoSuchOption
                raise
            names = [name for parameter in self.params for name in parameter.opts]
            meant = meant_for(ctx.command_path.partition(" ")[2], e.option_name, names)
            if not meant:
                raise
            raise typer.BadParameter(f"no option {e.option_name}: {meant}", ctx) from None

    def invoke(self, ctx: Any) -> Any:
        if BOOTSTRAP_PARAMETER in ctx.params:
            ctx.params[BOOTSTRAP_PARAMETER] = default_address(ctx)
        return super().invoke(ctx)


@functools.cache
def _command_config() -> Any:
    """Return click's object of the option `--command-config`, taken from a Typer command with only this option."""
    probe = typer.Typer(add_completion=False)

    @probe.command()
    def command(
        command_config: Annotated[
            str | None,
            typer.Option(
                "--command-config",
                envvar=ENV_COMMAND_CONFIG,
                metavar="FILE",
                help="A file of client settings, as for Kafka's tools (`sparklog config client`).",
                callback=_read,
                expose_value=False,
            ),
        ] = None,
    ) -> None:
        """Declare the option `--command-config`; the function itself is never called."""

    return next(p for p in typer.main.get_command(probe).params if p.name == "command_config")


def secure_commands(app: typer.Typer) -> None:
    """Add `--command-config` to the client commands of `app` and of its groups, and better errors to the groups."""
    app.info.cls = CommandGroup
    for command in app.registered_commands:
        command.cls = ClientCommand
    group: TyperInfo
    for group in app.registered_groups:
        if group.typer_instance is not None:
            secure_commands(group.typer_instance)
