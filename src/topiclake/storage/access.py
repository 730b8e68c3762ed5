"""Hadoop settings that open a source: its address, and the credential that grants access."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from topiclake.config.secret import Secret
from topiclake.config.storage import ACCESS, OAuthSettings, StorageSettings
from topiclake.errors import StorageError
from topiclake.session import is_databricks

_ABFS = "org.apache.hadoop.fs.azurebfs"
_S3A = "org.apache.hadoop.fs.s3a"
#: In an account's address: Azure's older interface, the only one of accounts with a flat namespace.
_BLOB_ENDPOINT = ".blob."
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)")
_ENTRA = "https://login.microsoftonline.com"

#: Prefix of a setting, before the host of an account or a bucket: the time (ns) when its other settings
#: changed. In each JVM, `jars/store` opens the store again with the newest settings. The containers of an
#: account share it, as they share the account's key.
RENEWED = "fs.topiclake.renewed."


def hadoop_settings(storage: StorageSettings) -> dict[str, str]:
    """Return the Hadoop settings that open `storage.source`, with its secrets revealed.

    A folder needs none, and on Databricks neither does a source without credentials in the configuration.

    The settings name the container or the bucket; for `abfss` and account keys, the account. So two sources
    in one session do not conflict.

    Source: https://learn.microsoft.com/azure/databricks/dbfs/mounts (wasbs),
    https://hadoop.apache.org/docs/stable/hadoop-azure/abfs.html and fns_blob.html (abfss),
    https://learn.microsoft.com/azure/databricks/connect/storage/azure-storage (abfss on Databricks),
    https://hadoop.apache.org/docs/stable/hadoop-aws/tools/hadoop-aws/index.html (s3a)

    Raises:
        StorageError: The credentials do not fit the kind of source, or an account key is not base64.
        ConfigError: A secret cannot be read.
    """
    if storage.kind in ("abfss", "s3a") and not storage.credentials and is_databricks():
        # The platform opens an external location of Unity Catalog.
        return {}
    if frozenset(storage.credentials) not in ACCESS[storage.kind]:
        raise StorageError(
            f"{storage.source} needs {storage.ways_in}",
            "set storage.<one of them>: '{{secrets/<scope>/<key>}}'",
            source=storage.source,
        )
    authority = urlsplit(storage.source).netloc
    container, _, host = authority.rpartition("@")
    if storage.kind == "wasbs":
        return _wasbs(storage, container, host)
    if storage.kind == "abfss":
        return _abfss(storage, host)
    if storage.kind == "s3a":
        return {f"fs.s3a.bucket.{authority}.{key}": value for key, value in _s3a(storage).items()}
    return {}


def _wasbs(storage: StorageSettings, container: str, host: str) -> dict[str, str]:
    if storage.account_key is not None:
        return {f"fs.azure.account.key.{host}": _account_key(storage, storage.account_key)}
    return {f"fs.azure.sas.{container}.{host}": _token(storage)}


def _abfss(storage: StorageSettings, host: str) -> dict[str, str]:
    settings = _abfss_access(storage)
    if _BLOB_ENDPOINT in host:
        # An account without a hierarchical namespace. To detect it, Hadoop would ask another address.
        settings["account.hns.enabled"] = "false"
    return {f"fs.azure.{key}.{host}": value for key, value in settings.items()}


def _abfss_access(storage: StorageSettings) -> dict[str, str]:
    if storage.account_key is not None:
        return {"account.auth.type": "SharedKey", "account.key": _account_key(storage, storage.account_key)}
    if storage.oauth is not None:
        return {f"account.{key}": value for key, value in _oauth(storage.oauth).items()}
    fixed = {"account.auth.type": "SAS", "sas.fixed.token": _token(storage)}
    # Without this setting Hadoop uses its own class for a fixed token; Databricks' has another name.
    provider = {"sas.token.provider.type": f"{_ABFS}.sas.FixedSASTokenProvider"}
    return fixed | (provider if is_databricks() else {})


def _oauth(oauth: OAuthSettings) -> dict[str, str]:
    return {
        "auth.type": "OAuth",
        "oauth.provider.type": f"{_ABFS}.oauth2.ClientCredsTokenProvider",
        "oauth2.client.id": oauth.client_id,
        "oauth2.client.secret": oauth.client_secret.reveal(),
        "oauth2.client.endpoint": f"{_ENTRA}/{oauth.tenant_id}/oauth2/token",
    }


def _s3a(storage: StorageSettings) -> dict[str, str]:
    # The SDK's own chain knows profiles and web identities as well, which Hadoop's does not.
    provider = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
    names = {"access_key": "access.key", "secret_key": "secret.key", "session_token": "session.token"}
    keys: dict[str, Any] = {names[name]: secret for name, secret in storage.credentials.items()}
    if keys:
        provider = f"{_S3A}.{'Temporary' if storage.session_token else 'Simple'}AWSCredentialsProvider"
    endpoint = {"endpoint": storage.endpoint, "endpoint.region": storage.region}
    return {
        "aws.credentials.provider": provider,
        "path.style.access": str(storage.path_style_access).lower(),
        **{key: value for key, value in endpoint.items() if value is not None},
        **{key: secret.reveal() for key, secret in keys.items()},
    }


def _account_key(storage: StorageSettings, secret: Secret) -> str:
    # Hadoop's error shows a key that it cannot decode.
    key = secret.reveal()
    if not _BASE64.fullmatch(key):
        raise StorageError(
            f"{storage.source} cannot be opened: its account key, the secret {secret.name}, is not base64",
            "put the key into it as Azure shows it",
            source=storage.source,
            secret=secret.name,
        )
    return key


def _token(storage: StorageSettings) -> str:
    return storage.sas_token.reveal().lstrip("?") if storage.sas_token is not None else ""


def open_store(spark: SparkSession, source: str, settings: Mapping[str, str]) -> None:
    """Set the Hadoop settings that open `source` in a session; an open store uses changed ones, too."""
    new_settings = {**_superseded(source, settings), **settings}
    if all(spark.conf.get(key, None) == value for key, value in new_settings.items()):
        return
    for key, value in new_settings.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)
    before = int(spark.conf.get(renewed_key(source), None) or 0)
    # Set last: a reader in between continues with the earlier settings. A clock may be set back.
    spark.conf.set(renewed_key(source), str(max(time.time_ns(), before + 1)))


def _superseded(source: str, settings: Mapping[str, str]) -> dict[str, str | None]:
    """Return the setting to remove for an account's key: the container's token, which Hadoop would still use.

    A token does not remove the key, which may open other containers.
    """
    container, _, host = urlsplit(source).netloc.rpartition("@")
    return {f"fs.azure.sas.{container}.{host}": None} if f"fs.azure.account.key.{host}" in settings else {}


def renewed_key(source: str) -> str:
    """Return the name of the setting that holds the time when a source's other settings changed."""
    return f"{RENEWED}{urlsplit(source).netloc.rpartition('@')[2]}"
