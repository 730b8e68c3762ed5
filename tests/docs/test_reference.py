"""The reference pages say what the code says, and the site of all pages has no broken link."""

import difflib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "docs" / "reference"


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", FOLDER / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(generate):
    return generate.pages()


def test_each_page_is_that_of_the_code(pages):
    files = {f"reference/{file.name}" for file in FOLDER.glob("*.md")} | {"llms.txt"}
    assert files == pages.keys()
    for name, text in pages.items():
        written = (PROJECT / "docs" / name).read_text("utf-8").splitlines()
        changes = difflib.unified_diff(written, text.splitlines(), lineterm="", n=0)
        assert not list(changes), f"{name}: run make reference"


def test_each_key_of_a_configuration_has_a_meaning(pages):
    keys = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", pages["reference/configuration.md"], re.MULTILINE)
    assert [key for key, meaning in keys if not meaning] == []


def test_each_public_name_and_notebook_has_an_entry(pages, generate):
    headings = re.findall(r"^## (\w+)$", pages["reference/library.md"], re.MULTILINE)
    assert headings == generate.tl.__all__
    notebooks = [file.stem for file in sorted((PROJECT / "notebooks").glob("*.py"))]
    assert set(notebooks) <= set(re.findall(r"^## (\w+)$", pages["reference/notebooks.md"], re.MULTILINE))


def test_each_id_of_an_error_has_an_entry(pages):
    code = "".join(file.read_text("utf-8") for file in (PROJECT / "src").rglob("*.py"))
    ids = re.findall(r'^    id: ClassVar\[str\] = "(TL-[A-Z0-9-]+)"$', code, re.MULTILINE)
    assert sorted(ids) == re.findall(r"^\| (TL-\S+) \|", pages["reference/errors.md"], re.MULTILINE)


def test_each_variable_is_that_of_the_code(generate):
    code = "".join(file.read_text("utf-8") for file in (PROJECT / "src").rglob("*.py"))
    assert [name for name in generate.VARIABLES if f'"{name}"' not in code] == []


def build(config, site):
    words = [sys.executable, "-m", "mkdocs", "build", "-f", config, "-d", site]
    return subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)


def test_the_site_is_built_without_a_warning_and_without_a_network(tmp_path):
    done = build(PROJECT / "docs" / "site" / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]* rel="(?:stylesheet|preload)" href="https?:'
    )
    assert [page.name for page in tmp_path.rglob("*.html") if loaded.search(page.read_text("utf-8"))] == []


def test_a_broken_link_ends_the_build(tmp_path):
    project = tmp_path / "project"
    files = subprocess.run(
        ["git", "ls-files", "-z", "*.md", "docs", "notebooks", "conf"],
        cwd=PROJECT,
        capture_output=True,
        check=True,
    )
    for name in files.stdout.decode().strip("\0").split("\0"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes((PROJECT / name).read_bytes())
    page = project / "docs" / "scale.md"
    links = "[a](nowhere.md) [b](kafka.md#nowhere) [c](../notebooks/nowhere.py)"
    page.write_text(f"{page.read_text('utf-8')}\n{links}\n", "utf-8")
    done = build(project / "docs" / "site" / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    assert "'nowhere.md', but the target is not found" in done.stderr
    assert "does not contain an anchor '#nowhere'" in done.stderr
    assert "'source/notebooks/nowhere.py', but the target is not found" in done.stderr
