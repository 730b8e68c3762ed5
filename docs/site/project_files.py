"""A hook of MkDocs: pages may link to any file of the project, and tutorials are pages."""

from __future__ import annotations

import re
from os.path import relpath
from pathlib import Path, PurePosixPath

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from workbench.notebook.files import read_notebook

PROJECT = Path(__file__).resolve().parents[2]
FRONT = "README.md"
#: Taken by `make screenshots`; a picture has the title of its cell.
PICTURES = PROJECT / "docs" / "images" / "tutorials"
FOLDERS = "architecture.md#folders"
_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")
#: Folder of the site for the project's files that no page is.
_SOURCE = PurePosixPath("source")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the front page, and the files outside of docs/ that pages link to."""
    files.append(File.generated(config, FRONT, abs_src_path=str(PROJECT / FRONT)))
    for notebook in (PROJECT / "notebooks" / "tutorials").glob("*.py"):
        files.append(File.generated(config, f"tutorials/{notebook.stem}.md", content=_as_page(notebook)))
    pages = [file for file in files if file.is_documentation_page()]
    while pages:
        for path in sorted(_outside(pages.pop())):
            name = _site_path(path)
            if (PROJECT / path).is_file() and files.get_file_from_path(name) is None:
                added = File.generated(config, name, abs_src_path=str(PROJECT / path))
                files.append(added)
                # An added page has links, too.
                pages += [added] if added.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files outside of docs/ to the site's copies, and those to folders to their list."""

    def target(match: re.Match[str]) -> str:
        path = _project_path(page.file, match[1])
        link = FOLDERS if (PROJECT / path).is_dir() else _site_path(path) + (match[2] or "")
        return "../" * page.file.src_uri.count("/") + link

    return _LINK.sub(target, markdown)


def _as_page(notebook: Path) -> str:
    """Return the text of a notebook: cells as code below their titles, and the pictures of charts."""
    parts = []
    for cell in read_notebook(notebook).cells:
        if cell.language == "md":
            parts.append(cell.source)
        elif cell.source.strip():
            parts.append(f"**{cell.title}**\n" if cell.title else "")
            parts.append(f"```{cell.language}\n{cell.source}\n```\n")
            picture = PICTURES / notebook.stem / f"{slugify(cell.title, '-')}.png"
            if cell.title and picture.is_file():
                parts.append(f"![{cell.title}]({relpath(picture, notebook.parent)})\n")
    return "\n".join(parts)


def _site_path(path: PurePosixPath) -> str:
    """Return the place of a file of the project on the site."""
    if path.parts[:1] == ("docs",):
        return str(path.relative_to("docs"))
    return str(path if path.suffix == ".md" else _SOURCE / path)


def _outside(page: File) -> set[PurePosixPath]:
    paths = {_project_path(page, match[1]) for match in _LINK.finditer(page.content_string)}
    return {path for path in paths if path.parts[:1] != ("docs",)}


def _project_path(page: File, link: str) -> PurePosixPath:
    """Return the path that a page's link names, from the project's folder."""
    # A tutorial is made of a notebook.
    folder = Path(page.abs_src_path).parent if page.abs_src_path else PROJECT / "notebooks" / "tutorials"
    target = (folder / link).resolve()
    return PurePosixPath(target.relative_to(PROJECT).as_posix())
