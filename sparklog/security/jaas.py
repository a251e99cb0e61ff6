"""Parser of `sasl.jaas.config`, which Kafka's clients use, into our settings.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="…";

The text is one login module, a control flag, options and a semicolon. The package of the module's class does not
matter, because shaded copies of Kafka's client have other packages. No error quotes a value, which could be a password
at the wrong place.
"""

from __future__ import annotations

import re

from sparklog.errors import InvalidConfigError
from sparklog.security.secrets import Secret

JAAS_CHARS_MAX = 65_536

_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
_SPACE = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*|/\*.*?\*/)*", re.DOTALL)
_TOKEN = re.compile(r'"((?:\\.|[^"\\])*)"|\'((?:\\.|[^\'\\])*)\'|([^\s"\';=]+)|([;=])', re.DOTALL)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
"""The escapes of Java's StreamTokenizer, with which Kafka's clients read this setting."""
_MECHANISMS = {
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "PlainLoginModule": ("PLAIN",),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}
_OPTIONS = {
    "ScramLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "PlainLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "OAuthBearerLoginModule": {
        "clientId": "sasl.oauthbearer.client.id",
        "clientSecret": "sasl.oauthbearer.client.secret",
        "scope": "sasl.oauthbearer.scope",
    },
}
_REQUIRED = {
    "ScramLoginModule": ("username", "password"),
    "PlainLoginModule": ("username", "password"),
    "OAuthBearerLoginModule": (),
}


def parse_jaas(text: str, mechanism: str) -> dict[str, Secret]:
    """Return the settings in a `sasl.jaas.config`, under our names: `sasl.username` and `sasl.password`, or for
    OAUTHBEARER `sasl.oauthbearer.client.id`, `.client.secret` and `.scope`.

    Raises InvalidConfigError if the text cannot be read, its module is unknown or not for `mechanism`, or options are
    missing or unknown.
    """
    if len(text) > JAAS_CHARS_MAX:
        raise _wrong(f"{len(text)} characters, at most {JAAS_CHARS_MAX} are allowed")
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != (";", True):
        raise _wrong('write MODULE required option="value" …; and end it with a semicolon')
    module = tokens[0][0].rpartition(".")[2]
    if module not in _MECHANISMS:
        raise _wrong(f"the login module is not supported: use {', '.join(_MECHANISMS)}")
    if mechanism not in _MECHANISMS[module]:
        raise _wrong(f"{module} is for {' and '.join(_MECHANISMS[module])}, but sasl.mechanism is {mechanism!r}")
    if tokens[1][0].lower() not in _FLAGS:
        raise _wrong(f"after {module} comes one of {', '.join(sorted(_FLAGS))}")
    return _settings(module, _options(tokens[2:-1]))


def _tokens(text: str) -> list[tuple[str, bool]]:
    """Return the tokens of the text, each with True if it is a punctuation mark outside quotation marks."""
    tokens: list[tuple[str, bool]] = []
    at = _end_of_space(text, 0)
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _wrong(f"a quotation mark at character {at + 1} has no partner")
        quoted = match[1] if match[1] is not None else match[2]
        word = _ESCAPE.sub(_unescape, quoted) if quoted is not None else match[3] or match[4]
        tokens.append((word, match[4] is not None))
        at = _end_of_space(text, match.end())
    return tokens


def _unescape(match: re.Match[str]) -> str:
    """Return the character that an escape stands for: an octal number, a letter for a control character, or the
    character itself."""
    text = match[1]
    return chr(int(text, 8)) if text[0] in "01234567" else _ESCAPED.get(text, text)


def _end_of_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _options(tokens: list[tuple[str, bool]]) -> dict[str, str]:
    options: dict[str, str] = {}
    for i in range(0, len(tokens), 3):
        triple = tokens[i : i + 3]
        if [mark for _, mark in triple] != [False, True, False] or triple[1][0] != "=":
            raise _wrong(f'option {i // 3 + 1} is not of the form name="value"; only one login module can be given')
        options[triple[0][0]] = triple[2][0]
    return options


def _settings(module: str, options: dict[str, str]) -> dict[str, Secret]:
    names = _OPTIONS[module]
    extras = {name for name, value in options.items() if name == "tokenauth" and value.lower() == "false"}
    unknown = options.keys() - names.keys() - extras
    if unknown:
        raise _wrong(f"{len(unknown)} options of {module} are not supported; it has {', '.join(names)}")
    missing = [name for name in _REQUIRED[module] if not options.get(name)]
    if missing:
        raise _wrong(f"{module} needs {' and '.join(missing)}")
    return {names[name]: Secret(value) for name, value in options.items() if name in names}


def _wrong(fault: str) -> InvalidConfigError:
    return InvalidConfigError(f"sasl.jaas.config: {fault}")
