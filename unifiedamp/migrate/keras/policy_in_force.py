"""Files that scale losses, and leave the policy to other code: their session takes the one in force."""

from __future__ import annotations

import libcst as cst

from ..edits import Edits
from ..nodes import literal
from ..report import Finding
from ..source import Source
from .words import ASKED, POLICY, REWRITE, VALUE, WRAPPER, calls_of


def by_policy_in_force(source: Source) -> tuple[bytes, list[Finding]]:
    """Return the text in which the policy in force is set again, where an optimizer is wrapped; it names the policy."""
    wrappers, module = calls_of(source, WRAPPER), _module(source)
    others = any(calls_of(source, meaning) for meaning in (POLICY, REWRITE, VALUE)) or _names_policies(source)
    if not wrappers or others or not module or len({source.scope(one) for one in wrappers}) > 1:
        return source.text, []  # plan says why this is not migrated
    edits, statement = Edits(), source.statement(wrappers[0])
    edits.before(statement, f"{module}.set_global_policy({module}.global_policy().name)")
    note = Finding(
        source.line(wrappers[0]), "the policy is set elsewhere, or never",
        f"the session takes the one in force here, {module}.global_policy()",
    )  # fmt: skip
    return edits.apply(source.module).bytes, [note]


def _module(source: Source) -> str:
    """Return the code of Keras's module of policies, by the first import that leads there; "" where none does."""
    for name, meaning in source.imports.items():
        for module in (f"{name}.keras.mixed_precision", f"{name}.mixed_precision", name):
            if POLICY.fullmatch(f"{meaning}{module.removeprefix(name)}.set_global_policy"):
                return module if not meaning.endswith(".experimental") else ""
    return ""


def _names_policies(source: Source) -> bool:
    """Whether single layers may be given a policy: ``Dense(8, dtype="mixed_float16")``."""
    return any(str(literal(one)).startswith("mixed_") for one in source.of(cst.SimpleString))


def is_in_force(source: Source, given: cst.BaseExpression) -> bool:
    """Whether an expression is the name of the policy in force: ``mixed_precision.global_policy().name``."""
    asked = given.value if isinstance(given, cst.Attribute) and given.attr.value == "name" else None
    return isinstance(asked, cst.Call) and bool(ASKED.fullmatch(source.meaning(asked.func)))
