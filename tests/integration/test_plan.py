"""`fafo plan`: what it says before a run, against what the run then does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import CLASS, MAIN, build, fafo, fafo_json, keys_of, named_in, write_project
from tests.serving import serving, use, use_all

KEYS = [
    "run", "engine", "items", "encoded", "exact", "prompt_tokens", "output_tokens", "lanes", "by_class",
    "page_size", "ceiling", "ceiling_tokens", "disk", "servers", "cache_off", "rehearsal", "min_hit_rate",
    "ratio", "warnings", "shared",
]  # fmt: skip

WIDE = MAIN.replace("max_running = 8", "max_running = 64")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of 400 items in one class."""
    folder = write_project(tmp_path_factory.mktemp("plan"), 400)
    build(folder)
    return folder


def narrow(folder: Path, classes: int = 12, rows: int = 5) -> Path:
    """Write a project of many small classes with long prefixes of their own."""

    def text(number: int) -> str:
        rules = " ".join(f"Rule {rule} of {number} is that {rule * number} is good." for rule in range(12))
        system = f'content = "You are number {number}. {rules}"'
        return CLASS.replace('prompt = "rules.md"', system).replace("tokens = 8", "tokens = 60")

    names = {f"c{number:02}": text(number) for number in range(classes)}
    return write_project(folder, rows, main=WIDE, classes=names)


def files(folder: Path) -> Iterator[tuple[str, int, int]]:
    for path in sorted(folder.rglob("*")):
        yield str(path), path.stat().st_mtime_ns, path.stat().st_size if path.is_file() else 0


def test_it_has_the_keys_of_its_contract_and_writes_nothing(project: Path) -> None:
    before = list(files(project))
    told = fafo_json(project, "plan")
    assert list(told) == KEYS
    assert list(files(project)) == before
    assert told["items"] == {"total": 400, "done": 0, "left": 400, "unsendable": 0}
    assert (told["encoded"], told["exact"]) == (400, True)
    assert told["output_tokens"] == {"most": 3_200, "expected": 3_200}
    assert told["lanes"] == {"128": {"items": 400, "prompt_tokens": told["prompt_tokens"]}}
    assert (told["rehearsal"], told["ratio"], told["servers"], told["warnings"]) == (None, None, [], [])


def test_the_page_names_each_key(project: Path) -> None:
    told = fafo_json(project, "plan", "--cache-tokens", "100")
    assert told["rehearsal"] and told["servers"]
    keys = keys_of(told | {"shared": None}) - set(told["by_class"]) - set(told["lanes"])
    assert keys <= named_in("commands", "## fafo plan")


def test_people_read_the_same(project: Path) -> None:
    text = fafo(project, "plan", "--sample", "100").stdout
    assert "from 100 encoded items" in text
    assert "400, 0 done, 400 left" in text
    assert "tokens prefix" in text and "ceiling: " in text and "disk: " in text


def test_a_sample_says_about_what_all_say(project: Path) -> None:
    sampled, whole = fafo_json(project, "plan", "--sample", "100"), fafo_json(project, "plan", "--all")
    assert (sampled["encoded"], sampled["exact"]) == (100, False)
    assert sampled["items"] == whole["items"]
    assert sampled["prompt_tokens"] == pytest.approx(whole["prompt_tokens"], rel=0.02)
    assert sampled["ceiling"] == pytest.approx(whole["ceiling"], rel=0.02)
    assert sampled["disk"]["results"] == pytest.approx(whole["disk"]["results"], rel=0.02)


def test_what_it_says_of_tokens_and_disk_is_what_a_run_does(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 400)
    build(folder)
    told = fafo_json(folder, "plan", "--all")
    fafo(folder, "submit", "--quiet")
    queued = sum(path.stat().st_size for path in (folder / "runs" / "main" / "queue").iterdir())
    assert queued == pytest.approx(told["disk"]["queue"], rel=0.1)
    ran = fafo_json(folder, "run")
    assert ran["prompt_tokens"] == told["prompt_tokens"]
    assert ran["ceiling_tokens"] == told["ceiling_tokens"]
    expected = ran["output_tokens"] / ran["completed"]
    after = fafo_json(folder, "plan")
    assert after["items"] == {"total": 400, "done": 400, "left": 0, "unsendable": 0}
    assert (after["prompt_tokens"], after["disk"]["needed"], after["ceiling"]) == (0, 0, None)
    results = sum(path.stat().st_size for path in (folder / "runs" / "main" / "results").iterdir())
    with (folder / "facts.jsonl").open("a") as file:
        file.writelines(json.dumps({"id": n, "text": f"more of {n}"}) + "\n" for n in range(400, 500))
    more = fafo_json(folder, "plan")
    assert more["items"]["left"] == 100
    assert more["by_class"]["ask"]["output_tokens"]["known"] is True
    assert more["output_tokens"]["expected"] == pytest.approx(100 * expected, abs=1)
    # Without what the index takes, which stands in a folder of its own.
    assert results == pytest.approx(400 / 100 * more["disk"]["expected"] - 400 * 75, rel=0.15)


def test_filters_and_runs_are_those_of_a_run(project: Path) -> None:
    assert fafo_json(project, "plan", "--limit", "30")["items"]["total"] == 30
    fafo(project, "run", "--run", "other", "--limit", "10", "--quiet")
    assert fafo_json(project, "plan", "--run", "other")["items"]["done"] == 10
    assert fafo_json(project, "plan")["items"]["done"] == 0
    assert "did you mean" in fafo(project, "plan", "--class", "asks", check=1).stderr


def test_rows_that_contradict_each_other_are_found_before_the_run(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 3)
    build(folder)
    with (folder / "facts.jsonl").open("a") as file:
        file.write('{"id": 2, "text": "another"}\n')
    assert 'two rows have the key "2"' in fafo(folder, "plan", check=1).stderr
    assert not (folder / "runs").exists()


def test_items_that_stand_twice_count_once_and_those_that_cant_be_sent_are_told(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 5)
    build(folder)
    with (folder / "facts.jsonl").open("a") as file:
        file.write('{"id": 4, "text": "number 4 is 16 squared"}\n{"id": 9, "text": null}\n')
    for how in ((), ("--all",)):
        told = fafo_json(folder, "plan", *how)
        assert told["items"] == {"total": 6, "done": 0, "left": 6, "unsendable": 1}
        assert told["encoded"] == 6
        assert told["output_tokens"]["most"] == 40
        (warning,) = told["warnings"]
        assert warning["text"].startswith("1 of 6 encoded items can't be sent")
        assert "(1 row_invalid); the first: facts.jsonl:7: " in warning["text"]


def test_a_cache_that_holds_it_is_enough_and_one_that_doesnt_is_told(tmp_path: Path) -> None:
    folder = narrow(tmp_path)
    build(folder)
    large = fafo_json(folder, "plan", "--cache-tokens", "20000", "--check")
    assert (large["ratio"], large["warnings"]) == (1.0, [])
    assert large["rehearsal"]["warm_ups"] == 12
    # Two prefixes and some outputs: what runs grows, and pushes out the prefix that was just warmed up.
    small = fafo_json(folder, "plan", "--cache-tokens", "575", "--check", check=4)
    assert 0.5 < small["ratio"] < 0.99
    (warning,) = small["warnings"]
    assert warning["level"] == "warning"
    assert f"predicted {small['ratio']:.3f} of the ceiling, 0.99 asked for" in warning["text"]
    assert "and the cache has 575" in warning["text"]
    assert "--max-total-tokens" in warning["cure"]
    told = fafo(folder, "plan", "--cache-tokens", "575")
    assert "the cache of 575 tokens: predicted" in told.stdout
    assert "warning: predicted" in told.stderr


def test_pages_are_in_the_ceiling(project: Path) -> None:
    told = fafo_json(project, "plan", "--cache-tokens", "20000", "--page-size", "16")
    prefix = told["by_class"]["ask"]["prefix_tokens"]
    assert told["ceiling_tokens"] == 400 * (prefix // 16 * 16)
    assert told["ratio"] == 1.0
    none = fafo_json(project, "plan", "--cache-tokens", "20000", "--page-size", "64")
    assert (none["ceiling_tokens"], none["ratio"]) == (0, None)


def test_servers_are_asked_for_their_caches_and_then_do_what_was_predicted(tmp_path: Path) -> None:
    with serving(capacity=4_000, max_running=8, page_size=16) as server:
        folder = use(narrow(tmp_path), server, WIDE)
        told = fafo_json(folder, "plan")
        (said,) = told["servers"]
        assert (said["url"], said["tokens"], said["page_size"], said["running"]) == (server.url, 4_000, 16, 8)
        assert (said["radix"], said["ranks"], said["trouble"]) == (True, 1, "")
        assert (told["rehearsal"]["in_flight"], told["page_size"]) == (64, 16)
        assert server.received == []
        ran = fafo_json(folder, "run")
    assert ran["ceiling_tokens"] == told["ceiling_tokens"]
    assert ran["cached_tokens"] / ran["prompt_tokens"] == pytest.approx(
        told["rehearsal"]["hit_rate"], abs=0.02
    )


def test_a_server_without_a_radix_cache_or_none_at_all_is_told(tmp_path: Path) -> None:
    with serving(radix=False) as server:
        folder = use(write_project(tmp_path, 4), server)
        told = fafo_json(folder, "plan", "--check", check=4)
        assert (told["cache_off"], told["ratio"], told["rehearsal"]) == (True, 0.0, None)
        assert "--disable-radix-cache" in told["warnings"][0]["text"]
    told = fafo_json(folder, "plan", "--check")
    assert (told["ratio"], told["rehearsal"]) == (None, None)
    assert told["warnings"][0]["text"].startswith(f"no server at {server.url}: ")
    assert "--cache-tokens" in told["warnings"][0]["cure"]
    assert "launch_server" in told["warnings"][0]["cure"]
    assert fafo_json(folder, "plan", "--cache-tokens", "9000")["ratio"] == 1.0


def test_of_two_servers_one_may_be_away_or_without_its_cache(tmp_path: Path) -> None:
    with serving(capacity=20_000) as server:
        with serving(radix=False) as other:
            folder = use_all(write_project(tmp_path, 4), [server, other])
            told = fafo_json(folder, "plan")
            assert (told["cache_off"], told["ratio"], told["rehearsal"]) == (True, 0.0, None)
            assert told["warnings"][0]["text"].startswith(f"{other.url}: started with --disable-radix-cache")
        told = fafo_json(folder, "plan")
        played = told["rehearsal"]
        assert (played["server"], played["caches"], played["items"]) == (server.url, 2, 2)
        (warning,) = told["warnings"]
        assert warning["text"].startswith(f"no server at {other.url}: ")


def test_a_server_that_wants_a_key_is_no_server_to_be_started(tmp_path: Path) -> None:
    with serving(api_key="secret") as server:
        (warning,) = fafo_json(use(write_project(tmp_path, 4), server), "plan")["warnings"]
        assert "wants another API key (HTTP 401)" in warning["text"] and server.url in warning["text"]
        assert "api_key_env" in warning["cure"] and "engine up" not in warning["cure"]


def test_what_answers_and_is_no_server_is_told_from_one_that_is_away(tmp_path: Path) -> None:
    with serving() as server:
        server.server_info.pop("max_total_num_tokens")
        told = fafo_json(use(write_project(tmp_path, 4), server), "plan")
        assert told["rehearsal"] is None and told["servers"][0]["tokens"] is None
        (warning,) = told["warnings"]
        assert warning["text"] == f"{server.url} doesn't say how many tokens its cache holds"
        assert warning["cure"] == told["servers"][0]["cure"] and "--cache-tokens" in warning["cure"]


def test_of_caches_that_differ_the_fullest_is_simulated_and_named(tmp_path: Path) -> None:
    settings = {"max_running": 8, "page_size": 1}
    with serving(capacity=20_000, **settings) as large, serving(capacity=900, **settings) as small:
        folder = use_all(narrow(tmp_path), [large, small], WIDE)
        told = fafo_json(folder, "plan")
        played = told["rehearsal"]
        assert (played["server"], played["cache_tokens"], played["caches"]) == (small.url, 900, 2)
        assert 0 < played["classes"] < 12, "it has the classes that it prefers"
        assert (
            f"the fullest of 2 caches, of 900 tokens at {small.url}: predicted" in fafo(folder, "plan").stdout
        )
        folder = use_all(folder, [large], WIDE)
        assert fafo_json(folder, "plan")["rehearsal"]["server"] is None
    with serving(capacity=20_000, **settings) as one, serving(capacity=20_000, **settings) as other:
        folder = use_all(folder, [one, other], WIDE)
        assert fafo_json(folder, "plan")["rehearsal"]["server"] is None
        assert "each of 2 caches of 20,000 tokens: predicted" in fafo(folder, "plan").stdout


def test_of_caches_that_hold_all_the_smallest_is_simulated_with_its_part(tmp_path: Path) -> None:
    with serving(capacity=40_000, max_running=2) as large, serving(capacity=20_000, max_running=2) as small:
        played = fafo_json(use_all(narrow(tmp_path), [large, small], WIDE), "plan")["rehearsal"]
        assert (played["server"], played["classes"], played["items"]) == (small.url, 12, 12 * 3)


def test_a_run_that_doesnt_fit_the_disk_is_an_error_before_it_begins(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collections import namedtuple

    from fafo_build.bake.baked import load_baked
    from fafo_build.project.load import load_project
    from fafo_run.run import forecasting
    from fafo_run.run.caches import Given
    from fafo_run.run.plan import plan_run
    from fafo_run.run.view import open_view

    usage = namedtuple("usage", "total used free")
    loaded = load_project(project)
    plan = plan_run(open_view(loaded, load_baked(loaded)))

    def levels(free: int) -> list[str]:
        monkeypatch.setattr(forecasting.shutil, "disk_usage", lambda _: usage(free, 0, free))
        folder = project / "runs" / "none"
        found = forecasting.forecast(plan, folder, sample=None, given=Given())
        return [warning.level for warning in found.warnings]

    assert levels(1_000) == ["error"]
    assert levels(10**9) == []


def test_what_isnt_built_now_is_refused_as_a_run_is(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 3)
    build(folder)
    (folder / "prompts" / "rules.md").write_text("Other rules.\n", "utf-8")
    assert "fafo build" in fafo(folder, "plan", check=1).stderr
    assert fafo_json(folder, "plan", "--stale")["items"]["total"] == 3


def test_servers_that_fafo_would_launch_are_taken_at_their_flags(tmp_path: Path) -> None:
    def launching(*args: str) -> Path:
        words = ", ".join(f'"{word}"' for word in args)
        engine = f'kind = "sglang"\nlaunch = {{ replicas = 2, args = [{words}] }}'
        (folder / "fafo.toml").write_text(MAIN.replace('kind = "fake"', engine), "utf-8")
        return folder

    folder = write_project(tmp_path, 6)
    build(folder)
    known = ("--max-total-tokens", "9000", "--page-size=16", "--dp-size", "2", "--max-running-requests", "4")
    told = fafo_json(launching(*known), "plan")
    assert [(each["tokens"], each["page_size"], each["ranks"]) for each in told["servers"]] == [
        (9_000, 16, 2)
    ] * 2
    played = told["rehearsal"]
    assert (played["caches"], played["running_limit"], played["in_flight"]) == (4, 4, 4)
    assert told["page_size"] == 16
    (warning,) = fafo_json(launching("--tp-size", "1"), "plan")["warnings"]
    assert "launch.args has no --max-total-tokens" in warning["text"]
    assert "fafo engine up" in warning["cure"]
    assert fafo_json(launching(), "plan", "--cache-tokens", "9000")["rehearsal"]["caches"] == 2
