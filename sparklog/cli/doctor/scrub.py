"""Removes secrets from the texts of a debug bundle.

The parts of a bundle hide secrets themselves: `sparklog.security.secrets.is_sensitive` decides about settings, and a
list names the environment variables to show. As a second defence, this module removes from every text the secrets that
the command knows, in every notation, and texts that look like a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from sparklog.security.secrets import HIDDEN, Secret, is_sensitive, redact

SECRET_CHARS_MIN = 4
"""Shortest secret that is removed everywhere. Shorter ones occur in words, and are removed after their names only."""
_NAME = r"pass(?:word|wd|phrase|code)?|secret|token|credentials?|api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key|account[_-]?key|jaas|signature|sig|pwd|salt|stored_key|server_key|auth(?:orization)?"
_SENSITIVE_NAME = re.compile(
    rf"(?:^|[^a-z])(?:[a-z]*(?:password|secret|token|credential)s?|{_NAME})(?:[^a-z]|$)", re.IGNORECASE
)
_ASSIGNED = re.compile(
    rf"(?P<keep>(?<![a-z])[\"']?(?:[\w.-]*[._-])?(?:[a-z]*(?:password|secret)|{_NAME})[\"']?\s*(?:=|:)\s*)"
    r"(?:\"(?:\\.|[^\"\\])*\"?|'[^']*'?|(?:(?:Basic|Bearer|Digest)\s+)?[^\s,;&\"'{}\[\]]+)",
    re.IGNORECASE,
)  # fmt: skip
_OPTION = re.compile(
    r"(?P<keep>(?<!\S)--?(?:[\w.-]*[._-])?(?:password|passphrase|secret|token|credentials?|(?:api|access|account)-key)\s+)"
    r"(?:\"(?:\\.|[^\"\\])*\"?|'[^']*'?|(?!-)\S+)"
)
"""An option of a command line, with its value as the next word."""
_USER_OF_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://([^/\s@\"'<>]+)@", re.IGNORECASE)


def names_secret(name: str) -> bool:
    """Return True if the value of a setting, an environment variable or an option with this name is a secret."""
    return is_sensitive(name) or _SENSITIVE_NAME.search(name) is not None


def secrets_of_environment(environment: Mapping[str, str]) -> list[Secret]:
    """Return the secrets in environment variables: values of sensitive names, and passwords in URLs."""
    texts = []
    for name, value in environment.items():
        if names_secret(name):
            texts.append(value)
        texts += [part for user in _USER_OF_URL.findall(value) for part in _parts_of(user)]
    return [Secret(value) for value in texts if value]


def secrets_of_options(text: str) -> list[Secret]:
    """Return the secrets in the options of an object store: the whole text, and each text value of its JSON."""
    texts = [text.strip()]
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    texts += [str(v) for v in _leaves(options) if isinstance(v, str)]
    return [Secret(value) for value in texts if value]


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in _leaves(inner)]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in _leaves(inner)]
    return [value]


def _parts_of(user: str) -> list[str]:
    password = user.partition(":")[2]
    return [password, unquote(password)]


class Scrubber:
    """Removes known secrets, and texts that look like a secret."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._secrets = [s for s in secrets if len(s.reveal()) >= SECRET_CHARS_MIN]

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        text = redact(text, self._secrets)
        for pattern in (_ASSIGNED, _OPTION):
            text = pattern.sub(lambda m: m["keep"] + HIDDEN, text)
        return text

    def value(self, value: Any, name: str = "") -> Any:
        """Return the value for JSON, without secrets. The value of a sensitive key `name` is replaced as a whole."""
        if isinstance(value, Mapping):
            return {self.text(str(k)): self.value(v, str(k)) for k, v in value.items()}
        if hasattr(value, "_asdict"):
            return self.value(value._asdict(), name)
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(inner, name) for inner in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Secret) or (name and names_secret(name) and str(value)):
            return HIDDEN
        return self.text(str(value))
