"""A program that looks like an SGLang server to whoever starts it: quick, of the standard library alone.

It answers /health, /server_info and /model_info, and has the bad habits that its flags name; flags that it
doesn't know are the real server's, and are ignored. It writes every start to a file that the variable STARTS
names: its process number, and what it sees of its environment.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--fail", help="say this, and exit with code 3")
    parser.add_argument("--mute", action="store_true", help="never be healthy")
    parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM")
    parser.add_argument(
        "--family", action="store_true", help="have a child that left for a session of its own"
    )
    parser.add_argument("--late", type=float, default=0.0, help="listen after so many seconds")
    parser.add_argument("--once", type=Path, help="hang where this file is, else make it")
    parser.add_argument("--page-size", type=int, default=1)
    asked, _ = parser.parse_known_args()
    note("server")
    if asked.fail:
        print(asked.fail, flush=True)
        sys.exit(3)
    if asked.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if asked.family:
        have_family()
    if asked.once:
        while asked.once.exists():
            time.sleep(1000)
        asked.once.touch()
    info = {
        "/health": {},
        "/server_info": {
            "version": "0.5.23",
            "model_path": asked.model_path,
            "page_size": asked.page_size,
            "max_total_num_tokens": 65536,
            "max_req_input_len": 8186,
            "disable_radix_cache": False,
            "dp_size": 1,
            "internal_states": [{}],
        },
        "/model_info": {"model_path": asked.model_path, "is_generation": True, "weight_version": "default"},
    }

    time.sleep(asked.late)

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path in info and not asked.mute
            body = json.dumps(info.get(self.path)).encode()
            self.send_response(200 if known else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: requests aren't logged by a server that fafo starts."""

    print(f"listening at {asked.port}", flush=True)
    http.server.ThreadingHTTPServer((asked.host, asked.port), Answers).serve_forever()


def note(who: str) -> None:
    starts = os.environ.get("STARTS")
    if starts:
        line = json.dumps({"who": who, "pid": os.getpid(), "argv": sys.argv[1:], "env": dict(os.environ)})
        with Path(starts).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def have_family() -> None:
    """Have a grandchild that nothing but its environment and its parent's parent ties to this process."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("grandchild")
    while True:
        time.sleep(1000)


if __name__ == "__main__":
    main()
