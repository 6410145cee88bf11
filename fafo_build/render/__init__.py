"""Jinja templates and rows in, text out. Knows nothing of tokens, models or files of a build."""
