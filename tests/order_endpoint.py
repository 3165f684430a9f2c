"""An order system on this machine for tests of look-ups: it records requests, and answers as it is told."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parent.parent / "examples" / "order-system" / "lookups.toml"
TOKEN = "s3cret-of-the-shop"
SHIPPED = {"status": "shipped", "delivery": {"date": "2026-12-01"}, "tracking_url": "https://track.shop.example/1"}


class OrderEndpoint:
    """replies: status and document by path, 404 for others. seen: path, headers and body of each request. wait: holds
    every reply until it is set.
    """

    def __init__(self) -> None:
        self.wait = threading.Event()
        self.port = 0
        self.reset()

    def reset(self) -> None:
        self.replies: dict[str, tuple[int, Any]] = {"/v1/orders/AB-123456/status": (200, SHIPPED)}
        self.needs: dict[str, Any] = {"email": "ann@example.com"}
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.headers: dict[str, str] = {}
        self.wait.set()

    def definitions(self, *changes: tuple[str, str]) -> str:
        """The look-ups of examples/order-system with this address, and with these texts replaced."""
        text = EXAMPLE.read_text("utf-8").replace("127.0.0.1:8099", f"127.0.0.1:{self.port}")
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        return text

    def answer(self, path: str, sent: bytes) -> tuple[int, Any]:
        status, document = self.replies.get(path, (404, {}))
        return (
            (404, {})
            if status == 200 and self.needs and json.loads(sent or b"{}") != self.needs
            else (status, document)
        )


@contextmanager
def order_endpoint() -> Iterator[OrderEndpoint]:
    endpoint = OrderEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length", 0)))
            endpoint.seen.append((self.path, {name.lower(): line for name, line in self.headers.items()}, sent))
            endpoint.wait.wait(30)
            status, document = endpoint.answer(self.path, sent)
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            for name, value in endpoint.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _handle

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        endpoint.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield endpoint
        finally:
            endpoint.wait.set()
            server.shutdown()
