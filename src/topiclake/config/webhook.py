"""Where notifications are sent to: the configuration's section `webhook`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from topiclake.config.secret import SecretReference, Section


class WebhookSettings(Section):
    """An address that accepts JSON by POST, such as a chat's, and how long to wait for it."""

    #: A secret as a whole: anyone who knows such an address can write to it.
    url: SecretReference
    #: A PEM file with the authorities to trust. Set it when the system's own did not sign the certificate.
    ca_file: Path | None = None
    #: How long a micro-batch waits for an address that does not accept a notification. Then the query
    #: fails. Lower it when batches must not wait for a chat.
    retry_seconds: Annotated[float, Field(ge=0)] = 60
