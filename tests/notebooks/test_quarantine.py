"""What `python -m workbench quarantine` prints; the test of the guides runs the command on real tables."""

from __future__ import annotations

import io

from rich.console import Console

from workbench.commands.quarantine import print_summary

FOUND = {
    "path": "/lake/gps_quarantine",
    "reasons": [
        {
            "reason": "unknown_schema_id",
            "schema_id": 70_001,
            "waiting": 1_234,
            "replayed": 0,
            "first": "2026-01-02T03:04:05Z",
            "last": "2026-01-02T03:04:05Z",
            "example": "the registry does not know [schema id 70001]",
        }
    ],
    "rows": [
        {
            "partition": 3,
            "offset": 5,
            "key": "[bold]k",
            "reason": "tombstone",
            "schema_id": None,
            "length": None,
            "first_bytes": None,
            "detail": "the value is null",
        }
    ],
    "replay": None,
}


def printed(action: str, found: dict[str, object], width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_summary(console, found, action)
    return console.file.getvalue()


def test_reasons_are_a_table_with_numbers_that_read_well() -> None:
    text = printed("list", FOUND)
    assert "1,234" in text
    assert "│     70001 │" in text
    assert "the registry does not know [schema id 70001]" in text
    assert "tombstone" not in text


def test_reasons_and_times_are_whole_on_a_narrow_terminal() -> None:
    text = printed("list", FOUND, 80)
    assert all(whole in text for whole in ("unknown_schema_id", "2026-01-02", "03:04:05Z"))


def test_rows_are_a_table_and_what_is_in_them_is_no_markup() -> None:
    text = printed("show", FOUND)
    assert "[bold]k" in text
    assert "the value is null" in text
    assert "unknown_schema_id" not in text


def test_a_replay_says_what_it_did() -> None:
    replay = {"examined": 1_300, "replayed": 66, "waiting": {"unknown_schema_id": 1_234}, "claims": ["c"]}
    assert printed("replay", FOUND | {"replay": replay}).startswith("✓ 66 replayed, 1,234 wait on\n")


def test_an_empty_quarantine_says_so() -> None:
    assert "no record of the topic is in quarantine" in printed("list", FOUND | {"reasons": []})
