"""What a person reads after a mistake, word for word. UPDATE_GOLDEN=1 writes them anew: then read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from project_files import EXAM, MAIN, change, problems, write

GOLDEN = Path(__file__).parents[1] / "golden" / "errors"


def main(old: str, new: str) -> dict[str, str | bytes]:
    return {"main": change(MAIN, old, new)}


def exam(old: str, new: str) -> dict[str, str | bytes]:
    return {"exam": change(EXAM, old, new)}


CASES: dict[str, dict[str, str | bytes]] = {
    "type_number": exam("max_new_tokens = 96", 'max_new_tokens = "many"'),
    "type_quoted_number": exam("max_new_tokens = 96", 'max_new_tokens = "96"'),
    "type_bool_for_int": exam("samples = 2", "samples = true"),
    "type_wide_characters": exam(
        '[vars]\naudience = "first-year students"\n',
        '[vars]\nboth = { "题目" = 1, "e\u0301" = 2 }\nitem = 1\n',
    ),
    "type_after_wide_characters": main(
        'type = "files"',
        '"type" = "数据文件" # 数据',
    ),
    "unknown_key_near": exam("max_new_tokens = 96", "max_tokens = 96"),
    "unknown_key_far": main("min_hit_rate = 0.99", "min_hit_rate = 0.99\nzzz = 1"),
    "unknown_key_later": main('key = "symbol"', 'key = "symbol"\nwhere = "year > 1900"'),
    "unknown_key_elsewhere": exam("samples = 2", 'samples = 2\nsources = ["elements"]'),
    "unknown_table": main("[verify]", "[verfy]"),
    "literal": main('kind = "transformers"', 'kind = "transfomers"'),
    "missing_key": main('key = "symbol"\n', ""),
    "missing_tables": {"main": '[project]\nname = "x"\n'},
    "range": exam("temperature = 0.8\ntop_p = 0.95", "temperature = -1\ntop_p = 0"),
    "lanes": main("[128, 512, 2048]", "[128, 2048, 512]"),
    "queue": main("low = 20, high = 100", "low = 200_000"),
    "duration": main('"15m"', '"15 minutes"'),
    "source_of_another_type": main('path = "data/elements.csv"', 'query = "select 1"'),
    "source_twice": main('name = "countries"', 'name = "elements"'),
    "sql_url": main("sqlite:///data/world.db", "postgresql://me:secret@db/world"),
    "message_both": exam('prompt = "examiner.md"', 'prompt = "examiner.md"\ncontent = "You are"'),
    "message_single_brackets": {"exam": 'sources = ["elements"]\n[message]\nrole = "user"\ncontent = "x"\n'},
    "reference": {
        "exam": change(EXAM, '"countries"]', '"contries"]\nmodel = "big"\nengine = "sever"'),
        "main": change(
            MAIN, "[engine]", '[engines.server]\nkind = "sglang"\nurls = ["http://a:1"]\n\n[engines.local]'
        ),
    },
    "several_engines": main(
        "[engine]", '[engines.server]\nkind = "sglang"\nurls = ["http://a:1"]\n\n[engines.local]'
    ),
    "both_model_and_models": main("[engine]", '[models.big]\npath = "b"\n\n[engine]'),
    "syntax": main('name = "probes"', "name = probes"),
    "syntax_twice": main('name = "probes"', 'name = "probes"\nname = "again"'),
    "table_twice": main("[verify]", "[run] # again"),
    "message_twice_single_brackets": {
        "exam": 'sources = ["elements"]\n[message]\nrole = "user"\n[message]\nrole = "user"\n'
    },
    "message_misspelt": {"exam": EXAM.replace("[[message]]", "[[messages]]")},
    "keys_misspelt": {
        "main": change(change(MAIN, "[model]", "[modle]"), 'path = "data', 'paht = "data'),
        "exam": change(EXAM, 'prompt = "', 'promt = "'),
    },
    "source_name": main('name = "elements"', 'name = "my elements"'),
    "last_message": {"exam": EXAM.replace('"user"', '"assistant"')},
    "syntax_end": main("min_hit_rate = 0.99", "min_hit_rate = [0.99,"),
    "bom": {"main": b"\xef\xbb\xbf" + MAIN.encode()},
    "latin_1": {"exam": change(EXAM, "first-year", "première année").encode("latin-1")},
    "empty": {"main": "", "exam": "# nothing yet\n"},
    "all_files_at_once": {
        "main": change(MAIN, 'path = "data/elements.csv"', "path = 3"),
        "exam": change(EXAM, "samples = 2", 'samples = "2"\nseed = 1'),
        "child": 'sources = "elements"\n[[message]]\nrole = "bot"\n',
        "torn": "[[message]\n",
    },
}


@pytest.mark.parametrize("name", CASES)
def test_error_text(name: str, tmp_path: Path) -> None:
    shown = problems(write(tmp_path, **CASES[name]))
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(shown)
    assert shown == golden.read_text()


def test_every_golden_file_has_its_case() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(CASES)


def test_a_url_from_the_file_is_not_repeated_in_the_message(tmp_path: Path) -> None:
    message = problems(write(tmp_path, **CASES["sql_url"])).splitlines()[0]
    assert "secret" not in message
