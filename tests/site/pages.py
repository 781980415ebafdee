"""MkDocs hook: what the pages of docs/ need to be a site, so that they stay plain Markdown which reads well in a repository.

* A page may link to a file outside docs/ (`../dags/x.py`): the site gets a page with that file's text.
* A page that the navigation in mkdocs.yml forgets stands under "More" instead of nowhere.

Runs in MkDocs' own environment: the standard library and MkDocs only.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
_LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".md": "markdown"}


def outside_links(text: str, *, page: str) -> dict[str, str]:
    """Links of a page that lead out of docs/, and the file of the repository that each means."""
    found = {}
    for link, _ in _LINK.findall(text):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
        if "://" not in link and not path.startswith(("docs/", "..")):
            found[link] = path
    return found


def source_page(path: str) -> str:
    """Where the site shows a file of the repository: on a page of its own, a drawing as it is."""
    return f"source/{path}" if path.endswith(".svg") else f"source/{path}.md"


def named_pages(nav: object) -> set[str]:
    """All pages that a navigation names."""
    if isinstance(nav, str):
        return {nav}
    parts = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ()
    return {page for part in parts for page in named_pages(part)}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put forgotten pages into the navigation."""
    folder = Path(config.docs_dir)
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}
    forgotten: list[Any] = sorted(there - named_pages(config.nav))
    if forgotten and config.nav is not None:
        config.nav = [*config.nav, {"More": forgotten}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside docs/ that a page links to."""
    from mkdocs.structure.files import File, InclusionLevel

    root = Path(config.docs_dir).parent
    targets = {
        path
        for file in files.documentation_pages()
        for path in outside_links(file.content_string, page=file.src_uri).values()
    }
    for path in sorted(targets):
        if (root / path).is_file():  # one that isn't is left for the strict build to complain about
            found = (root / path).read_text(encoding="utf-8")
            text = found if path.endswith(".svg") else _shown(path, found)
            files.append(File.generated(config, source_page(path), content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def _shown(path: str, text: str) -> str:
    if path.endswith(".md"):
        # A page of its own: its links are relative to another place.
        return _LINK.sub(r"](#)", text) if path == "README.md" else text
    fence = "`" * 4
    return f"# {path}\n\n{fence}{_LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n{fence}\n"


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of docs/ to the pages that stand for those files."""
    outside = outside_links(markdown, page=page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        path = outside.get(match[1])
        if path is None or files.get_file_from_path(source_page(path)) is None:
            return match[0]
        return f"]({posixpath.relpath(source_page(path), here or '.')})"

    return markdown if page.file.src_uri.startswith("source/") else _LINK.sub(replaced, markdown)
