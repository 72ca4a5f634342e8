"""A web server in this process, which misbehaves in ways that a test chooses."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """Files by path, and how they are sent."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    # The number of bytes after which each of the next connections breaks.
    cuts: list[int] = field(default_factory=list)
    tells_length: bool = True
    chunked: bool = False
    gives_parts: bool = True
    # Paths and ranges of the requests.
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@contextmanager
def served() -> Iterator[Site]:
    """A site until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = self.headers["Range"]
            site.requests.append((self.path, asked))
            if self.path not in site.files:
                self.send_error(404)
                return
            start = int(re.sub(r"\D", "", asked)) if asked and site.gives_parts else 0
            self._send(site.files[self.path][start:], is_part=start > 0)

        def _send(self, content: bytes, *, is_part: bool) -> None:
            self.send_response(206 if is_part else 200)
            if site.chunked:
                self.send_header("Transfer-Encoding", "chunked")
            elif site.tells_length:
                self.send_header("Content-Length", str(len(content)))
            self.send_header("Connection", "close")
            self.end_headers()
            sent = content[: site.cuts.pop(0)] if site.cuts else content
            if site.chunked:
                end = b"0\r\n\r\n" if sent == content else b""
                sent = f"{len(content):x}\r\n".encode() + sent + (b"\r\n" if end else b"") + end
            self.wfile.write(sent)
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing on the screen of a test."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site = Site(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
