"""Hook of MkDocs: a link to a file of the repository outside docs/ becomes the file's name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the page's text with such links replaced; a link to a file that does not exist is left to be reported."""
    docs = Path(config["docs_dir"]).resolve()
    here = (docs / page.file.src_uri).parent

    def replace(found: re.Match[str]) -> str:
        target = (here / found[2]).resolve()
        return found[1] if target.exists() and not target.is_relative_to(docs) else found[0]

    return _LINK.sub(replace, markdown)
