"""The articles' side of each benchmark: its code is that of docs/measurements.md."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_code_of_the_articles_is_fixed_by_a_hash() -> None:
    stated = re.findall(
        r"`bench/articles.py` \(SHA-256 `([0-9a-f]{64})`\)",
        (ROOT / "docs/measurements.md").read_text("utf-8"),
    )
    assert stated == [hashlib.sha256((ROOT / "bench/articles.py").read_bytes()).hexdigest()]
