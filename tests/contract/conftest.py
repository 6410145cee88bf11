"""The engines under contract, and prefixes for them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fafo_build.project import declaration
from fafo_run.engines.base import Prefix
from tests import sglang_server, tiny_model
from tests.engine_harness import Harness

KINDS = [
    "fake",
    "fake-pages",
    "transformers",
    "sglang-fake",
    "sglang-fake-pages",
    pytest.param("sglang", marks=pytest.mark.slow),
    pytest.param("sglang-pages", marks=pytest.mark.slow),
]


@pytest.fixture(params=KINDS)
def harness(request: pytest.FixtureRequest) -> Harness:
    kind: str = request.param
    page_size = 16 if kind.endswith("-pages") else 1
    match kind.removesuffix("-pages"):
        case "fake":
            return Harness(declaration.Engine("default", "fake", max_running=4), page_size=page_size)
        case "transformers":
            model = request.getfixturevalue("tiny_folder")
            return Harness(
                declaration.Engine("default", "transformers", max_running=4),
                model=declaration.Model("default", str(model), dtype="float32"),
                vocab_size=tiny_model.VOCAB_SIZE,
                root=model.parent,
            )
        case "sglang-fake":
            spec = declaration.Engine("default", "sglang", max_running=4)
            return Harness(spec, page_size=page_size, server="fake")
        case _:
            url = request.getfixturevalue("real_server_pages" if page_size > 1 else "real_server")
            return Harness(
                declaration.Engine("default", "sglang", max_running=4),
                vocab_size=tiny_model.VOCAB_SIZE,
                context_length=tiny_model.CONTEXT_LENGTH,
                page_size=page_size,
                seeded=False,
                server=url,
            )


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model without a tokenizer: engines need none."""
    return tiny_model.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_folder_with_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sglang_server.venv()  # first of all: skips, or in CI fails, without the server's packages
    return tiny_model.make(tmp_path_factory.mktemp("served"), tokenizer=True)


@pytest.fixture(scope="session")
def real_server(tiny_folder_with_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("sglang") / "server.log"
    with sglang_server.running(tiny_folder_with_tokenizer, log) as url:
        yield url


@pytest.fixture(scope="session")
def real_server_pages(
    tiny_folder_with_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    log = tmp_path_factory.mktemp("sglang") / "server.log"
    with sglang_server.running(tiny_folder_with_tokenizer, log, flags=("--page-size", "16")) as url:
        yield url


@pytest.fixture(scope="session")
def fresh_numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def new_prefix(fresh_numbers: Iterator[int]) -> Iterator[Prefix]:
    """Prefixes that no server of this session has seen: one server answers all tests."""

    def prefixes() -> Iterator[Prefix]:
        for number in fresh_numbers:
            rng = random.Random(number)
            yield Prefix(f"{number:064x}", tuple(rng.randrange(3, 1000) for _ in range(50)))

    return prefixes()
