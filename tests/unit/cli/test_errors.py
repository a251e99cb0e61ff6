"""Every error has a next step, and ends the command with one line."""

from __future__ import annotations

import pytest

from sparklog import errors
from sparklog.cli.app import run_app
from sparklog.cli.errors import HINTS, hint_for, next_step, report
from sparklog.cli.sql.script import parts_of
from sparklog.cli.sql.shell import is_complete
from sparklog.errors import ERRORS, CorruptBatchError, SparklogError


def test_every_error_has_a_next_step() -> None:
    assert set(HINTS) == set(ERRORS.values())
    assert all(HINTS.values())


def test_a_subclass_has_its_base_classs_hint() -> None:
    class WorseError(CorruptBatchError):
        pass

    assert hint_for(WorseError("x")) == HINTS[CorruptBatchError]
    assert hint_for(SparklogError("x")) == ""


def test_without_a_terminal_output_has_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    report("STORAGE_FULL", "the disk is full", "free some space")
    assert capsys.readouterr().err == "STORAGE_FULL: the disk is full\n  next: free some space\n"


def test_the_next_step_is_for_the_case() -> None:
    """It names the topic, group or setting of the message, and repeats no command that the message has."""
    for error, command, step in (
        (errors.UnknownTopicOrPartitionError("no topic 'x': create it with `sparklog topic create x`"), "consume", "`sparklog topic list` shows the topics"),
        (errors.UnknownTopicOrPartitionError("topic 'a b' does not exist"), "", "`sparklog topic list` shows the topics; `sparklog topic create 'a b'` creates one"),
        (errors.TopicAuthorizationFailedError("no right for topic 'x'"), "", HINTS[errors.TopicAuthorizationFailedError].replace("--topic TOPIC", "--topic x")),
        (errors.GroupIdNotFoundError("group 'g' does not exist: `sparklog group list` shows all groups"), "group describe", ""),
        (errors.InvalidConfigError("unknown topic setting 'x': did you mean"), "topic alter", "`sparklog config topic` lists every setting with its bounds"),
        (errors.InvalidConfigError("retention.ms = 'x': a whole number is needed"), "topic alter", "`sparklog config topic` lists every setting with its bounds"),
        (errors.InvalidConfigError("topic 'x' has no Delta table; use 'sparklog lake enable x'"), "lake status", ""),
        (errors.InvalidRequestError("timeout = -1: a number is needed"), "topic list", "`sparklog topic list --help` shows its options and their forms"),
        (errors.InvalidRequestError("timeout = -1: a number is needed"), "", HINTS[errors.InvalidRequestError]),
        (errors.InvalidQueryError('"end" is a keyword. Write:\nSELECT "end"'), "sql", ""),
        (errors.InvalidRequestError("Subject 'x' not found. (HTTP 404)"), "schema show", "`sparklog schema list` shows the subjects and their versions"),
        (errors.InvalidRequestError("Invalid schema: it is no JSON (HTTP 422)"), "schema register", ""),
        (errors.BrokerShuttingDownError("it stops"), "schema list", HINTS[errors.BrokerShuttingDownError]),
        (errors.BrokerNotAvailableError("no connection to the source's broker at a:1"), "mirror promote", "is the source running, and is its address right? `--now` promotes the topics with the records that they have"),
        (errors.TopicAuthorizationFailedError("the mirror's user lacks rights at kafka://a:1: Read on topic 't'"), "mirror create", "ask an operator of the source for `kafka-acls.sh --add --allow-principal User:NAME --operation OPERATION` with `--topic TOPIC` or `--group GROUP`"),
        (errors.RequestTimedOutError("a group is not copied: leave it out ('sparklog topic alter t --config x=')"), "mirror promote", ""),
        (errors.RequestTimedOutError("mirror 'm' has not reached its source. --now promotes the topics"), "mirror promote", ""),
        (errors.LeaderNotAvailableError("t-0 has no leader at the source"), "mirror verify", "is the source running, and is its address right?"),
        (errors.BrokerNotAvailableError("no broker at a:1"), "mirror promote", HINTS[errors.BrokerNotAvailableError]),
        (errors.BrokerNotAvailableError("the schema registry at http://a:1 does not answer"), "mirror create", "is the registry running, and is its address (`--registry`) right?"),
        (errors.InvalidQueryError("syntax error"), "sql", HINTS[errors.InvalidQueryError]),
        (errors.QueryCancelledError("cancelled"), "sql", HINTS[errors.QueryCancelledError]),
    ):  # fmt: skip
        assert next_step(error, command) == step


def test_options_of_kafkas_tools_name_the_one_that_does_their_work(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["consume", "t", "--group", "g"], "this command reads without a group"),
        (["consume", "t", "--from-beginning"], "the first record is the default"),
        (["consume", "t", "--local", "off"], "use --config local.read=off"),
        (["topic", "create", "t", "--bootstrap-server", "h:1"], "use --bootstrap-servers"),
        (["topic", "alter", "t", "--partitions", "3"], "add-partitions"),
        (["elect-leaders", "preferred", "--partition", "0"], "TOPIC:PARTITION"),
        (["group", "reset-offsets", "g", "--by-duration", "PT1H"], "use --to, as in --to -1h"),
        (["topic", "list", "--partitions", "3"], "o such option: --partitions"),
        (["topic", "list", "--profile", "p"], "before the command: sparklog --profile … topic list"),
        (["group", "reset", "g"], "No such command 'reset'. Did you mean 'reset-offsets'?"),
        (["lake", "q"], "No such command 'q'."),
        (["topic", ""], "No such command ''."),
    ):
        assert run_app(arguments) == 2
        shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert said in shown, arguments
        assert "use --partition" not in shown or "t" in arguments


def test_lists_of_tables_and_columns_need_no_semicolon() -> None:
    for line in (
        "SHOW TABLES",
        "show all tables",
        "DESCRIBE",
        "desc trips",
        'describe "orders-eu"',
        "show columns from t",
    ):
        assert is_complete(line), line
        assert parts_of(f"{line}\n.tables\nSELECT 1;\n{line}") == [line, ".tables", "SELECT 1;", line]
    for line in ("DESCRIBE SELECT", "describe from", "SHOW", "SELECT 1", "show tables from"):
        assert not is_complete(line), line
        assert parts_of(f"{line}\nx;") == [f"{line}\nx;"]
