"""The progress bar of a notebook."""

from __future__ import annotations

import pytest

from sparklog.client.reading.progress_bar import notebook_bar, progress_html

IPython = pytest.importorskip("IPython")


def test_no_bar_outside_of_a_notebook() -> None:
    assert notebook_bar(10) is None


def test_the_bar_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    class ZMQInteractiveShell:
        pass

    shown: list[str] = []

    class Handle:
        def update(self, html: object) -> None:
            shown.append(html.data)  # type: ignore[attr-defined]

    def display(html: object, *, display_id: bool) -> Handle:
        shown.append(html.data)  # type: ignore[attr-defined]
        return Handle()

    monkeypatch.setattr(IPython, "get_ipython", ZMQInteractiveShell)
    monkeypatch.setattr("IPython.display.display", display)
    show = notebook_bar(10)
    assert show is not None
    show(3, 30)  # too soon after the first
    show(10, 1000)
    assert shown == [progress_html(0, 10, 0), progress_html(10, 10, 1000)]
    assert "1,000 rows" in shown[1]


def test_the_share_of_a_bar() -> None:
    assert 'value="33"' in progress_html(1, 3, 0)
    assert 'value="100"' in progress_html(0, 0, 0)
