"""Trained the two tokenizers beside it: `python tests/golden/tokenizers/train.py`.

They are kept as files because the trainers of `tokenizers` give other vocabularies each time.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from tests.vocabularies import training_lines

HERE = Path(__file__).parent


def wordpiece() -> Tokenizer:
    """BERT's way: lower case, no accents, cut at every space and punctuation mark."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    control = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[USER]", "[BOT]"]
    trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=control, show_progress=False)
    tokenizer.train_from_iterator(training_lines(), trainer)
    return tokenizer


def unigram() -> Tokenizer:
    """SentencePiece's way, as its converters write it: several spaces are one, the mark starts a text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=600,
        special_tokens=["<s>", "</s>", "<unk>", "<user>", "<bot>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_lines(), trainer)
    return tokenizer


if __name__ == "__main__":
    for make in (wordpiece, unigram):
        make().save(str(HERE / f"{make.__name__}.json"), pretty=False)
