"""A row becomes a prompt: the ids after an artifact's prefix. Knows nothing of sources, queues or engines."""

from fafo_run.prompt.encoder import Prompt, PromptEncoder, PromptError

__all__ = ["Prompt", "PromptEncoder", "PromptError"]
