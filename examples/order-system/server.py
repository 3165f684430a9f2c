"""An order system for trying look-ups: three orders, in one file without dependencies.

Run it with `SHOP_TOKEN=secret python examples/order-system/server.py`. Questions to ask are in docs/lookups.md.
"""

import json
import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ORDERS = {
    "AB-123456": {
        "email": "ann@example.com",
        "status": {
            "status": "shipped",
            "delivery": {"date": "2026-12-01"},
            "tracking_url": "https://track.shop.example/AB-123456",
            "warehouse": "internal: shelf 12",  # not a declared field, so customers never see it
        },
        "refund": None,
    },
    "AB-222222": {
        "email": "bob@example.com",
        "status": {"status": "delivered", "delivery": {"date": "2026-11-20"}, "tracking_url": None},
        "refund": {"state": "paid", "amount": "EUR 34.90"},
    },
    "KL-654321": {
        "email": "chen@example.com",
        "status": {"status": "packing", "delivery": {"date": None}, "tracking_url": None},
        "refund": {"state": "received", "amount": "EUR 12.00"},
    },
}
PATH = re.compile(r"/v1/orders/([A-Z]{2})-?(\d{6})/(status|refund)")


class Orders(BaseHTTPRequestHandler):
    """Answers POST /v1/orders/NUMBER/status and /refund with {"email"}: 200, 401 (token), or 404 (no such order)."""

    def do_POST(self) -> None:
        length = min(int(self.headers.get("content-length", 0)), 10_000)
        sent = json.loads(self.rfile.read(length) or b"{}")
        if self.headers.get("authorization") != f"Bearer {os.environ['SHOP_TOKEN']}":
            return self._send(401, {"error": "wrong token"})
        found = PATH.fullmatch(self.path)
        order = ORDERS.get(f"{found[1]}-{found[2]}") if found else None
        if found is None or order is None or order["email"] != sent.get("email") or order[found[3]] is None:
            return self._send(404, {"error": "no such order"})
        return self._send(200, order[found[3]])

    def _send(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 8099), Orders).serve_forever()
