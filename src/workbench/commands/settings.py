"""The settings of a pipeline, for a command that runs no notebook."""

from __future__ import annotations

from collections.abc import Mapping

from topiclake.config.load import first_pipeline, load_settings
from topiclake.config.settings import Settings
from workbench.dbutils import DBUtils
from workbench.host.home import Home
from workbench.services import control as services


def pipeline_settings(home: Home, pipeline: str | None, parameters: Mapping[str, str]) -> Settings:
    """Read the configuration of a pipeline, with the addresses of the services of this home.

    Args:
        home: The home of the services that `env=local` reads.
        pipeline: Its name; None is the first one of the configuration.
        parameters: `env`, and keys of the pipeline, as for notebooks.

    Raises:
        ConfigError: A parameter or a file of conf/ is wrong.
    """
    conf, secrets = home.project / "conf", DBUtils(home.folder, home.project).secrets.get
    with services.exported(home):
        return load_settings(pipeline or first_pipeline(conf), parameters, secrets=secrets, conf=conf)
