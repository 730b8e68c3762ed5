"""The fenced blocks of the pages, which tests run, load and parse."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]


def page_blocks(page: Path | str, language: str) -> list[str]:
    """Return the blocks of a page, without the indentation that a list item gives them.

    Args:
        page: A path, or the name of a page in docs.
        language: The word after the fence.
    """
    text = (PROJECT / "docs" / page).read_text("utf-8")
    fenced = re.finditer(rf"^( *)```{language}\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [dedent(block[2]) for block in fenced]
