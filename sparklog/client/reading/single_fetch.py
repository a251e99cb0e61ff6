"""One fetch of one partition from its leader."""

from __future__ import annotations

import pyarrow as pa

from sparklog.client.net.answers import single
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.leader_questions import LedGroup, until_led
from sparklog.client.net.retry import Attempts
from sparklog.errors import InvalidRequestError, SparklogError, error_from_code
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import FetchPartition, FetchRequest, FetchResponse, FetchResult
from sparklog.types import TopicPartition


def fetch_once(
    cluster: Cluster, tp: TopicPartition, offset: int, max_bytes: int, isolation: int, attempts: Attempts
) -> tuple[FetchResult, pa.Buffer]:
    """Return the data from `offset` on, at most `max_bytes` or one batch, without waiting for more.

    Raises the partition's error, InvalidRequestError for a malformed answer, and the errors of `until_led`.
    """
    request = FetchRequest(0, 0, max_bytes, isolation, [FetchPartition(*tp, offset, max_bytes)])

    def ask(group: LedGroup) -> dict[TopicPartition, tuple[FetchResult, pa.Buffer] | SparklogError]:
        with cluster.connection(group.leader, purpose="range", timeout_ms=group.timeout_ms) as connection:
            response, payload = connection.request(Api.FETCH, request, FetchResponse, timeout_ms=group.timeout_ms)
            result = single(response.results, "partition")
            if result.length_bytes != payload.size:
                connection.close()
                raise InvalidRequestError(f"the answer to a fetch of {tp} does not have the announced length")
        return {tp: error_from_code(result.error_code, result.message) if result.error_code else (result, payload)}

    return until_led(cluster, [tp], ask, attempts)[tp]
