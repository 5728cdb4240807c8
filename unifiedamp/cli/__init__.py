"""The ``unifiedamp`` command: one file per subcommand. Imported by the console script alone."""

from __future__ import annotations

import typer

from .conformance import conformance
from .errors import reports_errors
from .report import EPILOG, report
from .train import train

app = typer.Typer(
    name="unifiedamp",
    help="One mixed-precision training loop for PyTorch, TensorFlow/Keras and MXNet.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("train")(reports_errors(train))
app.command("report", epilog=EPILOG)(reports_errors(report))
app.command("conformance")(reports_errors(conformance))
