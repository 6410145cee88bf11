"""A language server completes a project's files with the schemas: keys, what they mean, and their values."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fafo_build.project.schema import write_schemas


class Server:
    """A client of `tombi lsp`, for one project."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("tombi", path=Path(sys.executable).parent)
        assert program, "tombi isn't installed: it is one of the dev dependencies"
        self.folder = folder
        self.process = subprocess.Popen(
            [program, "lsp", "--offline"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.asked = 0
        self.ask("initialize", processId=None, rootUri=folder.as_uri(), capabilities={})
        self.send(method="initialized", params={})

    def send(self, **message: Any) -> None:
        assert self.process.stdin
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout
        size = 0
        while line := self.process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        received: dict[str, Any] = json.loads(self.process.stdout.read(size))
        return received

    def ask(self, method: str, **params: Any) -> Any:
        self.asked += 1
        self.send(id=self.asked, method=method, params=params)
        while True:
            message = self.receive()
            if "method" in message and "id" in message:
                self.send(id=message["id"], result=None)
            elif message.get("id") == self.asked:
                return message["result"]

    def complete(self, folder: str, text: str) -> dict[str, str]:
        """Return what is offered at the end of a file's text, each with its description."""
        # A file of its own each time, and asked for until it is known: the server works on several messages
        # at once, so that it may answer before it has opened the file.
        file = self.folder / folder / f"file{self.asked}.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        document = {"uri": file.as_uri(), "languageId": "toml", "version": 1, "text": text}
        self.send(method="textDocument/didOpen", params={"textDocument": document})
        *above, last = text.split("\n")
        position = {"line": len(above), "character": len(last)}
        while True:
            asked = {"textDocument": {"uri": file.as_uri()}, "position": position}
            offered = self.ask("textDocument/completion", **asked)
            items = offered["items"] if isinstance(offered, dict) else offered
            if items:
                return {item["label"]: item["documentation"]["value"] for item in items}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("project")
    write_schemas(folder)
    server = Server(folder)
    yield server
    server.process.kill()
    server.process.communicate()


MAIN_LINE = "#:schema ./fafo.schema.json\n"
CLASS_LINE = "#:schema ../class.schema.json\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("folder", "text", "offered"),
    [
        (".", MAIN_LINE, {"project", "model", "engines", "source", "run", "verify"}),
        (".", MAIN_LINE + "[verify]\n", {"min_hit_rate"}),
        (".", MAIN_LINE + "[models.small]\n", {"path", "dtype", "revision", "trust_remote_code"}),
        (".", MAIN_LINE + '[[source]]\nname = "x"\ntype = "sql"\n', {"url", "query", "key", "limit"}),
        (".", MAIN_LINE + "[engine]\nkind = ", {'"transformers"', '"sglang"', '"fake"'}),
        (".", MAIN_LINE + "[run]\nlease = ", {"900"}),
        ("classes", CLASS_LINE, {"sources", "message", "description", "sampling"}),
        ("classes", CLASS_LINE + "[[message]]\n", {"role", "prompt", "content"}),
        ("classes", CLASS_LINE + "[sampling]\ntemperature = 0\n", {"max_new_tokens", "top_p"}),
    ],
)
def test_what_is_offered(folder: str, text: str, offered: set[str], server: Server) -> None:
    found = server.complete(folder, text)
    assert offered <= found.keys()
    # What tombi offers where it believes that any key is right.
    assert "$key" not in found


@pytest.mark.timeout(60)
def test_keys_come_with_what_they_mean(server: Server) -> None:
    found = server.complete("classes", CLASS_LINE + "[sampling]\n")
    assert found["max_new_tokens"].startswith("The longest output, in tokens.")
