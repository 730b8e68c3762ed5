import ast
import importlib
import inspect
import pickle
import re
from pathlib import Path

import pytest

from tests.support.words import MOST_WORDS
from topiclake import errors
from topiclake.errors import ConfigError, KafkaError, StorageError, SubjectNotFoundError, TopiclakeError
from workbench.runner.execution import CellFailedError

CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
SOURCES = Path(errors.__file__).parents[1]


def error_classes():
    """Return every class in src that is a TopiclakeError, without importing what is none."""
    found, names = set(), {"TopiclakeError"}
    bases = {
        (path, node.name): {base.id for base in node.bases if isinstance(base, ast.Name)}
        for path in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    while new := {place for place, of in bases.items() if of & names} - found:
        found |= new
        names |= {name for _, name in new}
    modules = {(".".join(path.relative_to(SOURCES).with_suffix("").parts), name) for path, name in found}
    return [
        TopiclakeError,
        *(getattr(importlib.import_module(module), name) for module, name in sorted(modules)),
    ]


EVERY = error_classes()


def test_the_classes_are_found_wherever_they_are():
    assert {TopiclakeError, *CLASSES, CellFailedError} < set(EVERY)
    assert all(issubclass(each, TopiclakeError) for each in EVERY)


@pytest.mark.parametrize("kind", EVERY)
def test_each_class_has_an_id(kind):
    assert "id" in vars(kind)
    assert re.fullmatch(r"TL-000" if kind is TopiclakeError else r"TL-[A-Z]+-\d{3}", kind.id)


def test_no_two_classes_share_an_id():
    assert len({each.id for each in EVERY}) == len(EVERY)


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("remedy", ["", "make demo"])
def test_the_text_ends_with_the_id(kind, remedy):
    text = str(kind("topic gps is missing", remedy, topic="gps"))
    assert text == f"topic gps is missing{'; try: ' * bool(remedy)}{remedy} [{kind.id}]"


def test_the_text_is_the_cause_what_to_try_and_the_id():
    error = TopiclakeError("topic gps is missing", "make demo")
    assert (error.cause, error.remedy) == ("topic gps is missing", "make demo")
    assert str(error) == "topic gps is missing; try: make demo [TL-000]"


def test_without_a_remedy_the_text_is_the_cause_and_the_id():
    assert str(TopiclakeError("topic gps is missing")) == "topic gps is missing [TL-000]"


def test_an_error_that_ends_with_anothers_text_keeps_its_id():
    error = ConfigError(f"cell 2 failed: {KafkaError('no broker', 'make services-up')}")
    assert str(error) == "cell 2 failed: no broker; try: make services-up [TL-KAFKA-001]"
    assert error.id == "TL-CONFIG-001"


def test_an_error_with_a_remedy_of_its_own_has_its_own_id_only():
    error = ConfigError(
        f"the job stays ({KafkaError('no broker')}, {StorageError('full')})", "another broker"
    )
    assert str(error) == "the job stays (no broker, full); try: another broker [TL-CONFIG-001]"


def test_what_a_cause_has_in_brackets_is_no_id():
    assert str(KafkaError("[KAFKA_DATA_LOSS] of [x]")) == "[KAFKA_DATA_LOSS] of [x] [TL-KAFKA-001]"


def test_the_fields_are_what_was_given_by_name():
    assert KafkaError("topic gps is missing", topic="gps", partition=0).fields == {
        "topic": "gps",
        "partition": 0,
    }
    assert KafkaError("no broker").fields == {}


def test_trace_and_page_of_a_failed_cell_are_below_the_id():
    error = CellFailedError("cell 2 failed: KeyError: 'x'", trace="\n  a.py:5 in <module>", page="/p.html")
    assert (
        str(error) == "cell 2 failed: KeyError: 'x' [TL-NOTEBOOK-003]\n  a.py:5 in <module>\n  saved: /p.html"
    )


@pytest.mark.parametrize("kind", EVERY)
def test_an_error_survives_pickling_with_parts_and_fields(kind):
    """Spark carries errors from its Python workers to the driver as pickles."""
    error = kind("cause", "remedy", topic="gps", offset=17)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.cause, copy.remedy) == ("cause", "remedy")
    assert copy.fields == {"topic": "gps", "offset": 17}
    assert str(copy) == str(error) == f"cause; try: remedy [{kind.id}]"


#: Their text is that of the user's code, which may name a remedy.
OF_USERS_CODE = {"CellFailedError", "KernelDiedError", "WorkflowException"}
NOUN_PHRASE = re.compile(r"(an?|the|this|that|those|one|some|no|another|other)\b")


def constructions(source: str):
    """Yield line, class and call of each error that a module constructs."""
    names = {each.__name__ for each in EVERY}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node.lineno, node.func.id, node


def faults(source: str):
    """Yield line and fault of each error without fields, or whose remedy is missing or no imperative."""
    for line, kind, call in constructions(source):
        if not call.keywords and kind != "TopiclakeError":
            yield line, "no fields"
        for text in joined(call.args[0]) if call.args else ():
            if len(text.split()) > MOST_WORDS:
                yield line, "long cause"
        if len(call.args) < 2 and kind not in OF_USERS_CODE:
            yield line, "no remedy"
        for text in literals(call.args[1]) if len(call.args) > 1 else ():
            if NOUN_PHRASE.match(text) or text == "":
                yield line, "no imperative"


def joined(node: ast.expr):
    """Return the text of a literal, with `…` in place of an f-string's values."""
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)]
    return [node.value] if isinstance(node, ast.Constant) else []


def literals(node: ast.expr):
    """Return the texts that an expression can have, as far as they are literals."""
    if isinstance(node, ast.IfExp):
        return [*literals(node.body), *literals(node.orelse)]
    if isinstance(node, ast.JoinedStr):
        return literals(node.values[0])
    return [node.value] if isinstance(node, ast.Constant) else []


def test_each_error_has_a_remedy_in_the_imperative_and_fields():
    found = [
        (path.name, *fault) for path in SOURCES.rglob("*.py") for fault in faults(path.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("KafkaError('no broker', topic='gps')", "no remedy"),
        ("KafkaError('no broker', 'make demo')", "no fields"),
        ("KafkaError('no broker', 'another broker', topic='gps')", "no imperative"),
        ("KafkaError('no broker', f'the broker {x}', topic='gps')", "no imperative"),
        ("KafkaError('no broker', 'make demo' if x else '', topic='gps')", "no imperative"),
        (f"KafkaError(f'{'no {x} ' * 13}', 'make demo', topic='gps')", "long cause"),
    ],
)
def test_an_error_without_its_parts_is_named(call, fault):
    assert list(faults(call)) == [(1, fault)]


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    drawn = {}
    branch = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"^(    [ │├└─]*)(\w+Error)\b", line)
        if found:
            depth = (len(found[1]) - 4) // 4
            branch[depth:] = [found[2]]
            drawn[found[2]] = branch[depth - 1] if depth else "Exception"
    assert drawn == {each.__name__: each.__bases__[0].__name__ for each in CLASSES}


def test_one_except_catches_every_error():
    with pytest.raises(TopiclakeError):
        raise SubjectNotFoundError("subject gps-value is missing")


def test_a_word_that_is_not_allowed_is_named_with_those_that_are():
    errors.require_choice("mode", "merge", ("append", "merge"))
    with pytest.raises(
        ConfigError, match="mode is 'upsert'; allowed: append, merge; try: set mode='merge'"
    ) as raised:
        errors.require_choice("mode", "upsert", ("append", "merge"), usual="merge")
    assert raised.value.fields == {"parameter": "mode", "found": "upsert", "allowed": ("append", "merge")}


def test_a_column_that_the_rows_lack_is_named_with_those_that_they_have():
    errors.require_known_columns("keys", ["b"], ["a", "b"])
    with pytest.raises(ConfigError, match="keys names c, which the rows don't have; try: use a, b") as raised:
        errors.require_known_columns("keys", ["b", "c"], ["a", "b"])
    assert raised.value.fields == {"parameter": "keys", "column": "c"}
