"""REPORT_LAKE and DESCRIBE_LAKES: the progress of topics' Delta tables."""

from __future__ import annotations

from sparklog.protocol.lake_messages import (
    DescribeLakesRequest,
    DescribeLakesResponse,
    ReportLakeRequest,
    ReportLakeResponse,
)
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def report_lake(request: ReportLakeRequest, payload: memoryview, context: RequestContext) -> Response:
    """Store the report of a lake worker."""
    context.broker.lakes.report(request)
    return Response(ReportLakeResponse())


async def describe_lakes(request: DescribeLakesRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with the newest reports about the requested topics."""
    return Response(DescribeLakesResponse(context.broker.lakes.states(request.topics)))
