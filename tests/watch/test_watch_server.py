"""The page over real HTTP: its own paths alone, nothing but reading, and no other site's way in."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from watched_runs import STEPS, advance

from pipeline.contract.errors import PipelineError
from pipeline.watch.capture_state import CaptureView
from pipeline.watch.charts import Charts
from pipeline.watch.page import render_page
from pipeline.watch.server import open_server

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(watch):
    """Answering, on a free port of the loopback; looks anew at every request."""
    with open_server(watch, "127.0.0.1", 0, 0.0) as opened:
        thread = threading.Thread(target=opened.serve_forever, args=(0.02,))
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()


def ask(server, path="/", method="GET", host=None, body=None):
    """Status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", host if host is not None else f"127.0.0.1:{server.server_port}")
    connection.endheaders(body)
    reply = connection.getresponse()
    read = reply.read()
    connection.close()
    return reply.status, reply.headers, read


def test_the_page_shows_the_runs_and_escapes_what_they_say(server):
    status, headers, body = ask(server)
    page = body.decode()
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    for shown in ("4 runs: 1 running, 1 failed", "▶ running", f"{STEPS + 5}/120", "9.0000", "the loss jumped to 99.0000", "no records yet"):
        assert shown in page, shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "<script>alert" not in page and "\x1b" not in page
    assert len(re.findall("<script", page)) == 1 and " style=" not in page and " onload" not in page


def test_what_a_browser_is_told(server):
    for path in ("/", "/page.js", "/page.css", "/picture.json", "/no/such"):
        _, headers, _ = ask(server, path)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'") and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store" and "Access-Control-Allow-Origin" not in headers
        assert "Python" not in headers["Server"]


def test_a_capture_that_goes_on_has_a_bar(watch):
    capture = CaptureView("<tiny>", "running", 5, 20, 10, 1234, ("train-00005",), 2, 800.0, 61.0)
    page = render_page(replace(watch.look(), capture=capture), watch, Charts(), 2.0)
    assert '<progress max="1" value="0.25">25 %</progress>' in page
    said = "cache &lt;tiny&gt;: running, 5 of 20 shards, 10 documents, 1,234 target tokens, 800 tokens/s, about 1 min 1 s left, 2 workers"
    assert said in page and "<progress" not in render_page(
        replace(watch.look(), capture=replace(capture, state="done")), watch, Charts(), 2.0
    )


def test_a_request_sees_what_has_been_written_since(server, watch):
    assert f"{STEPS + 5}/120" in ask(server)[2].decode()
    advance(watch.runs[0].folder, STEPS + 6, STEPS + 9)
    assert f"{STEPS + 9}/120" in ask(server)[2].decode()


def test_the_json_is_that_of_the_command(server, watch):
    status, headers, body = ask(server, "/picture.json")
    found = json.loads(body)
    assert status == 200 and headers["Content-Type"] == "application/json"
    assert found["runs"][0]["step"] == STEPS + 5 and found.keys() == watch.look().as_json().keys()


def test_charts_are_pictures_with_the_phases_marked(server):
    path = re.search(r"/runs/0\.svg\?records=\d+", ask(server)[2].decode())[0]
    status, headers, body = ask(server, path)
    assert status == 200 and headers["Content-Type"] == "image/svg+xml" and "sandbox" in headers["Content-Security-Policy"]
    assert body.count(b"stroke-dasharray") >= 2 and b"<script" not in body  # a dotted line in each panel
    assert ask(server, "/runs/3.svg")[0] == 200 and ask(server, "/runs/4.svg")[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/page.html.j2",
        "/../pyproject.toml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/runs/0.svg/../../x",
        "/runs/",
        "/runs/-1.svg",
        "/x",
    ],
)
def test_no_other_path_is_served(server, path):
    status, _, body = ask(server, path)
    assert status == 404 and body == b"no such page\n"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading(server, method):
    status, headers, _ = ask(server, "/", method, body=b"x=1")
    assert status == 405 and headers["Allow"] == "GET, HEAD"


def test_head_has_no_body(server):
    status, headers, body = ask(server, "/page.js", "HEAD")
    assert status == 200 and int(headers["Content-Length"]) > 500 and body == b""


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:8642", 200),
        ("attacker.example", 421),
        ("127.0.0.1.attacker.example:8642", 421),
        ("localhost.attacker.example", 421),
        ("", 421),
        ("[", 421),
        ("[v1.a]", 421),
    ],
)
def test_a_name_that_another_site_could_point_here_is_refused(server, host, status):
    assert ask(server, "/", host=host)[0] == status
    assert ask(server, "/picture.json", host=host)[0] == status


def test_names_of_this_machine_are_known_where_the_network_may_see_it(watch):
    with open_server(watch, "0.0.0.0", 0, 1.0) as opened:
        assert opened.is_public and opened.is_known(f"{socket.gethostname()}:1") and not opened.is_known("attacker.example")
        assert opened.url == f"http://127.0.0.1:{opened.server_port}/"


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no loopback of IPv6")
def test_the_loopback_of_ipv6(watch):
    with open_server(watch, "::1", 0, 1.0) as opened:
        assert opened.url == f"http://[::1]:{opened.server_port}/" and not opened.is_public


def test_many_browsers_cause_one_look(server, watch, monkeypatch):
    looks = []
    monkeypatch.setattr(watch, "look", lambda look=watch.look: looks.append(1) or look())
    server.every = 60.0
    threads = [threading.Thread(target=ask, args=(server,)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(looks) == 1


def test_a_browser_that_goes_away_is_no_error(server, capfd):
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.server_port)) as half:
            half.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset instead of a goodbye
            half.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert ask(server)[0] == 200
    time.sleep(0.1)
    assert "Traceback" not in capfd.readouterr().err


def test_a_taken_port_and_a_foreign_address_are_one_line(server, watch):
    with pytest.raises(PipelineError, match=rf"127\.0\.0\.1:{server.server_port}: .*in use.*--port"):
        open_server(watch, "127.0.0.1", server.server_port, 1.0)
    with pytest.raises(PipelineError, match=r"192\.0\.2\.1:0: .*--host"):
        open_server(watch, "192.0.2.1", 0, 1.0)
    with pytest.raises(PipelineError, match=r"no\.such\.host\.invalid"):
        open_server(watch, "no.such.host.invalid", 0, 1.0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_control_c_ends_the_page_cleanly(tmp_path, number):
    command = [sys.executable, "-m", "pipeline", "watch", "demo-2x2", "--serve", "--port", "0", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = json.loads(process.stdout.readline())["url"]
        connection = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=30)
        connection.request("GET", "/")
        assert b"nothing is there yet" in connection.getresponse().read()
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0 and errors == ""
    assert not list(tmp_path.iterdir())
