"""The pages of transactions: the list, a single transaction, and hanging transactions."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparklog.console.views.paging import page_of
from sparklog.console.views.transactions import STATES, transaction_row, transaction_rows
from sparklog.console.web import Console, ask, exact_text, is_fragment, one_of, render, text, whole_number
from sparklog.errors import InvalidRequestError

HANGING_PARTITIONS_MAX = 1_000


def _list(console: Console, search: str, state: str, number: int) -> dict[str, Any]:
    transactions = console.admin.list_transactions([] if state == STATES[0] else [state])
    page = page_of(transaction_rows(transactions, console.clock.now_ms(), search), number)
    return {"page": page, "search": search, "state": state, "states": STATES}


async def transactions(request: Request) -> Response:
    query = request.query_params
    search, state = text(query, "q"), one_of(query, "state", STATES)
    number = whole_number(query, "page", 1, 1, 2**31)
    context = await ask(request, lambda console: _list(console, search, state, number))
    return render(request, "transactions_table.html" if is_fragment(request) else "transactions.html", **context)


def _transaction(console: Console, transactional_id: str, number: int) -> dict[str, Any]:
    details = console.admin.describe_transaction(transactional_id)
    assert details.summary is not None  # it was found
    return {
        "details": details,
        "summary": details.summary,
        "row": transaction_row(details.summary, console.clock.now_ms()),
        "page": page_of(details.partitions, number, 200),
    }


async def transaction(request: Request) -> Response:
    transactional_id = exact_text(request.query_params, "id")
    number = whole_number(request.query_params, "page", 1, 1, 100_000)
    context = await ask(request, lambda console: _transaction(console, transactional_id, number))
    return render(request, "transaction.html", **context)


def _hanging_view(console: Console, topic: str) -> dict[str, Any]:
    if not topic:
        return {"topic": "", "found": None}
    if console.admin.describe_topic(topic).partitions > HANGING_PARTITIONS_MAX:
        raise InvalidRequestError(
            f"topic {topic} has more than {HANGING_PARTITIONS_MAX} partitions: `sparklog transaction find-hanging "
            f"--topic {topic}` searches them"
        )
    return {"topic": topic, "found": console.admin.find_hanging_transactions([topic])}


async def hanging(request: Request) -> Response:
    topic = text(request.query_params, "topic")
    return render(request, "hanging.html", **await ask(request, lambda console: _hanging_view(console, topic)))


routes = [
    Route("/transactions", transactions),
    Route("/transaction", transaction),
    Route("/transactions/hanging", hanging),
]
