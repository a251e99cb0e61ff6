"""The confirmation page of a change, and the execution of a confirmed change."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparklog.console.changes import plan_of
from sparklog.console.web import ask, console_of, read_form, redirect, render, require_changes, url
from sparklog.errors import InvalidRequestError


async def confirm(request: Request) -> Response:
    """Return the confirmation page of a change. Executes nothing."""
    require_changes(console_of(request))
    kind, fields = request.path_params["kind"], dict(request.query_params)
    plan = await ask(request, lambda console: plan_of(kind, fields, console.admin))
    return render(request, "confirm.html", plan=plan)


async def perform(request: Request) -> Response:
    console = console_of(request)
    require_changes(console)
    fields = await read_form(request)
    kind = request.path_params["kind"]

    def work() -> tuple[str, str]:
        plan = plan_of(kind, fields, console.admin)
        if plan.typed and fields.get("typed", "") != plan.typed:
            raise InvalidRequestError(f"the typed name is not {plan.typed!r}: nothing has changed")
        return plan.perform(console.admin), plan.after

    done, after = await console.work.run(work)
    console.names.forget()
    note = console.note(done)
    return redirect(request, url(after, note=note) if "?" not in after else f"{after}&note={note}")


routes = [Route("/change/{kind}", confirm), Route("/change/{kind}", perform, methods=["POST"])]
