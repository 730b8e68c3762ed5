import inspect
import pickle
import re

import pytest

from topiclake import errors
from topiclake.errors import SubjectNotFoundError, TopiclakeError

CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass)]


def test_the_text_is_the_cause_and_what_to_try():
    error = TopiclakeError("topic gps is missing", "make demo")
    assert (error.cause, error.remedy) == ("topic gps is missing", "make demo")
    assert str(error) == "topic gps is missing; try: make demo"


def test_without_a_remedy_the_text_is_the_cause():
    assert str(TopiclakeError("topic gps is missing")) == "topic gps is missing"


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_survives_pickling_with_both_parts(kind):
    """Spark carries errors from its Python workers to the driver as pickles."""
    copy = pickle.loads(pickle.dumps(kind("cause", "remedy")))
    assert type(copy) is kind
    assert (copy.cause, copy.remedy, str(copy)) == ("cause", "remedy", "cause; try: remedy")


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
