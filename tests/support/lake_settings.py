"""The configuration of a pipeline whose store is a folder, for tests that ask neither broker nor registry."""

from __future__ import annotations

from pathlib import Path

from topiclake.config.load import load_settings
from topiclake.config.settings import Settings


def lake_settings(folder: Path, name: str, keys: str = "", **parameters: str) -> Settings:
    """Write the configuration below `folder`, with further YAML of the pipeline, and load it."""
    conf = folder / "conf"
    conf.mkdir(exist_ok=True)
    (conf / "base.yaml").write_text(
        f"""
        kafka: {{bootstrap_servers: "localhost:1"}}
        schema_registry: {{url: "http://localhost:1"}}
        storage: {{source: "file://{folder}", mount_point: /mnt/lake}}
        pipelines:
          {name}:
            topic: {name}
            view: {name}
            table_path: /mnt/lake/t
            checkpoint_path: /mnt/lake/c
{keys}
        """
    )
    (conf / "local.yaml").write_text("")
    return load_settings(name, parameters, conf=conf)
