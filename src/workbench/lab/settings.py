"""JupyterLab's settings: its files are in the workbench's folder, and it sends no requests elsewhere."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

from jupyter_core.paths import SYSTEM_CONFIG_PATH
from jupyterlab.handlers.announcements import NeverCheckForUpdate
from traitlets.config import Config

from workbench.host.home import HOME_VARIABLE, Home
from workbench.host.ports import HOST
from workbench.lab.contents import Contents
from workbench.lab.kernelspec import KERNEL_NAME

#: A notebook's Spark needs a few seconds to end.
SHUTDOWN_SECONDS = 10.0
#: They send requests to remote servers, or have no function here.
DISABLED_PLUGINS = (
    "@jupyterlab/apputils-extension:announcements",
    "@jupyterlab/extensionmanager-extension",
    "@jupyterlab/fileeditor-extension:language-server",
    "@jupyterlab/lsp-extension",
    "@jupyterlab/notebook-extension:language-server",
    "@jupyterlab/pluginmanager-extension",
)
PING_WARNING = "websocket_ping_timeout"


def set_environment(home: Home, folder: Path) -> None:
    """Keep the user's own Jupyter out of this process and its kernels.

    Args:
        home: The workbench.
        folder: A folder that only this lab uses.
    """
    for name in [name for name in os.environ if name.startswith("JUPYTER")]:
        del os.environ[name]
    # Settings for other servers of this machine, which would win over those below.
    SYSTEM_CONFIG_PATH.clear()
    # ipykernel shows no output of subprocesses and the JVM when it finds this.
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    os.environ |= {
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(home.lab / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_PATH": str(folder),
        "JUPYTER_PLATFORM_DIRS": "1",
        HOME_VARIABLE: str(home.folder),
    }


def lab_config(home: Home, folder: Path, port: int, *, browser: bool) -> Config:
    """Return the configuration of JupyterLab and its server."""
    _write_page_config(folder / "config" / "labconfig")
    config = Config()
    config.Application.log_level = "WARN"
    config.ServerApp.update(
        ip=HOST,
        port=port,
        open_browser=browser,
        root_dir=str(home.project / "notebooks"),
        # Only the loopback address is listened on, and each request needs the token.
        allow_root=True,
        terminals_enabled=False,
        cookie_secret_file=str(home.lab / "cookie_secret"),
        contents_manager_class=Contents,
    )
    config.LabApp.update(
        app_dir=str(Path(sys.prefix) / "share" / "jupyter" / "lab"),
        app_settings_dir=str(folder / "app"),
        user_settings_dir=str(home.lab / "settings"),
        workspaces_dir=str(home.lab / "workspaces"),
        labextensions_path=[],
        # Ours, and those of the pinned packages: plotly's draws figures.
        extra_labextensions_path=[
            str(Path(__file__).parent / "extensions"),
            str(Path(sys.prefix) / "share" / "jupyter" / "labextensions"),
        ],
        extension_manager="readonly",
        news_url=None,
        check_for_updates_class=NeverCheckForUpdate,
    )
    config.Contents.outputs_folder = str(home.lab / "outputs")
    config.Checkpoints.root_dir = str(home.lab / "checkpoints")
    config.KernelSpecManager.update(ensure_native_kernel=False, allowed_kernelspecs={KERNEL_NAME})
    # Other users of this machine could read the traffic of a loopback port.
    config.MappingKernelManager.transport_encryption = "required"
    config.MultiKernelManager.default_kernel_name = KERNEL_NAME
    config.KernelManager.shutdown_wait_time = SHUTDOWN_SECONDS
    return config


def drop_ping_warnings() -> None:
    """Drop Tornado's warning for each browser: it reads Jupyter's milliseconds, which work, as seconds."""
    logging.getLogger("tornado.general").addFilter(lambda record: PING_WARNING not in record.getMessage())


def _write_page_config(folder: Path) -> None:
    folder.mkdir(parents=True)
    page = {
        "disabledExtensions": dict.fromkeys(DISABLED_PLUGINS, True),
        # Extensions come as they are; none is compiled here.
        "buildAvailable": False,
        "buildCheck": False,
    }
    (folder / "page_config.json").write_text(json.dumps(page), encoding="utf-8")
