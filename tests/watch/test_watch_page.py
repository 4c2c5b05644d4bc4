"""The page in a browser: it refreshes itself, stays where the reader is, complains of nothing, and says when nobody answers any more."""

import base64
import os
import threading
from pathlib import Path

import pytest
from browser import CHROMIUM, browser_tab
from watched_runs import STEPS, advance

from pipeline.watch import charts
from pipeline.watch.server import open_server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: the page was not rendered")


@pytest.mark.parametrize("width", [1200, 400])
def test_the_page_lives_in_a_browser(watch, tmp_path, width, monkeypatch):
    """Set WATCH_SCREENSHOTS to a folder to keep the pictures."""
    monkeypatch.setattr(charts, "REDRAW_SECONDS", 0.2)
    server = open_server(watch, "127.0.0.1", 0, 0.2)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        with browser_tab(tmp_path / "profile", width, 500) as tab:
            tab.call("Page.navigate", url=server.url)
            tab.wait_for("document.images.length >= 2 && [...document.images].every((image) => image.complete && image.naturalWidth > 0)")
            tab.value("document.querySelector('details').open = true")
            tab.value("document.querySelector('.scroll').scrollLeft = 37")
            tab.value("window.scrollTo(0, 333)")
            before = tab.value("document.images[0].src")

            advance(watch.runs[0].folder, STEPS + 6, STEPS + 20)
            tab.wait_for(f"document.body.innerText.includes('{STEPS + 20}/120')")
            tab.wait_for(f"document.images[0].src !== '{before}' && document.images[0].naturalWidth > 0")
            assert tab.value("window.scrollY") == 333 and tab.value("document.querySelector('details').open")
            assert tab.value("document.querySelector('.scroll').scrollLeft") == (37 if width == 400 else 0)
            assert tab.value("document.title") == "1/4 done: exp"
            assert tab.value("document.documentElement.scrollWidth <= window.innerWidth")  # only the table scrolls sideways
            assert tab.value("getComputedStyle(document.querySelector('.state')).textAlign") == "left"  # the styles are let in
            assert tab.complaints == []
            picture = tab.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            Path(os.environ.get("WATCH_SCREENSHOTS", tmp_path), f"watch-{width}.png").write_bytes(base64.b64decode(picture))

            server.shutdown()
            server.server_close()
            tab.wait_for("!document.getElementById('lost').hidden")
            assert "does not answer" in tab.value("document.getElementById('lost').innerText")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
