"""``python -m unifiedamp``: the command, where its script is not on the path."""

from __future__ import annotations

from .cli import app

if __name__ == "__main__":
    app()
