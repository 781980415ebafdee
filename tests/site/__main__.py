"""`python -m tests.site`: write the reference's pages into docs/reference."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.site.reference import reference_pages

_DOCS = Path(__file__).resolve().parents[2] / "docs"


def main() -> int:
    """Write what differs, remove what is no page any more."""
    pages = {_DOCS / name: text for name, text in reference_pages().items()}
    for path, text in pages.items():
        path.parent.mkdir(exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"written: {path}\n")
    for path in set((_DOCS / "reference").glob("*.md")) - set(pages):
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
