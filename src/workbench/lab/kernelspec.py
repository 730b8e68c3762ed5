"""The kernel that JupyterLab offers, written for one lab and deleted with it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from workbench.host.home import Home
from workbench.kernel.messages import KERNEL_COMMAND, Context, kernel_environment

KERNEL_NAME = "topiclake"
SHOWN_NAME = "Topiclake"


def write_kernelspec(folder: Path, home: Home, parameters: Mapping[str, str]) -> None:
    """Write a kernelspec below `folder`, which is to be on Jupyter's path, and the context of its kernels.

    The context names no notebook: Jupyter passes its name to each kernel.
    """
    context = folder / "context.json"
    Context("", str(home.folder.absolute()), str(home.project), dict(parameters)).save(context)
    spec = {
        "argv": list(KERNEL_COMMAND),
        "display_name": SHOWN_NAME,
        "language": "python",
        "env": kernel_environment(os.environ, context, home.lab / "ipython", home.project),
        "metadata": {"debugger": False, "supported_encryption": ["curve"]},
    }
    file = folder / "kernels" / KERNEL_NAME / "kernel.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(spec, indent=2), encoding="utf-8")
