"""Looking for a server: redirects to another host are named, never followed."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from adapters.sidecars.identity import server_version
from adapters.sidecars.openai import API_KEY
from adapters.sidecars.probing import models_of
from protocol.errors import SidecarError

seen: list[str | None] = []


class Moved(http.server.BaseHTTPRequestHandler):
    """Has moved from /v1 to where `away` says; a server of its own answers at /there."""

    away = ""

    def do_GET(self) -> None:
        if self.path.startswith("/there"):
            seen.append(self.headers.get("Authorization"))
            body = b'{"data": [{"id": "m"}]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(307)
        self.send_header("Location", f"{self.away}/there{self.path}")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Nothing on the terminal."""


@contextmanager
def listening() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Moved)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def test_redirects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, "sk-secret")
    seen.clear()
    with listening() as here, listening() as there:
        assert models_of(here) == ("m",) and seen == ["Bearer sk-secret"]
        monkeypatch.setattr(Moved, "away", there.replace("//", "//user:key@"))
        for look in (models_of, server_version):
            with pytest.raises(SidecarError, match=f"redirects to {there}; give that address"):
                look(here)
        assert len(seen) == 1  # the key went nowhere else
