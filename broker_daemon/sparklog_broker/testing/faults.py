"""The table of faults that a test can order, and the faults that are in effect.

| fault | effect on a request of the named APIs |
|---|---|
| `refuse` | the broker answers with the error, and does not carry the request out |
| `slow` | the broker waits before it carries the request out |
| `disconnect` | the broker sends the first bytes of the response, then closes the connection |
| `lose_response` | the broker carries the request out, then closes the connection without a response |
| `full_disk` | every write to the broker's disks fails for lack of space; not about requests |

`times` counts the requests that a fault strikes; 0: all, until the faults are cleared.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from contextlib import suppress

import msgspec
from msgspec import Struct, structs

from sparklog.errors import ERRORS, NAMES, InvalidRequestError, SparklogError
from sparklog.format.decoders import json_decoder
from sparklog.protocol.apis import APIS, Api

COMMITS = (Api.OFFSET_COMMIT, Api.TXN_OFFSET_COMMIT, Api.END_TXN, Api.END_SHARED_TXN)
"""The APIs that the name COMMIT stands for: commits of offsets, and ends of transactions."""
UNTOUCHED = frozenset({Api.HANDSHAKE} | {api for api, spec in APIS.items() if spec.is_among_brokers or spec.is_sasl})
"""APIs without faults: the first requests of a connection, and requests among brokers."""
SECONDS_MAX = 3600.0
FIELDS = {
    "fault": "refuse, slow, disconnect, lose_response or full_disk",
    "api": 'the name of a request, such as "PRODUCE"',
    "error": 'the name of an error, such as "NOT_LEADER"',
    "times": "a whole number of requests, or 0 for all",
    "seconds": f"a number from 0 to {SECONDS_MAX:.0f}",
    "after_bytes": "a whole number of bytes, from 0",
    "advance_ms": "a whole number of ms, from 0",
}
"""The values that the fields of orders take, for messages."""


class _Fault(Struct, forbid_unknown_fields=True, tag_field="fault"):
    """Fields that all faults have."""


class Refuse(_Fault, tag="refuse"):
    """Answer with an error. `error`: its name without the ending Error, such as NOT_LEADER."""

    api: str
    error: str
    times: int = 1


class Slow(_Fault, tag="slow"):
    """Wait before the request is carried out."""

    api: str
    seconds: float
    times: int = 0


class Disconnect(_Fault, tag="disconnect"):
    """Send only the first `after_bytes` bytes of the response."""

    after_bytes: int
    api: str = "FETCH"
    times: int = 1


class LoseResponse(_Fault, tag="lose_response"):
    """Carry the request out, and send no response."""

    api: str
    times: int = 1


class FullDisk(_Fault, tag="full_disk"):
    """Let all writes fail for lack of space."""


RequestFault = Refuse | Slow | Disconnect | LoseResponse
Fault = RequestFault | FullDisk


def parse_fault(body: bytes) -> Fault:
    """Parse the JSON of a fault. Raises InvalidRequestError."""
    try:
        fault: Fault = json_decoder(Fault).decode(body)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise refusal_of(body, e) from e
    if isinstance(fault, FullDisk):
        return fault
    apis_of(fault.api)
    if fault.times < 0:
        raise wrong_field("times", fault.times)
    match fault:
        case Refuse():
            error_of(fault.error)
        case Slow() if not 0 <= fault.seconds <= SECONDS_MAX:
            raise wrong_field("seconds", fault.seconds)
        case Disconnect() if fault.after_bytes < 0:
            raise wrong_field("after_bytes", fault.after_bytes)
    return fault


def wrong_field(name: str, value: object) -> InvalidRequestError:
    """Return the error for the value of an order's field."""
    return InvalidRequestError(f"{name} = {value!r}: {FIELDS[name]} is needed")


def refusal_of(body: bytes, error: Exception) -> InvalidRequestError:
    """Return the error for an order that cannot be decoded. It names the field if its value has the wrong type."""
    place = re.search(r"`\$\.(\w+)`$", str(error))
    if place and place[1] in FIELDS:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # of a number that nothing can hold
            return wrong_field(place[1], msgspec.json.decode(body)[place[1]])
    return InvalidRequestError(f"{body[:200]!r} is no order: {error}")


def apis_of(name: str) -> tuple[Api, ...]:
    """Return the APIs that a fault's name stands for. Raises InvalidRequestError."""
    upper = name.upper()
    if upper == "COMMIT":
        return COMMITS
    api = Api.__members__.get(upper)
    if api is None or api in UNTOUCHED:
        allowed = sorted(["COMMIT", *(a.name for a in Api if a not in UNTOUCHED)])
        hint = _nearest(upper, allowed)
        raise InvalidRequestError(f"api = {name!r}: {hint}the requests that can fail are {', '.join(allowed)}")
    return (api,)


def error_of(name: str) -> SparklogError:
    """Return the error of a name such as NOT_LEADER, or NotLeaderError. Raises InvalidRequestError."""
    codes = {text: code for code, text in NAMES.items() if code in ERRORS}
    words = name.upper() if name.isupper() or "_" in name else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
    stem = words.removesuffix("_ERROR")
    code = codes.get(stem, codes.get(f"{stem}_ERROR"))
    if code is None:
        allowed = sorted(codes)
        raise InvalidRequestError(f"error = {name!r}: {_nearest(words, allowed)}the errors are {', '.join(allowed)}")
    return ERRORS[code](f"{NAMES[code]}, ordered by a test")


def _nearest(name: str, allowed: Iterable[str]) -> str:
    """Return a question for the allowed name that is most like a wrong one; empty without one."""
    return "".join(f"did you mean {text}? " for text in difflib.get_close_matches(name, list(allowed), n=1))


class Faults:
    """The faults in effect. Event-loop thread only, except for `is_disk_full`."""

    def __init__(self) -> None:
        self._of_requests: list[tuple[frozenset[Api], RequestFault]] = []
        self.is_disk_full = False
        """True while writes fail."""

    def add(self, fault: Fault) -> None:
        """Let a fault take effect, after those that were added before."""
        if isinstance(fault, FullDisk):
            self.is_disk_full = True
        else:
            self._of_requests.append((frozenset(apis_of(fault.api)), fault))

    def clear(self) -> None:
        """End all faults."""
        self._of_requests.clear()
        self.is_disk_full = False

    def take(self, api: Api) -> RequestFault | None:
        """Return the first fault for a request of the API, and count the request; None without one."""
        for place, (apis, fault) in enumerate(self._of_requests):
            if api in apis:
                if fault.times == 1:
                    del self._of_requests[place]
                elif fault.times:
                    self._of_requests[place] = (apis, structs.replace(fault, times=fault.times - 1))
                return fault
        return None

    def list(self) -> Iterable[Fault]:
        """Return the faults in effect, with the number of requests that they still strike."""
        return [*(fault for _, fault in self._of_requests), *([FullDisk()] if self.is_disk_full else [])]
