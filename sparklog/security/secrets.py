"""Passwords and keys: references to them in a configuration, and protection against leaks.

The value of a setting can have references (KIP-297): `${env:NAME}` to an environment variable, `${file:/path}` to a
file's content without its last line end, `${file:/path:key}` to a value in a file of Java properties. A value with a
resolved reference becomes a `Secret`, and so does the value of every setting with a sensitive name.
"""

from __future__ import annotations

import base64
import hmac
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

from sparklog.environment.files import OddFileError, read_regular
from sparklog.errors import InvalidConfigError

HIDDEN = "[hidden]"
FILE_BYTES_MAX = 1024 * 1024
"""Largest file that is read, in bytes. A truststore of many authorities fits."""
BASE64_CHARS_MIN = 6
"""Smallest number of characters of a secret's Base64 inside longer Base64 that is removed from texts. Shorter ones
occur by chance."""

_REFERENCE = re.compile(r"\$\{([^}:]*):([^}]*)\}")
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_SENSITIVE = re.compile(
    r"password|secret|jaas|token$|credentials$|storage\.options$|(^|\.)ssl\.(keystore\.)?key(\.pem)?$", re.IGNORECASE
)
_SPELLED_OUT = (
    re.compile(
        r"(?P<keep>\b(?:password|clientSecret|secret|token)\s*[=:]\s*)(?:\"(?:\\.|[^\"\\])*\"?|'[^']*'?|[^\s,;]+)",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<keep>\bBearer\s+)[A-Za-z0-9._~+/=-]+"),
    re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]{1,20}://)[^/\s@\"'<>]+(?=@)", re.IGNORECASE),  # the user part of a URL
    re.compile(r"(?P<keep>-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)


class NotTextError(InvalidConfigError):
    """The file exists, but is not text in UTF-8."""


class Secret:
    """A text that only `reveal()` shows. It has no length, cannot be pickled, and no encoder accepts it.

    A comparison takes the same time at whatever character the texts differ.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the text. The caller is responsible for its use."""
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str:
        raise TypeError("a secret cannot be pickled: pass the result of reveal() to its user")


def is_sensitive(name: str) -> bool:
    """Return True if a setting of this name holds a secret, as `ssl.key.password` or `sasl.jaas.config` does. Options
    of an object store count, because they can have its keys."""
    return _SENSITIVE.search(name) is not None


def is_reference(text: str) -> bool:
    """Return True if the value is exactly one reference. Such a value names the place of a secret and does not show the
    secret."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def resolve_secrets(
    settings: Mapping[str, object],
    environment: Mapping[str, str],
    read_file: Callable[[str], str] | None = None,
) -> dict[str, object]:
    """Return `settings` with their references resolved. A value with a resolved reference, or of a sensitive setting,
    is a `Secret`.

    `environment`: the variables for `${env:…}`. `read_file`: returns the text of a path; None: reads the file. Resolved
    texts are not searched for references again. Raises InvalidConfigError, which names setting and reference, never a
    value.
    """
    read = read_file or read_text_file
    return {name: _resolve(name, value, environment, read) for name, value in settings.items()}


def _resolve(name: str, value: object, environment: Mapping[str, str], read: Callable[[str], str]) -> object:
    if not isinstance(value, str):
        return value
    try:
        text = _REFERENCE.sub(lambda m: _look_up(m[1], m[2], environment, read), value)
    except InvalidConfigError as e:
        raise InvalidConfigError(f"{name}: {e}") from None  # a cause could quote the content
    return Secret(text) if text != value or is_sensitive(name) else value


def _look_up(provider: str, where: str, environment: Mapping[str, str], read: Callable[[str], str]) -> str:
    if provider == "env":
        if where not in environment:
            raise InvalidConfigError(f"the environment variable {where!r} is not set")
        return environment[where]
    if provider != "file":
        raise InvalidConfigError(
            f"${{{provider}:…}} is not known: use ${{env:NAME}}, ${{file:/path}} or ${{file:/path:key}}"
        )
    path, colon, key = where.partition(":")
    if not path.startswith("/"):
        raise InvalidConfigError(f"${{file:{where}}}: the path has to begin with a slash")
    text = read(path)
    if not colon:
        return text.removesuffix("\n").removesuffix("\r")
    properties = parse_properties(text)
    if key not in properties:
        raise InvalidConfigError(f"the file {path!r} has no key {key!r}")
    return properties[key]


def read_text_file(path: str) -> str:
    """Return the text of a regular file of at most FILE_BYTES_MAX. Raises InvalidConfigError, which names the path and
    shows nothing of the file; NotTextError if the file is not UTF-8."""
    try:
        content = read_regular(Path(path), FILE_BYTES_MAX)
    except OSError as e:
        raise InvalidConfigError(f"the file {path!r} cannot be read: {e.strerror}") from None
    except OddFileError as e:
        raise InvalidConfigError(str(e)) from None
    except ValueError as e:  # a NUL, or half of a surrogate pair
        raise InvalidConfigError(f"the file {path!r} cannot be read: it is no path ({e})") from None
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise NotTextError(f"the file {path!r} is not text in UTF-8") from None


_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:\r\n|\n|\r)[ \t\f]*")
_PROPERTY = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Parse a file of Java properties: `key=value`, `key: value` or `key value`, comments with # or !, and escapes with
    a backslash.

    If a key occurs several times, the last value counts, as in Java.
    """
    properties = {}
    for raw in re.split(r"\r\n|\n|\r", _CONTINUED.sub(r"\1", text)):
        line = raw.lstrip(" \t\f")
        if line and line[0] not in "#!" and (match := _PROPERTY.fullmatch(line)):
            properties[_unescape(match[1])] = _unescape(match[2])
    return properties


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else _ESCAPED.get(m[1], m[1]), text)


def redact(text: str, secrets: Iterable[Secret] = ()) -> str:
    """Return `text` with HIDDEN in place of secrets. `secrets` are found in all usual notations. Texts that look like
    secrets are replaced, too: `password=…`, `Bearer …`, the user part of a URL, a PEM private key."""
    for pattern in _SPELLED_OUT:
        text = pattern.sub(lambda m: m["keep"] + HIDDEN, text)
    written = {form for secret in secrets if secret for form in _forms(secret.reveal())}
    for form in sorted(written, key=len, reverse=True):  # one may be part of another
        text = text.replace(form, HIDDEN)
    return text


def _forms(value: str) -> set[str]:
    """Return the notations of a value that are searched for: plain, in Python, in JSON, in HTML, in a URL, in
    hexadecimal digits, and in Base64, also inside longer Base64 as in `Authorization: Basic`. The long lines of a value
    count on their own."""
    quoted = {json.dumps(value, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)}
    forms = {value, repr(value)[1:-1], html.escape(value), *quoted, *(text.replace("/", "\\/") for text in quoted)}
    for url in (quote(value, safe=""), quote(value), quote_plus(value)):
        forms |= {url, _PERCENT.sub(lambda m: m[0].lower(), url)}
    data = value.encode()
    forms |= {data.hex(), data.hex().upper(), *_base64_forms(data)}
    return forms | {line.strip() for line in value.splitlines() if len(line.strip()) > 16}


def _base64_forms(data: bytes) -> Iterator[str]:
    """Yield the Base64 of the data, alone and inside longer data. Inside, the characters at both ends depend on the
    neighbouring bytes, so these forms have only the characters between them."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(data).decode().rstrip("=")
        for before in range(3):
            first, end = -(-before * 8 // 6), (before + len(data)) * 8 // 6
            inner = encode(bytes(before) + data).decode()[first:end]
            if len(inner) >= BASE64_CHARS_MIN:
                yield inner
