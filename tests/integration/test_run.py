"""`fafo run` through the front door: what it does, does again, and doesn't do twice."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.helpers import (
    CLASS,
    MAIN,
    build,
    exported,
    fafo,
    fafo_json,
    identities,
    reaches,
    start,
    write_project,
)
from tests.serving import pace, serving, use

MANY = MAIN + "\n[run]\nqueue = { low = 500, high = 2_000 }\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = write_project(tmp_path)
    build(folder)
    return folder


def rows_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "facts.jsonl").read_text("utf-8").splitlines()]


def write_rows(folder: Path, rows: list[dict[str, object]]) -> None:
    (folder / "facts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


def test_every_item_gets_a_result_and_a_second_run_does_nothing(project: Path) -> None:
    first = fafo_json(project, "run")
    assert (first["completed"], first["failed"], first["left"], first["status"]) == (12, 0, 0, "finished")
    second = fafo_json(project, "run")
    assert (second["completed"], second["before"], second["left"]) == (0, 12, 0)
    assert "nothing to do" in fafo(project, "run").stderr
    assert sorted(row["identity"] for row in exported(project)) == sorted(identities(project))


def test_a_run_with_nothing_to_do_needs_no_engine(project: Path) -> None:
    fafo(project, "run")
    (project / "fafo.toml").write_text(
        MAIN.replace('kind = "fake"\nmax_running = 8', 'kind = "sglang"\nurls = ["http://127.0.0.1:9"]'),
        "utf-8",
    )
    assert fafo_json(project, "run")["before"] == 12
    assert fafo_json(project, "status")["status"] == "finished"
    with (project / "facts.jsonl").open("a") as file:
        file.write('{"id": "new", "text": "work"}\n')
    assert "http://127.0.0.1:9" in fafo(project, "run", check=1).stderr


def test_limit_takes_the_first_items_and_the_next_run_the_rest(project: Path) -> None:
    assert fafo_json(project, "run", "--limit", "5")["completed"] == 5
    assert fafo_json(project, "run", "--limit", "5")["completed"] == 0
    assert [row["key"] for row in exported(project)] == ["0", "1", "2", "3", "4"]
    assert fafo_json(project, "run")["completed"] == 7


@pytest.mark.parametrize("chosen", [("--limit", "5"), ("--source", "more")])
def test_what_waits_and_isnt_asked_for_is_told_and_waits_on(tmp_path: Path, chosen: tuple[str, str]) -> None:
    main = MAIN + '\n[[source]]\nname = "more"\ntype = "files"\npath = "more.jsonl"\nkey = "id"\n'
    both = CLASS.replace('sources = ["facts"]', 'sources = ["facts", "more"]')
    folder = write_project(tmp_path, main=main, classes={"ask": both})
    (folder / "more.jsonl").write_text("".join(f'{{"id": "m{n}", "text": "b"}}\n' for n in range(5)), "utf-8")
    build(folder)
    assert fafo_json(folder, "submit")["queued"] == 17
    assert "12 more wait in the queue, and aren't asked for" in fafo(folder, "run", *chosen).stderr
    assert fafo_json(folder, "status")["queued"] == 12
    assert "more wait in the queue" not in fafo(folder, "run").stderr
    assert fafo_json(folder, "status")["completed"] == 17


def test_filters_choose_classes_and_sources(tmp_path: Path) -> None:
    main = MAIN + '\n[[source]]\nname = "more"\ntype = "files"\npath = "more.jsonl"\nkey = "id"\n'
    both = CLASS.replace('sources = ["facts"]', 'sources = ["facts", "more"]')
    tell = CLASS.replace("Ask one question", "Tell a story")
    folder = write_project(tmp_path, 4, main=main, classes={"ask": both, "tell": tell})
    (folder / "more.jsonl").write_text('{"id": "a", "text": "b"}\n', "utf-8")
    build(folder)
    assert fafo_json(folder, "run", "--source", "more")["completed"] == 1
    assert fafo_json(folder, "run", "--class", "tell")["completed"] == 4
    assert fafo_json(folder, "run")["completed"] == 4
    unknown = fafo(folder, "run", "--class", "tel", check=1)
    assert 'no class named "tel" is declared' in unknown.stderr
    assert "did you mean tell?" in unknown.stderr


def test_two_classes_that_ask_the_same_of_the_same_rows_are_one_work(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 4, classes={"ask": CLASS, "twin": CLASS})
    build(folder)
    done = fafo_json(folder, "run")
    assert (done["total"], done["completed"], done["left"]) == (4, 4, 0)
    assert {row["class"] for row in exported(folder, "--class", "twin")} == {"twin"}
    assert fafo_json(folder, "verify")["verdict"] == "ok"


def test_a_changed_row_is_new_work_and_the_old_result_is_superseded(project: Path) -> None:
    fafo(project, "run")
    rows = rows_of(project)
    rows[3]["text"] = "another text"
    rows.reverse()
    write_rows(project, rows)
    assert fafo_json(project, "run")["completed"] == 1
    report = fafo_json(project, "verify")
    assert report["completeness"]["superseded"] == 1
    assert report["completeness"]["completed"] == 12
    assert [row["key"] for row in exported(project)] == [str(row["id"]) for row in rows]


def test_another_temperature_is_new_work_and_a_comment_is_none(project: Path) -> None:
    fafo(project, "run")
    file = project / "classes" / "ask.toml"
    file.write_text("# a comment\n" + CLASS, "utf-8")
    fafo(project, "build")
    assert fafo_json(project, "run")["completed"] == 0
    file.write_text(CLASS.replace("temperature = 0", "temperature = 0.5"), "utf-8")
    fafo(project, "build")
    assert fafo_json(project, "run")["completed"] == 12
    assert fafo_json(project, "status")["superseded"] == 12


def test_samples_differ_and_are_repeatable(tmp_path: Path) -> None:
    sampled = CLASS.replace("temperature = 0", "temperature = 1.0\nsamples = 3")
    outputs = []
    for name in ("one", "two"):
        folder = write_project(tmp_path / name, 4, classes={"ask": sampled})
        build(folder)
        assert fafo_json(folder, "run")["completed"] == 12
        outputs.append({row["identity"]: tuple(row["output_ids"]) for row in exported(folder)})
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0].values())) == 12


def test_an_equal_row_counts_once_and_a_contradiction_names_both_rows(project: Path) -> None:
    rows = rows_of(project)
    write_rows(project, [*rows, rows[2]])
    done = fafo(project, "run", "--json")
    assert json.loads(done.stdout)["total"] == 12
    assert len(exported(project)) == 12
    assert fafo(project, "items", "--count").stdout == "12\n"
    shown = [json.loads(line)["identity"] for line in fafo(project, "items").stdout.splitlines()]
    assert len(shown) == len(set(shown)) == 12
    write_rows(project, [*rows, {**rows[2], "text": "something else"}])
    for arguments in (["run"], ["items"], ["items", "--count"]):
        refused = fafo(project, *arguments, check=1)
        assert not refused.stdout
        assert 'two rows have the key "2"' in refused.stderr
        assert "facts.jsonl:3" in refused.stderr
        assert "facts.jsonl:13" in refused.stderr


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_leaves_a_safe_state_and_the_next_run_does_the_rest(
    tmp_path: Path, interrupts: int
) -> None:
    folder = write_project(tmp_path, 1_000)
    with serving(pace(0.05)) as server:
        use(folder, server)
        process = start(folder, "run", "--json")
        wait_for_results(folder, 20_000)
        for _ in range(interrupts):
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        answered = sum(not body["rid"].startswith("warm") for body in server.received)
    assert process.returncode == 130, err
    told = json.loads(out)
    assert told["status"] == "interrupted"
    assert 0 < told["completed"] < 1_000
    if interrupts == 1:
        assert told["completed"] == answered, "what was under way wasn't finished"
    assert fafo_json(folder, "status")["status"] == "interrupted"
    (folder / "fafo.toml").write_text(MAIN, "utf-8")
    rest = fafo_json(folder, "run")
    assert rest["completed"] + rest["before"] == 1_000
    assert fafo_json(folder, "verify")["completeness"]["doubled"] == 0


@pytest.mark.parametrize("service", [False, True])
def test_a_row_that_stands_twice_is_counted_once_however_a_run_ends(tmp_path: Path, service: bool) -> None:
    folder = write_project(tmp_path, 300)
    first, *others = rows_of(folder)
    write_rows(folder, [first, first, *others[:4], first, *others])
    with (folder / "facts.jsonl").open("r+") as file:
        rows = file.read()
        file.seek(0)
        file.write(f"torn\ntorn\n{rows}")
    with serving(pace(0.2)) as server:
        use(folder, server)
        told = fafo_json(folder, "run", "--limit", "6", check=3)
        assert (told["completed"], told["failed"], told["left"]) == (5, 1, 0)
        process = start(folder, "run", "--json", *["--service"] * service)
        reaches(folder, lambda now: now.completed > 5, "a result")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    told = json.loads(out)
    assert (told["total"], told["before"], told["failed_before"]) == (301, 6, 1)
    assert told["left"] == 301 - 6 - told["completed"] > 0
    assert fafo_json(folder, "status")["completed"] == 5 + told["completed"]


def wait_for_results(folder: Path, size: int = 100_000) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        segments = list((folder / "runs" / "main" / "results").glob("*.seg"))
        if any(segment.stat().st_size > size for segment in segments):
            return
        time.sleep(0.02)
    raise AssertionError("no results after 60 s")


def test_a_second_run_on_the_same_store_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 8_000, main=MANY)
    build(folder)
    process = start(folder, "run", "--quiet")
    wait_for_results(folder)
    process.send_signal(signal.SIGSTOP)  # so that it is still there, however fast the machine
    refused = fafo(folder, "run", check=1)
    assert f"process {process.pid} is using this store" in refused.stderr
    assert fafo_json(folder, "status")["status"] == "running"
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert fafo_json(folder, "verify")["completeness"]["completed"] == 8_000


def test_items_that_wait_for_an_older_prompt_are_taken_out(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 8_000, main=MANY)
    build(folder)
    process = start(folder, "run", "--quiet")
    wait_for_results(folder)
    process.kill()
    process.communicate()
    (folder / "prompts" / "rules.md").write_text("Other rules. Ask kindly.\n", "utf-8")
    build(folder)
    done = fafo(folder, "run", "--json", "--limit", "20")
    assert json.loads(done.stdout)["completed"] == 20
    told = fafo_json(folder, "status")
    assert told["queued"] == 0
    assert told["superseded"] > 0


def test_a_queue_full_of_another_class_holds_nobody_up(tmp_path: Path) -> None:
    tell = CLASS.replace("Ask one question", "Tell a story")
    folder = write_project(tmp_path, 3_000, classes={"ask": CLASS, "tell": tell})
    with serving(pace(60)) as server:
        use(folder, server, MANY)
        process = start(folder, "run", "--quiet", "--class", "ask")
        deadline = time.monotonic() + 60
        while fafo_json(folder, "status")["queued"] < 2_000:  # full, since nothing is answered
            assert time.monotonic() < deadline
        process.kill()
        process.communicate()
    (folder / "fafo.toml").write_text(MANY, "utf-8")
    assert fafo_json(folder, "run", "--class", "tell")["completed"] == 3_000
    assert fafo_json(folder, "status")["queued"] >= 2_000


def test_a_filter_leaves_what_an_earlier_run_queued_in_the_queue(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 8_000, main=MANY)
    build(folder)
    process = start(folder, "run", "--quiet")
    wait_for_results(folder)
    process.kill()
    process.communicate()
    before = fafo_json(folder, "status")
    assert before["status"] == "crashed"
    told = fafo_json(folder, "run", "--limit", "10")
    assert told["completed"] <= 10
    assert told["left"] == 0
    assert fafo_json(folder, "run")["left"] == 0
    assert fafo_json(folder, "verify")["verdict"] == "ok"


def test_a_run_refuses_a_build_that_isnt_current(project: Path) -> None:
    (project / "prompts" / "rules.md").write_text("Other rules.\n", "utf-8")
    said = fafo(project, "run", check=1).stderr
    assert "class ask: prompts/rules.md changed" in said
    assert "fafo build" in said
    assert fafo_json(project, "run", "--stale")["completed"] == 12


def test_a_renamed_class_keeps_its_results(project: Path) -> None:
    fafo(project, "run")
    (project / "classes" / "ask.toml").rename(project / "classes" / "query.toml")
    build(project)
    assert fafo_json(project, "run")["before"] == 12
    told = fafo_json(project, "status")
    assert told["by_class"] == {"query": {"completed": 12, "failed": 0}}
    assert told["superseded"] == 0
    assert fafo_json(project, "verify")["by_class"]["query"]["items"] == 12
    assert {row["class"] for row in exported(project)} == {"query"}


def test_what_one_twin_left_in_the_queue_the_other_can_finish(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 8_000, main=MANY, classes={"ask": CLASS, "twin": CLASS})
    build(folder)
    process = start(folder, "run", "--quiet", "--class", "ask")
    wait_for_results(folder)
    process.kill()
    process.communicate()
    told = fafo_json(folder, "run", "--class", "twin")
    assert told["left"] == 0
    assert told["before"] + told["completed"] == 8_000
    assert fafo_json(folder, "verify")["completeness"]["doubled"] == 0


def test_verify_is_quiet_beside_a_run_that_works(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 8_000, main=MANY)
    build(folder)
    process = start(folder, "run", "--quiet")
    wait_for_results(folder)
    verdicts = []
    while process.poll() is None:
        told = fafo_json(folder, "verify", check=None)
        verdicts.append((told["verdict"], [found["cause"] for found in told["causes"]]))
    process.communicate()
    assert verdicts
    assert set(map(str, verdicts)) == {str(("ok", []))}


def test_nothing_is_lost_when_a_prompt_changes_and_changes_back(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 8_000, main=MANY)
    rules = (folder / "prompts" / "rules.md").read_text("utf-8")
    build(folder)
    for text in ("Other rules.\n", rules):
        process = start(folder, "run", "--quiet", "--limit", "4000")
        wait_for_results(folder)
        process.kill()
        process.communicate()
        (folder / "prompts" / "rules.md").write_text(text, "utf-8")
        build(folder)
    assert fafo_json(folder, "verify")["causes"] == []
    fafo(folder, "run")
    report = fafo_json(folder, "verify")
    assert report["verdict"] == "ok"
    assert report["completeness"]["completed"] == 8_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_run_starts_leaves_a_safe_state(tmp_path: Path, number: signal.Signals) -> None:
    folder = write_project(tmp_path, 20_000)
    build(folder)
    process = start(folder, "run")
    deadline = time.monotonic() + 60
    while not (folder / "runs" / "main" / "RUNNING").exists():  # the store is open, the sources are read
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "the state is safe" in said
    assert fafo_json(folder, "status")["status"] == "interrupted"


def test_a_hail_of_signals_ends_as_interrupted_and_safe(tmp_path: Path) -> None:
    folder = write_project(tmp_path, 60)
    with serving(pace(0.05)) as server:
        use(folder, server)
        for pause in (0.01, 0.05, 0.09):
            process = start(folder, "run")
            time.sleep(1.0)
            for _ in range(4):
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                time.sleep(pause)
            _, said = process.communicate(timeout=60)
            assert process.returncode in (0, 130), said
            assert "Traceback" not in said
            assert fafo_json(folder, "status")["status"] in ("interrupted", "finished", "new")
        assert fafo_json(folder, "run")["left"] == 0


def test_a_run_that_cant_start_its_engine_is_no_finished_run(project: Path) -> None:
    (project / "fafo.toml").write_text(
        MAIN.replace('kind = "fake"\nmax_running = 8', 'kind = "sglang"\nurls = ["http://127.0.0.1:9"]'),
        "utf-8",
    )
    fafo(project, "run", check=1)
    assert fafo_json(project, "status")["status"] == "failed"


def test_a_limit_counts_a_repeated_row_once(project: Path) -> None:
    rows = rows_of(project)
    write_rows(project, [rows[0], rows[0], *rows[1:]])
    told = fafo_json(project, "run", "--limit", "2")
    assert (told["total"], told["completed"], told["left"]) == (2, 2, 0)
