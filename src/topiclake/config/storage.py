"""Where tables and checkpoints live, and what grants access: the configuration's section `storage`."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import unquote

from pydantic import AfterValidator, Field, model_validator

from topiclake.config.secret import SecretReference, Section

#: The kinds of `storage.source`: the pattern of each, and how it is written.
SOURCES = {
    "file": (r"(?:file:(?!//[^/])|/(?!Volumes/))", "file:///<folder>"),
    "volume": (r"/Volumes/[^/]+/[^/]+/[^/]+(?:/|$)", "/Volumes/<catalog>/<schema>/<volume>"),
    "wasbs": (
        r"wasbs?://[^@/:]+@[^@/]+(?:/|$)",
        "wasbs://<container>@<account>.blob.core.windows.net/<folder>",
    ),
    "abfss": (
        r"abfss?://[^@/:]+@[^@/]+(?:/|$)",
        "abfss://<container>@<account>.dfs.core.windows.net/<folder>",
    ),
    "s3a": (r"s3a?://[^@/:]+(?:/|$)", "s3a://<bucket>/<folder>"),
}
#: The sets of keys that grant access, by kind of source. The empty set is the access of the machine itself.
ACCESS: dict[str, tuple[frozenset[str], ...]] = {
    "file": (frozenset(),),
    "volume": (frozenset(),),
    "wasbs": (frozenset({"sas_token"}), frozenset({"account_key"})),
    "abfss": (frozenset({"sas_token"}), frozenset({"account_key"}), frozenset({"oauth"})),
    "s3a": (
        frozenset(),
        frozenset({"access_key", "secret_key"}),
        frozenset({"access_key", "secret_key", "session_token"}),
    ),
}
#: Java reads a bucket's name as the name of a host, and Hadoop opens no other (HADOOP-17241). `a_b` and
#: `logs.2024` are not such names.
_BUCKET = re.compile(r"(?!.*\.[0-9][^.]*$)(?!.*(?:\.\.|\.-|-\.))[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
#: A secret key may hold slashes.
_LOGIN = re.compile(r"(?<=://)[^/@\s]*:[^@\s]*@")


class OAuthSettings(Section):
    """A client of Microsoft Entra ID; for `abfss` only, since Hadoop's driver for `wasbs` knows none."""

    #: The directory (tenant) of the client.
    tenant_id: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    #: The application id of the client.
    client_id: Annotated[str, Field(min_length=1)]
    #: Its secret.
    client_secret: SecretReference


def without_login(text: str) -> str:
    """Return a text without the logins that addresses in it may hold."""
    return _LOGIN.sub("[REDACTED]@", text)


def hadoop_address(source: str) -> str:
    """Return the address that plain Hadoop opens: it knows S3 as `s3a`."""
    return f"s3a{source.removeprefix('s3')}" if source.startswith("s3://") else source


def leads_out(path: str) -> bool:
    """Return whether a path holds `..`, written out or as Hadoop's local addresses may have it (`%2E%2E`)."""
    return ".." in unquote(path).split("/")


def _kind(source: str) -> str:
    """Return which of `SOURCES` it is."""
    for kind, (form, _) in SOURCES.items():
        if re.match(form, source):
            if leads_out(source):
                raise ValueError("must not hold `..`, which leads out of it")
            return kind
    raise ValueError(f"must be one of {', '.join(written for _, written in SOURCES.values())}")


def _check_source(value: str) -> str:
    if _kind(value) == "s3a" and not _BUCKET.fullmatch(bucket := value.split("/")[2]):
        raise ValueError(
            f"Hadoop opens no bucket {bucket}: letters, digits, hyphens, and dots, a letter after the last"
        )
    return value


class StorageSettings(Section):
    """Where tables and checkpoints live: a source, and the mount point that stands for it in paths."""

    #: The container, bucket, volume or folder, as `wasbs://`, `abfss://`, `s3a://` (or `s3://`), `/Volumes/`
    #: or `file:///`.
    source: Annotated[str, AfterValidator(_check_source)]
    #: The path that stands for the source, such as `/mnt/datalake`.
    mount_point: Annotated[str, Field(pattern=r"^/mnt/[\w.-]+$")]
    #: Whether `dbutils.fs.mount` is used. Without it, and for a volume, paths below the mount point stand for
    #: paths below the source. Set it to false where mounts are not allowed, as on serverless compute.
    mounted: bool = True
    #: wasbs, abfss: the shared access signature of the container.
    sas_token: SecretReference | None = None
    #: A warning is logged when the token ends in fewer hours. Set it below the lifetime of your tokens.
    expiry_warning_hours: Annotated[float, Field(ge=0)] = 12
    #: wasbs, abfss: the key of the storage account.
    account_key: SecretReference | None = None
    #: abfss: a client of Microsoft Entra ID.
    oauth: OAuthSettings | None = None
    #: s3a: a key; without one, what the machine has (environment, profile, web identity, role).
    access_key: SecretReference | None = None
    #: s3a: the secret of `access_key`.
    secret_key: SecretReference | None = None
    #: s3a: of temporary keys.
    session_token: SecretReference | None = None
    #: s3a: the address of a service other than Amazon's.
    endpoint: Annotated[str, Field(pattern=r"^https?://")] | None = None
    #: s3a: of the bucket. Set it when the machine's own region is another one.
    region: Annotated[str, Field(min_length=1)] | None = None
    #: s3a: `<endpoint>/<bucket>` instead of `<bucket>.<endpoint>`. Set it when the service has no DNS name
    #: for each bucket.
    path_style_access: bool = False

    @property
    def kind(self) -> str:
        """The source's key in `SOURCES`."""
        return _kind(self.source)

    @property
    def is_mounted(self) -> bool:
        """Whether `dbutils.fs.mount` is used: Databricks mounts no volumes."""
        return self.mounted and self.kind != "volume"

    @property
    def credentials(self) -> dict[str, SecretReference | OAuthSettings]:
        """The credentials for this source; those for others are ignored."""
        names = sorted({name for way in ACCESS[self.kind] for name in way})
        return {name: credential for name in names if (credential := getattr(self, name)) is not None}

    @property
    def ways_in(self) -> str:
        """The credentials that would grant access to the source, for people to read."""
        return ", or ".join(" and ".join(sorted(way)) or "none" for way in ACCESS[self.kind])

    @model_validator(mode="after")
    def _check_credentials(self) -> StorageSettings:
        # A source that is mounted already needs no credentials.
        given = frozenset(self.credentials)
        if given and given not in ACCESS[self.kind]:
            given_names = " and ".join(sorted(given))
            raise ValueError(f"a source {SOURCES[self.kind][1]} takes {self.ways_in}; given: {given_names}")
        return self
