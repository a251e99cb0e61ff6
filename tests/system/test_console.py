"""The console over HTTP, against a real broker."""

from __future__ import annotations

import html
import io
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

import sparklog
from sparklog.cli.errors import hint_for
from sparklog.console.app import make_app
from sparklog.console.guard import SECURITY_HEADERS
from sparklog.console.web import Options
from sparklog.environment import real_environment
from sparklog.types import TopicPartition
from tests.support.waiting import until
from tests.system.console_browser import console_process
from tests.system.console_client import BASE, HTMX, ORIGIN, fields_of, get
from tests.system.console_links import rows_of
from tests.system.console_world import HOSTILE, LARGE_BYTES, SCRIPT, TRIPS, World, world


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("console") / "data") as made:
        yield made


def client_of(address: str, *, allow_changes: bool) -> TestClient:
    options = Options(address, allow_changes, 5_000)
    return TestClient(make_app(options, real_environment(), hint=hint_for, round_s=0.1), base_url=BASE)


@pytest.fixture(scope="module")
def client(filled: World) -> Iterator[TestClient]:
    """One that may change things."""
    with client_of(filled.address, allow_changes=True) as made:
        yield made


@pytest.fixture(scope="module")
def reader(filled: World) -> Iterator[TestClient]:
    """One that only shows."""
    with client_of(filled.address, allow_changes=False) as made:
        yield made


def linked(page: str, text: str) -> str:
    """Return the target of the link with this text."""
    found = re.search(rf'href="([^"]+)">{text}</a>', page)
    assert found, text
    return html.unescape(found[1])


@pytest.mark.parametrize("path", ["/", "/nowhere", "/topics/nowhere", "/static/console.css", "/topics/trips/export"])
def test_every_answer_has_the_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert {name: headers.get(name) for name in SECURITY_HEADERS} == dict(SECURITY_HEADERS)


def test_a_defect_is_reported_without_its_details(filled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr("sparklog.console.pages.cluster.most_lagging", broken)
    app = make_app(Options(filled.address), real_environment())
    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as made:
        response = made.get("/")
    assert response.status_code == 500
    assert "a secret" not in response.text
    assert response.headers["Content-Security-Policy"] == SECURITY_HEADERS["Content-Security-Policy"]


def test_another_host_or_origin_is_refused(client: TestClient) -> None:
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 421
    fields = fields_of(get(client, "/change/delete-group?group=billing"))
    for headers in ({}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        assert client.post("/change/delete-group", data=fields, headers=headers).status_code == 403
    assert client.put("/", headers=ORIGIN).status_code == 405


@pytest.mark.parametrize("token", ["", "0" * 64, None])
def test_a_form_without_its_token_is_refused(client: TestClient, filled: World, token: str | None) -> None:
    fields = fields_of(get(client, "/change/delete-group?group=billing"))
    right = fields.pop("token")
    wrong = fields if token is None else fields | {"token": token}
    assert client.post("/change/delete-group", data=wrong, headers=ORIGIN).status_code == 403
    client.cookies.clear()  # another browser has the token, but not the session
    assert client.post("/change/delete-group", data=fields | {"token": right}, headers=ORIGIN).status_code == 403
    assert filled.admin.list_group_offsets("billing")


@pytest.mark.parametrize("kind", ["delete-group?group=billing", "abort-transaction?id=shop-stuck"])
def test_a_read_only_console_makes_no_change(reader: TestClient, filled: World, kind: str) -> None:
    assert "--allow-changes" in get(reader, f"/change/{kind}", 403)
    fields = fields_of(get(reader, "/sql")) | {"group": "billing", "id": "shop-stuck"}
    response = reader.post(f"/change/{kind.partition('?')[0]}", data=fields, headers=ORIGIN)
    assert response.status_code == 403
    assert filled.admin.list_group_offsets("billing")
    assert "Reset offsets…" not in get(reader, "/group?id=billing")
    assert "Abort transaction…" not in get(reader, "/transaction?id=shop-stuck")


@pytest.mark.parametrize(
    "path",
    [
        "/topics/hostile/messages",
        "/topics/hostile/message?partition=0&offset=0",
        f"/topics?q={quote(HOSTILE)}",
        f"/topics/hostile/messages?q={quote(SCRIPT)}&columns={quote(SCRIPT)}",
        f"/group?id={quote(SCRIPT)}",
        "/groups",
        f"/sql?q={quote(HOSTILE)}",
        f"/transactions?q={quote(SCRIPT)}",
        f"/change/delete-group?group={quote(HOSTILE)}",
    ],
)
def test_all_values_are_escaped(client: TestClient, path: str) -> None:
    page = get(client, path)
    assert "<script>document" not in page
    assert "<img" not in page


@pytest.mark.parametrize(
    "path", [f"/topics/{quote(SCRIPT)}", f"/transaction?id={quote(SCRIPT)}", f"/change/{quote(SCRIPT)}"]
)
def test_errors_are_escaped(client: TestClient, path: str) -> None:
    page = client.get(path)
    assert page.status_code in (400, 404)
    assert "<script>document" not in page.text


def test_topics(client: TestClient) -> None:
    found = {row[0]: row for row in rows_of(get(client, "/topics"))}
    assert set(found) >= {"trips", "events", "hostile", "large", "orders"}
    assert found["trips"][1:4] == ["typed", "3", str(TRIPS)]
    part = get(client, "/topics?q=RIP", headers=HTMX)
    assert [row[0] for row in rows_of(part)] == ["trips"]
    assert "<html" not in part
    assert "__consumer_offsets" in get(client, "/topics?internal=1")


def test_a_topic_with_its_schemas_and_readers(client: TestClient) -> None:
    page = get(client, "/topics/trips")
    assert ["retention.ms", "86400000000 ms", "topic"] in [row[:3] for row in rows_of(page)]
    assert "added tip double" in re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page))
    assert "sparklog topic list" in get(client, "/topics/nowhere", 404)


def test_pages_of_messages_are_gone_through_both_ways(client: TestClient) -> None:
    shown: list[tuple[str, str]] = []
    page = get(client, "/topics/trips/messages?n=90")
    pages = 1
    while True:
        shown += [(row[0], row[1]) for row in rows_of(page)]
        if ">Older</a>" not in page:
            break
        page = get(client, linked(page, "Older"))
        pages += 1
    assert len(shown) == len(set(shown)) == TRIPS
    assert pages == 6
    times = [row[2] for row in rows_of(get(client, "/topics/trips/messages?n=90"))]
    assert times == sorted(times, reverse=True)
    assert ">Newer</a>" in page


def test_where_messages_begin(client: TestClient) -> None:
    by_offset = rows_of(get(client, "/topics/trips/messages?partition=1&start=offset&value=10&n=5"))
    assert [row[1] for row in by_offset] == ["14", "13", "12", "11", "10"]
    by_time = rows_of(get(client, "/topics/trips/messages?start=time&value=2026-03-01T09:00&n=3"))
    assert [row[2] for row in by_time] == [f"2026-03-01 09:0{m}:00.000Z" for m in (2, 1, 0)]
    columns = get(client, "/topics/trips/messages?start=oldest&n=2&columns=tip,zone")
    assert [row[3:] for row in rows_of(columns)] == [["Museum", "null"], ["Harbour", "null"]]


def test_a_filter_looks_through_everything(client: TestClient) -> None:
    page = get(client, "/topics/trips/messages?q=harb&n=500")
    assert len(rows_of(page)) == TRIPS // 4
    assert f"{TRIPS} looked through" in page
    assert "No record with this text was found." in get(client, "/topics/trips/messages?q=nowhere")


def test_bytes_in_all_modes_and_headers(client: TestClient) -> None:
    page = get(client, "/topics/events/message?partition=0&offset=20")
    assert "Grüße" in page
    assert "abc-123" in page
    assert "c8 c9 ca" in get(client, "/topics/events/message?partition=0&offset=21")
    assert "47 72 c3 bc" in get(client, "/topics/events/message?partition=0&offset=20&mode=hex")
    get(client, "/topics/events/message?partition=0&offset=99", 404)
    get(client, "/topics/events/message?offset=1", 400)


def test_a_large_value_is_cut_and_can_be_saved(client: TestClient) -> None:
    assert len(get(client, "/topics/large/messages")) < 20_000
    assert len(get(client, "/topics/large/message?partition=0&offset=0")) < 100_000
    saved = client.get("/topics/large/value?partition=0&offset=0&column=value")
    assert saved.content == b"x" * LARGE_BYTES
    assert saved.headers["Content-Disposition"].startswith("attachment")
    assert saved.headers["Content-Type"] == "application/octet-stream"


def test_uncommitted_records_are_seen_on_demand(client: TestClient) -> None:
    assert "not committed" not in get(client, "/topics/orders/messages")
    assert "not committed" in get(client, "/topics/orders/messages?uncommitted=1")


def test_the_tail_goes_on_where_it_was(client: TestClient, filled: World) -> None:
    page = get(client, "/topics/hostile/messages?tail=1")
    found = re.search(r'hx-get="(/topics/hostile/tail[^"]+)"', page)
    assert found
    following = html.unescape(found[1])
    assert rows_of(get(client, following)) == []
    with sparklog.Producer(filled.address) as producer:
        producer.send("hostile", value=b"new").result(60)
    come = get(client, following)
    assert [row[-2:] for row in rows_of(come)] == [["new", ""]]
    again = re.search(r'hx-get="([^"]+)"', come)
    assert again
    assert rows_of(get(client, html.unescape(again[1]))) == []


@pytest.mark.parametrize("format", ["csv", "json", "parquet", "arrow"])
def test_an_export_has_all_records(client: TestClient, format: str) -> None:
    response = client.get(f"/topics/trips/export?format={format}&q=Museum")
    assert response.headers["Content-Disposition"].startswith('attachment; filename="trips.')
    if format == "csv":
        rows = len(response.text.splitlines()) - 1
    elif format == "json":
        rows = sum(json.loads(line)["zone"] == "Museum" for line in response.text.splitlines())
    elif format == "parquet":
        rows = pq.read_table(io.BytesIO(response.content)).num_rows
    else:
        rows = pa.ipc.open_file(response.content).read_all().num_rows
    assert rows == TRIPS // 4


def test_how_it_is_stored(client: TestClient, filled: World) -> None:
    segments = rows_of(get(client, "/topics/trips/segments?partition=1"))
    assert segments[0][0] == "0"
    assert segments[0][5].endswith("00000000000000000000.arrow")
    batches = rows_of(get(client, "/topics/trips/batches?partition=1"))
    assert all(row[-1].endswith("right") for row in batches)
    producers = rows_of(get(client, "/topics/orders/producers"))
    assert producers[0][-2:] == ["since offset 0", "shop-stuck"]
    described = filled.admin.describe_batches(TopicPartition("trips", 1), 0)
    assert sum(b.records for b in described) == len(range(1, TRIPS, 3))


def test_the_first_look_at_the_groups_is_waited_for(filled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog.console.watching.GroupWatch.measure", lambda self: None)
    looking = "Still looking at the groups of the cluster"
    with client_of(filled.address, allow_changes=False) as made:
        for path in ("/groups", "/group?id=billing", "/spark", "/topics/trips"):
            assert looking in get(made, path)
        page = get(made, "/groups")
        assert 'hx-trigger="load delay:500ms"' in page  # it asks again by itself
        assert "There are none" not in page
        assert "no groups" not in page
        assert "still looking" in get(made, "/")


def test_groups_and_queries(client: TestClient) -> None:
    def listed() -> dict[str, list[str]]:
        return {row[0]: row for row in rows_of(get(client, "/groups"))}

    until(lambda: "billing" in listed(), "the watch over groups has come round")
    found = listed()
    assert found["live"][1:4] == ["Stable", "consumer", "1"]
    assert SCRIPT in found
    billing = rows_of(get(client, "/group?id=billing&sort=lag"))
    assert [row[1:5] for row in billing] == [
        ["0", "0", "167", "167"],
        ["1", "40", "167", "127"],
        ["2", "80", "166", "86"],
    ]
    assert [row[5] for row in rows_of(get(client, "/group?id=live")) if row[4] == "events"] == ["events: 0, 1"]
    spark = {row[0]: row for row in rows_of(get(client, "/spark"))}
    assert spark["etl"][1:4] == ["CompleteCommit", "17", "17"]
    assert spark["nightly"][1:4] == ["Ongoing", "3", "–"]
    assert "spark-query" in spark
    get(client, "/group?id=nobody", 404)


def test_transactions(client: TestClient) -> None:
    rows = rows_of(get(client, "/transactions?state=Ongoing"))
    assert {row[0] for row in rows} == {"nightly", "shop-stuck"}
    assert rows_of(get(client, "/transaction?id=shop-stuck"))[0][:2] == ["orders", "0"]
    assert "There are none in orders." in get(client, "/transactions/hanging?topic=orders")


def run_sql(client: TestClient, query: str, **fields: str) -> str:
    token = fields_of(get(client, "/sql"))["token"]
    response = client.post("/sql", data={"q": query, "token": token} | fields, headers=ORIGIN | HTMX)
    assert response.status_code == 200, response.text
    return response.text


def test_sql(client: TestClient) -> None:
    page = run_sql(client, "SELECT zone, count(*) FROM trips GROUP BY zone ORDER BY zone")
    assert rows_of(page)[0] == ["Airport", "125"]
    assert "first ones: there are more" in run_sql(client, "FROM range(5000)")
    assert "INVALID_QUERY" in run_sql(client, "SELECT nothing FROM trips")
    assert "INVALID_QUERY" in run_sql(client, "SELECT * FROM read_csv('/etc/passwd')")
    assert "<script>document" not in run_sql(client, "SELECT decode(value) FROM hostile")
    assert client.post("/sql", data={"q": "SELECT 1"}, headers=ORIGIN).status_code == 403
    saved = run_sql(client, "SELECT zone FROM trips LIMIT 2", format="csv")
    assert len(saved.splitlines()) == 3


def test_a_statement_that_takes_too_long_is_cancelled(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog.console.pages.sql.SECONDS_MAX", 0.3)
    page = run_sql(client, "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3")
    assert "QUERY_CANCELLED" in page
    monkeypatch.undo()
    assert "1 row" in run_sql(client, "SELECT 1")


def test_changes_are_confirmed_and_then_done(client: TestClient, filled: World) -> None:
    def do(path: str, **more: str) -> str:
        fields = fields_of(get(client, path)) | more
        response = client.post(path.partition("?")[0], data=fields, headers=ORIGIN)
        assert response.status_code == 200, response.text  # of the page that it leads to
        return response.text

    assert "Created topic made." in do("/change/create-topic?topic=made&partitions=2")
    typed = "topic=made-typed&partitions=1&column1=zone&type1=STRING&column2=at&type2=TIMESTAMP&schema=n+INT&key_columns=zone"
    assert "Created topic made-typed." in do(f"/change/create-topic?{typed}&timestamp_column=at")
    made = filled.admin.describe_topic("made-typed")
    assert (made.schema.names, made.key_columns, made.timestamp_column) == (["zone", "at", "n"], ("zone",), "at")
    assert "has 5 partitions now" in do("/change/add-partitions?topic=made&total=5")
    assert "is now 1000" in do("/change/set-config?topic=made&name=segment.ms&value=1000")
    assert filled.admin.describe_topic("made").configs["segment.ms"] == 1000
    assert "the broker&#39;s value again" in do("/change/set-config?topic=made&name=segment.ms&value=")
    assert "Set 5 offsets" in do("/change/reset-offsets?group=new&topic=made&to=latest")
    assert "Set 3 offsets" in do("/change/reset-offsets?group=spark-query&to=shift&value=-30")
    assert {o.offset for o in filled.admin.list_group_offsets("spark-query").values()} == {70}
    assert "Deleted group new with 5" in do("/change/delete-group?group=new")
    fields = fields_of(get(client, "/change/delete-topic?topic=made"))
    assert client.post("/change/delete-topic", data=fields | {"typed": "mad"}, headers=ORIGIN).status_code == 400
    assert "Deleted topic made." in do("/change/delete-topic?topic=made", typed="made")
    assert "made" not in filled.admin.list_topics()


def test_a_record_is_written_by_hand(client: TestClient, reader: TestClient, filled: World) -> None:
    def write(topic: str, status: int = 200, **fields: str) -> str:
        given = fields_of(get(client, f"/topics/{topic}/produce")) | fields
        response = client.post(f"/topics/{topic}/produce", data=given, headers=ORIGIN)
        assert response.status_code == status, response.text
        return response.text

    filled.admin.create_topic("by-hand", 1)
    filled.admin.create_topic("rows-by-hand", 2, {"zone": pa.string(), "n": pa.int32()})
    page = write("by-hand", key="k", value="Grüße", headers="trace: abc")
    assert "Wrote offset 0 of partition 0." in page
    assert all(text in page for text in ("Grüße", "trace", "abc"))
    assert "Wrote offset 1" in write("by-hand", key="k", value_form="null")
    assert "Wrote offset 0 of partition 1." in write("rows-by-hand", row='{"zone": "Mitte", "n": 3}', partition="1")
    assert sparklog.read_table(filled.address, "rows-by-hand", columns=["zone", "n"]).to_pylist() == [
        {"zone": "Mitte", "n": 3}
    ]
    refused = write("rows-by-hand", 400, row='{"zone": "Mitte", "m": 3}')
    assert "no column m" in refused
    assert html.escape('{"zone": "Mitte", "m": 3}', quote=True).replace("&quot;", "&#34;") in refused  # it is kept
    assert client.post("/topics/by-hand/produce", data={"value": "x"}, headers=ORIGIN).status_code == 403
    assert "--allow-changes" in get(reader, "/topics/by-hand/produce", 403)
    fields = fields_of(get(reader, "/sql")) | {"value": "x"}
    assert reader.post("/topics/by-hand/produce", data=fields, headers=ORIGIN).status_code == 403
    assert '/produce"' not in get(reader, "/topics/by-hand")
    assert filled.admin.describe_topic("by-hand").partition_details[0].high_watermark == 2
    assert "is internal" in get(client, "/topics/__consumer_offsets/produce", 400)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/change/reset-offsets?group=live&to=offset&value=x", "a whole number is needed"),
        ("/change/reset-offsets?group=live&to=time&value=x", "write a time as"),
        ("/change/reset-offsets?group=live&to=never", "use one of"),
        ("/change/reset-offsets?group=nobody", "has no committed offsets"),
        ("/change/nothing", "unknown change"),
        ("/change/create-topic?topic=x", "partitions is needed"),
        ("/change/create-topic?topic=x&partitions=1&column1=a", "has no type"),
        ("/change/create-topic?topic=x&partitions=1&column1=a&type1=INTT", "INTT"),
        ("/change/create-topic?topic=x&partitions=1&column1=a&type1=INT,+b+INT", "one type is needed"),
        ("/change/create-topic?topic=x&partitions=1&key_columns=a", "name the columns"),
        ("/change/create-topic?topic=x&partitions=1&column1=a&type1=INT&key_columns=b", "b"),
        ("/topics?page=x", "a whole number is needed"),
        ("/topics/trips/messages?partition=9", "has partitions 0 to 2"),
        ("/topics/trips/messages?at=1:x", "start again"),
        ("/topics/trips/messages?start=sometime", "use one of"),
        ("/topics/trips/messages?n=100000", "1 to 500"),
        ("/topics/trips/export?format=xml", "use one of"),
        (f"/topics?q={'x' * 5000}", "at most"),
    ],
)
def test_malformed_input_is_reported(client: TestClient, path: str, words: str) -> None:
    assert words in get(client, path, 400)


def test_a_group_with_members_keeps_its_offsets(client: TestClient, filled: World) -> None:
    fields = fields_of(get(client, "/change/reset-offsets?group=live&to=earliest"))
    response = client.post("/change/reset-offsets", data=fields, headers=ORIGIN)
    assert response.status_code == 400
    assert "NON_EMPTY_GROUP" in response.text


def test_a_cluster_that_does_not_answer(tmp_path: Path) -> None:
    with sparklog.start_local(data_dir=tmp_path / "data") as broker:
        address = broker.bootstrap_servers
    with client_of(address, allow_changes=False) as made:
        page = get(made, "/", 503)
        assert "BROKER_NOT_AVAILABLE" in page
        assert "<html" not in get(made, "/topics", 503, headers=HTMX)
        assert get(made, "/health/live") == "alive\n"


def test_the_command(filled: World) -> None:
    with console_process(filled.address) as url:
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert "read-only" in answer.read().decode()
            assert "server" not in {name.lower() for name in answer.headers}
        other = urllib.request.Request(url, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(other, timeout=30)
        refused.value.close()
        assert refused.value.code == 421


def test_the_command_does_not_listen_for_others_unasked(filled: World) -> None:
    command = [sys.executable, "-m", "sparklog.cli", "console", "-b", filled.address, "--listen", "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "--allow-insecure" in done.stderr
    assert "console on" not in done.stdout
