"""What engines get of `[sampling]`: the schema in place of its file, what is checked of it, and the hash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from bake_kit import inputs, project, prompt_class, write

from fafo_build.bake.sampling import check_sampling, for_engine, parameters, sampling_hash
from fafo_build.errors import BakeError
from fafo_build.project.declaration import Project, PromptClass, Sampling

FILE = "schemas/answer.json"
KEY = "class.exam.sampling.json_schema"
SCHEMA = """{
  "type": "object",
  "properties": {
    "why": {"type": "string", "maxLength": 80},
    "answer": {"$ref": "#/$defs/answer"}
  },
  "required": ["why", "answer"],
  "$defs": {"answer": {"enum": ["yes", "no", {"$ref": "https://in.data/"}]}}
}
"""


def declare(root: Path, schema: str | bytes | None = SCHEMA, **sampling: Any) -> tuple[Project, PromptClass]:
    if schema is not None:
        write(root, {FILE: schema})
        sampling["json_schema"] = FILE
    declared = evolve(prompt_class(root, ("user", "{{ item.q }}")), sampling=Sampling(**sampling))
    return project(root, declared), declared


def refusal(root: Path, schema: str | bytes) -> str:
    with pytest.raises(BakeError) as caught:
        check_sampling(*declare(root, schema), 1000)
    shown = caught.value.render()
    assert shown.count("class.exam.sampling.json_schema: ") == len(caught.value.problems)
    assert shown.count("cure: ") == len(caught.value.problems)
    return shown


def test_engines_get_the_schema_and_its_order(tmp_path: Path) -> None:
    """The order of the properties is the order in which a model writes them: reasons before the answer."""
    found = for_engine(*declare(tmp_path)).json_schema
    assert found is not None
    assert json.loads(found) == json.loads(SCHEMA)
    assert found.startswith('{"type":"object","properties":{"why":{"type":"string","maxLength":80},"answer"')


def test_what_is_right_passes(tmp_path: Path) -> None:
    check_sampling(*declare(tmp_path, stop_token_ids=(999,)), 1000)
    check_sampling(*declare(tmp_path, "{}"), 1000)
    check_sampling(*declare(tmp_path, None, regex="yes|no"), 1000)
    draft4 = '{"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": true}'
    check_sampling(*declare(tmp_path, draft4), 1000)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("[]", f"{FILE}:1:1: {KEY}: expected a JSON object"),
        ("true", f"{FILE}:1:1: {KEY}: expected a JSON object"),
        ('{\n  "type": object\n}', f"{FILE}:2:11: {KEY}: not JSON: expecting value"),
        ("", f"{FILE}:1:1: {KEY}: not JSON"),
        (
            b"\xff{}",
            f'classes/exam.toml: {KEY}: the JSON Schema "{FILE}" can\'t be read: '
            "it isn't UTF-8",
        ),
        ('{"type": "object", "type": "string"}', '"type" stands twice in one object'),
        ('{"maximum": NaN}', "NaN is no JSON number"),
        (r'{"const": "\ud800"}', "half a surrogate pair"),
        ("[" * 100_000, "not JSON that can be read"),
        (
            '{\n  "properties": {\n    "a": {"type": "string"},\n    "b/c": [1, {"type": "strin"}],\n'
            '    "d": {"type":\n     "strin"}\n  }\n}',
            f"{FILE}:6:6: {KEY}: no JSON Schema, at #/properties/d/type: 'strin' is not",
        ),
        ('{"required": "a"}', "no JSON Schema, at #/required: 'a' is not of type 'array'"),
        ('{"$schema": 3}', "no JSON Schema, at #/$schema: 3 is not of type 'string'"),
        ('{"$ref":\n "#/$defs/gone"}', f'{FILE}:2:2: {KEY}: "#/$defs/gone" names nothing'),
        ('{"items": [{}], "not": {"$ref": "#/items/1"}}', '"#/items/1" names nothing in this file'),
        ('{"not": {"$ref": "other.json"}}', '"other.json" leads out of the file'),
    ],
)  # fmt: skip
def test_what_is_no_schema_is_refused_where_it_stands(
    schema: str | bytes, expected: str, tmp_path: Path
) -> None:
    assert expected in refusal(tmp_path, schema)


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    of, declared = declare(tmp_path, '{"type": 1, "minimum": "a"}', stop_token_ids=(5, 1000, 1001))
    with pytest.raises(BakeError) as caught:
        check_sampling(of, declared, 1000)
    shown = caught.value.render()
    assert "class.exam.sampling.stop_token_ids[2]: the model's ids end at 999, and 1000 is beyond" in shown
    assert "stop_token_ids[3]" in shown
    assert "#/type" in shown
    assert "#/minimum" in shown


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    of, declared = declare(tmp_path)
    (tmp_path / FILE).unlink()
    with pytest.raises(BakeError, match="No such file"):
        check_sampling(of, declared, 1000)
    with pytest.raises(BakeError, match="No such file"):
        for_engine(of, declared)
    with pytest.raises(BakeError, match="No such file"):
        inputs(of, declared)


def test_the_schema_is_an_input_of_its_class(tmp_path: Path) -> None:
    before = inputs(*declare(tmp_path))
    assert set(before) == {"classes/exam.toml", FILE}
    after = inputs(*declare(tmp_path, SCHEMA.replace("80", "81")))
    assert after[FILE] != before[FILE]
    assert set(inputs(*declare(tmp_path, None))) == {"classes/exam.toml"}


def test_the_hash_is_of_what_a_schema_says_and_not_of_how_it_is_written(tmp_path: Path) -> None:
    def hashed(schema: str) -> str:
        return sampling_hash(for_engine(*declare(tmp_path, schema)))

    assert hashed(SCHEMA) == hashed(json.dumps(json.loads(SCHEMA), indent=8))
    assert hashed(SCHEMA) != hashed(SCHEMA.replace("80", "81"))
    # What a model writes first decides what it writes then.
    assert hashed('{"a": 1, "b": 2}') != hashed('{"b": 2, "a": 1}')
    of, declared = declare(tmp_path)
    write(tmp_path, {"other.json": SCHEMA})
    moved = evolve(declared, sampling=Sampling(json_schema="other.json"))
    assert sampling_hash(for_engine(of, moved)) == hashed(SCHEMA)


SET = (
    Sampling(frequency_penalty=0.5),
    Sampling(presence_penalty=0.5),
    Sampling(repetition_penalty=0.5),
    Sampling(stop=("a",)),
    Sampling(stop=("a", "b")),
    Sampling(stop_token_ids=(1,)),
    Sampling(json_schema='"a"'),
    Sampling(regex='"a"'),
    Sampling(ebnf='"a"'),
)


def test_the_hash_covers_every_parameter_and_no_default() -> None:
    assert len({sampling_hash(sampling) for sampling in (Sampling(), *SET)}) == 1 + len(SET)
    assert sampling_hash(Sampling()) == "8a30fa246230ad4724408b5642b853bf51516c3774f65e841311fb6bd0b4d6f3"
    assert sampling_hash(Sampling(stop=("a", "b"))) == sampling_hash(Sampling(stop=("b", "a")))
    assert sampling_hash(Sampling(stop_token_ids=(1, 2))) == sampling_hash(Sampling(stop_token_ids=(2, 1)))


def test_the_parameters_are_plain_and_only_those_that_are_set() -> None:
    always = {"max_new_tokens": 128, "temperature": 1.0, "top_p": 1.0, "top_k": None, "min_p": 0.0}
    assert parameters(Sampling(samples=3)) == always
    asked = Sampling(stop=("b", "a"), presence_penalty=1.0, json_schema="{}")
    assert parameters(asked) == always | {"stop": ["b", "a"], "presence_penalty": 1.0, "json_schema": "{}"}
