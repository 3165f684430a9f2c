"""A website on this machine, as a test says: pages by path, and everything that was asked."""

import threading
from collections import Counter
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LocalSite(AbstractContextManager):
    """pages: by path with query: HTML, (status, headers, bytes), a function of the handler that returns one of these,
    or a list of them, of which the last stays. Everything else is 404. asked: how often each path was asked for.
    """

    def __init__(self):
        self.pages, self.headers, self.asked = {}, [], Counter()
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # one packet for head and body: two would wait for each other

            def do_GET(self):
                site.headers.append({name.lower(): value for name, value in self.headers.items()})
                site.asked[self.path] += 1
                status, headers, body = site.reply(self)
                self.send_response(status)
                for name, value in {"Content-Type": "text/html; charset=utf-8", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if status != 304:
                    self.wfile.write(body)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *client: None  # clients that are killed, or have read enough
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def reply(self, handler):
        page = self.pages.get(handler.path, self.pages.get("*", (404, {}, b"<h1>Not found</h1>")))
        if isinstance(page, list):
            page = page.pop(0) if len(page) > 1 else page[0]
        if callable(page):
            page = page(handler)
        return page if isinstance(page, tuple) else (200, {}, page.encode())

    def url(self, path=""):
        return f"http://127.0.0.1:{self.port}{path}"

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()
