"""Version of each API on a connection: the newest version that both sides have.

A broker's answer to HANDSHAKE lists its versions (as ApiVersions does in Kafka's KIP-35); this is the one round trip of
the negotiation. HANDSHAKE itself is sent in a version that every broker has. A broker that does not have the version of
a request answers UNSUPPORTED_VERSION with its versions, and closes the connection. After a HANDSHAKE, it accepts
another HANDSHAKE on the same connection instead (KIP-511).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from sparklog.errors import InvalidRequestError, SparklogError, UnsupportedApiError, UnsupportedVersionError
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.codec import older_version
from sparklog.protocol.messages import ApiRange

OLDEST, NEWEST = 0, 1
RANGES_CACHED_MAX = 16


class Version(NamedTuple):
    """Version of a request. `older`: the same number if this side has a newer version, so that fields are left out;
    otherwise None."""

    number: int
    older: int | None


Ranges = tuple[tuple[int, int, int], ...]
"""(API number, oldest version, newest version) of each API."""


class SpokenVersions:
    """The versions of each API that both sides of a connection have. Immutable."""

    def __init__(self, apis: Iterable[ApiRange], broker: str) -> None:
        """Compute the common versions. `apis`: the list in the broker's HANDSHAKE answer; `broker`: the broker's name
        in errors. Raises InvalidRequestError if an API is listed twice, or with a newest version below the oldest."""
        self._broker = broker
        try:
            self._peer_ranges, self._common = _agree(tuple((r.api, r.version_min, r.version_max) for r in apis))
        except ValueError as e:
            raise InvalidRequestError(f"the response of {broker} cannot be read: {e}") from e

    def version_of(self, api: Api) -> Version:
        """Return the version in which to send a request. Raises UnsupportedApiError if the broker does not have the
        API, or UnsupportedVersionError if there is no common version."""
        version = self._common.get(api)
        if version is None:
            raise self.no_common_version(api, self._peer_ranges.get(api))
        return version

    def no_common_version(self, api: Api, theirs: tuple[int, int] | None) -> SparklogError:
        """Return an error that names the versions of both sides and the side to upgrade. `theirs`: the broker's oldest
        and newest version of the API; None: it does not have the API."""
        spec = APIS[api]
        ours = f"this client has {_versions_text((spec.version_min, spec.version_max))}"
        if theirs is None:
            return UnsupportedApiError(
                f"{self._broker} does not have the API {api.name}, {ours} of it: upgrade the broker"
            )
        if theirs[NEWEST] < spec.version_min:
            remedy = "upgrade the broker"
        elif theirs[OLDEST] > spec.version_max:
            remedy = "upgrade the client"
        else:
            remedy = "it refuses a version that it announces: see the broker's log"
        return UnsupportedVersionError(
            f"{self._broker} has {_versions_text(theirs)} of {api.name}, {ours}: {remedy}", supported=theirs
        )


@lru_cache(maxsize=RANGES_CACHED_MAX)
def _agree(ranges: Ranges) -> tuple[dict[int, tuple[int, int]], dict[Api, Version]]:
    """Return the broker's versions and the newest common version, each by API. The results are cached, because the
    brokers of one release send the same list on each connection. Raises ValueError as `SpokenVersions` raises
    InvalidRequestError."""
    theirs: dict[int, tuple[int, int]] = {}
    for number, oldest, newest in ranges:
        if oldest > newest or number in theirs:
            raise ValueError(f"its list of APIs names API {number} twice, or with versions {oldest} to {newest}")
        theirs[number] = (oldest, newest)
    common: dict[Api, Version] = {}
    for api, spec in APIS.items():
        if api in theirs:
            version = min(spec.version_max, theirs[api][NEWEST])
            if version >= max(spec.version_min, theirs[api][OLDEST]):
                common[api] = Version(version, older_version(api, version))
    return theirs, common


def _versions_text(versions: tuple[int, int]) -> str:
    oldest, newest = versions
    return f"version {oldest}" if oldest == newest else f"versions {oldest} to {newest}"


_HANDSHAKE = APIS[Api.HANDSHAKE]
HANDSHAKE_ONLY = SpokenVersions(
    [ApiRange(Api.HANDSHAKE, _HANDSHAKE.version_min, _HANDSHAKE.version_min)], "the broker before its handshake"
)
"""The versions of a connection before the broker has answered the HANDSHAKE: the one version of HANDSHAKE."""
