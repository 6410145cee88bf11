"""The survey: what a whole source holds, and rows that contradict each other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fafo_build.errors import SourceError, StoreError
from fafo_run.sources.view import Survey, open_source, survey
from tests.source_harness import declare


def survey_of(root: Path, *lines: str, in_memory: int) -> Survey:
    (root / "rows.jsonl").write_text("\n".join(lines) + "\n")
    work = root / "work"
    work.mkdir(exist_ok=True)
    try:
        return survey(open_source(declare("jsonl"), root), work, in_memory=in_memory)
    finally:
        assert list(work.iterdir()) == [], "nothing is left behind"


@pytest.fixture(params=[200_000, 1, 0], ids=["in memory", "mostly in a file", "in a file"])
def in_memory(request: pytest.FixtureRequest) -> int:
    limit: int = request.param
    return limit


def test_counts_different_rows(in_memory: int, tmp_path: Path) -> None:
    found = survey_of(
        tmp_path,
        *(f'{{"id": {n}, "text": "same"}}' for n in range(100)),
        '{"id": 7, "text": "same"}',
        '{"text": "same", "id": 7}',
        "torn",
        "torn",
        "torn too",
        in_memory=in_memory,
    )
    assert found == Survey("things", rows=100, broken=2, repeated=3)


def test_every_row_is_shown_on_the_way(in_memory: int, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 1, "text": "a"}\ntorn\n')
    shown: list[str] = []
    source = open_source(declare("jsonl"), tmp_path)
    survey(source, tmp_path, in_memory=in_memory, see=lambda row: shown.append(row.where))
    assert shown == [row.where for row in source.rows()] and len(shown) == 3


def test_one_key_with_two_contents_is_an_error_that_names_both_rows(in_memory: int, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        survey_of(
            tmp_path,
            '{"id": 1, "text": "a"}',
            '{"id": 2, "text": "b"}',
            '{"id": 3, "text": "b"}',
            '{"id": "2", "text": "c"}',
            in_memory=in_memory,
        )
    assert caught.value.render().startswith(
        'source.things.key: two rows have the key "2" and different contents: rows.jsonl:2 and rows.jsonl:4\n'
    )


def test_broken_rows_contradict_nobody(in_memory: int, tmp_path: Path) -> None:
    found = survey_of(
        tmp_path,
        '{"id": 1, "text": "a"}',
        '{"id": 1, "text": 99999999999999999999}',
        '{"id": 1, "text": 99999999999999999998}',
        in_memory=in_memory,
    )
    assert found == Survey("things", rows=1, broken=2, repeated=0)


def test_keys_may_be_long_and_odd(in_memory: int, tmp_path: Path) -> None:
    long = "k" * 5000
    found = survey_of(
        tmp_path,
        f'{{"id": "{long}"}}',
        f'{{"id": "{long}x"}}',
        '{"id": "\\u0000"}',
        '{"id": "="}',
        in_memory=in_memory,
    )
    assert found.rows == 4


def test_a_folder_that_takes_no_file_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(StoreError, match="can't be written"):
        survey(open_source(declare("jsonl"), tmp_path), tmp_path / "absent", in_memory=0)


def test_opening_reads_nothing_and_imports_nothing_heavy(tmp_path: Path) -> None:
    import subprocess

    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from fafo_build.project.declaration import Source\n"
        "from fafo_run.sources.view import open_source\n"
        "for kind in ('files', 'sql'):\n"
        "    open_source(Source('s', kind, ('id',), path=('absent.csv',), url='sqlite:///a.db'), Path('.'))\n"
        "print([name for name in ('pyarrow', 'numpy', 'datasets', 'torch') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
