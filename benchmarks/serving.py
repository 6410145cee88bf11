"""What `fafo run` itself costs per item when the server costs nothing, and where each microsecond goes.

An instant server in a process of its own answers on one core, fafo works on the other, over 20,000 prompts of
600 + 50 ids. Time is CPU time of fafo's process, all threads, user and system: what runs beside it hardly
changes it. `items/s wall` means something only on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.instant_server import instant_server

PREFIX = 600
"""Ids that all items share, about."""
WORDS = 35
"""Words of an item's text: with the rest of the message some 50 ids."""
IN_FLIGHT = 256


def batched(found: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """`itertools.batched` of Python 3.12."""
    waiting = iter(found)
    while batch := list(islice(waiting, size)):
        yield batch


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Bill:
    """What each part costs, in microseconds of CPU per item, measured alone."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.parts: dict[str, float] = {}

    def add(self, name: str, step: Callable[[], object], less: float = 0.0) -> float:
        """Run a step over all items and note what it took, `less` what another part of the bill holds."""
        begun = cpu()
        step()
        taken = (cpu() - begun) / self._count * 1e6
        self.parts[name] = taken - less
        print(f"  {name:46}{taken - less:8.1f} us", flush=True)
        return taken

    def floor(self, name: str, step: Callable[[], object]) -> None:
        """Show what the same work takes at least; it isn't added to the bill."""
        begun = cpu()
        step()
        print(f"  {name:46}{(cpu() - begun) / self._count * 1e6:16.1f} us", flush=True)


def write(folder: Path, count: int, url: str, max_running: int) -> None:
    from tests.helpers import CLASS, MAIN, write_project

    main = MAIN.replace('kind = "fake"', f'kind = "sglang"\nurls = ["{url}"]').replace(
        "max_running = 8", f"max_running = {max_running}"
    )
    write_project(
        folder, 1, main=main, classes={"ask": CLASS.replace("max_new_tokens = 8", "max_new_tokens = 32")}
    )
    chance = random.Random(7)
    words = (Path(__file__).parents[1] / "docs" / "format.md").read_text("utf-8").split()
    words = sorted({word for word in words if word.isalpha()})
    rules = folder / "prompts" / "rules.md"
    rules.write_text(" ".join(chance.choice(words) for _ in range(PREFIX - 80)) + "\n", "utf-8")
    lines = (
        json.dumps({"id": number, "text": " ".join(chance.choice(words) for _ in range(WORDS - 8))})
        for number in range(count)
    )
    (folder / "facts.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("items", nargs="?", type=int, default=20_000)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT)
    parser.add_argument("--profile", metavar="FILE", help="write cProfile's figures of the run's main thread")
    parser.add_argument("--whole", action="store_true", help="only the whole, not its parts")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with (
        instant_server(PREFIX, cores[0]) as (url, told),
        tempfile.TemporaryDirectory() as name,
    ):
        os.sched_setaffinity(0, {cores[-1]})
        folder = Path(name)
        write(folder, arguments.items, url, arguments.in_flight)
        measure(folder, arguments)
    print(f"the server used {told['cpu'] / max(1, told['served']) * 1e6:.0f} us of CPU per request")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def measure(folder: Path, arguments: argparse.Namespace) -> None:
    from benchmarks.pipeline import Silent
    from fafo_build.bake.bake import build
    from fafo_build.bake.baked import load_baked
    from fafo_build.project.load import load_project
    from fafo_run.run import cycles
    from fafo_run.run.completer import Completer
    from fafo_run.run.plan import plan_run
    from fafo_run.run.producer import Producer
    from fafo_run.run.supervisor import Supervisor
    from fafo_run.run.view import open_view

    project = load_project(folder)
    build(project)
    cycles.search_rarely()
    view = open_view(project, load_baked(project))
    if not arguments.whole:
        parts(view, folder, arguments)

    class Watching(Silent):
        def tick(self, snapshot: Any) -> None:
            if snapshot.notice:
                raise SystemExit(f"the run waits: {snapshot.notice}")

    threads = {"reading and prompts": Producer, "records, index, markers": Completer}
    spent_by = {name: thread_time_of(role) for name, role in threads.items()}
    supervisor = Supervisor(plan_run(view), folder / "runs" / "main", Watching())
    begun, wall = cpu(), time.perf_counter()
    outcome = profiled(supervisor.run, arguments.profile)
    spent, wall = cpu() - begun, time.perf_counter() - wall
    for name, times in spent_by.items():
        print(f"  thread: {name:38}{sum(times) / arguments.items * 1e6:8.1f} us")
    rest = spent - sum(map(sum, spent_by.values()))
    print(f"  {'others: start, dispatch, HTTP, the tokenizer':46}{rest / arguments.items * 1e6:8.1f} us")
    count = arguments.items
    assert outcome.exit_code == 0 and outcome.snapshot.completed == count, outcome
    print(
        f"fafo run: {spent / count * 1e3:.3f} ms of CPU per item; {count / wall:,.0f} items/s wall",
        flush=True,
    )


def thread_time_of(role: Any) -> list[float]:
    """Let every thread of this class leave the CPU time that it took in the list, when it ends."""
    times: list[float] = []
    run = role.run

    def timed(self: Any) -> None:
        run(self)
        times.append(time.thread_time())

    role.run = timed
    return times


def profiled(step: Callable[[], Any], file: str | None) -> Any:
    if file is None:
        return step()
    import cProfile

    profile = cProfile.Profile()
    try:
        return profile.runcall(step)
    finally:
        profile.dump_stats(file)


def parts(view: Any, folder: Path, arguments: argparse.Namespace) -> None:
    """Measure each part alone, over all items."""
    from fafo_run.engines.base import Prefix
    from fafo_run.run.store import RunStore

    bill = Bill(arguments.items)
    made = prompts(view, bill)
    (of,) = view.classes
    store = RunStore.open(folder / "runs" / "parts", view.project.run)
    claims = queue(store, bill, made)
    prefix = Prefix(of.artifact.hash, of.artifact.prefix)
    records = http(view, bill, claims, prefix, arguments.in_flight)

    def commit() -> None:
        for batch in batched(records, 500):
            store.results.take(list(batch))

    bill.add("results: durable, indexed", commit)

    def retire() -> None:
        for batch in batched(claims, 500):
            store.queue.retire(batch)

    bill.add("queue: retire", retire)
    bill.add("closing the store", lambda: store.close(clean=True))
    print(f"  {'sum of the parts':46}{sum(bill.parts.values()):8.1f} us")


def prompts(view: Any, bill: Bill) -> list[Any]:
    """Measure the way from a row to its queue entry, and return the entries."""
    from fafo_run.run.making import Maker
    from fafo_run.run.view import items

    reading = bill.add("view: reading, hashing, identity", lambda: sum(1 for _ in items(view)))
    maker = Maker(view)
    made: list[Any] = []

    def make() -> None:
        for batch in batched(((item, 0) for item in items(view)), 64):
            made.extend(maker.make_each(batch))

    bill.add("prompt: template, tokens, queue entry", make, reading)
    (of,) = view.classes
    encoder = of.model.encoder
    texts = [encoder.decode(item.suffix.ids[slice(*item.bounds[0])]) for item in made]

    def tokenize() -> None:
        for batch in batched(texts, 64):
            encoder.mixed_each([(text, ()) for text in batch])

    bill.floor("  of it the tokenizer alone", tokenize)
    sizes = sorted(len(item.suffix) for item in made)
    median = sizes[len(sizes) // 2]
    print(f"  (prefix {len(of.artifact.prefix)} ids, suffix {sizes[0]} to {sizes[-1]}, median {median})")
    return made


def queue(store: Any, bill: Bill, made: list[Any]) -> list[Any]:
    """Measure the queue, and return what it hands out."""
    claims: list[Any] = []

    def append() -> None:
        for batch in batched(made, 1000):
            store.queue.append(batch)

    bill.add("queue: append", append)

    def claim() -> None:
        while found := store.queue.claim(16):
            claims.extend(found)

    bill.add("queue: claim, 16 at once", claim)
    assert len(claims) == len(made)
    return claims


def http(view: Any, bill: Bill, claims: list[Any], prefix: Any, in_flight: int) -> list[Any]:
    """Measure the request: its body, the connection, its answer, the record made of it."""
    from fafo_run.engines.base import Capabilities, Request
    from fafo_run.engines.limits import Prefixes, refusal
    from fafo_run.engines.sglang_wire import Encoder

    (of,) = view.classes
    encoder = Encoder(of.model.locked.eos_ids)
    url = view.project.engines["default"].urls[0]
    asked: list[Request] = []
    bodies: deque[bytes] = deque(maxlen=500)  # all of them would take more memory than a run ever does
    prefixes = Prefixes()
    limits = Capabilities("", "", "", 49152, 8000, 1, True, 1, 1, {}, {})

    def encode() -> None:
        for claim in claims:
            item = claim.item
            request = Request(item.identity, 1, prefix, item.suffix.ids, of.sampling, item.seed)
            assert refusal(request, limits, prefixes) is None
            asked.append(request)
            bodies.append(encoder.generate(f"{item.identity.hex()}.1-abcdef01-123", request))

    bill.add("wire: request and body", encode)
    answers = sent(url, bill, bodies, len(asked), in_flight)
    return recorded(of, url, bill, list(zip(claims, asked, answers, strict=True)))


def sent(url: str, bill: Bill, bodies: deque[bytes], count: int, in_flight: int) -> list[bytes]:
    """Measure the connection, and return the answers to so many requests with these bodies, in turn."""
    from fafo_run.engines.sglang_client import Client

    answers: list[bytes] = []

    async def send() -> None:
        client = Client(url, silence=600, key=None)
        waiting = islice(cycle(bodies), count)

        async def one() -> None:
            for body in waiting:
                answers.append(await client.generate("r", lambda rid, body=body: body, (650, 32)))  # type: ignore[misc]

        await asyncio.gather(*(one() for _ in range(in_flight)))
        await client.close()

    bill.add("HTTP: client, one task per connection", lambda: asyncio.run(send()))
    bill.floor("  of it sockets alone", lambda: sockets(url, bodies, count, in_flight))
    return answers


def recorded(of: Any, url: str, bill: Bill, answered: list[tuple[Any, Any, bytes]]) -> list[Any]:
    """Measure what becomes of an answer, and return the records; given claims, requests and answers."""
    from fafo_run.engines.sglang_wire import completed, reply
    from fafo_run.run import records

    completions: list[Any] = []

    def decode() -> None:
        for _, request, answer in answered:
            # Whose answer it is isn't known here, and costs nothing in a run.
            count = _prompt_tokens(answer)
            found = reply(answer, prompt_tokens=count, max_new_tokens=32, vocab_size=49152)
            completions.append(completed(found, request, server=url, started=1.0, seconds=1.0))

    bill.add("wire: answer", decode)
    shared = records.provenance(of, "facts")
    made: list[Any] = []

    def record() -> None:
        for (claim, _, _), answer in zip(answered, completions, strict=True):
            made.append(records.answered(claim, answer, shared, 600))

    bill.add("record", record)
    return made


def sockets(url: str, bodies: Iterable[bytes], count: int, in_flight: int) -> None:
    """Send requests and receive answers, and do nothing else."""
    host, _, port = url.removeprefix("http://").partition(":")
    head = (
        b"POST /generate HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    requests = [head % len(body) + body for body in bodies]
    connections = [socket.create_connection((host, int(port))) for _ in range(in_flight)]
    for burst in batched(islice(cycle(requests), count), in_flight):
        for connection, request in zip(connections, burst, strict=False):
            connection.sendall(request)
        for connection, _ in zip(connections, burst, strict=False):
            connection.recv(1 << 16)
    for connection in connections:
        connection.close()


def _prompt_tokens(answer: bytes) -> int:
    at = answer.find(b'"prompt_tokens":') + 16
    return int(answer[at : answer.find(b",", at)])


if __name__ == "__main__":
    main()
