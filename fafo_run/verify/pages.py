"""What whole pages cost: the tokens of a prefix beyond its last one, or all of a short prefix. Pure."""

from __future__ import annotations

from fafo_run.verify.report import Cause, Finding


def beyond(name: str, length: int, server: str, page_size: int) -> Finding:
    """Say what of a class's prefix of `length` tokens no cache of such pages can serve."""
    return Finding(
        Cause.PAGE_SIZE,
        f"{name}: {length % page_size} of its prefix's {length} tokens are computed for each item, "
        f"since {server} caches whole pages of {page_size}",
    )


def none_filled(server: str, page_size: int, longest: int) -> Finding:
    """Say that no prefix fills a page; the longest has `longest` tokens."""
    return Finding(
        Cause.PAGE_SIZE,
        f"{server} caches whole pages of {page_size} tokens, and the longest prefix has {longest}",
    )
