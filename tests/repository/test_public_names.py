import inspect
import subprocess
import sys

import pytest

import topiclake


def test_the_public_names_are_sorted_and_unique():
    assert topiclake.__all__ == sorted(set(topiclake.__all__))


@pytest.mark.parametrize("name", topiclake.__all__)
def test_each_public_name_exists_and_says_what_it_does(name):
    assert inspect.getdoc(getattr(topiclake, name))


def test_nothing_else_stands_in_the_package_but_its_modules():
    found = {
        name
        for name, value in vars(topiclake).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert found <= set(topiclake.__all__)


def test_a_module_does_not_load_what_it_does_not_name():
    dear = {"pandas", "sqlalchemy", "delta"}
    code = f"import sys, topiclake.errors; print(sorted({dear} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_star_import_brings_these_names():
    names = {}
    exec("from topiclake import *", names)
    assert names.keys() - {"__builtins__"} == set(topiclake.__all__)
