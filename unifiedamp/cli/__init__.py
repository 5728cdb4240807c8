"""The ``unifiedamp`` command: one file per subcommand. Imported by the console script alone."""

from __future__ import annotations

import typer

from .compare import compare
from .conformance import conformance
from .doctor import doctor
from .errors import OneLineGroup, reports_errors
from .explain import explain
from .init import init
from .migrate import migrate
from .parity import parity
from .record import record
from .report import EPILOG, report
from .schema import schema
from .train import train
from .tune import tune

app = typer.Typer(
    name="unifiedamp",
    cls=OneLineGroup,
    help="One mixed-precision training loop for PyTorch, TensorFlow/Keras and MXNet.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("init")(reports_errors(init))
app.command("train")(reports_errors(train))
app.command("record")(reports_errors(record))
app.command("report", epilog=EPILOG)(reports_errors(report))
app.command("doctor")(reports_errors(doctor))
app.command("explain")(reports_errors(explain))
app.command("compare")(reports_errors(compare))
app.command("tune")(reports_errors(tune))
app.command("parity")(reports_errors(parity))
app.command("migrate")(reports_errors(migrate))
app.command("schema")(reports_errors(schema))
app.command("conformance")(reports_errors(conformance))
