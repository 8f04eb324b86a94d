"""A hub of models on this machine: serves a folder's files as the real one does, and remembers what was asked for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def hub_of(models: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """The address of a hub with models by name ("owner/model"), and the list of requests, which grows."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            asked.append(f"{self.command} {self.path}")
            path = self.path.split("?")[0].strip("/")
            for name, folder in models.items():
                if path.startswith(f"{name}/resolve/"):
                    file = folder / path.removeprefix(f"{name}/resolve/").partition("/")[2]
                    if file.is_file():
                        return self.send(200, file.read_bytes(), with_body)
                    return self.send(404, b"", with_body, {"X-Error-Code": "EntryNotFound"})
                if path == f"api/models/{name}":
                    files = [{"rfilename": file.name} for file in folder.iterdir()]
                    return self.send(200, json.dumps({"id": name, "siblings": files}).encode(), with_body)
                if path.startswith(f"api/models/{name}/"):
                    return self.send(404, b"", with_body, {"X-Error-Code": "EntryNotFound"})
            return self.send(404, b"", with_body, {"X-Error-Code": "RepoNotFound"})

        def send(self, code: int, body: bytes, with_body: bool, headers: dict[str, str] | None = None) -> None:
            self.send_response(code)
            usual = {"Content-Length": str(len(body)), "X-Repo-Commit": "0" * 40}
            usual["ETag"] = f'"{hashlib.sha256(body).hexdigest()}"'
            for name, value in (usual | (headers or {})).items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing on the screen of a test."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
