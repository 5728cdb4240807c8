"""The example recipe as an importable package.

A wheel holds the files of ``examples/`` in this package. In a checkout they lie in ``examples/`` beside it, to be read
and run there; this line makes both the same to Python.
"""

from pathlib import Path

if not (Path(__file__).parent / "recipe.py").exists():
    __path__ = [str(Path(__file__).parent.parent / "examples")]
