"""The context of a kernel process at its start: its notebook, and the addresses of the services."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from workbench.host.home import Home
from workbench.kernel.messages import CONTEXT_VARIABLE, SESSION_VARIABLE, Context


def pop_context() -> Context:
    """Return this process's context, and remove it from the environment: child kernels have their own.

    Jupyter passes the name of the notebook to a lab's kernel. At each start the kernel looks for the
    services, so that a restart finds services that were started meanwhile. A variable that is already set
    stays.
    """
    context = Context.load(Path(os.environ.pop(CONTEXT_VARIABLE)))
    notebook_name = os.environ.pop(SESSION_VARIABLE, "")
    if context.notebook:
        return context
    # Only the kernel of a lab looks for services.
    from workbench.services import control as services

    home = Home(Path(context.home_folder), Path(context.project_folder))
    if addresses := services.addresses(home):
        for name, value in addresses.environment().items():
            os.environ.setdefault(name, value)
    return replace(context, notebook=str(home.project / "notebooks" / (notebook_name or "lab")), in_lab=True)
