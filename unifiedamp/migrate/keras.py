"""Keras mixed precision and TensorFlow's graph rewrite: the policy becomes a session, models are made in its scope."""

from __future__ import annotations

import re

import libcst as cst

from .edits import Edits
from .forward import targets
from .keras_loops import Loop, find_loops
from .report import Finding
from .sessions import Names, behind, literal, session_line, share, stop
from .source import Source, Statement, argument, dotted, walk

NAME = "keras"
OLD_IMPORTS = (
    "tensorflow.keras.mixed_precision", "keras.mixed_precision", "tf_keras.mixed_precision",
    "tensorflow.keras.mixed_precision.experimental",
)  # fmt: skip
_KERAS = r"(?:tensorflow\.(?:compat\.v[12]\.)?)?(?:tf_)?keras"
_POLICY = re.compile(
    rf"{_KERAS}\.(?:mixed_precision(?:\.experimental)?\.set_(?:global_)?policy|config\.set_dtype_policy)"
)
_WRAPPER = re.compile(rf"{_KERAS}\.(?:mixed_precision(?:\.experimental)?|optimizers)\.LossScaleOptimizer")
_VALUE = re.compile(rf"{_KERAS}\.(?:mixed_precision(?:\.experimental)?\.Policy|DTypePolicy)")
_REWRITE = re.compile(
    r"tensorflow\.(?:compat\.v1\.)?(?:train\.experimental|mixed_precision(?:\.experimental)?)"
    r"\.enable_mixed_precision_graph_rewrite"
)
_V1 = re.compile(r"tensorflow\.(compat\.v1\.)?(Session|InteractiveSession|placeholder)$")
KERAS_SCALE = "2.0**15"


def _calls(source: Source, meaning: re.Pattern[str]) -> list[cst.Call]:
    return [n for n in source.nodes if isinstance(n, cst.Call) and meaning.fullmatch(source.meaning(n.func))]


def rewrites(source: Source) -> list[cst.Call]:
    """Return the calls of ``enable_mixed_precision_graph_rewrite``."""
    return _calls(source, _REWRITE)


def scale_of(source: Source, names: Names, given: cst.BaseExpression | None) -> str:
    """Return the code of the loss scale for what such a call was given."""
    scale = _Keras(source, names).scale(given)
    return scale if "(" in scale else f"{names.ua}.StaticLossScale({scale})"


def found(source: Source) -> bool:
    """Whether the file uses this API."""
    if any(map(_V1.search, map(source.meaning, source.nodes))):
        return False  # sessions_v1.py
    return any(_calls(source, meaning) for meaning in (_POLICY, _WRAPPER, _REWRITE)) or bool(
        source.methods("get_scaled_loss")
    )


def plan(source: Source, names: Names) -> tuple[Edits, list[Finding]]:
    """Return the changes to a file, and what is left to a person.

    Raises:
        CannotMigrate: the calls must stay as they are.
    """
    return _Keras(source, names).plan()


class _Keras:
    def __init__(self, source: Source, names: Names) -> None:
        self.source, self.names = source, names
        self.edits = Edits()
        self.findings: list[Finding] = []
        self.users: list[cst.CSTNode] = []
        self.models: dict[str, cst.CSTNode] = {}
        self._prepared: list[tuple[Statement, str]] = []

    def plan(self) -> tuple[Edits, list[Finding]]:
        source = self.source
        policies, rewrites = _calls(source, _POLICY), _calls(source, _REWRITE)
        starts = policies + rewrites
        if len(starts) != 1:
            raise self._no_single_start(starts)
        self.start, self.rewrites = starts[0], bool(rewrites)
        policy, scale = self._rewrite() if self.rewrites else self._policy()
        wrappers = self._unwrap()
        scale = wrappers if wrappers is not None else scale
        self._session(policy, scale)
        for loop in find_loops(source):
            self._loop(loop)
        self._fits()
        if not self.models:
            raise stop(source, self.start, "no loop over a GradientTape and no model.compile in this file",
                       "make the session where the model is trained")  # fmt: skip
        if not self.rewrites:
            self._scopes()
        share(source, self.edits, self.names.amp, self.start, self.users)
        return self.edits, self.findings

    def _no_single_start(self, starts: list[cst.Call]) -> Exception:
        if starts:
            lines = ", ".join(str(self.source.line(call)) for call in starts)
            return stop(self.source, starts[1], f"the policy is set {len(starts)} times (lines {lines})",
                        "make a session for each policy: `ua.Amp(\"tensorflow\", policy=...)`")  # fmt: skip
        calls = [*_calls(self.source, _WRAPPER), *self.source.methods("get_scaled_loss")]
        return stop(self.source, calls[0], "loss scaling in a file that sets no policy",
                    "make the session where the policy is set, and hand it to this code")  # fmt: skip

    # -- the session -------------------------------------------------------------------------------------------

    def _policy(self) -> tuple[str, str | None]:
        given = self.start.args[0].value if len(self.start.args) == 1 else None
        if given is None or self._is_used(self.start):
            raise stop(
                self.source, self.start, self.source.code(self.start), '`amp = ua.Amp("tensorflow", policy=...)`'
            )
        value = self._value(given)
        if isinstance(value, cst.Call) and _VALUE.fullmatch(self.source.meaning(value.func)):
            named = argument(value, "name", 0)
            scale = argument(value, "loss_scale", 1)
            if isinstance(literal(named), str):
                self._drop_unused(given)
                return self._code(named), None if scale is None else self.scale(scale)
        if not isinstance(literal(value), str) and value is not given:
            value = given
        if isinstance(literal(value), str) or dotted(given):
            return self._code(value), None
        raise stop(self.source, self.start, f"the policy {self.source.code(given)}", 'name it: policy="mixed_float16"')

    def _drop_unused(self, policy: cst.BaseExpression) -> None:
        """Remove the line that makes a Keras policy which nothing else looks at."""
        assigns = self.source.assigns(dotted(policy)) if dotted(policy) else []
        if len(assigns) == 1 and len(self.source.uses(dotted(policy))) == 2:
            self.edits.statement(self.source.statement(assigns[0]))

    def _is_used(self, call: cst.Call) -> bool:
        simple = self.source.simple(call)
        return not isinstance(simple, cst.Expr) or simple.value is not call

    def _value(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return what a variable was assigned, once."""
        assigns = self.source.assigns(dotted(node)) if dotted(node) else []
        return assigns[0].value if len(assigns) == 1 else node

    def _code(self, node: cst.CSTNode | None) -> str:
        value = literal(node) if isinstance(node, cst.BaseExpression) else None
        return f'"{value}"' if isinstance(value, str) else self.source.code(node) if node is not None else ""

    def _rewrite(self) -> tuple[str, str | None]:
        simple, call = self.source.simple(self.start), self.start
        inner, scale = argument(call, "opt", 0), argument(call, "loss_scale", 1)
        if inner is None or not isinstance(simple, cst.Assign) or simple.value is not call:
            raise stop(
                self.source, call, self.source.code(call), "assign the optimizer to a name and wrap it after that"
            )
        return '"mixed_float16"', self.scale(scale)

    def _unwrap(self) -> str | None:
        """Take the optimizers out of their LossScaleOptimizers; return the scale these asked for."""
        scales = set()
        for call in _calls(self.source, _WRAPPER):
            inner = argument(call, "inner_optimizer", 0) or argument(call, "optimizer", 0) or argument(call, "opt", 0)
            if inner is None:
                raise stop(self.source, call, self.source.code(call), "give ua.Amp its loss_scale")
            scales.add(self._wrapper_scale(call))
            self._replace(call, inner)
        if len(scales) > 1:
            raise stop(self.source, self.start, "LossScaleOptimizers with different scales", "a session has one scale")
        return next(iter(scales), None)

    def _replace(self, call: cst.Call, inner: cst.BaseExpression) -> None:
        simple = self.source.simple(call)
        if (
            isinstance(simple, cst.Assign)
            and simple.value is call
            and dotted(simple.targets[0].target) == dotted(inner)
        ):
            self.edits.statement(self.source.statement(call))
        else:
            self.edits.expression(call, self.source.code(inner))

    def _wrapper_scale(self, call: cst.Call) -> str:
        experimental = argument(call, "loss_scale", 1 if ".experimental." in self.source.meaning(call.func) else None)
        if experimental is not None:
            return self.scale(experimental)
        start, steps = argument(call, "initial_scale", 2), argument(call, "dynamic_growth_steps", 3)
        if literal(argument(call, "dynamic", 1)) is False:
            return self._code(start)
        return self._dynamic(self._code(start), self._code(steps))

    def scale(self, given: cst.BaseExpression | None) -> str:
        """Return the code of a ``loss_scale=`` of the experimental API."""
        if given is None or literal(given) == "dynamic":
            return self._dynamic()
        if isinstance(given, cst.Call):
            name = dotted(given.func).rpartition(".")[2]
            if name == "FixedLossScale":
                return self._code(given.args[0].value)
            if name == "DynamicLossScale":
                first, steps = argument(given, "initial_loss_scale", 0), argument(given, "increment_period", 1)
                return self._dynamic(self._code(first), self._code(steps))
        return self._code(given)

    def _dynamic(self, start: str = "", steps: str = "") -> str:
        growth = f", growth_interval={steps}" if steps and steps != "None" else ""
        start = KERAS_SCALE if start in ("", "None") else start
        return f"{self.names.ua}.DynamicLossScale(initial_scale={start}{growth})"

    def _session(self, policy: str, scale: str | None) -> None:
        if scale is None and policy == '"mixed_float16"':
            scale = self._dynamic()  # what Keras wraps an optimizer in by itself
        options = '{"tensorflow": {"mode": "graph_rewrite"}}' if self.rewrites else None
        line = session_line(
            self.names, self.names.amp, "tensorflow", policy=policy, loss_scale=scale, backend_options=options
        )
        statement = self.source.statement(self.start)
        inner = argument(self.start, "opt", 0) if self.rewrites else None
        simple = self.source.simple(self.start)
        again = []
        if inner is not None and isinstance(simple, cst.Assign):
            name = dotted(simple.targets[0].target)
            again = [] if name == dotted(inner) else [f"{name} = {self.source.code(inner)}"]
        self.edits.statement(statement, line, *again)

    # -- loops -------------------------------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> None:
        amp, edits, source = self.names.amp, self.edits, self.source
        edits.change(loop.tape, lambda item: item.with_changes(asname=None))
        edits.expression(loop.tape.item, f"{amp}.autocast()")
        for statement in loop.removed:
            edits.statement(statement)
        loss = source.code(loop.loss)
        edits.statement(
            loop.gradient,
            f"with {amp}.scale_loss({loss}, {loop.optimizer}) as scaled_loss:\n    scaled_loss.backward()",
        )
        for statement, clip in loop.clips:
            edits.statement(statement, f"{amp}.{clip}")
        edits.statement(loop.apply, f"{amp}.step({loop.optimizer})")
        self.users.append(loop.apply)
        self.models[loop.model] = loop.apply
        self._compiled(loop)
        self._prepare(loop)
        self._mode(loop)

    def _mode(self, loop: Loop) -> None:
        """In Keras a model called without ``training=`` infers, also under a tape; in a region it trains."""
        for node in walk(loop.with_.body):
            if isinstance(node, cst.Call) and dotted(node.func) == loop.model and argument(node, "training", 1) is None:
                self.findings.append(Finding(
                    self.source.line(node), f"{loop.model}(...) without training=",
                    "in the region it runs in training mode (Keras's own default is inference): "
                    "write training=False if that is what you want",
                ))  # fmt: skip

    def _compiled(self, loop: Loop) -> None:
        """``@tf.function`` over a step becomes ``@amp.compile`` where the session is there already."""
        function = self.source.scope(loop.apply)
        if not isinstance(function, cst.FunctionDef):
            return
        made_in = self.source.scope(self.start)
        visible = self.source.inside(function, made_in) and self.source.order[self.start] < self.source.order[function]
        for decorator in function.decorators:
            if visible and self.source.meaning(decorator.decorator) == "tensorflow.function":
                self.edits.expression(decorator.decorator, f"{self.names.amp}.compile")

    def _prepare(self, loop: Loop) -> None:
        source = self.source
        optimizers, models = source.assigns(loop.optimizer), source.assigns(loop.model)
        scopes = {source.scope(assign) for assign in optimizers}
        if not optimizers or len(scopes) != 1:
            line = f"{loop.model}, {loop.optimizer} = amp.prepare({loop.model}, {loop.optimizer})"
            raise stop(source, loop.apply, f"no single place where {loop.optimizer} is made", f"`{line}` there")
        (scope,) = scopes
        here = [assign for assign in models if source.scope(assign) is scope]
        late = [self.start] if source.scope(self.start) is scope else []
        others = [*optimizers, *here, *late, *self._adds(loop.model, scope)]
        place = behind(source, source.statement(optimizers[-1]), others)
        objects = f"{loop.model}, {loop.optimizer}"
        self.users.append(place)
        line = f"{objects} = {self.names.amp}.prepare({objects})"
        if (place, line) not in self._prepared:
            self._prepared.append((place, line))
            self.edits.after(place, line)

    def _adds(self, model: str, scope: cst.CSTNode) -> list[cst.Call]:
        """Return ``model.add(...)`` and ``model.build(...)``."""
        calls = [*self.source.methods("add"), *self.source.methods("build")]
        return [c for c in calls if dotted(c.func).rpartition(".")[0] == model and self.source.scope(c) is scope]

    # -- fit ---------------------------------------------------------------------------------------------------

    def _fits(self) -> None:
        fitted = {dotted(call.func).rpartition(".")[0] for call in self.source.methods("fit")}
        for call in self.source.methods("compile"):
            model = dotted(call.func).rpartition(".")[0]
            if model in fitted and model:
                self._fit(call, model)

    def _fit(self, call: cst.Call, model: str) -> None:
        source, edits, amp = self.source, self.edits, self.names.amp
        given = argument(call, "optimizer", 0)
        if given is None:
            raise stop(source, call, f"{model}.compile without an optimizer", 'name it: optimizer="rmsprop"')
        statement = source.statement(call)
        optimizer = dotted(given) or ("amp_optimizer" if source.uses("optimizer") else "optimizer")
        if not dotted(given):
            code = source.code(given) if not isinstance(literal(given), str) else self._by_name(given)
            edits.before(statement, f"{optimizer} = {self._inner(given, code)}")
            edits.expression(given, optimizer)
        edits.before(statement, f"{model}, {optimizer} = {amp}.prepare({model}, {optimizer})")
        self.models[model] = call
        self.users.append(call)
        if self.rewrites:
            for fit in self.source.methods("fit"):
                if dotted(fit.func) == f"{model}.fit":
                    edits.wrap(source.statement(fit), source.statement(fit), f"with {amp}.scope():")

    def _inner(self, given: cst.BaseExpression, code: str) -> str:
        """Return the code of what a wrapper in a call of ``compile`` holds."""
        wrapper = isinstance(given, cst.Call) and _WRAPPER.fullmatch(self.source.meaning(given.func))
        return self.source.code(given.args[0].value) if wrapper and isinstance(given, cst.Call) else code

    def _by_name(self, given: cst.BaseExpression) -> str:
        roots = {meaning: name for name, meaning in self.source.imports.items()}
        root = next((roots[m] for m in ("tensorflow.keras", "keras", "tf_keras") if m in roots), "")
        root = root or f"{roots.get('tensorflow', 'tf')}.keras"
        return f"{root}.optimizers.get({self._code(given)})"

    # -- where models are made ---------------------------------------------------------------------------------

    def _scopes(self) -> None:
        for model in self.models:
            for assign in self.source.assigns(model):
                if isinstance(assign.value, cst.Call):
                    self._scope(model, assign)

    def _scope(self, model: str, assign: cst.Assign) -> None:
        source = self.source
        if source.scope(assign) is source.scope(self.start) and source.order[assign] < source.order[self.start]:
            raise stop(source, assign, f"{model} is made before the policy is set", "make the session first")
        statement = source.statement(assign)
        block = source.block(statement)
        body = [s for s in block.body if isinstance(s, Statement)]
        adds = filter(None, (source.in_block(call, block) for call in self._adds(model, source.scope(assign))))
        last = max([body.index(statement), *(body.index(each) for each in adds)])
        first = self._first_layer(body, body.index(statement))
        self.users.append(statement)
        self.edits.wrap(body[first], body[last], f"with {self.names.amp}.scope():")

    def _first_layer(self, body: list[Statement], index: int) -> int:
        """Return the first of the statements that make the layers of the model made at ``index``."""
        first, needed = index, _names(body[index])
        for place in range(index - 1, -1, -1):
            if self.source.inside(self.start, body[place]):
                break
            made = targets(body[place]) & needed
            if made and self._makes_layers(body[place]):
                first = place
                needed |= _names(body[place])
        return first

    def _makes_layers(self, statement: Statement) -> bool:
        meanings = [self.source.meaning(node.func) for node in walk(statement) if isinstance(node, cst.Call)]
        return any("keras" in meaning.split(".") or "layers" in meaning.split(".") for meaning in meanings)


def _names(node: cst.CSTNode) -> set[str]:
    return {one.value for one in walk(node) if isinstance(one, cst.Name)}
