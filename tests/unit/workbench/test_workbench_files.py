"""Files that are written together: all of them or none."""

from __future__ import annotations

import pytest

from topiclake.errors import StorageError
from workbench.host.files import write_all


class Interrupting(str):
    """A text at which Ctrl-C arrives."""

    def encode(self, *_: object) -> bytes:
        raise KeyboardInterrupt


def test_an_interrupted_write_leaves_no_file(tmp_path):
    secret = tmp_path / "secrets" / "password"
    texts = {secret: "hunter2", tmp_path / "orders.yaml": Interrupting("env")}
    with pytest.raises(KeyboardInterrupt):
        write_all(texts, private=[secret])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    write_all(dict.fromkeys(texts, "text"), private=[secret])
    assert [secret.read_text(), secret.stat().st_mode & 0o777] == ["text", 0o600]


def test_an_existing_file_is_neither_replaced_nor_deleted(tmp_path):
    existing = tmp_path / "password"
    existing.write_text("of another environment")
    with pytest.raises(StorageError) as raised:
        write_all({tmp_path / "new": "x", existing: "y"})
    assert raised.value.fields == {"file": str(existing), "reason": "exists"}
    assert [path.name for path in tmp_path.iterdir()] == ["password"]
    assert existing.read_text() == "of another environment"


def test_a_folder_that_cannot_be_made_undoes_the_earlier_files(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as raised:
        write_all({tmp_path / "new": "x", tmp_path / "file" / "y": "y"})
    assert raised.value.fields["file"] == str(tmp_path / "file" / "y")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
