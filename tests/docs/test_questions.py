"""A reader finds the answers to ten questions with at most two clicks from the front page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
README = PROJECT / "README.md"
#: Question, page, and the sentence or command that answers it.
QUESTIONS = [
    (
        "How do I get my own topic into a table?",
        "docs/your-topic.md",
        "topiclake init orders --topic shop.orders",
    ),
    ("How do I replay one reason?", "docs/replay.md", "quarantine replay orders --reason unknown_schema_id"),
    (
        "What does read_committed change?",
        "docs/kafka.md",
        "`isolation.level` is `read_committed`: rows do not include records",
    ),
    ("Where do secrets go on a laptop?", "docs/secrets.md", "conf/secrets/shop/kafka-password"),
    ("How do I continue after a lost checkpoint?", "docs/resume.md", "resume=table"),
    ("What do I do about TL-KAFKA-003?", "docs/reference/errors.md", "| TL-KAFKA-003 |"),
    ("Which columns has the quarantine?", "docs/reference/tables.md", "quarantined_at TIMESTAMP"),
    ("How do I alert on a failed query?", "docs/monitoring.md", "## Alerts"),
    ("Does a new schema version stop the stream?", "docs/avro.md", "## Versions"),
    (
        "How is it exactly once?",
        "docs/exactly-once.md",
        "each with Delta's `txnAppId` and `txnVersion = N`",
    ),
]


def linked_pages(page: Path) -> set[Path]:
    """Return the pages of the project that a page links to."""
    links = re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", page.read_text("utf-8"))
    return {(page.parent / link).resolve() for link in links if "://" not in link}


@pytest.mark.parametrize(("question", "page", "answer"), QUESTIONS, ids=[each[0] for each in QUESTIONS])
def test_a_question_has_its_answer_within_two_clicks(question, page, answer):
    near = linked_pages(README)
    reachable = near.union(*map(linked_pages, near))
    assert PROJECT / page in reachable
    assert answer in (PROJECT / page).read_text("utf-8")


def test_each_page_is_within_two_clicks():
    near = linked_pages(README)
    reachable = near.union(*map(linked_pages, near))
    pages = {*(PROJECT / "docs").glob("*.md"), *(PROJECT / "docs" / "reference").glob("*.md")}
    assert pages - reachable == set()
