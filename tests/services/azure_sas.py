"""Shared access signatures: tokens that open a container of an Azure storage account for a while."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from urllib.parse import urlencode

from workbench.services.azurite import API_VERSION, AZURE_TIME, sign


def container_sas(
    account: str, key: str, container: str, expires: datetime | None = None, permissions: str = "racwdl"
) -> str:
    """Return a token for one container, signed with the account's key (base64); valid for a day by default.

    Source: "Construct a service SAS", version 2018-11-09 and later,
    https://learn.microsoft.com/rest/api/storageservices/create-service-sas
    """
    expiry = (expires or datetime.now(timezone.utc) + timedelta(days=1)).strftime(AZURE_TIME)
    resource, unused = f"/blob/{account}/{container}", ["", "", "", "", "", ""]
    signed = [permissions, "", expiry, resource, "", "", "https", API_VERSION, "c", *unused]
    fields = {"sv": API_VERSION, "se": expiry, "sr": "c", "sp": permissions, "spr": "https"}
    return urlencode(fields | {"sig": sign(key, signed)})
