"""The ``unifiedamp`` command: one file per subcommand. Imported by the console script alone."""

from __future__ import annotations

from collections.abc import Callable

import typer

from .compare import compare
from .conformance import conformance
from .conventions import SETTINGS, conventional, front
from .diff import diff
from .doctor import doctor
from .errors import OneLineGroup, reports_errors
from .explain import explain
from .forecast import forecast
from .init import init
from .listing import list_names, schema
from .migrate import migrate
from .parity import parity
from .record import record
from .report import EPILOG, report
from .train import train
from .tune import tune

app = typer.Typer(
    name="unifiedamp",
    cls=OneLineGroup,
    help="One mixed-precision training loop for PyTorch, TensorFlow/Keras and MXNet.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # brackets in help are text
    context_settings=SETTINGS,
)
app.callback()(front)
COMMANDS: dict[str, Callable[..., None]] = {
    "init": init,
    "train": train,
    "record": record,
    "report": report,
    "diff": diff,
    "forecast": forecast,
    "doctor": doctor,
    "list": list_names,
    "explain": explain,
    "compare": compare,
    "tune": tune,
    "parity": parity,
    "migrate": migrate,
    "schema": schema,
    "conformance": conformance,
}
EPILOGS = {"report": EPILOG}
for name, command in COMMANDS.items():
    first = (command.__doc__ or "").partition("\n")[0]  # else the list of commands cuts it after some words
    app.command(name, short_help=first, epilog=EPILOGS.get(name))(reports_errors(conventional(command)))
