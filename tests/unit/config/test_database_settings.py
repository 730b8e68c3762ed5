"""The section `database` of the configuration: three kinds of URL, logins as secrets, nothing else."""

import json

import pytest

from topiclake.config.load import load_settings
from topiclake.errors import ConfigError

BASE = {
    "kafka": {"bootstrap_servers": "base:9092"},
    "schema_registry": {"url": "http://base:8081"},
    "storage": {"source": "file:///base", "mount_point": "/mnt/datalake"},
    "pipelines": {"gps": {"topic": "gps", "view": "gps", "table_path": "/t", "checkpoint_path": "/c"}},
}
LOGIN = {"username": "{{secrets/db/user}}", "password": "{{secrets/db/password}}"}
HIDDEN = "hunter2"


@pytest.fixture
def load(tmp_path):
    """Load a configuration with this section `database`."""

    def loaded(**database):
        given = {"database": LOGIN | database} if database else {}
        (tmp_path / "base.yaml").write_text(json.dumps(BASE | given))
        (tmp_path / "local.yaml").write_text("")
        return load_settings("gps", {}, conf=tmp_path, secrets=lambda *_: HIDDEN).database

    return loaded


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("jdbc:mariadb://db:3307/stats", ("mariadb", "db", 3307, "stats")),
        ("jdbc:mysql://db.example.org/stats", ("mysql", "db.example.org", 3306, "stats")),
        ("jdbc:postgresql://[::1]/my-stats", ("postgresql", "::1", 5432, "my-stats")),
    ],
)
def test_a_url_of_the_article_s_form_is_taken_apart(load, url, parts):
    found = load(url=url)
    assert (found.kind, found.host, found.port, found.name) == parts
    assert found.tls, "nobody has to ask for it"
    assert HIDDEN not in repr(found)


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:h2:mem:x",
        "jdbc:mysql:loadbalance://a,b/stats",
        "mariadb://db/stats",
        "JDBC:mariadb://db/stats",
        "jdbc:mariadb://db",
        "jdbc:mariadb://db/",
        "jdbc:mariadb://db/stats/",
        "jdbc:mariadb://db/stats\n",
        f"jdbc:mariadb://me:{HIDDEN}@db/stats",
        f"jdbc:mariadb://db/stats?user=me&password={HIDDEN}",
        "jdbc:mysql://db/stats?allowLoadLocalInfile=true",
        "jdbc:postgresql://db/stats?socketFactory=org.example.Evil",
        "jdbc:postgresql://db/stats;x=1",
        "jdbc:postgresql://db,other/stats",
        "jdbc:postgresql://db/host=evil",
    ],
)
def test_any_other_url_is_refused_without_being_shown(load, url):
    with pytest.raises(ConfigError) as raised:
        load(url=url)
    message = str(raised.value)
    assert raised.value.fields["key"] == "database.url"
    assert raised.value.fields["reason"] == "wrong"
    assert "base.yaml" in message
    assert "must be one of jdbc:mariadb://<host>:<port>/<database>, jdbc:mysql://" in message
    assert "[REDACTED]" in message
    assert HIDDEN not in f"{message} {raised.value.fields}"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"password": HIDDEN}, "database.password in "),
        ({"driver": "com.mysql.Driver"}, "database.driver in "),
        (
            {"driver": "x"},
            "is unknown; allowed: ca_file, password, pool_size, retry_seconds, tls, url",
        ),
        ({"pool_size": 0}, "database.pool_size in "),
        ({"username": None}, "database.username in "),
    ],
)
def test_a_wrong_key_is_named_with_its_file(load, wrong, message):
    with pytest.raises(ConfigError) as raised:
        load(**{"url": "jdbc:mariadb://db/stats"} | wrong)
    assert message in str(raised.value)
    assert HIDDEN not in f"{raised.value} {raised.value.fields}"


def test_who_has_no_database_needs_no_section(load):
    assert load() is None
