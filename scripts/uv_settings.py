"""Prints pip's configuration as uv's environment variables, one NAME=VALUE a line; uv does not read pip's files."""

from __future__ import annotations

import ast
import subprocess
import sys


def uv_settings() -> dict[str, str]:
    """Return the variables; they have the names of pip's options."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False, timeout=60
    )
    found = {
        "UV_INDEX_STRATEGY": "unsafe-best-match",  # of all places, the newest version, as pip does
        "UV_HTTP_RETRIES": "10",  # sessions install at one time
    }
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        option = key.rpartition(".")[2]
        name = "SSL_CERT_FILE" if option == "cert" else f"UV_{option.upper().replace('-', '_')}"
        found[name] = ("," if option.endswith("links") else " ").join(ast.literal_eval(value).split())
    return found


if __name__ == "__main__":
    for name, value in uv_settings().items():
        print(f"{name}={value}")
