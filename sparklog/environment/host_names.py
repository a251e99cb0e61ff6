"""A check for host names that no look-up can find."""

from __future__ import annotations

import re
import socket

_ODD_CHARACTER = re.compile(r"[^A-Za-z0-9_.-]")
_CHARACTERS_MAX = 253


def host_refusal(host: str) -> str:
    """Return the reason why no look-up can ever find `host`, an IPv4 address or a name; "" if a look-up can."""
    try:
        ascii_name = host.encode("idna").decode()  # as the look-up of the name will
    except UnicodeError as e:
        return f"between its dots are 1 to 63 characters ({e})"
    odd = _ODD_CHARACTER.search(ascii_name)
    if odd:
        return f"letters, digits, '-', '_' and '.' can be in it, not {odd.group()!r}"
    if len(ascii_name.rstrip(".")) > _CHARACTERS_MAX:
        return f"it has {len(ascii_name)} characters, at most {_CHARACTERS_MAX} are possible"
    labels = ascii_name.removesuffix(".").split(".")
    if any(label.startswith("-") or label.endswith("-") for label in labels):
        return "no part between its dots begins or ends with '-'"
    if labels[-1].isdigit():
        try:
            socket.inet_aton(ascii_name)
        except OSError:
            return "its last part is a number, so it is an IPv4 address, as 127.0.0.1"
    return ""
