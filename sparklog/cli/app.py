"""The tree of all commands, and the exit codes and messages of their errors.

Exit codes: 0 success, 1 failure, 2 wrong usage or wrong broker configuration, 130 interrupt. A `SparklogError` is
printed on stderr as one line with the next step below it; `sparklog --debug …` shows the traceback. Command modules
import their libraries inside the command functions, so that `sparklog --help` starts fast.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from sparklog.cli import (
    backup,
    broker,
    checkpoint,
    cluster,
    conf_broker,
    consume,
    delete_records,
    elect_leaders,
    gateway,
    group,
    lake,
    mirror,
    offsets,
    produce,
    reassign,
    refused,
    schema,
    testing,
    topic,
    transaction,
    unwrap,
    web_console,
)
from sparklog.cli.client_command import secure_commands, set_profile
from sparklog.cli.completion import join_bash_words
from sparklog.cli.doctor import command as doctor
from sparklog.cli.errors import next_step, report
from sparklog.cli.log import command as log
from sparklog.cli.options import Timeout, set_timeout
from sparklog.cli.security import acl, certificate, quota, user
from sparklog.cli.sql import command as sql
from sparklog.cli.top import command as top
from sparklog.environment.streams import abandon_stdout
from sparklog.errors import SparklogError, one_line

_WRITE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EIO)
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_EPILOG = """\
**A first walk** (two terminals):

`sparklog broker`

`sparklog topic create events --partitions 4`

`echo hello | sparklog produce events`

`sparklog consume events`
"""

app = typer.Typer(
    name="sparklog",
    help="A Spark-native streaming log: topics are Arrow files behind a light broker, "
    'and Spark reads and writes them with format("sparklog").',
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(broker.app, name="broker")
app.add_typer(cluster.app, name="cluster")
app.add_typer(certificate.app, name="certificate")
app.add_typer(topic.app, name="topic")
app.command("produce", epilog=produce.EPILOG)(produce.produce)
app.command("consume", epilog=consume.EPILOG)(consume.consume)
app.command("sql", epilog=sql.EPILOG)(sql.sql)
app.command("console", epilog=web_console.EPILOG)(web_console.web_console)
app.add_typer(gateway.app, name="gateway")
app.add_typer(schema.app, name="schema")
app.command("offsets", epilog=offsets.EPILOG)(offsets.offsets)
app.command("delete-records", epilog=delete_records.EPILOG)(delete_records.delete_records)
app.add_typer(reassign.app, name="reassign")
app.command("elect-leaders", epilog=elect_leaders.EPILOG)(elect_leaders.elect_leaders)
app.add_typer(group.app, name="group")
app.command("backup", epilog=backup.BACKUP_EPILOG)(backup.backup)
app.command("restore", epilog=backup.RESTORE_EPILOG)(backup.restore)
app.add_typer(transaction.app, name="transaction")
app.add_typer(lake.app, name="lake")
app.add_typer(mirror.app, name="mirror")
app.add_typer(checkpoint.app, name="checkpoint")
app.command("unwrap", epilog=unwrap.EPILOG)(unwrap.unwrap)
app.add_typer(refused.app, name="refused")
app.add_typer(user.app, name="user")
app.add_typer(acl.app, name="acl")
app.add_typer(quota.app, name="quota")
app.command("top", epilog=top.EPILOG)(top.top)
app.command("doctor", epilog=doctor.EPILOG)(doctor.doctor)
app.add_typer(log.app, name="log")
app.add_typer(testing.app, name="testing")
app.add_typer(conf_broker.app, name="config")
secure_commands(app)

_debug = False


def _version(is_requested: bool) -> None:
    if is_requested:
        from sparklog.version import __version__

        print(f"sparklog {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="SPARKLOG_DEBUG", help="Show the traceback of an error.")
    ] = False,
    timeout: Timeout = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            envvar="SPARKLOG_PROFILE",
            metavar="NAME",
            help="Connect with the bootstrap.servers and security settings of ~/.config/sparklog/NAME.properties.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    global _debug
    _debug = debug
    set_timeout(timeout)
    set_profile(profile)


@functools.cache
def _command() -> Any:
    """Return the tree of all commands, cached: building the tree is most of the work of a short command."""
    return typer.main.get_command(app)


def run_app(arguments: Sequence[str] | None = None) -> int:
    """Run a command line. `arguments`: the words after `sparklog` on the command line; None reads `sys.argv`. Returns
    the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    join_bash_words(os.environ)
    try:
        _command()(words, prog_name="sparklog")
    except SystemExit as e:
        # typer turns a broken pipe and an interrupt into exit status 1
        if isinstance(e.__context__, BrokenPipeError):
            return _close_pipe()
        if _is_interrupt(e):
            return EXIT_INTERRUPTED
        return _flush(e.code if isinstance(e.code, int) else EXIT_FAILED if e.code else 0)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _close_pipe()
    except SparklogError as e:
        if _debug:
            raise
        if isinstance(e.__context__, UnicodeEncodeError) and any(map(_has_raw_bytes, words)):
            return _report_encoding(e.__context__, words)
        notes: list[str] = getattr(e, "__notes__", [])
        report(e.name, "; ".join([str(e), *notes]), next_step(e, _command_words(words)))
        return EXIT_FAILED
    except UnicodeEncodeError as e:
        if _debug:
            raise
        return _report_encoding(e, words)
    except OSError as e:
        if _debug:
            raise
        return _report_failure(e)
    except Exception as e:
        if _debug:
            raise
        report("error", f"{type(e).__name__}: {one_line(str(e))}", "`sparklog --debug …` shows where it comes from")
        return EXIT_FAILED
    return _flush(0)


def _command_words(arguments: Sequence[str]) -> str:
    """Return the words that name the command, such as "topic create"."""
    words, tree = [], _command()
    for word in arguments:
        tree = getattr(tree, "commands", {}).get(word, tree)
        if tree.name == word and word not in words:
            words.append(word)
    return " ".join(words)


def _report_encoding(error: UnicodeEncodeError, arguments: Sequence[str]) -> int:
    is_argument = any(map(_has_raw_bytes, arguments))
    report("error", f"{'an argument' if is_argument else 'a text'} is not UTF-8: {error.object!r}")
    return EXIT_USAGE if is_argument else EXIT_FAILED


def _report_failure(error: OSError) -> int:
    """Print an OSError with its file name, if it has one. Without a file name, the error numbers _WRITE_ERRNOS are
    reported as errors of standard output."""
    fault = error.strerror or str(error) or type(error).__name__
    if isinstance(error.filename, (str, bytes)):
        fault = f"{fault}: {os.fsdecode(error.filename)}"
    elif error.errno in _WRITE_ERRNOS:
        fault = f"standard output cannot be written: {fault}"
    report("error", fault)
    try:
        sys.stdout.flush()
    except OSError:
        abandon_stdout()
    return EXIT_FAILED


def _has_raw_bytes(argument: str) -> bool:
    """True if the text has bytes that are not UTF-8; Python keeps them as surrogates (PEP 383)."""
    return any("\udc80" <= c <= "\udcff" for c in argument)


def _is_interrupt(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _flush(code: int) -> int:
    """Flush stdout before the interpreter exits, so that a closed pipe (0) and a write error (1) get their own exit
    codes. Returns the exit code."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _close_pipe()
    except OSError as e:
        return _report_failure(e)
    return code


def _close_pipe() -> int:
    """Drop the rest of stdout without an error message: the reading process, as in `| head`, has closed the pipe."""
    abandon_stdout()
    return 0
