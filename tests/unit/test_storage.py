from types import SimpleNamespace

import pytest

from topiclake import storage
from topiclake.errors import StorageError
from topiclake.settings import StorageSettings

WASBS = "wasbs://raw@account.blob.core.windows.net/gps"
TOKEN = "sv=2022&sig=very%2Fsecret%3D"


class FakeDbutils:
    """dbutils.fs with mounts, as Databricks has them: nothing checks a source but the caller."""

    def __init__(self, mounts=None):
        self.mounted = dict(mounts or {})
        self.calls = []
        self.fs = SimpleNamespace(mounts=self._mounts, mount=self._mount)

    def _mounts(self):
        return [SimpleNamespace(mountPoint=point, source=source) for point, source in self.mounted.items()]

    def _mount(self, source, mount_point, extra_configs):
        self.calls.append((source, mount_point, extra_configs))
        self.mounted[mount_point] = source
        return True


def settings(source="file:///lake", mount_point="/mnt/lake", token=None):
    return StorageSettings.model_validate(
        {"source": source, "mount_point": mount_point, "sas_token": token and "{{secrets/s/sas}}"},
        context={"secrets": lambda _scope, _key: token},
    )


# Mounting


def test_what_is_not_mounted_is_mounted_without_settings_for_a_folder():
    dbutils = FakeDbutils({"/mnt/other": "file:///other"})
    assert storage.mount(dbutils, settings()) == "/mnt/lake"
    assert dbutils.calls == [("file:///lake", "/mnt/lake", {})]


@pytest.mark.parametrize("mounted", ["file:///lake", "file:///lake/"])
def test_what_is_mounted_already_is_not_mounted_again(mounted):
    dbutils = FakeDbutils({"/mnt/lake": mounted})
    assert storage.mount(dbutils, settings()) == "/mnt/lake"
    assert dbutils.calls == []


def test_mounting_twice_mounts_once():
    dbutils = FakeDbutils()
    storage.mount(dbutils, settings(WASBS, token=TOKEN))
    storage.mount(dbutils, settings(WASBS, token=TOKEN))
    assert len(dbutils.calls) == 1


@pytest.mark.parametrize("mounted", ["file:///lakes", "file:///lake/sub", WASBS])
def test_a_mount_of_something_else_is_refused_and_left_alone(mounted):
    dbutils = FakeDbutils({"/mnt/lake": mounted})
    with pytest.raises(StorageError) as raised:
        storage.mount(dbutils, settings())
    assert raised.value.cause == f"/mnt/lake is a mount of {mounted}, not of file:///lake"
    assert 'dbutils.fs.unmount("/mnt/lake")' in raised.value.remedy
    assert (dbutils.calls, dbutils.mounted) == ([], {"/mnt/lake": mounted})


@pytest.mark.parametrize("token", [TOKEN, "?" + TOKEN])
def test_a_container_is_mounted_with_its_token(token):
    dbutils = FakeDbutils()
    storage.mount(dbutils, settings(WASBS, token=token))
    configs = {"fs.azure.sas.raw.account.blob.core.windows.net": TOKEN}
    assert dbutils.calls == [(WASBS, "/mnt/lake", configs)]


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("wasbs://c@a.blob.core.windows.net", "fs.azure.sas.c.a.blob.core.windows.net"),
        ("wasbs://c@a.blob.core.windows.net/", "fs.azure.sas.c.a.blob.core.windows.net"),
        ("wasb://c-1@a9.blob.core.windows.net/x/y", "fs.azure.sas.c-1.a9.blob.core.windows.net"),
        ("wasbs://c@a.blob.core.chinacloudapi.cn/x", "fs.azure.sas.c.a.blob.core.chinacloudapi.cn"),
        ("wasbs://c@devstoreaccount1/x", "fs.azure.sas.c.devstoreaccount1"),
    ],
)
def test_the_setting_of_a_token_names_container_and_host(source, key):
    assert storage.mount_configs(settings(source, token=TOKEN)) == {key: TOKEN}


@pytest.mark.parametrize("source", ["ftp://h/x", "wasbs://container/x", "wasbs://@a/x", "lake"])
def test_a_source_of_another_form_is_refused_with_those_allowed(source):
    dbutils = FakeDbutils()
    with pytest.raises(StorageError) as raised:
        storage.mount(dbutils, settings(source, token=TOKEN))
    assert raised.value.cause.startswith(
        f"{source} cannot be mounted; allowed: file:///<folder> and wasbs://"
    )
    assert TOKEN not in str(raised.value)
    assert dbutils.calls == []


def test_a_container_without_a_token_is_refused():
    dbutils = FakeDbutils()
    with pytest.raises(StorageError, match=r"needs a SAS token; try: storage\.sas_token"):
        storage.mount(dbutils, settings(WASBS))
    assert dbutils.calls == []


# Resolving


MOUNTED = {"/mnt/data": "file:///srv/data/", "/mnt/datalake": WASBS, "/mnt/azure": f"{WASBS}/"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/mnt/data", "file:/srv/data"),
        ("/mnt/data/delta/gps", "file:/srv/data/delta/gps"),
        ("/mnt/datalake", WASBS),
        ("/mnt/datalake/delta/gps", f"{WASBS}/delta/gps"),
        ("/mnt/azure/gps", f"{WASBS}/gps"),
        ("/Volumes/main/gps/t", "/Volumes/main/gps/t"),
        ("/mntx/data", "/mntx/data"),
        ("/tmp/mnt/data", "/tmp/mnt/data"),
        ("abfss://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
        ("dbfs:/mnt/data", "dbfs:/mnt/data"),
    ],
)
def test_a_path_below_a_mount_point_becomes_its_source(path, expected):
    assert storage.resolve(FakeDbutils(MOUNTED), path, databricks=False) == expected


@pytest.mark.parametrize("order", [1, -1])
def test_a_mount_point_that_begins_like_another_is_not_that_one(order):
    dbutils = FakeDbutils(list(MOUNTED.items())[::order])
    assert storage.resolve(dbutils, "/mnt/datalake/x", databricks=False) == f"{WASBS}/x"
    assert storage.resolve(dbutils, "/mnt/data/x", databricks=False) == "file:/srv/data/x"


def test_a_folder_is_written_as_hadoop_writes_it():
    dbutils = FakeDbutils({"/mnt/a": "file:///home/x%20y", "/mnt/b": "/plain/folder"})
    assert storage.resolve(dbutils, "/mnt/a/t", databricks=False) == "file:/home/x y/t"
    assert storage.resolve(dbutils, "/mnt/b/t", databricks=False) == "file:/plain/folder/t"


@pytest.mark.parametrize("databricks", [True, False])
def test_a_folder_that_is_given_as_an_address_is_written_so_too(databricks):
    """Delta takes file:///x and file:/x for two locations, and refuses to create the table."""
    dbutils = FakeDbutils(MOUNTED)
    assert storage.resolve(dbutils, "file:///home/x%20y/t", databricks=databricks) == "file:/home/x y/t"
    assert storage.resolve(dbutils, "file:/home/t", databricks=databricks) == "file:/home/t"


def test_a_percent_sign_in_a_container_stays():
    dbutils = FakeDbutils({"/mnt/a": f"{WASBS}/x%20y"})
    assert storage.resolve(dbutils, "/mnt/a/t", databricks=False) == f"{WASBS}/x%20y/t"


@pytest.mark.parametrize("path", ["/mnt/dat", "/mnt/data2/x", "/mnt/", "/mnt/other/x"])
def test_a_path_below_no_mount_is_named_with_the_mounts(path):
    with pytest.raises(StorageError) as raised:
        storage.resolve(FakeDbutils(MOUNTED), path, databricks=False)
    assert raised.value.cause == (f"{path} is below no mount; mounted: /mnt/azure, /mnt/data, /mnt/datalake")


def test_without_any_mount_the_error_says_nothing_is_mounted():
    with pytest.raises(StorageError, match="mounted: nothing; try: mount first"):
        storage.resolve(FakeDbutils(), "/mnt/data/x", databricks=False)


@pytest.mark.parametrize("path", ["/mnt/data/x", "/mnt/unmounted/x", "/Volumes/a/b/c", "s3a://b/x"])
def test_databricks_resolves_paths_by_itself(path):
    assert storage.resolve(FakeDbutils(MOUNTED), path, databricks=True) == path
