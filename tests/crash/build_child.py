"""Builds in forked processes that kill themselves at a given change of the disk, or find no room on it.

A process of its own, since it forks: `python -m tests.crash.build_child SCENARIO FOLDER` prints JSON.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from bake_kit import smollm2
from build_kit import change_prompt, content, small

from fafo_build.bake import compile as compile_module
from fafo_build.bake.bake import build
from fafo_build.bake.baked import load_baked
from fafo_build.bake.lock import find_lock
from fafo_build.errors import BakeError
from fafo_build.tokens import model_files

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"}


def quick() -> None:
    """Load the model once, and bake each text once: what is looked at here is how the result is written."""
    smollm2()
    real = compile_module.compile_class
    baked: dict[tuple[str, bytes], Any] = {}

    def compile_class(project: Any, declared: Any, *model_and_prompts: Any) -> Any:
        text = (project.prompts_dir / "common.md").read_bytes()
        if (declared.name, text) not in baked:
            baked[declared.name, text] = real(project, declared, *model_and_prompts)
        return baked[declared.name, text]

    compile_module.compile_class = compile_class
    compile_module.ready = lambda *_: smollm2()
    model_files.load_model = lambda *_: None


def forked(work: Callable[[], object]) -> int:
    """Run in a child; return its exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            work()
            code = 0
        except BakeError as error:
            print(error.render(), file=sys.stderr)
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_at(folder: Path, number: int) -> None:
    """Kill this process right before the `number`th time that it changes something in `folder`."""
    left = number

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_RDWR | os.O_WRONLY)
        if (event in CHANGES or opens) and str(arguments[0]).startswith(str(folder)):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def no_room(size: int) -> None:
    """Let no file of this process grow beyond `size` bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class Scenario:
    """A project before a build, and what the build folder is to be after it."""

    def __init__(self, folder: Path, *, fresh: bool) -> None:
        self._folder = folder
        self._texts = [] if fresh else ["One.", "Two."]
        self.start = self._made("start")
        change_prompt(self.start, "Three.")
        done = self._copy("done")
        build(small_again(done), used=lambda: ())
        self.done = content(done / "build")

    def _made(self, name: str) -> Path:
        root = self._folder / name
        small(root)
        for text in self._texts:
            change_prompt(root, text)
            build(small_again(root))
        return root

    def _copy(self, name: str) -> Path:
        return Path(shutil.copytree(self.start, self._folder / name))

    def try_once(self, name: str, harm: Callable[[Path], None]) -> dict[str, Any]:
        """Build a copy that `harm` comes to, then build it again; return what was found."""
        root = self._copy(name)
        before = content(root / "build")
        made = small_again(root)

        def harmed() -> None:
            harm(root / "build")
            build(made, used=lambda: ())

        code = forked(harmed)
        after = content(root / "build")
        lock = after.get("fafo.lock")
        found = {
            "code": code,
            "lock": "old"
            if lock == before.get("fafo.lock")
            else "new"
            if lock == self.done["fafo.lock"]
            else "?",
            "left": sorted(file for file in after if ".writing-" in file),
            # What the old lock names is there as long as it is the lock.
            "lost": sorted(set(before) - set(after)) if lock == before.get("fafo.lock") else [],
        }
        if find_lock(root / "build") is not None:
            load_baked(made)
        found["again"] = forked(lambda: build(made, used=lambda: ()))
        found["same"] = content(root / "build") == self.done
        shutil.rmtree(root)
        return found


def small_again(root: Path) -> Any:
    """Return the project of `small` without writing its prompts."""
    text = (root / "prompts/common.md").read_text()
    made = small(root)
    change_prompt(root, text)
    return made


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    quick()
    scenario = Scenario(folder, fresh=kind == "fresh-kill")
    found = []
    if kind.endswith("kill"):
        for number in count(1):
            found.append(scenario.try_once(str(number), lambda build, number=number: kill_at(build, number)))
            if found[-1]["code"] == 0:
                break
    else:
        for size in (0, 1, 200, 500, 1000, 1600, 100_000):
            found.append({"size": size} | scenario.try_once(str(size), lambda _, size=size: no_room(size)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
