"""The page `/runbook`: docs/operations.md, to whose headings alerts link.

A link works where people read the alert, and the worker has the text of its own version.
"""

from __future__ import annotations

import gzip
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
# In a wheel packed beside this file, in the source tree among the docs.
_PACKED: Final = _HERE / "operations.md.gz"
_PLAIN: Final = _HERE.parents[1] / "docs" / "operations.md"
_IMAGE: Final = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_OTHER_PAGE: Final = re.compile(r"\[([^\]]+)\]\((?!#|https?:)[^)]*\)")


@cache
def page() -> str:
    """Return the page, whose headings have the anchors that links of Markdown expect."""
    from markdown_it import MarkdownIt

    text = _OTHER_PAGE.sub(r"\1", _IMAGE.sub("", _text()))
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    for token, following in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(following.content))
    body = parser.renderer.render(tokens, parser.options, {})
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        "<meta name=color-scheme content='light dark'><title>streameval: runbook</title>"
        "<link rel=stylesheet href=static/page.css></head>"
        f"<body class=runbook><main>{body}</main></body></html>"
    )


def _text() -> str:
    """Return the runbook as Markdown."""
    if _PACKED.exists():
        return gzip.decompress(_PACKED.read_bytes()).decode()
    return _PLAIN.read_text("utf-8") if _PLAIN.exists() else "This installation lacks its runbook."


def anchor(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
