r"""Mapping of certificates' names to principals: `ssl.principal.mapping.rules` (KIP-371).

A certificate's subject is written as an X.500 name (RFC 2253, Java's `X500Principal.getName()`), with the last
attribute first: `CN=alice,OU=data,O=Example`. The rules are tried in their order, and the first rule that matches the
whole name gives the user's name:

- `DEFAULT`: the X.500 name, unchanged.
- `RULE:pattern/replacement/`, optionally followed by `L` or `U`: the replacement, in which `$1`, `$2`, … are the groups
  of the pattern. `L` changes the result to lower case, `U` to upper case. A slash in the pattern is written `\/`.

Patterns are Java's regular expressions (`java_patterns`). A construct that has another meaning in Python is refused,
because it could accept a peer under a wrong name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError
from sparklog.java_patterns import compile_java, matches_in_time
from sparklog.security.optional import require
from sparklog.security.principals import NAME_CHARS_MAX, Principal, user

if TYPE_CHECKING:
    from cryptography.x509 import NameAttribute

SETTING = "ssl.principal.mapping.rules"
RULES_CHARS_MAX = 16_384
_ESCAPED = ',=+<>#;"\\'
_KEYWORDS = frozenset({"CN", "C", "L", "ST", "O", "OU", "STREET", "DC", "UID"})
"""Attribute types with a keyword in RFC 2253. Other types are written as their numbers (OID)."""
_REFERENCE = re.compile(r"\\(.)|\$\{([a-zA-Z][a-zA-Z0-9]*)\}|\$(\d+)|(.)", re.DOTALL)


class MappingRule(NamedTuple):
    """One rule. `text`: the rule as it is written. `pattern` None: the rule is DEFAULT. `pieces`: the replacement's
    literal texts and group numbers."""

    text: str
    pattern: Any = None
    pieces: tuple[str | int, ...] = ()
    change_case: Callable[[str], str] = str

    def apply(self, name: str) -> str | None:
        """Return the mapped name; None if the rule does not match the whole of `name`. Raises InvalidConfigError if the
        change of case would make two different names equal, as it makes a dotless i the same as I."""
        if self.pattern is None:
            return name
        if matches_in_time(self.pattern.fullmatch, name, SETTING) is None:
            return None
        mapped = matches_in_time(partial(self.pattern.sub, self._replacement), name, SETTING)
        changed = self.change_case(mapped)
        if changed.upper() != mapped.upper() or changed.lower() != mapped.lower():
            raise InvalidConfigError(f"{mapped!r} has letters that change in {changed!r}")
        return changed

    def _replacement(self, match: Any) -> str:
        return "".join(piece if isinstance(piece, str) else match[piece] or "" for piece in self.pieces)


def parse_mapping_rules(text: str) -> tuple[MappingRule, ...]:
    """Parse `ssl.principal.mapping.rules`; an empty text is DEFAULT. Raises InvalidConfigError, which quotes the
    rule."""
    if len(text) > RULES_CHARS_MAX:
        raise InvalidConfigError(f"ssl.principal.mapping.rules: {len(text)} characters, at most {RULES_CHARS_MAX}")
    rules = []
    at = 0
    while at < len(text):
        if text[at] in " \t\r\n,":
            at += 1
            continue
        rule, at = _parse_rule(text, at)
        rules.append(rule)
    return tuple(rules) or (MappingRule("DEFAULT"),)


def _parse_rule(text: str, at: int) -> tuple[MappingRule, int]:
    """Return the rule at position `at`, and the position after it."""
    if text.startswith("DEFAULT", at):
        rule, end = MappingRule("DEFAULT"), at + len("DEFAULT")
    elif text.startswith("RULE:", at):
        pattern, middle = _until_slash(text, at + len("RULE:"))
        replacement, end = _until_slash(text, middle)
        case = text[end] if end < len(text) and text[end] in "LU" else ""
        end += len(case)
        compiled = compile_java(pattern, SETTING)
        change: Callable[[str], str] = {"L": str.lower, "U": str.upper}.get(case, str)
        rule = MappingRule(text[at:end], compiled, _pieces(replacement, compiled), change)
    else:
        raise InvalidConfigError(f"ssl.principal.mapping.rules: {text[at:]!r} is neither RULE:…/…/[LU] nor DEFAULT")
    rest = text[end:].lstrip()
    if rest and not rest.startswith(","):
        raise InvalidConfigError(f"ssl.principal.mapping.rules: {rest!r} after {rule.text!r}; a comma ends a rule")
    return rule, len(text) - len(rest)


def _until_slash(text: str, at: int) -> tuple[str, int]:
    """Return the text from `at` to the next slash without a backslash, and the position after that slash."""
    end = at
    while end < len(text) and text[end] != "/":
        end += 2 if text[end] == "\\" else 1
    if end >= len(text):
        raise InvalidConfigError(f"ssl.principal.mapping.rules: no slash ends {text[at:]!r}")
    return text[at:end], end + 1


def _pieces(replacement: str, pattern: Any) -> tuple[str | int, ...]:
    """Return the replacement's literal texts and group numbers. If a number exceeds the number of groups, its last
    digits count as literal text, as in Java; without any fitting number, all of it is literal."""
    pieces: list[str | int] = []
    for escaped, name, digits, plain in _REFERENCE.findall(replacement):
        if name:
            if name not in pattern.groupindex:
                raise InvalidConfigError(f"ssl.principal.mapping.rules: no group {name!r} in {pattern.pattern!r}")
            pieces.append(pattern.groupindex[name])
        elif digits:
            used = len(digits)
            while used > 1 and int(digits[:used]) > pattern.groups:
                used -= 1
            is_group = int(digits[:used]) <= pattern.groups
            pieces += [int(digits[:used]), digits[used:]] if is_group else [f"${digits}"]
        else:
            pieces.append(escaped or plain)
    return tuple(pieces)


def map_name(rules: tuple[MappingRule, ...], name: str) -> Principal:
    """Return the principal of a certificate with the subject `name` (RFC 2253). Raises SaslAuthenticationFailedError if
    no rule matches, or the mapped name is no valid user name."""
    try:
        mapped = (
            next((m for rule in rules if (m := rule.apply(name)) is not None), None)
            if len(name) <= NAME_CHARS_MAX
            else None
        )
        if mapped is not None:
            return user(mapped)
    except InvalidConfigError as e:
        raise SaslAuthenticationFailedError(
            f"the certificate's name {name[:200]!r} gives no valid principal: {e}"
        ) from e
    raise SaslAuthenticationFailedError(
        f"no rule of ssl.principal.mapping.rules matches the certificate's name {name[:200]!r}"
    )


def certificate_name(der: bytes) -> str:
    """Return the subject of a certificate (DER bytes) as an X.500 name (RFC 2253), the last attribute first. Raises
    SaslAuthenticationFailedError if the certificate or its subject cannot be read, although TLS has accepted it."""
    x509 = require("cryptography.x509", "a principal from a certificate")
    try:
        subject = x509.load_der_x509_certificate(der).subject
        return ",".join("+".join(_attribute(a) for a in rdn) for rdn in reversed(subject.rdns))
    except (ValueError, TypeError) as e:
        raise SaslAuthenticationFailedError(f"the certificate's name cannot be read: {e}") from None


def certificate_expiry_ms(der: bytes) -> int:
    """Return the end of a certificate's validity in ms since 1970. `der`: the certificate. Raises
    SaslAuthenticationFailedError if the certificate cannot be read, although TLS has accepted it."""
    x509 = require("cryptography.x509", "the end of a certificate")
    try:
        return int(x509.load_der_x509_certificate(der).not_valid_after_utc.timestamp() * 1000)
    except (ValueError, OverflowError) as e:
        raise SaslAuthenticationFailedError(f"the certificate's end cannot be read: {e}") from None


def _attribute(attribute: NameAttribute[str] | NameAttribute[bytes]) -> str:
    keyword = attribute.rfc4514_attribute_name
    if keyword in _KEYWORDS and isinstance(attribute.value, str):
        return f"{keyword}={_escape(attribute.value)}"
    from cryptography.x509 import Name

    return f"{attribute.oid.dotted_string}=#{_der_value(Name([attribute]).public_bytes()).hex()}"


def _escape(value: str) -> str:
    escaped = "".join(rf"\{c}" if c in _ESCAPED else r"\00" if c == "\0" else c for c in value)
    stripped = escaped.strip(" ")
    if not stripped:
        return r"\ " * len(escaped)
    lead, trail = len(escaped) - len(escaped.lstrip(" ")), len(escaped) - len(escaped.rstrip(" "))
    return r"\ " * lead + stripped + r"\ " * trail


def _der_value(name: bytes) -> bytes:
    """Return the value of the only attribute in a DER name, with the value's tag. The name has the form SEQUENCE { SET
    { SEQUENCE { type, value } } }."""
    for _ in range(3):
        name = name[_der_header_bytes(name) :]
    return name[_der_header_bytes(name) + name[1] :]


def _der_header_bytes(der: bytes) -> int:
    return 2 if der[1] < 0x80 else 2 + (der[1] & 0x7F)
