"""Our `dbutils` beside the one that Databricks' own SDK describes."""

import inspect

import pytest

from workbench.dbutils import DBUtils, FileInfo, MountInfo, SecretMetadata, SecretScope
from workbench.dbutils.help import Documented

#: What the workbench has not, and why.
LEFT_OUT = {
    "credentials": "roles of a cloud's instances",
    "data": "a summary of a DataFrame, in preview",
    "fs.cacheFiles": "nothing on Databricks either",
    "fs.cacheTable": "nothing on Databricks either",
    "fs.uncacheFiles": "nothing on Databricks either",
    "fs.uncacheTable": "nothing on Databricks either",
}
#: What Databricks has and describes on its pages, though not in the SDK.
NOT_IN_THE_SDK = {"widgets.getAll"}


@pytest.fixture
def ours(tmp_path):
    return DBUtils(tmp_path, tmp_path)


def public(where):
    return {name: value for name, value in vars(where).items() if not name.startswith("_")}


def parameters(function):
    """Names, kinds and defaults; an empty mapping is None, and the stub's static `getBytes` has no `self`."""
    found = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    return [(one.name, one.kind, None if one.default == {} else one.default) for one in found]


def differences(theirs, mine, where=""):
    """Sentences for each name that is missing, and each parameter with another name, kind or default."""
    for name, value in public(theirs).items():
        full = f"{where}{name}"
        if full in LEFT_OUT:
            continue
        found = getattr(mine, name, None)
        if found is None:
            yield f"{full} is missing"
        elif inspect.isclass(value):
            yield from differences(value, found, f"{full}.")
        else:
            wanted, has = parameters(value), parameters(found)
            if [one[:2] for one in has] != [one[:2] for one in wanted] or not all(
                # One more default takes nothing away: `run("x", 60)` is what Databricks' own pages write.
                one[2] in (inspect.Parameter.empty, other[2])
                for one, other in zip(wanted, has, strict=True)
            ):
                yield f"{full}{inspect.signature(found)} is {inspect.signature(value)} on Databricks"


def inventions(theirs, mine, where=""):
    """Public names that a notebook would miss on Databricks."""
    for name in {*public(type(mine)), *public(mine)} - {"help"}:
        value, known = getattr(mine, name), getattr(theirs, name, None)
        if known is None and f"{where}{name}" not in NOT_IN_THE_SDK:
            yield f"{where}{name}"
        elif isinstance(value, Documented):
            yield from inventions(known, value, f"{where}{name}.")


def test_every_method_has_the_signature_that_it_has_on_databricks(stub, ours):
    assert list(differences(stub.dbutils, ours)) == []


def test_what_is_left_out_is_there_on_databricks(stub):
    for name in LEFT_OUT:
        found = stub.dbutils
        for part in name.split("."):
            found = getattr(found, part)


def test_no_method_is_there_that_databricks_has_not(stub, ours):
    assert list(inventions(stub.dbutils, ours)) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda fs: staticmethod(lambda path, deep=False: None), "fs.ls(path: 'str')"),
        (lambda fs: staticmethod(lambda folder: None), "fs.ls(path: 'str')"),
        (lambda fs: staticmethod(lambda *, path: None), "fs.ls(path: 'str')"),
    ],
)
def test_another_signature_is_named(stub, ours, monkeypatch, change, sentence):
    monkeypatch.setattr(stub.dbutils.fs, "ls", change(stub.dbutils.fs))
    (found,) = differences(stub.dbutils, ours)
    assert found.startswith(sentence)


def test_another_default_a_missing_method_and_an_invention_are_named(stub, ours, monkeypatch):
    monkeypatch.setattr(stub.dbutils.fs, "head", lambda file, max_bytes=1: None)
    monkeypatch.setattr(stub.dbutils.jobs.taskValues, "forget", lambda key: None, raising=False)
    monkeypatch.delattr(stub.dbutils.widgets, "getArgument")
    head, forget = differences(stub.dbutils, ours)
    assert head.startswith("fs.head(file: 'str', max_bytes: 'int' = 65536)")
    assert forget == "jobs.taskValues.forget is missing"
    assert list(inventions(stub.dbutils, ours)) == ["widgets.getArgument"]


@pytest.mark.parametrize("kind", [FileInfo, MountInfo, SecretMetadata, SecretScope])
def test_what_methods_return_has_the_fields_that_it_has_on_databricks(stub, kind):
    assert kind._fields == getattr(stub, kind.__name__)._fields
