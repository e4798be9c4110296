"""A server on this machine that speaks as much of the Hugging Face hub's protocol as files of a policy need."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Repositories = dict[str, dict[str, bytes]]
"""Files by name, of repositories by name."""


@contextmanager
def hub_stand_in(asked: list[str]) -> Iterator[tuple[str, Repositories]]:
    """The address of a server and what it holds; paths that it is asked for are added to a list."""
    repositories: Repositories = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(repositories, asked))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", repositories
    finally:
        server.shutdown()
        server.server_close()


def _handler(repositories: Repositories, asked: list[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            asked.append(self.path)
            path = self.path.split("?")[0].lstrip("/")
            if path.startswith("api/models/"):
                repo = "/".join(path.split("/")[2:4])
                if repo not in repositories:
                    return self._say(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
                files = repositories[repo]
                if "/tree/" in path:
                    return self._say(
                        200,
                        [
                            {"type": "file", "path": name, "size": len(b), "oid": hashlib.sha1(b).hexdigest()}
                            for name, b in files.items()
                        ],
                    )
                siblings = [{"rfilename": name} for name in files]
                return self._say(200, {"id": repo, "sha": "0" * 40, "private": False, "siblings": siblings})
            if "/resolve/" not in path:
                return self._say(404, {"error": f"The stand-in knows no {path}"})
            user, name, _, _, file = path.split("/", 4)  # USER/REPO/resolve/REVISION/FILE
            content = repositories[f"{user}/{name}"].get(file)
            if content is None:
                return self._say(404, {}, {"X-Error-Code": "EntryNotFound"})
            headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": "0" * 40}
            self._say(200, content, headers)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            asked.append(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.split("?")[0].lstrip("/")
            if path == "api/repos/create":
                given = json.loads(body)
                repo = f"{given.get('organization') or 'user'}/{given['name']}"
                repositories.setdefault(repo, {})
                return self._say(200, {"url": f"{self._address()}/{repo}", "id": repo, "name": repo})
            if path == "api/validate-yaml":
                return self._say(200, {"errors": [], "warnings": []})
            repo = "/".join(path.split("/")[2:4])
            if "/preupload/" in path:
                files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
                return self._say(200, {"files": files})
            assert "/commit/" in path, path
            for line in body.splitlines():
                said = json.loads(line)
                if said["key"] == "file":
                    repositories[repo][said["value"]["path"]] = base64.b64decode(said["value"]["content"])
            done = {"commitUrl": f"{self._address()}/{repo}/commit/{'0' * 40}", "commitOid": "0" * 40, "success": True}
            self._say(200, {**done, "commitMessage": "", "hookOutput": ""})

        def _address(self) -> str:
            return f"http://{self.headers['Host']}"

        def _say(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler
