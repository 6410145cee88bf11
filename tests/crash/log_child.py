"""A whole run without an engine, until it is killed: says on stdout what was acknowledged, after it was."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from fafo_run.log.directory import RunDirectory
from fafo_run.log.recovery import recover
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from tests.log_nouns import item, name_of, record


def say(word: str, numbers: list[int]) -> None:
    os.write(1, "".join(f"{word} {number}\n" for number in numbers).encode())


def main(path: Path, total: int) -> None:
    with RunDirectory.own(path) as directory:
        report = recover(directory)
        if report.damaged:
            say("damaged", [1])
        results = Results(directory, segment_bytes=1 << 15)
        queue = Queue(directory, segment_bytes=1 << 14)
        queue.settle(results.done)
        directory.mark_running()
        waiting = queue.identities()
        lanes = [256, 512]
        todo = [
            number
            for number in range(total)
            if name_of(number) not in waiting and name_of(number) not in results
        ]
        finished = threading.Event()

        def produce() -> None:
            for at in range(0, len(todo), 20):
                batch = todo[at : at + 20]
                queue.append([item(number, lane=lanes[number % 2]) for number in batch])
                say("queued", batch)
            finished.set()

        producer = threading.Thread(target=produce, daemon=True)
        producer.start()
        rounds = 0
        while not (finished.is_set() and queue.depth() == 0):
            claims = queue.claim(16)
            numbers = [int(claim.item.key.strip("ké")) for claim in claims]
            results.append(
                [record(number, lane=claim.item.lane) for number, claim in zip(numbers, claims, strict=True)]
            )
            say("recorded", numbers)
            queue.retire(claims)
            rounds += 1
            if rounds % 5 == 0:
                queue.sync_markers()
                queue.collect()
        queue.close(clean=True)
        results.close(clean=True)
        directory.mark_stopped()
        say("finished", [1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
