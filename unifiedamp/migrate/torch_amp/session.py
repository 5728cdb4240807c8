"""The line that makes the session, where the ``GradScaler`` was made."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from ..nodes import argument, conjuncts, dotted, literal, none_of, parameters, roots, walk
from ..sessions import dynamic, session_line
from ..source import Source, Statement
from ..training.aliases import Aliases
from ..training.flags import condition, empty, guards, lift, otherwise
from ..work import Work
from .arguments import device_of, enabled_in, enabled_of, first_setting, policy_code, settings_of
from .entered import switch_of
from .late import assigned_late, place_behind
from .scaler import Made, Scaler, statement_in, target_of


class Session:
    """The session that replaces a scaler.

    Args:
        work: takes the changes.
        aliases: who is who.
        scaler: what is replaced.
        regions: the autocast calls that see it, with their policies.
        flag: the code of a condition that all uses of the scaler are under, or None.

    Attributes:
        policy: the policy's name, where it is on.
        switch: the code of the condition under which it is on; None: always.
        switched: the policy itself depends on ``switch``: elsewhere it is ``float32``.
        place: the last statement that makes it, in the outermost block.
    """

    def __init__(
        self, work: Work, aliases: Aliases, scaler: Scaler, regions: Mapping[cst.Call, str], flag: str | None
    ) -> None:
        self._work, self._source, self._scaler, self._aliases = work, work.source, scaler, aliases
        self._regions = regions
        self.policy = next(iter(regions.values()), "mixed_float16")
        self._first = scaler.first
        own = enabled_of(self._source, scaler.call)
        self.switch = self._first.switch or own or flag
        self.switched = self._first.switch is not None or (own is None and flag is not None) or self._alike(own)
        self.place = self._write()

    def _alike(self, own: str | None) -> bool:
        return own is not None and all(map(self.is_switched_as, self._regions))

    def is_switched_as(self, call: cst.Call) -> bool:
        """Whether a region is on where the scaler is, by the same words or by other names of the same objects."""
        source, scaler = self._source, enabled_in(self._source, self._scaler.call)
        switch, own = switch_of(source, call), enabled_in(source, call)
        if scaler is None or switch is None:
            return False
        if not self._is_given(call, switch) or not self.means_the_same(call, switch):
            return False
        if own is None or switch != source.code(own):
            return switch == source.code(scaler)
        return switch == source.code(scaler) or self._aliases.alike(own, scaler)

    def means_the_same(self, call: cst.Call, switch: str) -> bool:
        """Whether no function around a region assigns the names in its switch, as the session's line sees others."""
        scopes = self._aliases.scopes
        for name in roots(cst.parse_expression(switch)):
            here = scopes.binding(call, name)
            given = isinstance(here, cst.FunctionDef) and name not in parameters(here)
            if given and here is not scopes.binding(self._first.assign, name):
                return False
        return True

    def _is_given(self, call: cst.Call, switch: str) -> bool:
        """Whether a region's switch is no parameter that some call leaves to its default, or gives something else."""
        scope = self._source.scope(call)
        if scope is self._source.scope(self._scaler.call) or not isinstance(scope, cst.FunctionDef):
            return True
        names = {one.value for one in walk(cst.parse_expression(switch)) if isinstance(one, cst.Name)}
        for name in names & set(parameters(scope)) - {"self"}:
            for each in self._aliases.reached.calls(scope):
                given = [a.value for a, f, its in self._aliases.reached.arguments(each) if f is scope and its == name]
                group = self._aliases.group((scope, name))
                if not given or any(self._aliases.of(one) != group or group is None for one in given):
                    return False
        return True

    def _write(self) -> Statement:
        """Write the session's lines; return where the session surely exists."""
        work, source = self._work, self._source
        scope = source.scope(self._first.assign)
        for made in self._scaler.made:
            if made.call is None and source.scope(made.assign) is not scope:
                work.edits.statement(statement_in(work, made))  # "no scaler", in __init__ for one
        here = [made for made in self._scaler.made if source.scope(made.assign) is scope]
        calls = [made for made in here if made.call is not None]
        groups = {self._aliases.of(target_of(made.assign)) for made in calls}
        if len(groups) > 1:
            for made in calls[1:]:
                work.edits.statement(statement_in(work, made))
            here = [made for made in here if made not in calls[1:]]
            calls = calls[:1]
        return self._guarded(here, calls)

    def _guarded(self, here: list[Made], calls: list[Made]) -> Statement:
        work, source = self._work, self._source
        first = calls[0]
        statement = statement_in(work, first)
        chain = guards(source, statement, ())
        asking = next((guard.node for guard in chain if self._asks_for_scaler(guard.node.test)), None)
        if asking is not None and self._made_once(statement, chain[-1].node, asking):
            return chain[-1].node
        self._refuse_elif(statement)
        nones = [statement_in(work, made) for made in here if made.call is None]
        if not chain:
            return self._unguarded(here, statement, self._behind_names(statement) if len(calls) == 1 else statement)
        gone = set(nones)
        place = lift(work, statement, chain, gone) if len(calls) == 1 else None
        outer = chain[-1].node
        if place is not None:
            for none in nones:
                work.edits.statement(none)
            line = self._line(condition(chain))
            if empty(source, statement, chain, gone) or self._only_nones(outer, statement, gone):
                work.edits.statement(outer, line)
            else:
                work.edits.statement(statement)
                (work.edits.after if place == "after" else work.edits.before)(outer, line)
            return outer
        plain = session_line(work.names, self._scaler.session, "torch", policy='"float32"')
        for made in here:
            work.edits.statement(statement_in(work, made), plain if made.call is None else self._line())
        if not nones:
            otherwise(work, chain, [made.assign for made in calls], plain)
        return outer

    def _unguarded(self, here: list[Made], statement: Statement, behind: Statement) -> Statement:
        """Write the session's line in place of the scaler's, or behind another statement."""
        for made in here:
            code = [self._line()] if made.call is not None and behind is statement else []
            self._work.edits.statement(statement_in(self._work, made), *code)
        if behind is not statement:
            self._work.edits.after(behind, self._line())
        return behind

    def _behind_names(self, statement: Statement) -> Statement:
        """Return where the session's line stands: behind the flag and the dtype that it needs, before its uses."""
        source, scope = self._source, self._source.scope(statement)
        late = assigned_late(source, cst.parse_statement(self._line()), statement)
        if not late:
            return statement
        used = [use for use in self._scaler.uses if use not in [target_of(made.assign) for made in self._scaler.made]]
        orders = [source.order[one] for one in (*used, *self._regions) if source.scope(one) is scope]
        place = place_behind(source, statement, late, min(orders, default=len(source.nodes)))
        return statement if place is None else place  # the check says which line is late

    def _asks_for_scaler(self, test: cst.BaseExpression) -> bool:
        """Whether a condition looks at the scaler that is made under it: ``fp16 and self.scaler is None``."""
        return any(self._aliases.of(one) in self._scaler.groups for one in walk(test) if dotted(one))

    def _made_once(self, statement: Statement, outer: cst.If, asking: cst.If) -> bool:
        """Write ``if flag and scaler is None: scaler = GradScaler()`` for a session, which has no flag around it."""
        work, source = self._work, self._source
        kept = [part for part in conjuncts(outer.test) if not self._asks_for_scaler(part)]
        asked = [part for part in conjuncts(outer.test) if part not in kept]
        first = none_of(asked[0]) if len(asked) == 1 else ""
        alone = outer.orelse is None and source.parents.get(statement) is outer.body and len(outer.body.body) == 1
        if not first or not alone:
            work.block(asking, f"the GradScaler is made under a condition on itself: if {source.code(asking.test)}",
                       "make the session once, before the training loop")  # fmt: skip
            return False
        for made in self._scaler.made:
            if made.call is None:
                work.edits.statement(statement_in(work, made), f"{self._scaler.name(target_of(made.assign))} = None")
        tests = " and ".join(source.code(part).strip() for part in kept)
        line = self._line(tests or None).replace("\n", "\n    ")
        work.edits.statement(outer, f"if {self._scaler.session} is None:\n    {line}")
        return True

    def _refuse_elif(self, statement: Statement) -> None:
        """Refuse a scaler of one branch of several that code outside of it uses: others may compute in other dtypes."""
        source = self._source
        uses = [use for use in self._scaler.uses if not _names_none(source, use)]
        for above in source.above(statement):
            if isinstance(above, cst.FunctionDef):
                return
            if not isinstance(above, cst.If) or not source.inside(statement, above.body):
                continue
            chained = isinstance(above.orelse, cst.If) or isinstance(source.parents.get(above), cst.If)
            if chained and not all(source.inside(use, above) for use in uses):
                self._work.block(statement, "the GradScaler is made in one branch of an if with elif",
                                 "make one session before it, with the policy that the branches choose")  # fmt: skip
                return

    def _only_nones(self, outer: cst.If, statement: Statement, gone: set[Statement]) -> bool:
        """Whether the ``if`` says nothing but whether there is a scaler."""
        blocks = [outer.body, *([outer.orelse.body] if isinstance(outer.orelse, cst.Else) else [])]
        body = [one for block in blocks for one in block.body]
        return all(one is statement or one in gone for one in body)

    def _line(self, test: str | None = None) -> str:
        if test is not None:
            same = self.switch in (None, test)
            self.switch = test if same else f"({self.switch}) and ({test})"
            self.switched = True
        scale = self._loss_scale()
        default = scale == '"dynamic"' and self.policy == "mixed_float16"
        code = policy_code(self.policy)
        if self.switched and self.switch:
            code = f'{code} if {self.switch} else "float32"'
        if self.switch and not (self.switched and default):
            scale, default = f'{scale} if {self.switch} else "none"', False
        told = {"policy": code, "loss_scale": None if default else scale, "device": self._device()}
        return session_line(self._work.names, self._scaler.session, "torch", **told)

    def _device(self) -> str | None:
        """Return the session's device; a GPU is what it takes by itself."""
        call = self._scaler.call
        calls = [call, *self._regions]
        if "torch.cuda.amp" in self._source.meaning(call.func) or argument(call, "device", 0) is None:
            calls = [*self._regions]
        first = next(filter(None, (device_of(self._source, each) for each in calls)), "'cuda'")
        if first == "'cuda'":
            return None
        return f'"{first[1:-1]}"' if first.startswith("'") else self._visible(first)

    def _visible(self, code: str) -> str | None:
        """Return a variable's code where the session's line can see it."""
        root = code.partition(".")[0]
        scope = self._source.scope(self._first.assign)
        return code if root.isidentifier() and self._source.bound_in(root, scope) else None

    def _loss_scale(self) -> str:
        source, call = self._source, self._scaler.call
        settings = settings_of(source, call)
        start = literal(argument(call, "init_scale", first_setting(source, call)))
        if isinstance(start, int | float) and start > 2.0**24:
            settings["max_scale"] = settings["initial_scale"]
        return dynamic(self._work.names, **settings)


def _names_none(source: Source, use: cst.CSTNode) -> bool:
    """Whether a use of a scaler is the target of ``scaler = None``."""
    target = source.parents.get(use)
    assign = source.parents.get(target) if isinstance(target, cst.AssignTarget) else None
    return isinstance(assign, cst.Assign) and dotted(assign.value) == "None"


def common_flag(work: Work, scaler: Scaler, calls: list[cst.Call]) -> str | None:
    """Return the condition that all these calls are under, where the scaler's line can look at it too."""
    source = work.source
    flags: list[set[str]] = []
    for call in calls:
        tests = set()
        node: cst.CSTNode = call
        for above in source.above(call):
            if isinstance(above, cst.If) and source.inside(node, above.body) and dotted(above.test):
                tests.add(dotted(above.test))
            node = above
        flags.append(tests)
    for code in sorted(set.intersection(*flags)) if flags else ():
        root = code.partition(".")[0]
        scope = source.scope(scaler.first.assign)
        if source.bound_in(root, scope) or (source.bound_in(root, source.root(scope)) and "." not in code):
            return code
    return None
