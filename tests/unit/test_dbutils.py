import html
import json
import stat
import urllib.parse

import pytest

from topiclake.errors import ConfigError, StorageError
from workbench.dbutils import DBUtils, InputWidgetNotDefined, NotebookExit
from workbench.dbutils.mounts import MountInfo
from workbench.redaction import Redactor

TOKEN = "sv=2022&sig=very/secret+token"
SAS_KEY = "fs.azure.sas.raw.account.blob.core.windows.net"
WASBS = "wasbs://raw@account.blob.core.windows.net/gps"
RENEWED = "fs.topiclake.renewed.account.blob.core.windows.net"


class SparkConf:
    def __init__(self):
        self.conf, self.values = self, {}

    def get(self, key, default):
        return self.values.get(key, default)

    def set(self, key, value):
        self.values[key] = value


@pytest.fixture
def make(tmp_path):
    def made(parameters=None, spark=None, redactor=None):
        return DBUtils(tmp_path / "home", tmp_path / "project", parameters, lambda: spark, redactor)

    return made


def test_a_parameter_of_the_run_wins_over_the_default(make):
    widgets = make({"topic": "other"}).widgets
    widgets.text("topic", "gps")
    widgets.combobox("mode", "a", ["a"])
    assert widgets.getAll() == {"topic": "other", "mode": "a"}


def test_an_undefined_widget_is_named_with_those_that_exist(make):
    widgets = make().widgets
    widgets.text("topic", "gps")
    with pytest.raises(InputWidgetNotDefined, match="named 'topics' is defined; defined are 'topic'"):
        widgets.get("topics")
    assert widgets.getArgument("topics", "x") == "x"
    widgets.removeAll()
    with pytest.raises(InputWidgetNotDefined):
        widgets.remove("topic")


def test_a_default_outside_the_choices_is_refused(make):
    with pytest.raises(ConfigError, match="widget 'mode': default 'c' is not one of its choices 'a', 'b'"):
        make().widgets.dropdown("mode", "c", ["a", "b"])


def test_a_parameter_outside_the_choices_is_refused(make):
    with pytest.raises(ConfigError, match="widget 'mode': value 'aa' is not one of its choices 'a', 'b'"):
        make({"mode": "aa"}).widgets.dropdown("mode", "a", ["a", "b"])
    with pytest.raises(ConfigError, match="'x' is not one of"):
        make({"many": "a,x"}).widgets.multiselect("many", "a", ["a", "b"])


def test_a_default_that_is_no_string_is_refused(make):
    with pytest.raises(ConfigError, match="its default 5 is not a string"):
        make().widgets.text("count", 5)


def test_exit_is_not_caught_by_a_cell_that_catches_exceptions(make):
    with pytest.raises(NotebookExit) as caught:
        make().notebook.exit("value")
    assert caught.value.value == "value"
    assert not isinstance(caught.value, Exception)


def test_a_mounted_folder_is_made_listed_and_kept_for_the_next_run(make, tmp_path):
    folder = tmp_path / "lake"
    assert make().fs.mount(f"file://{folder}", "/mnt/lake/")
    assert folder.is_dir()
    assert make().fs.mounts() == [MountInfo("/mnt/lake", folder.as_uri(), "")]
    assert stat.S_IMODE((tmp_path / "home" / "mounts.json").stat().st_mode) == 0o600


def test_a_mount_point_that_is_taken_shows_both_sources(make, tmp_path):
    fs = make().fs
    fs.mount(str(tmp_path / "a"), "/mnt/x")
    with pytest.raises(
        StorageError, match=r"^Directory already mounted: /mnt/x \(to file.*/a; asked for wasb"
    ):
        fs.mount(WASBS, "/mnt/x")
    assert fs.updateMount(WASBS, "/mnt/x")
    assert [mount.source for mount in fs.mounts()] == [WASBS]


@pytest.mark.parametrize(
    ("source", "point", "cause"),
    [
        ("ftp://host/x", "/mnt/x", "its scheme is not one of file, wasb"),
        ("/tmp", "mnt/x", "is not a mount point"),
        ("/proc/nowhere", "/mnt/x", "cannot be mounted at /mnt/x: it is not writable"),
    ],
)
def test_a_mount_that_cannot_work_is_refused_and_not_kept(make, source, point, cause):
    fs = make().fs
    with pytest.raises(StorageError, match=cause):
        fs.mount(source, point)
    assert fs.mounts() == []


def test_unmounting_keeps_the_files(make, tmp_path):
    fs = make().fs
    fs.mount(str(tmp_path / "lake"), "/mnt/lake")
    fs.put("/mnt/lake/a.txt", "text")
    fs.unmount("/mnt/lake")
    assert (tmp_path / "lake" / "a.txt").read_text() == "text"
    with pytest.raises(StorageError, match="Directory not mounted: /mnt/lake; mounted are none"):
        fs.unmount("/mnt/lake")
    with pytest.raises(StorageError, match="nothing is mounted there"):
        fs.ls("/mnt/lake")


def test_a_mounts_settings_reach_a_live_session_and_one_that_starts_later(make):
    live = SparkConf()
    make(spark=live).fs.mount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    assert set(live.values) == {SAS_KEY, RENEWED}
    assert live.values[SAS_KEY] == TOKEN
    later = SparkConf()
    make(spark=later).fs.refreshMounts()
    assert later.values[SAS_KEY] == TOKEN


def test_a_mounts_settings_are_newer_only_where_one_has_changed(make):
    live = SparkConf()
    fs = make(spark=live).fs
    fs.mount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    first = live.values[RENEWED]
    fs.updateMount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    assert live.values[RENEWED] == first
    fs.updateMount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: "another"})
    assert live.values[SAS_KEY] == "another"
    assert int(live.values[RENEWED]) > int(first)


def test_a_mounts_credentials_are_never_shown(make):
    redactor = Redactor()
    fs = make(redactor=redactor).fs
    fs.mount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    with pytest.raises(StorageError) as caught:
        fs.mount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    assert TOKEN not in f"{caught.value!r} {fs.mounts()} {fs._mounts.all()} {vars(fs)} {redactor!r}"
    assert redactor.redact(f"<{TOKEN}>") == "<[REDACTED]>"


def test_the_credentials_of_an_earlier_mount_are_redacted_in_a_new_run(make):
    make().fs.mount(WASBS, "/mnt/raw", extra_configs={SAS_KEY: TOKEN})
    redactor = Redactor()
    make(redactor=redactor).fs.mounts()
    assert TOKEN not in redactor.redact(TOKEN)


def test_a_password_in_a_source_is_not_shown(make):
    fs = make().fs
    fs.mount("s3a://key:secret@bucket/x", "/mnt/s3")
    assert fs.mounts()[0].source == "s3a://[REDACTED]@bucket/x"


def test_files_are_written_read_listed_copied_moved_and_removed(make, tmp_path):
    fs = make().fs
    fs.mount(str(tmp_path / "lake"), "/mnt/lake")
    fs.put("/mnt/lake/in/a.txt", "grüße")
    with pytest.raises(StorageError, match="exists already"):
        fs.put("/mnt/lake/in/a.txt", "other")
    assert fs.head("dbfs:/mnt/lake/in/a.txt") == "grüße"
    (entry,) = fs.ls("/mnt/lake")
    assert (entry.path, entry.name, entry.size, entry.isDir()) == ("dbfs:/mnt/lake/in/", "in/", 0, True)
    with pytest.raises(StorageError, match="is a folder"):
        fs.cp("/mnt/lake/in", "/mnt/lake/out")
    fs.cp("/mnt/lake/in", "/mnt/lake/out", recurse=True)
    fs.mv("/mnt/lake/out/a.txt", f"file:{tmp_path}/b.txt")
    assert [info.name for info in fs.ls(str(tmp_path))] == ["b.txt", "home/", "lake/"]
    with pytest.raises(StorageError, match="not empty"):
        fs.rm("/mnt/lake/in")
    assert fs.rm("/mnt/lake/in", recurse=True)
    assert not fs.rm("/mnt/lake/in")


@pytest.mark.parametrize(
    "path", ["/", "/mnt/lake", "dbfs:/mnt/lake/", "s3a://bucket/x", "relative", "/mnt/lake/../.."]
)
def test_what_is_no_local_path_or_a_root_is_not_removed(make, tmp_path, path):
    fs = make().fs
    fs.mount(str(tmp_path / "lake"), "/mnt/lake")
    with pytest.raises(StorageError):
        fs.rm(path, recurse=True)
    assert (tmp_path / "lake").is_dir()


def test_a_damaged_mount_table_is_named(make, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mounts.json").write_text('[{"password": "x"')
    with pytest.raises(StorageError, match=r"the mount table .*mounts\.json is damaged"):
        make().fs.mounts()


def write_secrets(tmp_path, text, mode=0o600):
    file = tmp_path / "project" / "conf" / "secrets.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(mode)


def test_secrets_come_from_the_environment_before_the_file(make, tmp_path, monkeypatch):
    write_secrets(tmp_path, json.dumps({"kafka-prod": {"user": "file-user", "password": "file-password"}}))
    monkeypatch.setenv("TOPICLAKE_SECRET_KAFKA_PROD_PASSWORD", "env-password")
    secrets = make().secrets
    assert secrets.get("kafka-prod", "password") == "env-password"
    assert secrets.getBytes("kafka-prod", "user") == b"file-user"
    assert [item.key for item in secrets.list("kafka-prod")] == ["password", "user"]
    assert [scope.name for scope in secrets.listScopes()] == ["kafka-prod"]


def test_an_unknown_secret_is_named_with_both_places(make):
    with pytest.raises(ConfigError, match=r"'b' of scope 'a' .* TOPICLAKE_SECRET_A_B nor in .*secrets\.yaml"):
        make().secrets.get("a", "b")


def test_a_secrets_file_that_others_can_read_is_refused(make, tmp_path):
    write_secrets(tmp_path, "a: {b: c}", mode=0o640)
    with pytest.raises(ConfigError, match="can be read by other users; try: chmod 600"):
        make().secrets.get("a", "b")


def test_a_broken_secrets_file_is_named_by_line_without_its_text(make, tmp_path):
    write_secrets(tmp_path, "a:\n  b: {hidden-value\n")
    with pytest.raises(ConfigError, match=r"secrets\.yaml, line \d is not valid YAML") as caught:
        make().secrets.get("a", "b")
    assert "hidden-value" not in str(caught.value)


@pytest.mark.parametrize("secret", ["plain", 'a<b>&"c"', "line\nbreak", "back\\slash'", "sig=a/b+c%3D"])
def test_a_secret_is_redacted_however_it_is_quoted(make, monkeypatch, secret):
    monkeypatch.setenv("TOPICLAKE_SECRET_S_K", secret)
    redactor = Redactor()
    make(redactor=redactor).secrets.get("s", "k")
    for text in (
        secret,
        html.escape(secret),
        json.dumps(secret),
        repr(secret),
        urllib.parse.quote_plus(secret),
    ):
        bare = redactor.redact(text).strip("\"'")
        assert bare == "[REDACTED]"
    assert redactor.redact_all({"a": [f"x{secret}"], "b": 1}) == {"a": ["x[REDACTED]"], "b": 1}


def test_the_first_half_of_a_secret_at_the_end_of_a_text_is_noticed():
    redactor = Redactor()
    redactor.remember("password")
    assert redactor.open_end("my pass") == 4
    assert redactor.open_end("my past") == 0
    redactor.remember("  ")
    assert redactor.redact("a  b") == "a  b"


def mount_secrets(folder, mode=0o440):
    """Make a scope as Kubernetes mounts it: names are links into a hidden folder with the version."""
    version = folder / "kafka" / "..2026_11_21"
    version.mkdir(parents=True)
    (version / "password").write_text("mounted-password\n")
    (version / "password").chmod(mode)
    (folder / "kafka" / "..data").symlink_to(version.name)
    (folder / "kafka" / "password").symlink_to("..data/password")
    (folder / "..data").symlink_to(folder / "kafka")


def test_secrets_come_from_a_folder_before_the_file_and_after_the_environment(make, tmp_path, monkeypatch):
    write_secrets(tmp_path, json.dumps({"kafka": {"password": "file-password", "user": "me"}, "other": {}}))
    folder = tmp_path / "project" / "conf" / "secrets"
    mount_secrets(folder)
    (folder / "kafka" / "only-here").touch()
    (folder / "scope-only-here").mkdir()
    redactor = Redactor()
    secrets = make(redactor=redactor).secrets
    assert [secrets.get("kafka", "password"), secrets.get("kafka", "user")] == ["mounted-password", "me"]
    assert redactor.redact("mounted-password") == "[REDACTED]"
    assert [item.key for item in secrets.list("kafka")] == ["only-here", "password", "user"]
    assert [scope.name for scope in secrets.listScopes()] == ["kafka", "other", "scope-only-here"]
    monkeypatch.setenv("TOPICLAKE_SECRET_KAFKA_PASSWORD", "env-password")
    assert secrets.get("kafka", "password") == "env-password"


def test_the_folder_of_secrets_may_be_named_by_a_variable(make, tmp_path, monkeypatch):
    mount_secrets(tmp_path / "mounted")
    monkeypatch.setenv("TOPICLAKE_SECRETS_FOLDER", str(tmp_path / "mounted"))
    assert make().secrets.get("kafka", "password") == "mounted-password"


def test_a_mounted_secret_that_others_can_read_is_refused(make, tmp_path):
    mount_secrets(tmp_path / "project" / "conf" / "secrets", mode=0o444)
    with pytest.raises(ConfigError, match=r"kafka/password can be read by other users; try: chmod o="):
        make().secrets.get("kafka", "password")


@pytest.mark.parametrize(
    ("scope", "key"),
    [("..", "outside"), ("kafka", "../../outside"), ("kafka/..2026_11_21", "password"), ("", "x")],
)
def test_a_secrets_name_is_no_path(make, tmp_path, scope, key):
    folder = tmp_path / "project" / "conf" / "secrets"
    mount_secrets(folder)
    (folder.parent / "outside").write_text("x")
    with pytest.raises(ConfigError, match="exists neither"):
        make().secrets.get(scope, key)


def test_a_mounted_secret_that_is_no_text_is_named_without_its_bytes(make, tmp_path):
    mount_secrets(tmp_path / "project" / "conf" / "secrets", mode=0o600)
    (tmp_path / "project" / "conf" / "secrets" / "kafka" / "password").write_bytes(b"hidden\xff")
    with pytest.raises(ConfigError, match=r"kafka/password is not UTF-8 text") as caught:
        make().secrets.get("kafka", "password")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "lines"),
    [
        ("", ["fs: Files in", "jobs: ", "notebook: ", "secrets: ", "widgets: "]),
        ("fs", ["cp(source, dest, recurse=False): Copy a file", "ls(path): List a folder"]),
        ("jobs", ["taskValues: Values of the current job run"]),
        (
            "jobs.taskValues",
            ["get(taskKey, key, default=None, debugValue=None): Return", "set(key, value): "],
        ),
        ("notebook", ["exit(value): End the run", "run(path, timeout_seconds, arguments=None): Run"]),
        ("secrets", ["get(scope, key): Return a secret", "listScopes(): List"]),
        ("widgets", ["dropdown(name, defaultValue, choices, label=None): Define"]),
    ],
)
def test_help_lists_what_is_there_on_each_level(make, capsys, part, lines):
    found = make()
    for name in filter(None, part.split(".")):
        found = getattr(found, name)
    found.help()
    shown = capsys.readouterr().out.splitlines()
    for begin in lines:
        assert [line for line in shown if line.startswith(begin)], begin
    assert not [line for line in shown if line.startswith("_")]


def test_help_describes_one_method_and_names_one_that_is_not_there(make, capsys):
    fs = make().fs
    fs.help("rm")
    shown = capsys.readouterr().out
    assert shown.startswith("rm(dir, recurse=False)\n\nRemove a file or folder")
    assert "StorageError: A folder is not empty" in shown
    with pytest.raises(ConfigError, match=r"there is no method 'remove'; there are .*rm.*; try: "):
        fs.help("remove")


def test_help_describes_a_part_and_names_one_that_is_not_there(make, capsys):
    dbutils = make()
    dbutils.help("fs")
    assert "ls(path)" in capsys.readouterr().out
    dbutils.jobs.help("taskValues")
    assert "set(key, value)" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"there is no method 'fss'; there are .*fs.*; try: fs"):
        dbutils.help("fss")


def test_a_link_is_listed_though_it_leads_nowhere_and_removed_without_what_it_leads_to(make, tmp_path):
    fs, folder = make().fs, tmp_path / "lake"
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a.txt").write_text("text")
    folder.mkdir()
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    (folder / "link").symlink_to(tmp_path / "kept")
    assert [(one.name, one.size) for one in fs.ls(f"file:{folder}")] == [("dangling", 0), ("link/", 0)]
    assert fs.rm(f"file:{folder}/link/", True)
    assert fs.rm(f"file:{folder}/dangling")
    assert list(folder.iterdir()) == []
    assert (tmp_path / "kept" / "a.txt").read_text() == "text"


@pytest.mark.parametrize("path", ["file:/tmp/..", "file:///tmp/../tmp/../", "file:/"])
def test_the_root_stays_however_it_is_written(make, path, monkeypatch):
    monkeypatch.setattr("shutil.rmtree", lambda target: pytest.fail(f"{target} would be removed"))
    with pytest.raises(StorageError, match="is the root of a file system and stays"):
        make().fs.rm(path, True)
