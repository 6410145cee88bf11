"""What a project declares: from `fafo.toml` and `classes/` to frozen objects."""
