"""What tests of notebooks share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose store is not mounted, since a mount is the platform's business."""
    folder = tmp_path / "project"
    for name in ("conf", "data", "notebooks"):
        shutil.copytree(PROJECT / name, folder / name)
    (folder / "jars").symlink_to(PROJECT / "jars")
    local = yaml.safe_load((folder / "conf" / "local.yaml").read_text())
    local["storage"]["mounted"] = False
    (folder / "conf" / "local.yaml").write_text(yaml.safe_dump(local))
    return folder
