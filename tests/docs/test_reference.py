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
#: Variables that processes of the workbench set for each other.
INTERNAL = {
    "TOPICLAKE_SECRET_WORKBENCH_AZURE_SAS",
    "TOPICLAKE_SECRET_WORKBENCH_POSTGRES_PASSWORD",
    "TOPICLAKE_SECRET_WORKBENCH_S3_ACCESS_KEY",
    "TOPICLAKE_SECRET_WORKBENCH_S3_SECRET_KEY",
    "WORKBENCH_AZURE_JAVA_OPTIONS",
    "WORKBENCH_AZURE_SOURCE",
    "WORKBENCH_FEW_ROWS",
    "WORKBENCH_KERNEL_CONTEXT",
    "WORKBENCH_KAFKA_CONNECT",
    "WORKBENCH_PARAMETERS_FILE",
    "WORKBENCH_POSTGRES",
    "WORKBENCH_POSTGRES_USER",
    "WORKBENCH_S3",
    "WORKBENCH_S3_ACCESS_LOG",
    "WORKBENCH_S3_SOURCE",
    "WORKBENCH_SERVICE",
    "WORKBENCH_SERVICE_OF",
    "WORKBENCH_SPARK_LOG",
    "WORKBENCH_STOP_SIGNAL",
    "WORKBENCH_TASK_KEY",
    "WORKBENCH_TASK_VALUES",
}


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
    public = generate.tl.__all__
    assert headings[: len(public)] == public
    assert {"AuditReport", "IngestPlan", "ReplayReport", "RunSummary"} <= set(headings[len(public) :])
    notebooks = [file.stem for file in sorted((PROJECT / "notebooks").glob("*.py"))]
    assert set(notebooks) <= set(re.findall(r"^## (\w+)$", pages["reference/notebooks.md"], re.MULTILINE))


def test_each_id_of_an_error_has_an_entry(pages):
    code = "".join(file.read_text("utf-8") for file in (PROJECT / "src").rglob("*.py"))
    ids = re.findall(r'^    id: ClassVar\[str\] = "(TL-[A-Z0-9-]+)"$', code, re.MULTILINE)
    assert sorted(ids) == re.findall(r"^\| (TL-\S+) \|", pages["reference/errors.md"], re.MULTILINE)


def test_each_error_has_an_action(pages):
    rows = re.findall(r"^\| TL-\S+ \| `(\w+)` \| .+? \| (.*?) \|", pages["reference/errors.md"], re.MULTILINE)
    assert [name for name, action in rows if not action] == ["TopiclakeError"]
    assert "`checkpoint_gone`" in pages["reference/errors.md"]


def test_each_variable_is_that_of_the_code(generate):
    files = [*(PROJECT / "src").rglob("*.py"), *(PROJECT / "conf").rglob("*.yaml")]
    code = "".join(file.read_text("utf-8") for file in files)
    used = set(re.findall(r'"((?:WORKBENCH|TOPICLAKE)_[A-Z0-9_]+)"', code))
    used |= set(re.findall(r"\$\{((?:WORKBENCH|TOPICLAKE)_[A-Z0-9_]+)", code))
    documented = {name for name in generate.VARIABLES if name.startswith(("WORKBENCH", "TOPICLAKE"))}
    assert documented - used == set()
    assert used - documented == INTERNAL


def build(config, site):
    words = [sys.executable, "-m", "mkdocs", "build", "-f", config, "-d", site]
    return subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)


def test_the_site_is_built_without_a_warning_and_without_a_network(tmp_path):
    done = build(PROJECT / "docs" / "site" / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]* rel="(?:stylesheet|preload)" href="https?:'
    )
    pages = {str(page): page.read_text("utf-8") for page in tmp_path.rglob("*.html")}
    assert [name for name, text in pages.items() if loaded.search(text)] == []
    # Unlike GitHub, Python-Markdown needs an empty line before a list.
    texts = {name: re.sub(r"<pre.*?</pre>", "", text, flags=re.DOTALL) for name, text in pages.items()}
    assert [name for name, text in texts.items() if re.search(r"^(-|\d+\.) ", text, re.MULTILINE)] == []


@pytest.mark.thorough("the site is built next to it")
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
