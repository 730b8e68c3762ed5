"""Texts follow the project's language: words, subjects and length of sentences."""

import pytest

from tests.support import words
from tests.support.words import Sentence
from workbench.notebook.files import read_notebook


@pytest.fixture(scope="module")
def sentences():
    return words.sentences()


def test_no_sentence_breaks_a_rule(sentences):
    broken = [
        f"{sentence.file}:{sentence.line}: {problem}: {sentence.text}"
        for sentence in sentences
        for problem in sentence.breaches()
    ]
    assert not broken, "\n".join(broken)


def test_few_sentences_are_long(sentences):
    measured = [sentence for sentence in sentences if sentence.kind != "message"]
    share = sum(sentence.is_long for sentence in measured) / len(measured)
    assert share <= words.MOST_LONG, f"{share:.1%} of the sentences have more than {words.MOST_WORDS} words"


def test_titles_of_cells_are_short():
    titles = {
        (file.name, cell.title)
        for file in (words.PROJECT / "notebooks").rglob("*.py")
        for cell in read_notebook(file).cells
    }
    assert len(titles) > len({name for name, _ in titles})
    assert not {title for title in titles if len(title[1].split()) > words.MOST_TITLE_WORDS}


def test_each_kind_of_text_is_read(sentences):
    kinds = {sentence.kind for sentence in sentences}
    assert kinds == {"page", "docstring", "comment", "message", "configuration", "display"}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("The log tells it.", "tell"),
        ("It commits behind each batch.", "behind"),
        ("What is no row goes to quarantine.", "no subject"),
        ("A table of its own.", "of its own"),
        ("The sink takes a batch.", "takes"),
        ("A row is there.", "is there"),
        ("Delta commits; Kafka waits.", "semicolon"),
    ],
)
def test_a_breach_names_its_rule(text, rule):
    assert [problem.partition(":")[0] for problem in Sentence("f", 1, "page", text).breaches()] == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "A registry behind a login answers.",
        "What changes?",
        "A LEFT JOIN keeps rows.",
        "It stands for X.",
        "A batch takes 3 s.",
        "a cell; another part",
    ],
)
def test_words_with_another_meaning_are_allowed(text):
    assert Sentence("f", 1, "page", text).breaches() == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("src/workbench/page.js", 'show("The log tells it.");'),
        ("src/workbench/page.html", "<p>The log tells it.</p>"),
        ("Makefile", "logs:  ## show what the log tells of it\n"),
        ("deploy/monitoring/alerts.yml", 'summary: "The log tells it."'),
        ("deploy/monitoring/grafana.json", '{"title": "The log tells it."}'),
    ],
)
def test_texts_of_displays_are_read(tmp_path, monkeypatch, name, text):
    monkeypatch.setattr(words, "PROJECT", tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    (sentence,) = words.sentences([name])
    assert (sentence.kind, len(sentence.breaches())) == ("display", 1)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("jars/store/src/A.java", "/** The log\n * tells it. */\n", "comment"),
        ("jars/store/src/A.java", "// The log\n// tells it.\n", "comment"),
        ("jars/store/src/A.java", 'log("What the log tells " + it);\n', "message"),
        ("jars/store/pom.xml", "<!-- The log tells it. -->\n", "comment"),
        ("src/a.py", "x = f'The log {x} tells it'\n", "message"),
        ("deploy/spark/Dockerfile", "# The log tells it.\n", "configuration"),
        ("data/README.md", "The log tells it.\n", "page"),
    ],
)
def test_texts_of_other_files_are_read(tmp_path, monkeypatch, name, text, kind):
    monkeypatch.setattr(words, "PROJECT", tmp_path)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    (sentence,) = words.sentences([name])
    assert sentence.kind == kind
    assert any(problem.startswith("tell:") for problem in sentence.breaches())


def test_code_is_no_text(tmp_path, monkeypatch):
    monkeypatch.setattr(words, "PROJECT", tmp_path)
    page = "Text is read.\n\n```python\nIt tells nothing here.\n```\n\n| a cell tells it | `tell` |\n"
    (tmp_path / "README.md").write_text(page)
    (tmp_path / "src").mkdir()
    code = '"""A module."""\n\n# A comment that\n# has two lines.\nx = "a message of five words"\n'
    (tmp_path / "src" / "m.py").write_text(code)
    read = [(one.line, one.kind, one.text) for one in words.sentences(["README.md", "src/m.py"])]
    assert (1, "page", "Text is read.") in read
    assert (7, "page", "a cell tells it") in read
    assert (3, "comment", "A comment that has two lines.") in read
    assert (5, "message", "a message of five words") in read
    assert not [text for _, _, text in read if "nothing here" in text]


def test_an_indented_command_of_a_configuration_is_no_text(tmp_path, monkeypatch):
    monkeypatch.setattr(words, "PROJECT", tmp_path)
    (tmp_path / "docker-compose.yaml").write_text(
        "# Text is read.\n#   make up   it tells nothing\nname: x\n"
    )
    assert [each.text for each in words.sentences(["docker-compose.yaml"])] == ["Text is read."]
