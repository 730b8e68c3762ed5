"""Shared access signatures: tokens that open a part of an Azure storage account for a while."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from urllib.parse import urlencode

#: Of the REST API and of the tokens; the last whose string-to-sign has no encryption scope.
API_VERSION = "2019-12-12"
DEFAULT_VALIDITY = timedelta(hours=24)


@dataclass(frozen=True)
class AccountKey:
    """A storage account and its key (base64), which signs tokens."""

    account: str
    key: str = field(repr=False)

    def container_sas(
        self, container: str, expires: datetime | None = None, permissions: str = "racwdl"
    ) -> str:
        """Return a token for one container, signed with the account's key.

        Source: "Construct a service SAS", version 2018-11-09 and later,
        https://learn.microsoft.com/rest/api/storageservices/create-service-sas
        """
        expiry, resource = _time(expires), f"/blob/{self.account}/{container}"
        unused = ["", "", "", "", "", ""]
        signed = [permissions, "", expiry, resource, "", "", "https", API_VERSION, "c", *unused]
        fields = {"sv": API_VERSION, "se": expiry, "sr": "c", "sp": permissions, "spr": "https"}
        return urlencode(fields | {"sig": self._sign(signed)})

    def account_sas(self) -> str:
        """Return a token for the whole account: what creates containers and looks into them.

        Source: "Construct an account SAS", https://learn.microsoft.com/rest/api/storageservices/create-account-sas
        """
        expiry = _time(None)
        signed = [self.account, "racwdl", "b", "sco", "", expiry, "", "https", API_VERSION, ""]
        fields = {"sv": API_VERSION, "ss": "b", "srt": "sco", "se": expiry, "sp": "racwdl", "spr": "https"}
        return urlencode(fields | {"sig": self._sign(signed)})

    def _sign(self, lines: Sequence[str]) -> str:
        signature = hmac.new(base64.b64decode(self.key), "\n".join(lines).encode(), hashlib.sha256)
        return base64.b64encode(signature.digest()).decode()


def _time(moment: datetime | None) -> str:
    return (moment or datetime.now(timezone.utc) + DEFAULT_VALIDITY).strftime("%Y-%m-%dT%H:%M:%SZ")
