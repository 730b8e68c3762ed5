"""What a registry in trouble answers is never taken for an answer about a schema; a real registry, real HTTP.

Time is the test's own: waiting takes none, and what is to happen "after 100 s" happens while it waits.
"""

import json
import pickle
from email.utils import formatdate
from itertools import count
from threading import Event, Lock, Thread
from time import time

import fastavro
import pytest

from tests.services.fault_proxy import FaultProxy
from tests.support.selection import thorough_for
from topiclake.config.schema_registry import SchemaRegistrySettings
from topiclake.errors import ConfigError, SchemaRegistryError, SubjectNotFoundError
from topiclake.formats.avro.codec import AvroCodec
from topiclake.schema_registry.registry import SchemaRegistry
from topiclake.schema_registry.retries import Clock

FAULTS = [
    *("down", "hang", "trickle", "truncated", "cut", "html", "empty", "no content", "null", "other json"),
    *("302", "400", "401", "403", "404", "408", "429", "500", "502", "503", "504"),
    *("own 401", "own 404", "own 429", "own 500"),
]
UNKNOWN = 2_000_000_000
NUMBERS = count(1)


class Time:
    """A clock that only `sleep` moves, and what is to happen when."""

    def __init__(self):
        self.now, self.pauses, self._plan = 0.0, [], []

    def after(self, seconds, action):
        self._plan.append((self.now + seconds, action))

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds
        for due in [due for due in self._plan if due[0] <= self.now]:
            self._plan.remove(due)
            due[1]()


@pytest.fixture
def time_():
    return Time()


@pytest.fixture
def proxy(embedded, time_):
    _, addresses = embedded
    with FaultProxy(addresses.schema_registry_url, lambda: time_.now) as proxy:
        yield proxy


@pytest.fixture
def make(proxy, time_):
    def make(patience=0.0, fault="", **options):
        clock = Clock(lambda: time_.now, time_.sleep)
        timeout = 0.3 if fault in ("hang", "trickle") else 20
        return SchemaRegistry(proxy.url, patience=patience, timeout=timeout, clock=clock, **options)

    return make


@pytest.fixture
def subject():
    return f"faults-{next(NUMBERS)}-value"


@pytest.fixture
def schema_id(make, subject, proxy):
    schema_id = make().register(subject, schema())
    proxy.requests.clear()
    return schema_id


def schema():
    """A schema that no other test has, so that its id is new."""
    fields = [{"name": "n", "type": "int"}]
    return json.dumps({"type": "record", "name": f"Count{next(NUMBERS)}", "fields": fields})


def most_in_a_minute(times):
    return max((sum(start <= at < start + 60 for at in times) for start in times), default=0)


# ----------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("fault", FAULTS)
def test_a_cold_client_waits_for_the_answer_and_asks_at_most_five_times_a_minute(
    fault, make, proxy, time_, schema_id
):
    proxy.fault(fault)
    time_.after(100, proxy.heal)
    found = make(300, fault).by_id(schema_id)
    assert found is not None
    assert (found.schema_id, found.schema_type) == (schema_id, "AVRO")
    assert 100 <= time_.now < 160
    asked = proxy.times(f"/ids/{schema_id}")
    assert most_in_a_minute(asked) <= 5
    assert len(asked) >= (1 if fault == "down" else 6)


@pytest.mark.parametrize(
    "fault", thorough_for(("hang", "trickle"), FAULTS, "a cold client meets each slow answer, above")
)
def test_after_its_patience_it_is_an_error_never_an_unknown_schema(
    fault, make, proxy, time_, schema_id, subject
):
    proxy.fault(fault)
    registry = make(10, fault)
    for ask in (
        lambda: registry.by_id(schema_id),
        lambda: registry.by_ids([UNKNOWN, schema_id]),
        lambda: registry.versions(subject),
        lambda: registry.latest(subject),
        lambda: registry.by_guid("3f2504e0-4f89-11d3-9a0c-0305e82c3301"),
    ):
        start = time_.now
        with pytest.raises(SchemaRegistryError, match=r"the schema registry at .* gave up after") as caught:
            ask()
        assert not isinstance(caught.value, SubjectNotFoundError)
        assert caught.value.remedy
        assert time_.now - start <= 10
    proxy.heal()
    time_.sleep(60)
    assert registry.by_id(schema_id) is not None
    assert registry.by_id(UNKNOWN) is None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_warm_client_knows_what_it_knew_and_nothing_else(fault, make, proxy, time_, schema_id, subject):
    registry = make(0, fault)
    (version,) = registry.versions(subject)
    assert registry.by_id(UNKNOWN) is None
    proxy.requests.clear()
    proxy.fault(fault)
    found = registry.by_id(schema_id)
    assert found is not None
    assert found.schema == version.schema
    assert registry.by_id(UNKNOWN) is None
    assert registry.versions(subject) == [version]
    assert proxy.requests == []
    time_.sleep(60)
    assert registry.by_id(schema_id) == found
    for ask in (lambda: registry.by_id(UNKNOWN), lambda: registry.versions(subject)):
        with pytest.raises(SchemaRegistryError, match="gave up"):
            ask()


def test_a_slow_answer_is_an_answer(make, proxy, schema_id):
    proxy.fault("slow", seconds=0.1)
    assert make().by_id(schema_id) is not None


def test_another_not_found_than_that_of_schemas_is_no_answer_about_an_id(make, proxy, schema_id):
    proxy.fault("own 404 without subject")
    with pytest.raises(SchemaRegistryError, match="Subject not found") as caught:
        make().by_id(schema_id)
    assert caught.value.fields["status"] == 404
    proxy.heal()
    proxy.fault("own 404 without schema")
    assert make().by_id(schema_id) is None


def test_impatient_callers_share_the_limit_too(make, proxy, time_, schema_id, subject):
    proxy.fault("503")
    registry = make()
    for _ in range(200):
        for ask in (lambda: registry.by_id(schema_id), lambda: registry.versions(subject)):
            with pytest.raises(SchemaRegistryError) as caught:
                ask()
            assert caught.value.fields["status"] == 503
        time_.sleep(1)
    for path in (f"/ids/{schema_id}", f"/{subject}/versions"):
        assert most_in_a_minute(proxy.times(path)) == 5
        assert len(proxy.times(path)) == 20


def test_each_wait_is_logged_once_and_no_secret_is_in_it(make, proxy, caplog, schema_id):
    registry = make(patience=20, username="reader", password="Sesam-4711")
    proxy.fault("own 401")
    with pytest.raises(SchemaRegistryError, match="refuses the login") as caught:
        registry.by_id(schema_id)
    assert caught.value.fields["status"] == 401
    warnings = [
        record.getMessage() for record in caplog.records if record.name == "topiclake.schema_registry.retries"
    ]
    assert len(warnings) == len(proxy.requests) - 1 >= 3
    assert all("refuses the login" in one and "next try in" in one for one in warnings)
    for text in (*warnings, str(caught.value), str(caught.value.fields), repr(registry)):
        assert "Sesam" not in text
        assert "reader" not in text
    assert "schema_registry.password" in caught.value.remedy


def test_a_login_in_the_address_is_refused_without_showing_it(make):
    with pytest.raises(ConfigError, match=r"schema_registry\.url holds a login") as caught:
        SchemaRegistry("http://reader:Sesam@127.0.0.1:1/")
    assert "Sesam" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "is_refused"),
    [
        *((url, True) for url in ("http://registry:8081", "http://10.0.0.1:8081/x", "http://localhost.evil")),
        *((url, False) for url in ("https://registry", "http://127.0.0.2:1", "http://[::1]:1")),
        ("http://localhost:8081", False),
    ],
)
def test_a_login_goes_over_http_within_this_machine_only(url, is_refused):
    SchemaRegistry(url)
    if not is_refused:
        SchemaRegistry(url, "reader", "Sesam")
        return
    with pytest.raises(ConfigError) as caught:
        SchemaRegistry(url, "reader", "Sesam")
    assert caught.value.fields == {"key": "schema_registry.url", "reason": "in_clear"}
    assert "Sesam" not in str(caught.value)


def test_a_rotated_secret_is_read_again(make, proxy, time_, schema_id):
    secrets = {"username": "reader", "password": "old"}
    section = {"url": proxy.url, "username": "{{secrets/s/username}}", "password": "{{secrets/s/password}}"}
    settings = SchemaRegistrySettings.model_validate(
        section, context={"secrets": lambda _, key: secrets[key]}
    )
    configured = SchemaRegistry.from_settings(settings)
    registry = make(120, login=configured.login)
    proxy.login = ("reader", "old")
    assert registry.by_id(schema_id) == configured.by_id(schema_id) is not None
    proxy.login = ("reader", "new")
    time_.after(20, lambda: secrets.update(password="new"))
    assert registry.by_id(UNKNOWN) is None
    assert 20 <= time_.now <= 61
    assert configured.by_id(UNKNOWN) is None


# ------------------------------------------------------------------------------------------ Retry-After


@pytest.mark.parametrize("fault", ["429", "own 429", "503"])
@pytest.mark.parametrize(
    ("retry_after", "least", "most"),
    [
        ("40", 40, 40),
        ("3600", 60, 60),
        (lambda: formatdate(time() + 30, usegmt=True), 28, 31),
        (lambda: formatdate(time() - 30, usegmt=True), 1, 2),
        ("soon", 1, 2),
    ],
)
def test_retry_after_is_honoured_up_to_a_minute(
    fault, retry_after, least, most, make, proxy, time_, schema_id
):
    proxy.fault(fault, times=1, retry_after=retry_after() if callable(retry_after) else retry_after)
    assert make(patience=300).by_id(schema_id) is not None
    (pause,) = time_.pauses
    assert least <= pause <= most


def test_a_retry_after_beyond_the_patience_is_an_error_at_once(make, proxy, time_, schema_id):
    proxy.fault("429", times=1, retry_after="40")
    with pytest.raises(SchemaRegistryError) as caught:
        make(patience=30).by_id(schema_id)
    assert caught.value.fields["status"] == 429
    assert time_.now == 0


class CountedLock:
    """A lock that reports the first thread that has to wait."""

    def __init__(self):
        self.someone_waits, self._lock = Event(), Lock()

    def __enter__(self):
        if not self._lock.acquire(blocking=False):
            self.someone_waits.set()
            self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()


@pytest.mark.parametrize("patience", [10, 300])
def test_threads_wait_for_one_outage_together_and_no_longer_than_their_patience(
    patience, make, proxy, time_, schema_id
):
    """The first thread gives up after 10 s. The second one began meanwhile."""
    proxy.fault("503")
    first = make(10)
    lock = first._lookups.lock = CountedLock()
    outcome = []

    def second():
        try:
            outcome.append(first.patient(patience).by_ids([schema_id])[0].keys())
        except SchemaRegistryError as error:
            outcome.append(error)

    thread = Thread(target=second)

    def begin_second():
        thread.start()
        assert lock.someone_waits.wait(60)

    time_.after(1, begin_second)
    time_.after(100, proxy.heal)
    with pytest.raises(SchemaRegistryError, match="gave up after") as caught:
        first.by_ids([UNKNOWN])
    thread.join(60)
    if patience == 10:
        assert str(outcome) == f"[{caught.value!r}]"
        assert time_.now <= 10
        assert proxy.times(f"/ids/{schema_id}") == []
    else:
        assert outcome == [{schema_id}]
        assert 100 <= time_.now < 160


# ------------------------------------------------------------------------------- known and unknown ids


def test_a_known_id_is_asked_for_once(make, proxy, time_, schema_id):
    registry = make()
    for _ in range(1000):
        assert registry.by_id(schema_id) is not None
        time_.sleep(60)
    assert len(proxy.requests) == 1


def test_the_schemas_of_a_subjects_versions_are_known_ids(make, proxy, subject, schema_id):
    registry = make()
    registry.versions(subject)
    proxy.requests.clear()
    found = registry.by_id(schema_id)
    assert found is not None
    assert proxy.requests == []


def test_an_unknown_id_is_asked_for_again_after_a_minute(make, proxy, time_, schema_id):
    registry = make()
    proxy.fault("own 404 without schema", times=1)
    assert registry.by_id(schema_id) is None
    time_.sleep(59)
    assert registry.by_id(schema_id) is None
    assert len(proxy.requests) == 1
    time_.sleep(1)
    assert registry.by_id(schema_id) is not None


def test_ten_thousand_unknown_ids_cost_five_requests_a_minute(make, proxy, time_, schema_id):
    registry = make(patience=300)
    ids = range(UNKNOWN, UNKNOWN + 10_000)
    found, unknown, not_asked = registry.by_ids([schema_id, *ids])
    assert list(found) == [schema_id]
    assert unknown == set(range(UNKNOWN, UNKNOWN + 5))
    assert unknown | not_asked == set(ids)
    assert len(proxy.requests) == 6
    time_.sleep(59)
    assert registry.patient(1).by_ids(reversed(ids))[1] == unknown
    assert len(proxy.requests) == 6
    time_.sleep(1)
    # Their turn comes before that of those which were unknown a minute ago, the nearest to a known id first.
    assert registry.by_ids(reversed(ids))[1] == set(ids[5:10])
    assert len(proxy.requests) == 11


def test_no_id_is_hidden_for_ever_by_others_that_are_none(make, proxy, time_, schema_id):
    registry, noise = make(), range(UNKNOWN, UNKNOWN + 12)
    proxy.fault("own 404 without schema", path=f"/{schema_id}")
    turns = noise[:5], noise[5:10], [*noise[10:], schema_id, *noise[:2]], noise[2:7], noise[7:]
    for turn in turns:
        assert registry.by_ids([*noise, schema_id])[1] == set(turn)
        time_.sleep(60)
    proxy.heal()
    assert registry.by_ids([*noise, schema_id])[0].keys() == {schema_id}


def test_an_id_that_a_follower_does_not_know_yet_is_asked_for_again(make, proxy, time_, schema_id):
    registry = make(new_id_seconds=10)
    proxy.fault("own 404 without schema")
    time_.after(5, proxy.heal)
    assert registry.by_ids([schema_id])[1] == set()
    assert proxy.times(f"/{schema_id}") == [0, 1, 3, 6]
    assert registry.by_ids([schema_id])[0].keys() == {schema_id}
    assert len(proxy.requests) == 4


def test_a_fresh_list_of_versions_may_tell_a_new_id(make, proxy, time_, subject, schema_id):
    registry = make(new_id_seconds=10)
    registry.versions(subject)
    new_id = make().register(subject, json.dumps({"type": "record", "name": "New", "fields": []}))
    proxy.fault("own 404 without schema", path="/schemas/ids/")
    assert registry.by_ids([new_id], subjects=[subject, "faults-of-nobody"])[0].keys() == {new_id}
    assert time_.now == 1


def test_an_unknown_id_is_waited_for_once_and_no_more_than_five_of_them(make, proxy, time_):
    registry, ids = make(new_id_seconds=10), range(UNKNOWN, UNKNOWN + 6)
    _, unknown, not_asked = registry.by_ids(ids)
    assert (unknown, not_asked, time_.now) == (set(ids[:5]), {ids[5]}, 10)
    assert [len(proxy.times(f"/{number}")) for number in ids] == [5] * 5 + [0]
    time_.sleep(60)
    # From now on each costs a request a minute, as long as it comes.
    assert registry.by_ids(ids[:5])[1] == set(ids[:5])
    assert (time_.now, len(proxy.requests)) == (70, 30)


def test_a_registry_that_is_away_while_an_id_is_asked_for_again_is_no_verdict(make, proxy, time_, schema_id):
    registry = make(new_id_seconds=10)
    proxy.fault("own 404 without schema", times=1)
    time_.after(0.5, lambda: proxy.fault("503"))
    with pytest.raises(SchemaRegistryError):
        registry.by_ids([schema_id])
    proxy.heal()
    assert registry.by_ids([schema_id])[0].keys() == {schema_id}


def test_a_registry_that_was_away_meanwhile_has_its_ten_seconds_again(make, proxy, time_, schema_id):
    registry = make(new_id_seconds=10)
    proxy.fault("own 404 without schema", times=1)
    time_.after(0.5, lambda: proxy.fault("503"))
    with pytest.raises(SchemaRegistryError):
        registry.by_ids([schema_id])
    proxy.heal()
    time_.sleep(60)
    proxy.fault("own 404 without schema")
    time_.after(5, proxy.heal)
    assert registry.by_ids([schema_id])[0].keys() == {schema_id}


def test_known_ids_are_found_when_the_misses_are_spent(make, schema_id):
    registry = make()
    registry.by_id(schema_id)
    ids = range(UNKNOWN, UNKNOWN + 6)
    found, unknown, not_asked = registry.by_ids([*ids, schema_id])
    assert (list(found), unknown, not_asked) == ([schema_id], set(ids[:5]), {ids[5]})


def test_an_id_may_be_signed_or_not(make, proxy):
    registry = make()
    assert registry.by_id(0xFFFFFFFE) is None
    assert registry.by_id(-2) is None
    assert registry.by_ids([-2, 0xFFFFFFFE])[1] == {-2, 0xFFFFFFFE}
    assert [request.path.rsplit("/", 1)[-1] for request in proxy.requests] == ["-2"]


# -------------------------------------------------------------------------- references, types, GUIDs


def parsed(registered):
    """Return a schema as it is decoded with, so with what it refers to."""
    return fastavro.parse_schema(json.loads(AvroCodec.of({1: registered}).writers[1]))


def test_a_schema_comes_with_its_references_and_theirs(make, proxy, subject):
    registry, names = make(), [f"io.topiclake.R{next(NUMBERS)}" for _ in range(3)]
    reference = []
    for name, used in zip(names, ["int", *names], strict=False):
        text = json.dumps({"type": "record", "name": name, "fields": [{"name": "x", "type": used}]})
        schema_id = registry.register(f"{subject}-{name}", text, reference)
        reference = [{"name": name, "subject": f"{subject}-{name}", "version": 1}]
    fresh = make()
    found = fresh.by_id(schema_id)
    assert found is not None
    assert fastavro.validate({"x": {"x": {"x": 1}}}, parsed(found), raise_errors=True)
    assert [name for name, _ in found.references] == names[:-1]
    latest = make().latest(f"{subject}-{names[-1]}")
    assert (latest.schema, latest.references) == (found.schema, found.references)
    assert len(proxy.times("?deleted=true")) == 5


def test_a_reference_that_cannot_be_fetched_is_no_schema_without_it(make, proxy, subject):
    registry, name = make(), f"io.topiclake.R{next(NUMBERS)}"
    inner = json.dumps({"type": "record", "name": name, "fields": []})
    registry.register(f"{subject}-inner", inner)
    outer = json.dumps({"type": "record", "name": f"{name}Outer", "fields": [{"name": "x", "type": name}]})
    reference = {"name": name, "subject": f"{subject}-inner", "version": 1}
    schema_id = registry.register(subject, outer, [reference])
    proxy.fault("404", path="-inner/")
    fresh = make()
    with pytest.raises(SchemaRegistryError) as caught:
        fresh.by_id(schema_id)
    assert caught.value.fields["status"] == 404
    proxy.heal()
    found = fresh.by_id(schema_id)
    assert found is not None
    assert fastavro.validate({"x": {}}, parsed(found), raise_errors=True)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("PROTOBUF", 'syntax = "proto3"; message M{} {{ int32 a = 1; }}'),
        (
            "JSON",
            '{{"$schema": "http://json-schema.org/draft-07/schema#", "title": "T{}", "type": "object"}}',
        ),
    ],
)
def test_a_schema_of_another_type_says_so(kind, text, make, subject):
    registry = make()
    body = {"schemaType": kind, "schema": text.format(next(NUMBERS))}
    schema_id = registry._client.post(f"/subjects/{subject}/versions", body, lambda answer: answer["id"], 0)
    found = registry.by_id(schema_id)
    assert found is not None
    assert (found.schema_type, found.schema) == (kind, body["schema"])
    assert registry.latest(subject).schema_type == kind


def test_a_schema_is_found_by_its_guid_where_the_registry_has_them(make, proxy, schema_id):
    known, unknown = "3f2504e0-4f89-11d3-9a0c-0305e82c3301", "3f2504e0-4f89-11d3-9a0c-0305e82c3302"
    proxy.guids = {known: schema_id}
    registry = make()
    found = registry.by_guid(known.upper())
    assert found is not None
    assert (found.guid, found.schema_type) == (known, "AVRO")
    assert registry.by_guid(unknown) is None
    assert registry.by_ids([known, unknown, schema_id])[1:] == ({unknown}, set())
    assert len(proxy.requests) == 3


def test_a_registry_without_guids_knows_none_and_is_asked_once_whether_it_has_any(make, proxy):
    registry = make()
    for number in range(5):
        assert registry.by_guid(f"3f2504e0-4f89-11d3-9a0c-0305e82c330{number}") is None
    assert len(proxy.requests) == 6


# ---------------------------------------------------------------------------------------------- subjects


def test_a_listing_is_good_for_a_quarter_of_a_minute(make, proxy, time_, subject, schema_id):
    registry = make()
    for _ in range(60):
        registry.versions(subject)
        time_.sleep(1)
    assert proxy.times(f"/{subject}/versions") == [0, 15, 30, 45]


def test_a_refresh_asks_at_once_within_the_limit(make, proxy, subject, schema_id):
    registry, other = make(), make()
    for number in range(1, 8):
        assert len(registry.versions(subject, refresh=True)) == min(number, 5)
        other.register(subject, schema())
    assert len([request for request in proxy.requests if request.method == "GET"]) == 5 + 5


def test_what_it_registered_itself_it_lists_at_once(make, subject):
    registry = make()
    for number in range(1, 9):
        registry.register(subject, schema())
        assert registry.versions(subject)[-1].version == number


def test_a_subject_that_is_not_there_is_named_with_those_that_are(make, subject, schema_id):
    registry = make(patience=300)
    for _ in range(7):
        with pytest.raises(SubjectNotFoundError) as caught:
            registry.latest("nothing-value")
        assert caught.value.fields["subject"] == "nothing-value"
        assert subject in caught.value.fields["allowed"]


def test_a_registration_waits_too_and_a_refused_one_does_not(make, proxy, time_, subject, schema_id):
    proxy.fault("503", times=3)
    registry = make(patience=300)
    registry.register(subject, schema())
    assert len(proxy.requests) == 4
    waited = time_.now
    with pytest.raises(SchemaRegistryError) as caught:
        registry.register(subject, '{"type": "nonsense"}')
    assert caught.value.fields["status"] == 422
    assert time_.now == waited


# ------------------------------------------------------------------------------------- copies of the client


def test_a_patient_copy_shares_memory_and_limits(make, proxy, time_, schema_id):
    registry = make()
    patient = registry.patient(300)
    assert (registry.patience, patient.patience) == (0, 300)
    assert patient.by_id(schema_id) is registry.by_id(schema_id)
    assert registry.by_id(UNKNOWN) is patient.by_id(UNKNOWN) is None
    assert len(proxy.requests) == 2
    time_.sleep(60)
    ids = range(UNKNOWN, UNKNOWN + 6)
    assert patient.by_ids(ids)[1] == set(ids[:5])
    assert registry.by_ids(ids)[2] == {ids[5]}


def test_a_pickled_registry_has_the_address_and_asks_anew(make, proxy, schema_id):
    proxy.login = ("reader", "Sesam")
    registry = SchemaRegistry(proxy.url, "reader", "Sesam", patience=300, listing_seconds=7, timeout=3)
    registry.by_id(schema_id)
    copy = pickle.loads(pickle.dumps(registry))
    assert (copy.patience, copy.listing_seconds, copy.timeout) == (300, 7, 3)
    assert copy.by_id(schema_id) == registry.by_id(schema_id)
    assert len(proxy.requests) == 2
