"""The page of a run that is under way, served to this machine."""

from __future__ import annotations

import ipaddress
import json
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from urllib.parse import parse_qs, urlsplit

from unskew.errors import UserError
from unskew.record import Json
from unskew.report.page import page_data, policy, render
from unskew.report.read import SavedRun, coming

Read = Callable[[Sequence[Path]], list[SavedRun]]


class LiveRuns:
    """The page's data for runs that are under way. Folders are read again when a file in them changes."""

    def __init__(self, paths: Sequence[Path], read: Read) -> None:
        self._paths, self._read = list(paths), read
        self._lock = threading.Lock()
        self._seen: object = None
        self._data: dict[str, Json] = {}
        self._revision = 0
        self._watch = secrets.token_hex(4)  # a page of an earlier watch must not take this one for its own
        try:
            read(self._paths)
        except UserError:
            if not all(map(_may_begin, self._paths)):
                raise

    def data(self) -> dict[str, Json]:
        """Return the data of the page as it is now, with a revision that changes when anything does."""
        with self._lock:
            now = _fingerprint(self._paths)
            if now != self._seen:
                self._seen = now
                self._revision += 1
                self._data = {**self._look(), "revision": f"{self._watch}-{self._revision}"}
            return self._data

    def _look(self) -> dict[str, Json]:
        try:
            return page_data(self._read(self._paths), coming(self._paths))
        except UserError as error:
            seen = self._data if self._data.get("runs") else page_data([])  # keeps what the page showed
            return {**seen, "trouble": "" if all(map(_may_begin, self._paths)) else str(error)}


def _may_begin(path: Path, *, compare: bool = True) -> bool:
    """Say whether a run, or the first run of a compare, may be about to begin in a folder.

    The file rounds.jsonl is made last, before the first round. Hidden files do not count: they are locks and
    files that are being written.
    """
    if not path.is_dir() or (path / "rounds.jsonl").exists():
        return False
    inside = [file for file in path.iterdir() if not file.name.startswith((".", "plan.json"))]
    return (
        not inside
        or any(file.name == "experiment.toml" for file in inside)
        or (compare and all(_may_begin(each, compare=False) for each in inside))
    )


def _fingerprint(paths: Sequence[Path]) -> object:
    """Return a value that changes whenever a file of the runs does."""
    found = []
    for path in paths:
        for pattern in ("*.json*", "*.toml", "*/*.json*", "*/*.toml"):
            for file in path.glob(pattern):
                try:
                    known = file.stat()
                except OSError:  # it was removed in the meantime
                    continue
                found.append((str(file), known.st_mtime_ns, known.st_size))
    return sorted(found)


class ReportServer(ThreadingHTTPServer):
    """Serves the page and its data, and nothing else."""

    daemon_threads = True
    allow_reuse_port = False  # two watches must not share a port

    def __init__(self, runs: LiveRuns, host: str, port: int) -> None:
        self.runs, self.host = runs, host
        self.policy = f"{policy(live=True)}; frame-ancestors 'none'"
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Request)
        except OSError as error:
            raise UserError(
                f"cannot serve on {host} port {port} ({error.strerror}): leave --port out for a free one; "
                "--host takes an address of this machine."
            ) from None

    def server_bind(self) -> None:
        """Bind without looking up the host's name, for which HTTPServer may ask the network."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Report errors, unless the browser only closed the connection."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_port}/"


class _Request(BaseHTTPRequestHandler):
    server: ReportServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds that a silent connection is kept

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        if not self._meant_for_us():
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"This watch answers to the address it was given.")
        elif where.path == "/":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", render(self.server.runs.data()).encode())
        elif where.path == "/data.json":
            data = self.server.runs.data()
            if parse_qs(where.query).get("seen") == [data["revision"]]:
                self._send(HTTPStatus.NO_CONTENT)
            else:
                self._send(HTTPStatus.OK, "application/json", json.dumps(data, allow_nan=False).encode())
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"There is nothing here.")

    def _meant_for_us(self) -> bool:
        """Say whether the browser asked for this machine by its address or name.

        A page of another site whose name was made to point here (DNS rebinding) asks for that name.
        """
        name = re.sub(r":\d+$", "", self.headers.get("Host", "")).strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in ("localhost", self.server.host.lower(), socket.gethostname().lower())
        return True

    def _send(self, status: HTTPStatus, kind: str = "", content: bytes = b"") -> None:
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        return "unskew"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, since the page asks again and again."""
