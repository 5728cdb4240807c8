"""AMP behind a flag: branches that a flag chooses become the one that uses AMP, and the session is told the flag.

``if args.amp: amp.init()`` becomes ``amp.init(unifiedamp_when=args.amp)``, which the plans read as "float32 without the
flag"; ``if args.amp: <scaled backward> else: <plain backward>`` becomes the scaled one, which a session in float32 runs
as the plain one. The text that comes out is never shown: it is what the plans read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst

from .branches import name_of, only_here, takes_step
from .edits import Edits
from .nodes import argument, assigned, dotted, walk
from .report import CannotMigrate, Finding
from .source import Source, Statement
from .texts import named_texts

WHEN = "unifiedamp_when"
_AMP_WORDS = re.compile(r"amp|fp_?16|float_?16|half|mixed|precision|LossScale|dtype|rewrite", re.IGNORECASE)
_TRAINING = frozenset(
    {"fit", "fit_generator", "compile", "train_on_batch", "GradientTape", "record", "Trainer", "Sequential", "Model"}
)
_QUIET = re.compile(r"^(print|pass\b|tf\.print|log|logger|logging|warnings|os\.environ|_?LOGGER|absl)", re.IGNORECASE)


@dataclass
class Old:
    """What an API's calls are, for the branches that hold them.

    Attributes:
        start: whether a call turns AMP on for good; it is told the flag.
        setup: whether a call sets AMP up otherwise; it is made always.
        loop: whether a call belongs to a step of training.
        plain: whether the statements of the other branch do the same as the first one, without scaling.
        off: whether a statement of the other branch leaves AMP off.
        value: whether a call of ``setup`` only names settings.
    """

    start: Callable[[cst.Call], bool]
    setup: Callable[[cst.Call], bool]
    loop: Callable[[cst.Call], bool]
    plain: Callable[[Sequence[cst.BaseStatement], Sequence[cst.BaseStatement]], bool]
    off: Callable[[cst.BaseStatement], bool]
    value: Callable[[cst.Call], bool] = lambda _call: False


def fold(source: Source, old: Old) -> tuple[bytes, list[Finding]]:
    """Return the text without the branches that a flag chose, and what to review.

    Raises:
        CannotMigrate: a branch without AMP does something else, or branches depend on different flags.
    """
    folding = _Folding(source, old)
    for node in source.of(cst.If):
        folding.take(node)
    for choice in source.of(cst.IfExp):
        folding.choose(choice)
    folding.check_flags()
    if folding.refused:
        raise CannotMigrate(*folding.refused)
    after = folding.edits.apply(source.module).bytes if folding.edits else source.text
    return after, folding.notes


class _Folding:
    def __init__(self, source: Source, old: Old) -> None:
        self._source, self._old = source, old
        self.edits = Edits()
        self.refused: list[Finding] = []
        self.notes: list[Finding] = []
        self._flags: dict[str, cst.CSTNode] = {}
        self._starts: dict[str, cst.CSTNode] = {}

    # -- statements ----------------------------------------------------------------------------------------------

    def take(self, node: cst.If) -> None:
        """Fold one ``if``, where a branch of it is about AMP."""
        source, old = self._source, self._old
        if isinstance(source.parents.get(node), cst.If) or not isinstance(node.body, cst.IndentedBlock):
            return  # an elif goes with its if
        mine = self._direct(node.body)
        other = [s for s in _else(node) if isinstance(s, Statement)]
        theirs = [call for each in other for call in self._direct(each)]
        flag = source.code(node.test).strip()
        body: list[Statement] = [s for s in node.body.body if isinstance(s, Statement)]
        if any(map(old.loop, theirs)) and not any(map(old.loop, mine)):
            mine, theirs, body, other, flag = theirs, mine, other, body, _negated(flag)
        if any(map(old.loop, mine)):
            self._step(node, flag, body, other)
        elif any(old.start(c) or old.setup(c) for c in (*mine, *theirs)) and not self._holds_training(node):
            self._setup(node, flag, body, other)

    def _holds_training(self, node: cst.If) -> bool:
        """Whether an ``if`` is about more than AMP: the main guard, or one with models and loops in it."""
        if "__name__" in self._source.code(node.test):
            return True
        calls = [n for n in walk(node) if isinstance(n, cst.Call)]
        return any(name_of(call) in _TRAINING for call in calls)

    def _direct(self, node: cst.CSTNode) -> list[cst.Call]:
        """Return the old calls in a branch that no inner ``if`` chooses again."""
        calls = [n for n in walk(node) if isinstance(n, cst.Call)]
        old = self._old
        found = [c for c in calls if old.start(c) or old.setup(c) or old.loop(c)]
        found = [c for c in found if argument(c, WHEN) is None]
        return [c for c in found if not self._chosen_inside(c, node)]

    def _chosen_inside(self, call: cst.Call, outer: cst.CSTNode) -> bool:
        for one in self._source.above(call):
            if one is outer:
                return False
            if isinstance(one, cst.If | cst.FunctionDef):
                return True
        return False

    def _step(self, node: cst.If, flag: str, body: Sequence[Statement], other: Sequence[Statement]) -> None:
        if takes_step(body) and not takes_step(other):
            return  # it decides whether a step is taken, and not how
        if isinstance(node.orelse, cst.If):
            self._refuse(node, f"a scaled loss under if {flag} and an elif", "write the step once; the session scales")
            return
        if not self._old.plain(body, other):
            what = f"the branch without AMP (else of if {flag}) does more than the same step"
            write = "write the step once; under float32 the session does not scale"
            self._refuse(other[0] if other else node, what, write)
            return
        more = only_here(self._source, self._old.loop, body, other)
        if more is not None:
            what = f"the branch with AMP (if {flag}) does more than the same step: {self._source.first_line(more)}"
            self._refuse(more, what, "move it out of the branch, under a separate condition")
            return
        self._flags.setdefault(flag, node)
        self.edits.statement(node, *map(self._text, body))

    def _setup(self, node: cst.If, flag: str, body: Sequence[Statement], other: Sequence[Statement]) -> None:
        if not self._alike(body, other):
            if isinstance(node.orelse, cst.If) or any(self._old.start(c) for o in other for c in self._direct(o)):
                write = "make one session with the policy that both branches choose from, before this"
                self._refuse(node, f"if {flag} chooses between AMP settings", write)
                return
            odd = [s for s in other if self._direct(s) and not self._old.off(s)]
            if odd:
                self._refuse(odd[0], f"the branch without AMP (else of if {flag}) sets AMP up too", "make one session")
                return
        texts = named_texts(self._source, self._simple(body), self._direct(node.body))
        found = [s for s in self._simple(body) if self._is_setup(s) or s in texts]
        rest = [] if self._alike(body, other) else [s for s in other if not self._old.off(s)]
        values = [s for s in found if not self._direct_calls(s)]
        if found and values == found:
            return  # the settings alone: what they are given to is told the flag
        read = self._read_later(node, [*values, *(s for s in other if self._is_value(s))])
        simple = all(s in found for s in body) and all(_is_quiet(self._source, s) for s in rest) and not read
        moved = found if simple else [s for s in found if s not in values]
        kept = [s for s in self._simple(body) if s not in moved and s not in values]
        if any(assigned(s) & self._names(m) for s in kept for m in moved):
            what = f"what is set up under if {flag} needs other lines of that branch"
            self._refuse(node, what, "make the session before the if")
            return
        begins = any(self._old.start(call) for s in moved for call in self._direct(s))
        (self._starts if begins else self._flags).setdefault(flag, node)
        lines = [self._text(s, flag) for s in moved]
        lines = [self._filled_in(line, values) for line in lines] if read else lines
        if simple:
            self.edits.statement(node, *lines)
            return
        leaves = any(isinstance(n, cst.Return | cst.Raise | cst.Break | cst.Continue) for s in body for n in walk(s))
        for line in lines:  # behind it, where it can be: devices are set up before a session is made
            (self.edits.before if leaves else self.edits.after)(node, line)
        for gone in [*moved, *(s for s in other if self._old.off(s) and not (read and self._is_value(s)))]:
            self.edits.statement(gone)

    def _is_value(self, statement: cst.BaseStatement) -> bool:
        """Whether a statement names settings, and does no more."""
        made = _assignment(statement)
        return made is not None and any(self._old.value(n) for n in walk(made.value) if isinstance(n, cst.Call))

    def _read_later(self, node: cst.If, values: Sequence[Statement]) -> bool:
        """Whether code outside an ``if`` reads the settings that its branches name."""
        source, scope = self._source, self._source.scope(node)
        uses = [use for value in values for name in assigned(value) for use in source.uses(name)]
        uses = [use for use in uses if not isinstance(source.parents[use], cst.AssignTarget)]
        uses = [use for use in uses if not source.inside(use, node)]
        return any(source.scope(use) is scope or not source.bound_in(dotted(use), source.scope(use)) for use in uses)

    def _filled_in(self, line: str, values: Sequence[Statement]) -> str:
        """Return a line with the settings themselves, whose variable keeps what each branch gives it."""
        for made in filter(None, map(_assignment, values)):
            name, code = dotted(made.targets[0].target), self._source.code(made.value)
            parts = re.split(rf"\(\s*{re.escape(name)}(?=\s*[,)])", line, maxsplit=1)
            line = f"({code}".join(parts)
        return line

    def _simple(self, body: Sequence[Statement]) -> list[Statement]:
        """Return the simple statements of a branch, those in a ``try`` too."""
        found: list[Statement] = []
        for each in body:
            if isinstance(each, cst.Try):
                found += self._simple([s for s in each.body.body if isinstance(s, Statement)])
            else:
                found.append(each)
        return found

    def _direct_calls(self, statement: cst.BaseStatement) -> bool:
        """Whether a statement turns AMP on or wraps, and does not only name a policy."""
        calls = [n for n in walk(statement) if isinstance(n, cst.Call)]
        return any(self._old.start(call) or (self._old.setup(call) and not self._old.value(call)) for call in calls)

    def _is_setup(self, statement: cst.BaseStatement) -> bool:
        calls = self._direct(statement)
        if any(self._old.start(call) or self._old.setup(call) for call in calls):
            return True
        return any(self._old.setup(n) for n in walk(statement) if isinstance(n, cst.Call))

    def _alike(self, body: Sequence[cst.BaseStatement], other: Sequence[cst.BaseStatement]) -> bool:
        """Whether both branches assign the same, the first one in a wrapper."""
        if len(body) != 1 or len(other) != 1:
            return False
        calls = [c for c in self._direct(body[0]) if c.args and (self._old.start(c) or self._old.setup(c))]
        if len(calls) != 1:
            return False
        wrapped, code = self._source.code(calls[0]), self._source.code
        return code(body[0]).replace(wrapped, code(calls[0].args[0].value)).split() == code(other[0]).split()

    def _text(self, statement: cst.BaseStatement, flag: str = "") -> str:
        """Return a statement's code; calls that turn AMP on are told the flag."""
        code = self._source.code(statement)
        lines = code.splitlines()
        while lines and (not lines[0].strip() or lines[0].lstrip().startswith("#")):
            lines.pop(0)
        code = "\n".join(lines)
        for call in self._direct(statement) if flag else ():
            if self._old.start(call) and argument(call, WHEN) is None:
                text = self._source.code(call)
                inner = text.rstrip()[:-1].rstrip().rstrip(",")
                comma = "" if inner.endswith("(") else ", "
                code = code.replace(text, f"{inner}{comma}{WHEN}=({flag}))", 1)
        return code

    def _names(self, node: cst.CSTNode) -> set[str]:
        return {n.value for n in walk(node) if isinstance(n, cst.Name)}

    # -- expressions ---------------------------------------------------------------------------------------------

    def choose(self, node: cst.IfExp) -> None:
        """Fold ``Wrapper(opt) if flag else opt``."""
        source, flag = self._source, self._source.code(node.test).strip()
        both = ((node.body, node.orelse, flag), (node.orelse, node.body, _negated(flag)))
        for chosen, other, when in both:
            if self._is_scaled(chosen, other):
                self._flags.setdefault(when, node)
                self.edits.expression(node, source.code(chosen))
                return
            if isinstance(chosen, cst.Call) and (self._old.setup(chosen) or self._old.loop(chosen)) and chosen.args:
                if source.code(chosen.args[0].value).split() == source.code(other).split():
                    self._flags.setdefault(when, node)
                    self.edits.expression(node, source.code(chosen))
                return

    def _is_scaled(self, chosen: cst.BaseExpression, other: cst.BaseExpression) -> bool:
        """Whether a variable is nothing but the scaled one of another expression: ``scaled`` beside ``loss``."""
        assigns = self._source.assigns(chosen.value) if isinstance(chosen, cst.Name) else []
        assigns = [one for one in assigns if self._source.scope(one) is self._source.scope(chosen)]
        made = assigns[0].value if len(assigns) == 1 else None
        if not isinstance(made, cst.Call) or not self._old.loop(made) or not made.args:
            return False
        return self._source.code(made.args[0].value).split() == self._source.code(other).split()

    # -- flags ---------------------------------------------------------------------------------------------------

    def check_flags(self) -> None:
        """Refuse flags that cannot be one and the same; note scaling behind a flag where AMP itself is always on."""
        if len(self._starts) > 1:
            second = list(self._starts.values())[1]
            what = f"AMP is turned on under different flags: {', '.join(self._starts)}"
            self._refuse(second, what, "make one session")
        for flag, node in self._flags.items():
            for start in self._starts:
                if not _same(flag, start):
                    what = f"this depends on {flag}, and AMP is turned on under {start}"
                    self._refuse(node, what, "let one flag decide, in the session's policy")

        if not self._starts and any(self._always_on(call) for call in self._source.of(cst.Call)):
            for flag, node in self._flags.items():
                what = f"the loss is scaled only under {flag}, and mixed precision is always on"
                write = "the migrated code always scales the loss: see that this is wanted"
                self.notes.append(Finding(self._source.line(node), what, write))

    def _always_on(self, call: cst.Call) -> bool:
        if not self._old.start(call) or argument(call, WHEN) is not None:
            return False
        return not any(self._depends(arg.value) for arg in call.args)

    def _depends(self, value: cst.BaseExpression, depth: int = 4) -> bool:
        """Whether a value may be chosen when the program runs."""
        if isinstance(value, cst.Name):
            assigns = self._source.assigns(value.value)
            return len(assigns) != 1 or not depth or self._depends(assigns[0].value, depth - 1)
        if isinstance(value, cst.Call):
            return any(not depth or self._depends(arg.value, depth - 1) for arg in value.args)
        return any(isinstance(one, cst.IfExp | cst.Name) for one in walk(value))

    def _refuse(self, node: cst.CSTNode, what: str, write: str) -> None:
        self.refused.append(Finding(self._source.line(node), " ".join(what.split()), write, blocks=True))


def _else(node: cst.If) -> Sequence[cst.CSTNode]:
    return node.orelse.body.body if isinstance(node.orelse, cst.Else) else ()


def _assignment(statement: cst.BaseStatement) -> cst.Assign | None:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return small if isinstance(small, cst.Assign) else None


def _negated(flag: str) -> str:
    return flag.removeprefix("not ").strip() if flag.startswith("not ") else f"not {flag}"


def _same(one: str, other: str) -> bool:
    if one == other or one.split(".")[-1] == other.split(".")[-1]:
        return True
    return one.startswith("not ") == other.startswith("not ") and all(map(_AMP_WORDS.search, (one, other)))


def _is_quiet(source: Source, statement: cst.BaseStatement) -> bool:
    return bool(_QUIET.match(source.code(statement).strip()))
