"""The main job's facts: their structure, and what can be checked of them without an almanac."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from attrs import evolve

from fafo_build.project.declaration import Project
from fafo_build.project.load import load_project
from fafo_run.item import Row
from fafo_run.sources.view import open_source, survey

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "examples" / "data"

# By atomic number, up to uranium.
SYMBOL_TABLE = """
H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb
Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu
Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U
"""


@pytest.fixture(scope="module")
def project() -> Project:
    return load_project(ROOT)


def rows(project: Project, name: str) -> list[Row]:
    found = list(open_source(project.sources[name], project.root).rows())
    assert all(isinstance(row, Row) for row in found)
    return [row for row in found if isinstance(row, Row)]


def whole(project: Project, name: str) -> list[Row]:
    declared = evolve(project.sources[name], limit=None)
    return [row for row in open_source(declared, project.root).rows() if isinstance(row, Row)]


def test_the_main_job_has_three_kinds_of_source_and_two_classes_over_all_of_them(project: Project) -> None:
    assert {source.type for source in project.sources.values()} == {"files", "sql", "dataset"}
    assert sorted(project.classes) == ["child", "exam"]
    for declared in project.classes.values():
        assert set(declared.sources) == set(project.sources)


def test_the_main_job_has_60_items(project: Project, tmp_path: Path) -> None:
    items = 0
    for declared in project.classes.values():
        for name in declared.sources:
            found = survey(open_source(project.sources[name], project.root), tmp_path)
            assert (found.broken, found.repeated) == (0, 0)
            items += found.rows * declared.sampling.samples
    assert items == 60


def test_one_class_is_greedy_and_one_is_sampled(project: Project) -> None:
    assert project.classes["exam"].sampling.temperature == 0
    assert project.classes["child"].sampling.temperature > 0


@pytest.mark.parametrize("name", ["elements", "countries", "discoveries"])
def test_each_fact_has_a_name_and_one_or_two_sentences(name: str, project: Project) -> None:
    found = whole(project, name)
    assert len(found) == 20
    for row in found:
        text = row.fields["text"]
        assert row.fields["name"]
        assert text[0].isupper()
        assert text.endswith(".")
        assert 20 < len(text) < 120, text
        assert text.isprintable()
    assert len({row.fields["text"] for row in found}) == len(found)


def test_elements_have_their_symbol_and_atomic_number(project: Project) -> None:
    numbers = [int(row.fields["number"]) for row in whole(project, "elements")]
    assert numbers == sorted(set(numbers))
    for row in whole(project, "elements"):
        assert SYMBOL_TABLE.split()[int(row.fields["number"]) - 1] == row.key

        assert row.fields["name"] in row.fields["text"].lower()


def test_countries_have_a_code_a_capital_and_a_plausible_area(project: Project) -> None:
    found = whole(project, "countries")
    for row in found:
        assert len(row.key) == 2
        assert row.key.isascii()
        assert row.key.isupper()
        assert row.fields["capital"][0].isupper()
        # Between the smallest state and the largest, and rounded to two figures.
        assert 0.4 < row.fields["area_km2"] < 17_200_000
        assert float(f"{row.fields['area_km2']:.1e}") == row.fields["area_km2"]
        assert row.fields["name"] in row.fields["text"]
    largest = max(found, key=lambda row: row.fields["area_km2"])
    assert largest.key == "CA"


def test_discoveries_are_in_order_and_their_text_says_year_and_person(project: Project) -> None:
    found = whole(project, "discoveries")
    years = [row.fields["year"] for row in found]
    assert years == sorted(years)
    assert len({row.key for row in found}) == len(found)
    for row in found:
        assert str(row.fields["year"]) in row.fields["text"]
        for person in row.fields["people"]:
            assert person.split()[-1] in row.fields["text"]


def test_the_committed_data_is_what_the_script_makes(project: Project, tmp_path: Path) -> None:
    script = runpy.run_path(str(DATA / "make_data.py"))
    script["write_world"](tmp_path / "world.db")
    script["write_discoveries"](tmp_path / "discoveries")
    made = {
        "countries": evolve(project.sources["countries"], limit=None, url=f"sqlite:///{tmp_path}/world.db"),
        "discoveries": evolve(project.sources["discoveries"], limit=None, path=(f"{tmp_path}/discoveries",)),
    }
    for name, declared in made.items():
        again = [row.content_hash for row in open_source(declared, ROOT).rows()]
        assert again == [row.content_hash for row in whole(project, name)]


def test_the_second_project_reads_its_two_files() -> None:
    tickets = load_project(ROOT / "examples" / "tickets")
    keys = [
        row.key for source in tickets.sources.values() for row in open_source(source, tickets.root).rows()
    ]
    assert keys == ["4101", "4102", "4103", "4107", "4110", "5001", "5002", "5003", "5004", "5005"]
