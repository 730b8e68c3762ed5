"""Notifications that a run began or ended: a line in a log, and the webhooks that the job names.

A webhook is named by the id of a notification destination. Its address is the secret with that key in the
scope `webhooks` of conf/secrets.yaml, since such addresses often hold a token; it is never logged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import requests

from topiclake.errors import TopiclakeError
from workbench.jobs.bundle_model import Job
from workbench.jobs.run_records import SUCCESSES, Run

TIMEOUT_SECONDS = 10.0
SCOPE = "webhooks"


def notify(run: Run, event: str, log: Path, address: Callable[[str], str]) -> None:
    """Send notifications of an event; write failures to the log, without an effect on the run.

    Args:
        run: The run as it is now.
        event: `on_start`, `on_success` or `on_failure`.
        log: A file with a JSON object in each line.
        address: Returns the address of a destination's id.
    """
    job = Job.model_validate_json(run.definition)
    message = {
        "event_type": f"jobs.{event}",
        "job": {"job_id": run.job, "name": job.name or run.job},
        "run": {"run_id": run.id, "state": run.state, "reason": run.reason, "trigger": run.trigger},
    }
    failures = []
    for webhook in getattr(job.webhook_notifications, event):
        if failure := _post(webhook.id, message, address):
            failures.append(f"webhook {webhook.id}: {failure}")
    note = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **message, "failures": failures}
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(note) + "\n")


def end_event(state: str) -> str:
    """Return the event of a run's end."""
    return "on_success" if state in SUCCESSES else "on_failure"


def secret_address(project: Path) -> Callable[[str], str]:
    """Return a function that reads addresses from the project's secrets."""

    def address(destination: str) -> str:
        from workbench.dbutils.secrets import Secrets
        from workbench.host.redaction import Redactor

        return Secrets(project / "conf", Redactor()).get(SCOPE, destination)

    return address


def _post(destination: str, message: Mapping[str, object], address: Callable[[str], str]) -> str:
    """Return why a message did not arrive; "" if it arrived. Never with the address, which may be secret."""
    try:
        # The target of a redirect would receive the message, too.
        answer = requests.post(
            address(destination), json=message, timeout=TIMEOUT_SECONDS, allow_redirects=False
        )
    except TopiclakeError as error:
        return str(error)
    except requests.RequestException as error:
        return type(error).__name__
    return "" if answer.ok and not answer.is_redirect else f"HTTP {answer.status_code}"
