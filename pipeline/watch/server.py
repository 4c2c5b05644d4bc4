"""The page over HTTP: read-only, a handful of fixed paths, nothing of the disk by name.

Whoever can reach the address can read it, so it is the loopback's unless asked otherwise. A page of another site must not read it
through the reader's browser: names that another site could point here (DNS rebinding) are refused by the Host header, no other origin
is let in, and the content security policy lets the page load its own files alone.
"""

import ipaddress
import json
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from pipeline.contract.errors import PipelineError
from pipeline.contract.finite import finite
from pipeline.watch.charts import Charts
from pipeline.watch.page import render_page, resource
from pipeline.watch.picture import Picture, Watch

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
CHART_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"  # matplotlib writes styles into its elements
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
CHART = re.compile(r"/runs/(\d{1,4})\.svg")
PATIENCE_SECONDS = 30.0


class WatchServer(ThreadingHTTPServer):
    """Answers from one picture that is taken anew when it is `every` seconds old, however many browsers ask."""

    daemon_threads = True

    def __init__(self, watch: Watch, host: str, port: int, every: float) -> None:
        self.watch, self.every, self.charts = watch, every, Charts()
        self._names = {host.lower(), "localhost"}
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        self._taken = 0.0
        self.address_family, address = _resolve(host, port)
        self.is_public = not ipaddress.ip_address(address[0]).is_loopback
        if self.is_public:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        """Without the base class's question to a name server, which may take long where there is none."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        host = ipaddress.ip_address(str(self.server_address[0]))
        if host.is_unspecified:
            host = ipaddress.ip_address("127.0.0.1" if host.version == 4 else "::1")
        return f"http://{host if host.version == 4 else f'[{host}]'}:{self.server_port}/"

    def picture(self) -> Picture:
        """The picture, at most `every` seconds old."""
        with self._lock:
            if self._picture is None or time.monotonic() - self._taken >= self.every:
                self._picture = self.watch.look()
                self._taken = time.monotonic()
            return self._picture

    def page(self) -> bytes:
        picture = self.picture()
        with self._lock:
            return render_page(picture, self.watch, self.charts, self.every).encode()

    def chart(self, index: int) -> bytes | None:
        """A run's picture, None where there is no such run."""
        runs = self.picture().runs
        if index >= len(runs):
            return None
        with self._lock:  # no look may change the records meanwhile, and matplotlib's settings are shared by all threads
            return self.charts.svg(runs[index], self.watch.runs[index].metrics)

    def is_known(self, host: str | None) -> bool:
        """Whether a Host header names this server by an address, which no other site can point here, or by a name of this machine."""
        name = urlsplit(f"//{host or ''}").hostname
        if name is None:
            return False
        try:
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return name in self._names

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has gone away is no error; anything else is a bug and shows its traceback."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of the paths below; all else is refused."""

    server: WatchServer
    server_version, sys_version = "pipeline", ""
    timeout = PATIENCE_SECONDS

    def do_GET(self) -> None:
        try:
            known = self.server.is_known(self.headers.get("Host"))
        except ValueError:  # no host at all, by its form
            known = False
        if not known:
            return self._refuse(421, "this server is not known by that name; use its address")
        path = self.path.partition("?")[0]
        chart = CHART.fullmatch(path)
        answer = PATHS.get(path) if chart is None else lambda server: server.chart(int(chart[1]))
        body = answer(self.server) if answer else None
        if body is None:
            return self._refuse(404, "no such page")
        if chart:  # its URL says which version it is
            return self._send(200, body, "image/svg+xml", CHART_POLICY, {"Cache-Control": "private, max-age=600"})
        return self._send(200, body, TYPES[path], PAGE_POLICY)

    do_HEAD = do_GET

    def _not_allowed(self) -> None:
        self._refuse(405, "read-only: GET and HEAD", {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _not_allowed

    def _refuse(self, status: int, reason: str, more: dict[str, str] | None = None) -> None:
        self._send(status, f"{reason}\n".encode(), "text/plain; charset=utf-8", PAGE_POLICY, more)

    def _send(self, status: int, body: bytes, kind: str, policy: str, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {**HEADERS, **(more or {}), "Content-Type": kind, "Content-Length": str(len(body)), "Content-Security-Policy": policy}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads a line a refresh."""


def _json(server: WatchServer) -> bytes:
    return json.dumps(finite(server.picture().as_json())).encode()


PATHS: dict[str, Callable[[WatchServer], bytes]] = {
    "/": WatchServer.page,
    "/icon.svg": lambda server: resource("icon.svg"),
    "/page.css": lambda server: resource("page.css"),
    "/page.js": lambda server: resource("page.js"),
    "/picture.json": _json,
}
TYPES = {
    "/": "text/html; charset=utf-8",
    "/icon.svg": "image/svg+xml",
    "/page.css": "text/css; charset=utf-8",
    "/page.js": "text/javascript; charset=utf-8",
    "/picture.json": "application/json",
}


def open_server(watch: Watch, host: str, port: int, every: float) -> WatchServer:
    """A server that listens already; `serve_forever` answers.

    Raises:
        PipelineError: the address is not this machine's, or its port is taken or not allowed.
    """
    try:
        return WatchServer(watch, host, port, every)
    except OSError as error:
        reason = error.strerror or str(error)
        raise PipelineError(
            f"{host}:{port}: cannot be listened at ({reason}); give another --port, 0 takes a free one, or --host"
        ) from None


def _resolve(host: str, port: int) -> tuple[int, Any]:
    family, _, _, _, address = socket.getaddrinfo(host or "localhost", port, type=socket.SOCK_STREAM)[0]
    return family, address
