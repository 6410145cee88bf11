"""From a model to its token ids: finding its files, loading its tokenizer, chat template and config."""
