"""`fafo run` against SGLang's own load generator, `bench_serving`, at the same real server: the same token
ids, as many requests in flight, cold cache each time, in turns.

The server is the limit in both. What is compared is items per second from the first request to the last
answer; fafo reads, encodes, and records durably meanwhile. Needs FAFO_SGLANG_VENV (docs/engines.md).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fafo_build.bake.baked import load_baked
from fafo_build.project.load import load_project
from fafo_run.prompt import PromptEncoder
from fafo_run.run.store import RunReader
from fafo_run.run.view import items, open_view
from tests import sglang_server, tiny_model
from tests.helpers import CLASS, MAIN, MODEL, fafo, write_project

BENCH = """
import json, sys, types
import launch  # of .ci/sglang: declares what torchvision misses without CUDA

# Its datasets need a package that isn't installed here; none of them is used.
sys.modules["datasets"] = types.SimpleNamespace(load_dataset=None)
from sglang.benchmark import serving
from sglang.benchmark.datasets.common import DatasetRow

rows = [DatasetRow(ids, len(ids), int(sys.argv[2])) for ids in json.load(open(sys.argv[1]))]
serving.get_dataset = lambda *_: rows
sys.argv[1:] = sys.argv[3:]
serving.cli_main()
"""
"""Runs bench_serving in its own environment, over ids that it is given instead of a dataset of its own."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16, help="of each output, at most")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        model = tiny_model.make(home / "model")
        with sglang_server.running(model, home / "server.log") as url:
            folder = project(home / "project", model, url, given)
            ids = home / "ids.json"
            ids.write_text(json.dumps(prompts(folder)))
            ours, theirs = [], []
            for number in range(given.rounds):
                flush(url)
                theirs.append(bench(home, ids, model, url, given))
                flush(url)
                ours.append(run(folder, f"round{number}", given.items))
                print(
                    f"fafo run {ours[-1]:7.1f} items/s   bench_serving {theirs[-1]:7.1f} items/s", flush=True
                )
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"fafo run / bench_serving: {statistics.median(ratios):.3f} (of {each})")


def project(folder: Path, model: Path, url: str, given: argparse.Namespace) -> Path:
    rules = " ".join(f"Rule {rule} says that facts are facts, and nothing else." for rule in range(40))
    asks = CLASS.replace('prompt = "rules.md"', f'content = "{rules}"')
    asks = asks.replace("max_new_tokens = 8", f"max_new_tokens = {given.tokens}")
    asked = f'kind = "sglang"\nurls = ["{url}"]\nmax_running = {given.in_flight}'
    main = MAIN.replace(MODEL, str(model)).replace('kind = "fake"\nmax_running = 8', asked)
    write_project(folder, given.items, main=main, classes={"ask": asks})
    fafo(folder, "build", "--quiet")
    return folder


def prompts(folder: Path) -> list[list[int]]:
    """Return the ids of all prompts, as fafo sends them."""
    loaded = load_project(folder)
    view = open_view(loaded, load_baked(loaded))
    (of,) = view.classes
    encoder = PromptEncoder(of.artifact, of.model.encoder)
    return [
        [*encoder.prefix, *encoder.encode(item.row.fields, item.row.source, item.row.key).suffix]  # type: ignore[union-attr]
        for item in items(view)
    ]


def run(folder: Path, name: str, count: int) -> float:
    fafo(folder, "run", "--quiet", "--run", name)
    with RunReader.open(folder / "runs" / name) as reader:
        records = list(reader.results.effective())
    assert len(records) == count
    return count / (max(r.started + r.seconds for r in records) - min(r.started for r in records))


def bench(home: Path, ids: Path, model: Path, url: str, given: argparse.Namespace) -> float:
    said = home / "bench.jsonl"
    said.unlink(missing_ok=True)
    arguments = [
        "--backend", "sglang", "--base-url", url, "--model", str(model), "--dataset-name", "random",
        "--num-prompts", str(given.items), "--max-concurrency", str(given.in_flight), "--disable-stream",
        "--disable-ignore-eos", "--disable-tqdm", "--warmup-requests", "0", "--output-file", str(said),
    ]  # fmt: skip
    python = Path(os.environ[sglang_server.VENV]) / "bin" / "python"
    paths = os.pathsep.join(
        str(path) for path in (sglang_server.SERVE.parent, sglang_server.SERVE.parent / "standins")
    )
    done = subprocess.run(
        [str(python), "-W", "ignore", "-c", BENCH, str(ids), str(given.tokens), *arguments],
        env=os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode or not said.exists():
        raise SystemExit(f"bench_serving failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found = json.loads(said.read_text().splitlines()[-1])
    assert found["completed"] == given.items, found["completed"]
    return float(found["request_throughput"])


def flush(url: str) -> None:
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/flush_cache", method="POST"), timeout=30
    ) as done:
        assert done.status == 200


if __name__ == "__main__":
    main()
