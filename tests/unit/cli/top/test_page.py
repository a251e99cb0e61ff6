"""Reading a broker's metrics page."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from sparklog.cli.top import page
from sparklog.errors import InvalidConfigError, InvalidRequestError
from tests.support.cases import for_each

TEXT = r"""
# TYPE sparklog_build_info gauge
sparklog_build_info{version="0.1.0"} 1.0
# TYPE kafka_broker_info gauge
kafka_broker_info{address="127.0.0.1:9292",id="3"} 1.0
# TYPE sparklog_time_seconds gauge
sparklog_time_seconds 1700000000.125
# TYPE sparklog_requests_total counter
sparklog_requests_total{api="FETCH"} 10.0
sparklog_requests_total{api="PRODUCE"} 32.0
# TYPE kafka_server_brokertopicmetrics_bytesin_total counter
kafka_server_brokertopicmetrics_bytesin_total{topic="t"} 5.0
# TYPE kafka_consumergroup_lag gauge
kafka_consumergroup_lag{consumergroup="a \"quoted\\\n one",topic="t",partition="0"} 5.0
kafka_consumergroup_lag{consumergroup="a \"quoted\\\n one",topic="t",partition="1"} 6.0
kafka_consumergroup_lag{consumergroup="b",topic="t"} NaN
"""


def test_a_page() -> None:
    found = page.broker_page(page.read_series(TEXT))
    assert (found.broker_id, found.version, found.time_ms, found.requests_total) == (3, "0.1.0", 1_700_000_000_125, 42)
    assert found.bytes_in == {"t": 5}
    assert found.group_lags == {'a "quoted\\\n one': {"t": 11}}
    assert found.memory_limit_bytes == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not the page of a sparklog broker"),
        ('sparklog_build_info{version="1"} 1\n', "still starting"),
        ('kafka_broker_info{id="x"} 1\n', "not the page of a sparklog broker"),
        ("<html>nginx</html>", "no metrics page"),
        ("a{b 1", "no metrics page"),
    ],
)
def test_a_page_of_another_server_is_reported(text: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        page.broker_page(page.read_series(text))


@for_each("url", ["", "127.0.0.1:9293", "file:///etc/passwd", "http://", "http://h:x/", "http://[::1"])
def test_an_address_is_needed(url: str) -> None:
    with pytest.raises(InvalidConfigError, match="as in http"):
        page.check_url(url)


def test_the_usual_path_is_added() -> None:
    assert page.check_url("http://h:1") == page.check_url("http://h:1/") == "http://h:1/metrics"
    assert page.check_url("https://h/x") == "https://h/x"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404 if self.path == "/none" else 200)
        self.end_headers()
        self.wfile.write(b"x" * 100)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def test_fetching(server: str) -> None:
    assert page.fetch_page(f"{server}/metrics", 20) == "x" * 100
    with pytest.raises(InvalidRequestError, match="Not Found"):
        page.fetch_page(f"{server}/none", 20)
    with pytest.raises(InvalidRequestError, match="refused"):
        page.fetch_page("http://127.0.0.1:1/metrics", 20)
    with pytest.raises(InvalidRequestError, match="more than 99 bytes"):
        page.fetch_page(f"{server}/metrics", 20, bytes_max=99)
