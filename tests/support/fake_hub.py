"""A model hub on loopback with one repository, speaking as much as huggingface_hub needs."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "tiny/model"


class FakeHub(ThreadingHTTPServer):
    """Serves the files of a directory as repository `tiny/model`.

    `requests` lists method and path of what was asked; `gate` holds back the weights until set.
    """

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {path.name: path.read_bytes() for path in directory.iterdir()}
        self.requests: list[str] = []
        self.weights_asked = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def weight_downloads(self) -> int:
        """How often a whole weight file was asked for."""
        return sum(line.startswith("GET whole") for line in self.requests)


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *args: object) -> None:
        return

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        api, tree = f"/api/models/{REPO}", f"/api/models/{REPO}/tree/{COMMIT}"
        if path == tree:
            self._json([self._entry(name) for name in sorted(self.server.files)])
        elif path in {api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"}:
            siblings = [
                {"rfilename": name, "size": len(data)} for name, data in self.server.files.items()
            ]
            self._json({"id": REPO, "sha": COMMIT, "siblings": siblings})
        elif path.startswith(f"{api}/"):
            self._refuse("RevisionNotFound")
        elif path.startswith((f"/{REPO}/resolve/main/", f"/{REPO}/resolve/{COMMIT}/")):
            self._file(path.rpartition("/")[2])
        else:
            self._refuse("RepoNotFound")

    def _entry(self, name: str) -> dict[str, object]:
        data = self.server.files[name]
        return {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}

    def _file(self, name: str) -> None:
        data = self.server.files.get(name)
        if data is None:
            self._refuse("EntryNotFound")
            return
        wanted = self.headers.get("Range")
        if self.command == "GET" and name.endswith(".safetensors") and wanted is None:
            self.server.requests.append(f"GET whole {name}")
            self.server.weights_asked.set()
            self.server.gate.wait(30)
        headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if wanted is None:
            self._send(200, data, headers)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(data)), len(data) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        self._send(206, data[start : end + 1], headers)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, code: str) -> None:
        self._send(404, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:40]


@contextmanager
def fake_hub(directory: Path) -> Iterator[FakeHub]:
    """Serve a directory for the length of a block."""
    server = FakeHub(directory)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
