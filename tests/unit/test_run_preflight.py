"""What an engine can't do for a class is said before the first item, with the class, the key and a cure."""

from __future__ import annotations

import asyncio

import pytest
from attrs import evolve
from bake_kit import project as project_of
from bake_kit import prompt_class

from fafo_build.bake.bake import build
from fafo_build.bake.baked import load_baked
from fafo_build.errors import EngineError
from fafo_build.project import declaration
from fafo_build.project.declaration import Sampling
from fafo_run.engines.base import Unavailable
from fafo_run.engines.fake import FakeEngine
from fafo_run.run import preflight
from fafo_run.run.view import View, open_view

SOURCE = declaration.Source("rows", "files", ("id",), path=("rows.jsonl",))


class Opinionated(FakeEngine):
    """The fake engine, as if it read regular expressions, and this one badly."""

    asked: list[Sampling]

    async def refuses(self, sampling: Sampling) -> str | None:
        self.asked.append(sampling)
        if sampling.ebnf:
            raise Unavailable("it hangs")
        return f"can't read {sampling.regex}" if sampling.regex == "b" else None


def engine() -> Opinionated:
    made = Opinionated(declaration.Engine("default", "fake"), vocab_size=49_152, context_length=8_192)
    made.asked = []
    return made


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    """Three classes: plain, formed by a regex, and ended by a text."""
    tmp_path = tmp_path_factory.mktemp("project")
    plain = prompt_class(tmp_path, ("user", "Tell: {{ item.q }}"), name="plain")
    formed = prompt_class(tmp_path, ("user", "Say: {{ item.q }}"), name="formed")
    ended = prompt_class(tmp_path, ("user", "Ask: {{ item.q }}"), name="ended")
    project = project_of(
        tmp_path,
        plain,
        evolve(formed, sampling=Sampling(regex="a|b")),
        evolve(ended, sampling=Sampling(stop=("\n",), stop_token_ids=(5,), presence_penalty=1.0)),
    )
    project = evolve(project, sources={"rows": SOURCE})
    build(project)
    return open_view(project, load_baked(project))


def with_sampling(view: View, **samplings: Sampling) -> View:
    return evolve(
        view,
        classes=tuple(evolve(of, sampling=samplings.get(of.name, Sampling())) for of in view.classes),
    )


def test_what_an_engine_cannot_do_is_refused_at_the_start(view: View) -> None:
    capabilities = asyncio.run(engine().start())
    with pytest.raises(EngineError) as caught:
        preflight.check(view, capabilities)
    shown = caught.value.render()
    assert (
        "classes/formed.toml: class.formed.sampling.regex: the engine fake can't obey regex\n  cure: ask"
        in shown
    )
    assert (
        "classes/ended.toml: class.ended.sampling.stop: the engine fake can't obey stop\n  cure: write"
        in shown
    )
    assert len(caught.value.problems) == 2
    preflight.check(view, evolve(capabilities, unable={}))
    preflight.check(with_sampling(view), capabilities)


def test_what_an_engine_cannot_read_is_refused_at_the_start(view: View) -> None:
    it = engine()
    asked = with_sampling(
        view, plain=Sampling(regex="a"), formed=Sampling(regex="b"), ended=Sampling(regex="b")
    )
    with pytest.raises(EngineError) as caught:
        asyncio.run(preflight.ask(asked, it))
    shown = caught.value.render()
    assert "classes/formed.toml: class.formed.sampling.regex: the engine refuses it: can't read b" in shown
    assert "class.ended.sampling.regex" in shown
    assert "class.plain" not in shown
    assert sorted(str(one.regex) for one in it.asked) == ["a", "b"], "what is the same is asked once"
    asyncio.run(preflight.ask(with_sampling(view, plain=Sampling(regex="a")), it))


def test_an_engine_that_is_away_says_nothing(view: View) -> None:
    with pytest.raises(Unavailable, match="it hangs"):
        asyncio.run(preflight.ask(with_sampling(view, plain=Sampling(ebnf="a: b")), engine()))


def test_an_engine_that_hangs_is_not_waited_for(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Opinionated):
        async def refuses(self, sampling: Sampling) -> str | None:
            await asyncio.Event().wait()
            return None

    monkeypatch.setattr(preflight, "_ANSWER", 0.01)
    it = Hanging(declaration.Engine("default", "fake"), vocab_size=49_152, context_length=8_192)
    with pytest.raises(Unavailable, match="no answer to a grammar"):
        asyncio.run(preflight.ask(view, it))
