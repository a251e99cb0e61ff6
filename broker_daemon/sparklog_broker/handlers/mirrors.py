"""REPORT_MIRRORS and DESCRIBE_MIRRORS: the progress of mirrored topics."""

from __future__ import annotations

from sparklog.protocol.mirror_messages import (
    DescribeMirrorsRequest,
    DescribeMirrorsResponse,
    ReportMirrorsRequest,
    ReportMirrorsResponse,
)
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def report_mirrors(request: ReportMirrorsRequest, payload: memoryview, context: RequestContext) -> Response:
    """Store the reports of a mirror worker."""
    context.broker.mirrors.report(request)
    return Response(ReportMirrorsResponse())


async def describe_mirrors(request: DescribeMirrorsRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with the newest reports about the requested topics."""
    return Response(DescribeMirrorsResponse(context.broker.mirrors.states(request.topics)))
