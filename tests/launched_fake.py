"""The stand-in for an SGLang server as a program that fafo starts: `python -m tests.launched_fake --port N`.

It writes its process number to the file that the variable STARTS names; flags that it doesn't know are the
real server's, and are ignored.
"""

from __future__ import annotations

import argparse
import asyncio

from tests.fault_server import FaultServer
from tests.launched_server import note


async def serve(port: int, pace: float) -> None:
    settings = {"vocab_size": 49_152, "context_length": 8_192, "metrics": True}
    async with FaultServer(port=port, seconds_per_token=pace, **settings):
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds for each token")
    asked, _ = parser.parse_known_args()
    note("server")
    asyncio.run(serve(asked.port, asked.pace))


if __name__ == "__main__":
    main()
