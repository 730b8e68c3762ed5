"""What a kernel process finds out at its start: for which notebook it is, and where the services are."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from workbench.host.home import Home
from workbench.kernel.messages import CONTEXT_VARIABLE, SESSION_VARIABLE, Context
from workbench.services import control as services


def take_context() -> Context:
    """Return this process's context, and take it out of the environment: kernels below have their own.

    A lab's kernel is told its notebook by Jupyter. It looks for the services itself, at each start, so that
    a restart finds those that were started meanwhile; a variable that is set already stays.
    """
    context = Context.load(Path(os.environ.pop(CONTEXT_VARIABLE)))
    named = os.environ.pop(SESSION_VARIABLE, "")
    if context.notebook:
        return context
    home = Home(Path(context.home_folder), Path(context.project_folder))
    if addresses := services.addresses(home):
        for name, value in addresses.environment().items():
            os.environ.setdefault(name, value)
    return replace(context, notebook=str(home.project / "notebooks" / (named or "lab")), in_lab=True)
