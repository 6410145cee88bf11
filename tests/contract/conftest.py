"""The engines under contract, and prefixes for them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from fafo_build.project import declaration
from fafo_run.engines.base import Prefix
from tests import sglang_server, tiny_model
from tests.engine_harness import Harness
from tests.fake_sglang import text_of

KINDS = [
    "fake",
    "fake-pages",
    "transformers",
    "sglang-fake",
    "sglang-fake-pages",
    pytest.param("sglang", marks=[pytest.mark.slow, pytest.mark.alone]),
    pytest.param("sglang-pages", marks=[pytest.mark.slow, pytest.mark.alone]),
]


@pytest.fixture(scope="session", params=KINDS)
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """Each engine in turn: with a session's scope, all tests of one run before the next is opened."""
    kind: str = request.param
    page_size = 16 if kind.endswith("-pages") else 1
    match kind.removesuffix("-pages"):
        case "fake":
            yield Harness(declaration.Engine("default", "fake", max_running=4), page_size=page_size)
        case "sglang-fake":
            spec = declaration.Engine("default", "sglang", max_running=4)
            yield Harness(spec, page_size=page_size, server="fake", text=text_of)
        case "transformers":
            model = tiny_model.make(tmp_path_factory.mktemp("tiny"))
            yield Harness(
                declaration.Engine("default", "transformers", max_running=4),
                model=declaration.Model("default", str(model), dtype="float32"),
                vocab_size=tiny_model.VOCAB_SIZE,
                root=model.parent,
            )
        case _:
            from transformers import AutoTokenizer

            sglang_server.venv()  # first of all: without it there is nothing to make a model for
            folder = tmp_path_factory.mktemp("sglang")
            model = tiny_model.make(folder / "model")
            # A model that knows nothing would fill an output with the white space that JSON allows.
            flags = ("--page-size", str(page_size), "--constrained-json-disable-any-whitespace")
            with sglang_server.running(model, folder / "server.log", flags=flags) as url:
                yield Harness(
                    declaration.Engine("default", "sglang", max_running=4),
                    vocab_size=tiny_model.VOCAB_SIZE,
                    context_length=tiny_model.CONTEXT_LENGTH,
                    page_size=page_size,
                    seeded=False,
                    server=url,
                    eos_ids=(2,),
                    text=AutoTokenizer.from_pretrained(model).decode,
                )


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
