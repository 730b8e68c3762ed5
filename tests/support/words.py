"""The language of the project's texts: pages, docstrings, comments, messages, configuration and displays.

`python -m tests.support.words [PATH…]` lists each sentence that breaks a rule.
It reads the files that git knows, except tests, and docs/reference, whose sources it reads.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
#: Words of a sentence, at most. A few may be longer (`MOST_LONG`).
MOST_WORDS = 25
MOST_LONG = 0.05
#: Words of a cell's title, at most.
MOST_TITLE_WORDS = 6
#: A sentence needs a noun as its subject.
HEADLESS = re.compile(r"(What|Who|Whoever|That which)\b.*[^?]$", re.DOTALL)
#: In a sentence; parts of a table's cell may have it between them.
SEMICOLON = re.compile(r"; .*\.$", re.DOTALL)
#: By word that is not used, the pattern that finds it, and the words to use.
BANNED = {
    "tell": (r"\b(tells?|told|telling)\b", "report, log, show, return, notify, distinguish"),
    "behind": (r"\bbehind\b(?! (a|the|one|its) (proxy|gateway|login|firewall|load balancer))", "after"),
    "stand": (r"\bstands?\b(?! for\b|-in)", "is, is stored, is listed"),
    "go on": (r"\b(goes|go|going|went) on\b", "continue, resume"),
    "of its own": (r"\bof (its|their|one's|his|a user's) own\b", "separate, dedicated"),
    "anew": (r"\banew\b", "again"),
    "mend": (r"\bmend(s|ed|ing)?\b", "fix"),
    "away": (r"\b(is|are|was|were|be) away\b", "unavailable"),
    "judge": (r"\b(judg\w+|verdicts?|settled?)\b", "decode, classify; classification, status"),
    "is none": (r"\b(is|are|was|were) none\b", "does not exist, has no …"),
    "left": (r"\b(is|are|was|were|be) left\b", "remain, rejected"),
    "beside": (r"\bbesides?\b", "next to, in addition to"),
    "so many": (r"\bso many\b", "the number of"),
    "is there": (r"\b(is|are|was|were) there\b", "exist"),
    "placed": (r"\bplaced\b", "valid, created"),
    "sick": (r"\bsick\b", "failing"),
    "takes": (
        r"\btakes\b(?! (\d|about|up to|more than|longer|as long|time|seconds|minutes|one to|two|no bytes|…"
        r"|an? (minute|second|third|quarter|fraction)))",
        "accept, use, need; a duration may follow",
    ),
    "gives": (r"\bgives\b", "return, set, pass"),
    "the one … the other": (r"\bthe one\b.*\bthe other\b", "repeat the noun"),
}
_BANNED = {word: re.compile(pattern, re.IGNORECASE) for word, (pattern, _) in BANNED.items()}

#: The sources of docs/reference are read, not its pages.
_PAGES = re.compile(r"[A-Z]+\.md|data/README\.md|docs/[^/]+\.md")
_CODE = re.compile(r"(src|notebooks|bench|docs|deploy|jars)/.*\.pyi?|setup\.py")
_CONFIGURATION = re.compile(
    r"(conf|deploy|docs/site)/.*\.ya?ml|(docker-compose|databricks)\.ya?ml|pyproject\.toml|.*/Dockerfile"
)
_JAVA = re.compile(r"jars/.*\.java")
_JAVA_TEXT = re.compile(
    r'/\*\*?(?P<comment>.*?)\*/|(?P<lines>(?: *// [^\n]*\n)+)|"(?P<message>(?:[^"\s]+ ){3,}[^"\n]*)"',
    re.DOTALL,
)
_XML = re.compile(r"jars/.*pom\.xml")
#: By files, the pattern of the texts that the dashboard, Grafana and the alerts display.
_DISPLAYS = {
    re.compile(
        r"src/workbench/(?!.*\.min\.).*\.js"
    ): r"""(?P<quote>["`])(?P<text>(?:(?!(?P=quote)).)+)(?P=quote)""",
    re.compile(r"src/workbench/.*\.html"): r'(>|title=")(?P<text>[^<>"]+)',
    re.compile("Makefile"): r"(?m)(?:^|  )##? (?P<text>.*)",
    re.compile(r"deploy/monitoring/.*\.yml"): r'(summary|description): "(?P<text>[^"]+)',
    re.compile(r"deploy/monitoring/.*\.json"): r'"(title|description|noValue)": "(?P<text>[^"]+)',
}
_LIST_ITEM = re.compile(r"^\s*([-*]|\d+\.|#+|>) ")
_SENTENCE_END = re.compile(r"""(?<=[.!?])\s+(?=[A-Z"'(…*])""")
#: A message has words; other texts of code are names, paths and formats.
_FEWEST_WORDS = 4


@dataclass(frozen=True)
class Sentence:
    """A sentence of a file.

    Attributes:
        file: Its file, from the project's folder.
        line: The line that its paragraph begins on.
        kind: `page`, `docstring`, `comment`, `message`, `configuration` or `display`.
        text: The sentence; code and addresses are shortened to `…`.
    """

    file: str
    line: int
    kind: str
    text: str

    @property
    def is_long(self) -> bool:
        """Whether it has more words than a reader takes in at once. Messages join several sentences."""
        return self.kind != "message" and len(self.text.split()) > MOST_WORDS

    def breaches(self) -> list[str]:
        """Return the rules that it breaks, with the remedy; its length is not among them."""
        words = [
            f"{word}: say {BANNED[word][1]}" for word, pattern in _BANNED.items() if pattern.search(self.text)
        ]
        if self.kind == "page" and SEMICOLON.search(self.text):
            words.append("semicolon: write two sentences")
        if HEADLESS.match(self.text):
            words.append("no subject: begin with a noun")
        return words


def sentences(names: list[str] | None = None) -> list[Sentence]:
    """Return the sentences of files; without names those of all files that git knows."""
    if names is None:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, check=True)
        names = listed.stdout.decode().strip("\0").split("\0")
    return [
        Sentence(name, line, kind, sentence)
        for name in names
        for line, kind, paragraph in _paragraphs(name)
        for sentence in _split(paragraph)
    ]


def _paragraphs(name: str) -> Iterator[tuple[int, str, str]]:
    file = PROJECT / name
    if _PAGES.fullmatch(name):
        yield from ((line, "page", text) for line, text in _of_markdown(file.read_text("utf-8")))
    elif _CODE.fullmatch(name):
        yield from _of_python(file.read_text("utf-8"), has_messages=name.endswith(".py"))
    elif _JAVA.fullmatch(name):
        yield from _of_java(file.read_text("utf-8"))
    elif _XML.fullmatch(name):
        comments = _matches(r"(?s)<!--(?P<text>.*?)-->", file.read_text("utf-8"))
        yield from ((line, "comment", text) for line, text in comments)
    elif _CONFIGURATION.fullmatch(name):
        comments = _of_comments(file.read_text("utf-8"))
        # Indented lines are commands and YAML.
        texts = ((line, re.sub("(?m)^  .*$", "", text).strip()) for line, text in comments)
        yield from ((line, "configuration", text) for line, text in texts)
    for files, pattern in _DISPLAYS.items():
        if files.fullmatch(name):
            yield from ((line, "display", text) for line, text in _matches(pattern, file.read_text("utf-8")))


def _matches(pattern: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield the group `text` of each match; placeholders are shortened to `…`."""
    for match in re.finditer(pattern, source):
        text = re.sub(r"\$?\{+[^{}]*\}+", "…", match["text"])
        yield source.count("\n", 0, match.start()) + 1, " ".join(text.split())


def _of_markdown(text: str, first: int = 1) -> Iterator[tuple[int, str]]:
    """Yield paragraphs, list items and cells of tables; code is no text."""
    paragraph: list[str] = []
    begin, is_code, is_heading = first, False, False
    for number, line in enumerate([*text.splitlines(), ""], first):
        is_fence = line.startswith("```")
        is_code ^= is_fence
        is_table = line.startswith("|")
        ends = is_fence or is_table or is_heading or not line.strip() or _LIST_ITEM.match(line)
        if paragraph and ends:
            yield begin, " ".join(paragraph)
            paragraph = []
        if is_code or is_fence or (line.startswith("    ") and not paragraph):
            continue
        is_heading = line.startswith("#")
        if is_table:
            yield from ((number, cell.strip()) for cell in line.strip("|").split(" | "))
        elif line.strip():
            begin = begin if paragraph else number
            paragraph.append(_LIST_ITEM.sub("", line, count=1).strip())


def _of_python(source: str, *, has_messages: bool) -> Iterator[tuple[int, str, str]]:
    tree, docstrings = ast.parse(source), set[ast.expr]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            docstrings.add(node.body[0].value)  # type: ignore[attr-defined]
            yield from ((node.body[0].lineno, "docstring", part) for part in _of_docstring(text))
    if has_messages:
        for line, text in _literals(tree, docstrings):
            words = text.split()
            if len(words) >= _FEWEST_WORDS:
                yield line, "message", " ".join(words)
    yield from _of_notebook(source)


def _literals(node: ast.AST, others: set[ast.expr]) -> Iterator[tuple[int, str]]:
    """Yield texts of code except `others`, with `…` in place of an f-string's values."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
        yield node.lineno, "".join(map(str, parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in others:
        yield node.lineno, node.value
    for child in ast.iter_child_nodes(node):
        if not isinstance(node, ast.JoinedStr) or not isinstance(child, ast.Constant):
            yield from _literals(child, others)


def _of_docstring(text: str) -> Iterator[str]:
    """Yield its paragraphs and the entries of its sections; an example or a drawing is no text."""
    text = re.sub(r"^.*[├└│].*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *>>>.*(\n(?! *\n).*)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(Args|Returns|Raises|Attributes|Yields|Examples?):$", "\n", text, flags=re.MULTILINE)
    for part in re.split(r"\n\s*\n|\n(?=    \w[\w, *]*: )", text):
        if part.strip():
            yield " ".join(re.sub(r"^\s*\w[\w, *]*: (?=[A-Z])", "", part).split())


def _of_java(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield a class's comments, those of successive lines as one, and its messages."""
    for match in _JAVA_TEXT.finditer(source):
        text = re.sub(r"^ *(\*|//) ?", "", match["comment"] or match["lines"] or "", flags=re.MULTILINE)
        text = re.sub(r"\{@\w+ ([^}]*)\}", r"`\1`", re.sub("</?[a-z]+>", "", text)) or match["message"]
        kind = "message" if match["message"] else "comment"
        yield source.count("\n", 0, match.start()) + 1, kind, " ".join(text.split())


def _of_notebook(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield a file's comments; those of a notebook's text cells are a page."""
    cell: list[str] = []
    begin = 1
    for number, text in _of_comments(source):
        lines = text.split("\n")
        for offset, line in enumerate(lines):
            if line.startswith("MAGIC"):
                begin = begin if cell else number + offset
                cell.append(line[6:])
        if cell:
            is_text = cell[0].startswith("%md")
            parts = _of_markdown("\n".join(cell[1:]), begin + 1) if is_text else ()
            yield from ((line, "page", part) for line, part in parts)
            cell = []
        elif not re.match(r"COMMAND -|DBTITLE|Databricks notebook|noqa|type: ", text):
            yield number, "comment", " ".join(lines)


def _of_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments of Python or YAML that are lines of their own or end one, joined where they continue."""
    comment: list[str] = []
    begin = last = 0
    for number, text in _comment_lines(source):
        if comment and number != last + 1:
            yield begin, "\n".join(comment)
            comment = []
        begin, last = begin if comment else number, number
        comment.append(text)
    if comment:
        yield begin, "\n".join(comment)


def _comment_lines(source: str) -> Iterator[tuple[int, str]]:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, IndentationError):
        lines = enumerate(source.splitlines(), 1)
        comments = ((number, line.strip()) for number, line in lines if line.lstrip().startswith("#"))
        yield from ((number, line.lstrip("#:").removeprefix(" ")) for number, line in comments)
        return
    for token in tokens:
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#:").removeprefix(" ")


def _split(paragraph: str) -> Iterator[str]:
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`|https?://\S+", "…", paragraph))
    for sentence in _SENTENCE_END.split(plain):
        if len(sentence.split()) > 2:
            yield sentence.strip()


def main() -> None:
    """Print each breach, and the long sentences with their number of words."""
    names = [str(Path(path).resolve().relative_to(PROJECT)) for path in sys.argv[1:]]
    for sentence in sentences(names or None):
        problems = sentence.breaches()
        if sentence.is_long:
            problems.append(f"{len(sentence.text.split())} words: at most {MOST_WORDS}")
        for problem in problems:
            sys.stdout.write(
                f"{sentence.file}:{sentence.line}: {sentence.kind}: {problem}: {sentence.text}\n"
            )


if __name__ == "__main__":
    main()
