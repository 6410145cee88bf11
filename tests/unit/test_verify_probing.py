"""Which servers are probed, and with what."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fafo_build.project import declaration
from fafo_run.engines.launch_up import UpFolder
from fafo_run.verify import probing

FACTS = SimpleNamespace(vocab_size=1000, context_length=512, eos_ids=(2,))


def urls(spec: declaration.Engine, runs: Path) -> list[str]:
    project = SimpleNamespace(root=runs, runs_dir=runs)
    plan: Any = SimpleNamespace(engine=spec, model=None, facts=FACTS, view=SimpleNamespace(project=project))

    async def look() -> list[str]:
        async with probing.opened(plan) as engines:
            return [engine.server for engine in engines]

    return asyncio.run(look())


def test_of_a_launched_engine_the_servers_that_are_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def up(self: UpFolder, engine: str | None = None) -> list[Any]:
        asked.append(engine)
        return [SimpleNamespace(url="http://127.0.0.1:30000"), SimpleNamespace(url="http://127.0.0.1:30001")]

    monkeypatch.setattr(UpFolder, "read", up)
    launched = declaration.Engine("fast", "sglang", launch=declaration.Launch())
    assert urls(launched, tmp_path) == ["http://127.0.0.1:30000", "http://127.0.0.1:30001"]
    assert asked == ["fast"]
    given = declaration.Engine("given", "sglang", urls=("http://10.0.0.7:30000/",))
    assert urls(given, tmp_path) == ["http://10.0.0.7:30000"]
    assert asked == ["fast"]


def test_made_up_ids_are_those_of_the_class_and_never_twice_the_same() -> None:
    of: Any = SimpleNamespace(artifact=SimpleNamespace(prefix=tuple(range(100, 150))))
    found = {probing.made_up(of, (7, 8)) for _ in range(50)}
    assert len(found) == 50
    assert {token for ids in found for token in ids} <= {*range(100, 150), 7, 8}
    bare: Any = SimpleNamespace(artifact=SimpleNamespace(prefix=()))
    assert set(probing.made_up(bare, ())) == {0}
