"""``torch.amp`` and ``torch.cuda.amp``: autocast regions and a ``GradScaler`` become one session."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from .edits import Edits
from .report import CannotMigrate, Finding
from .sessions import Names, behind, dynamic, literal, models_of, prepare_line, session_line, stop
from .source import Source, Statement, argument, dotted, keywords, parameters

NAME = "torch.amp"
OLD_IMPORTS = ("torch.cuda.amp", "torch.amp", "torch.autocast", "torch.cpu.amp", "torch.GradScaler")
AUTOCAST = (
    "torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast",
    "torch.cuda.amp.autocast", "torch.cuda.amp.autocast_mode.autocast", "torch.cpu.amp.autocast",
)  # fmt: skip
SCALERS = (
    "torch.amp.GradScaler", "torch.GradScaler", "torch.cuda.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler",
    "torch.amp.grad_scaler.GradScaler",
)  # fmt: skip
CUSTOM = tuple(f"torch.{where}.custom_{way}" for where in ("amp", "cuda.amp") for way in ("fwd", "bwd"))
POLICIES = {"torch.float16": "mixed_float16", "torch.half": "mixed_float16", "torch.bfloat16": "mixed_bfloat16"}
SETTINGS = {"init_scale": "initial_scale", "growth_factor": "growth_factor", "backoff_factor": "backoff_factor"}
SETTINGS |= {"growth_interval": "growth_interval"}
GETTERS = {"get_growth_factor": "growth_factor", "get_backoff_factor": "backoff_factor"}
GETTERS |= {"get_growth_interval": "growth_interval", "is_enabled": "enabled"}
CLIPS = {"torch.nn.utils.clip_grad_norm_": ("clip_grad_norm", "max_norm")}
CLIPS |= {"torch.nn.utils.clip_grad_value_": ("clip_grad_value", "clip_value")}


def found(source: Source) -> bool:
    """Whether the file uses this API."""
    return bool(source.calls(*AUTOCAST, *SCALERS, *CUSTOM)) or any(
        isinstance(node, cst.Decorator) and source.meaning(node.decorator) in (*AUTOCAST, *CUSTOM)
        for node in source.nodes
    )


def plan(source: Source, names: Names) -> tuple[Edits, list[Finding]]:
    """Return the changes to a file, and what is left to a person.

    Raises:
        CannotMigrate: the calls must stay as they are.
    """
    return _TorchAmp(source, names).plan()


class _TorchAmp:
    def __init__(self, source: Source, names: Names) -> None:
        self.source, self.names = source, names
        self.edits = Edits()
        self.findings: list[Finding] = []
        self.made: cst.Assign | None = None
        self.targets: dict[str, str] = {}

    def plan(self) -> tuple[Edits, list[Finding]]:
        source = self.source
        scalers = source.calls(*SCALERS)
        self._note_custom()
        if not scalers:
            for call in source.calls(*AUTOCAST):
                self._left(call, "autocast without a GradScaler made in this file")
            return self.edits, self.findings
        self.made = self._assignment(scalers)
        self._follow(dotted(self.made.targets[0].target))
        self.regions = self._regions()
        self._scaled_calls()
        self._prepare()
        self._session(scalers[0])
        self._rename()
        return self.edits, self.findings

    def _left(self, node: cst.CSTNode, what: str) -> None:
        write = "it goes on working as it is; where a session can be seen, write `with amp.autocast():`"
        self.findings.append(Finding(self.source.line(node), what, write))

    def _note_custom(self) -> None:
        for node in self.source.nodes:
            if isinstance(node, cst.Decorator):
                called = node.decorator.func if isinstance(node.decorator, cst.Call) else node.decorator
                if self.source.meaning(called) in CUSTOM:
                    write = "it works as it is; for every framework, decorate the function with `ua.amp_function`"
                    self.findings.append(Finding(self.source.line(node), dotted(called), write))

    # -- the scaler's names ------------------------------------------------------------------------------------

    def _assignment(self, scalers: list[cst.Call]) -> cst.Assign:
        source = self.source
        if len(scalers) > 1:
            where = ", ".join(str(source.line(call)) for call in scalers)
            raise stop(
                source, scalers[1], f"{len(scalers)} GradScalers (lines {where})",
                "a session has one scale for all its optimizers: make one session (or one for each scaler) by hand",
            )  # fmt: skip
        call = scalers[0]
        assign = source.parents[call]
        if not isinstance(assign, cst.Assign) or len(assign.targets) != 1 or not _plain(assign.targets[0].target):
            raise stop(
                source, call, "a GradScaler that is not simply assigned to a name",
                "write `scaler = GradScaler(enabled=...)` and run migrate again",
            )  # fmt: skip
        others = [a for a in source.assigns(dotted(assign.targets[0].target)) if a is not assign]
        if others:
            raise stop(source, others[0], "the scaler's name is assigned twice", "make one session for both cases")
        return assign

    def _follow(self, text: str) -> None:
        """Find the names that the scaler goes by: parameters it is passed as, attributes it is kept in."""
        if text in self.targets:
            return
        self.targets[text] = f"self.{self.names.amp}" if text.startswith("self.") else self.names.amp
        for use in self.source.uses(text):
            parent = self.source.parents[use]
            if isinstance(parent, cst.Assign) and _plain(parent.targets[0].target) and parent.value is use:
                self._follow(dotted(parent.targets[0].target))
            elif isinstance(parent, cst.Arg):
                self._follow(self._parameter(parent))

    def _parameter(self, arg: cst.Arg) -> str:
        call = self.source.parents[arg]
        assert isinstance(call, cst.Call)
        name = dotted(call.func)
        function = self.source.functions().get(name.removeprefix("self."))
        if function is None:
            raise stop(
                self.source, call, f"the scaler is passed to {name or 'code'}, which this file does not define",
                "give it the session and migrate it too, or pass `amp.backend.scaler`, which is a GradScaler",
            )  # fmt: skip
        if arg.keyword is not None:
            self.edits.change(arg, lambda new: new.with_changes(keyword=cst.Name(self.names.amp)))
            return arg.keyword.value
        named = parameters(function)
        named = named[1:] if named[:1] in (["self"], ["cls"]) else named
        position = [a for a in call.args if a.keyword is None].index(arg)
        if position >= len(named):
            raise stop(self.source, call, f"the scaler is passed to {name} in *args", "name the argument")
        return named[position]

    def _sees(self, node: cst.CSTNode) -> str | None:
        """Return what the session is called where ``node`` stands, or None."""
        assert self.made is not None
        scopes = [one for one in self.source.above(node) if isinstance(one, cst.FunctionDef | cst.Module)]
        for old, new in self.targets.items():
            root = old.partition(".")[0]
            if not any(self.source.bound_in(root, scope) for scope in scopes):
                continue
            early = self.source.scope(self.made) is scopes[0] and self.source.order[node] < self.source.order[self.made]
            if not early or dotted(self.made.targets[0].target) != old:
                return new
        return None

    # -- regions -----------------------------------------------------------------------------------------------

    def _regions(self) -> dict[cst.Call, str]:
        """Return each autocast that sees the session, with its policy; the others are left."""
        seen: dict[cst.Call, str] = {}
        for call in self.source.calls(*AUTOCAST):
            if isinstance(self.source.parents[call], cst.Decorator) or self._sees(call) is None:
                self._left(call, "autocast where the session cannot be seen")
                continue
            seen[call] = self._policy(call)
        if not seen:
            raise stop(
                self.source, self.made or self.source.module, "no autocast region where the GradScaler can be seen",
                "compute the loss in `with amp.autocast():` beside the loop (a region in forward() may stay)",
            )  # fmt: skip
        return seen

    def _policy(self, call: cst.Call) -> str:
        dtype = argument(call, "dtype", 1)
        if dtype is None:
            return self._default_policy(call)
        meaning = self.source.meaning(dtype)
        if meaning not in POLICIES and isinstance(dtype, cst.Name):
            values = {self.source.meaning(assign.value) for assign in self.source.assigns(dtype.value)}
            meaning = values.pop() if len(values) == 1 else ""
        if meaning not in POLICIES:
            raise stop(
                self.source, call, f"autocast to {self.source.code(dtype)}, known only when the program runs",
                "make the session by hand with policy='mixed_float16' or 'mixed_bfloat16'",
            )  # fmt: skip
        return POLICIES[meaning]

    def _default_policy(self, call: cst.Call) -> str:
        device = self._device(call)
        if device == "'cpu'":
            return "mixed_bfloat16"
        if device != "'cuda'":
            line = self.source.line(call)
            write = "the session takes mixed_float16, as torch does on GPUs; torch's default on a CPU is bfloat16"
            self.findings.append(Finding(line, "autocast without a dtype on a device known when it runs", write))
        return "mixed_float16"

    def _device(self, call: cst.Call) -> str | None:
        """Return the code of a call's device type, a constant in single quotes."""
        meaning = self.source.meaning(call.func)
        if ".cuda." in meaning or ".cpu." in meaning:
            return "'cpu'" if ".cpu." in meaning else "'cuda'"
        given = argument(call, "device", 0) if meaning in SCALERS else argument(call, "device_type", 0)
        if given is None:
            return "'cuda'"
        value = literal(given)
        return repr(value) if isinstance(value, str) else self.source.code(given)

    def _enabled(self, call: cst.Call) -> str | None:
        """Return the code of ``enabled=``, or None where it is always on."""
        meaning = self.source.meaning(call.func)
        position = {"autocast": 0 if ".cuda." in meaning else 2}.get(meaning.rpartition(".")[2])
        given = argument(call, "enabled", position)
        return None if given is None or literal(given) is True else self.source.code(given)

    # -- the session -------------------------------------------------------------------------------------------

    def _session(self, scaler: cst.Call) -> None:
        assert self.made is not None
        enabled = self._enabled(scaler)
        policy = next(iter(self.regions.values()))
        alike = enabled is not None and all(self._enabled(call) == enabled for call in self.regions)
        scale = self._loss_scale(scaler)
        default = scale == '"dynamic"' and policy == "mixed_float16"
        code = f'"{policy}"'
        if alike:
            code = f'{code} if {enabled} else "float32"'
        if enabled is not None and not (alike and default):
            scale, default = f'{scale} if {enabled} else "none"', False
        target = self.targets[dotted(self.made.targets[0].target)]
        line = session_line(
            self.names, target, "torch", policy=code, loss_scale=None if default else scale, device=self._where(scaler)
        )
        self.edits.statement(self.source.statement(self.made), line)
        self._rewrite_regions(policy, enabled if alike else None)

    def _where(self, scaler: cst.Call) -> str | None:
        """Return the session's device; a GPU is what it takes by itself."""
        devices = dict.fromkeys(filter(None, map(self._device, [scaler, *self.regions])))
        if "torch.cuda.amp" in self.source.meaning(scaler.func) or argument(scaler, "device", 0) is None:
            devices = dict.fromkeys(filter(None, map(self._device, self.regions)))
        first = next(iter(devices), "'cuda'")
        if first == "'cuda'":
            return None
        return f'"{first[1:-1]}"' if first.startswith("'") else self._visible_device(first)

    def _visible_device(self, code: str) -> str | None:
        """Return a variable's code where the session's line can see it."""
        assert self.made is not None
        root = code.partition(".")[0]
        scope = self.source.scope(self.made)
        return code if root.isidentifier() and self.source.bound_in(root, scope) else None

    def _loss_scale(self, scaler: cst.Call) -> str:
        first = 0 if ".cuda." in self.source.meaning(scaler.func) else 1
        settings: dict[str, str | None] = {}
        for position, (old, new) in enumerate(SETTINGS.items(), first):
            given = argument(scaler, old, position)
            settings[new] = None if given is None else self.source.code(given)
        start = literal(argument(scaler, "init_scale", first))
        if isinstance(start, int | float) and start > 2.0**24:
            settings["max_scale"] = settings["initial_scale"]
        return dynamic(self.names, **settings)

    def _rewrite_regions(self, policy: str, enabled: str | None) -> None:
        for call, own in self.regions.items():
            arguments = []
            switch = self._enabled(call)
            here = self.made is not None and self.source.scope(self.made) is self.source.scope(call)
            if switch is not None and (switch != enabled or not here):
                arguments.append(f"enabled={switch}")
            if own != policy:
                arguments.append(f'policy="{own}"')
            self.edits.expression(call, f"{self._sees(call)}.autocast({', '.join(arguments)})")

    # -- the loop ----------------------------------------------------------------------------------------------

    def _uses(self) -> Iterator[tuple[cst.Call, str, str]]:
        """Yield each method call on the scaler, with the method and the session's name there."""
        for old, new in self.targets.items():
            for use in self.source.uses(old):
                attribute = self.source.parents[use]
                call = self.source.parents.get(attribute)
                if not isinstance(attribute, cst.Attribute):
                    continue
                if not isinstance(call, cst.Call) or call.func is not attribute:
                    raise stop(self.source, use, f"{self.source.code(attribute)}", "the session has no such attribute")
                yield call, attribute.attr.value, new

    def _scaled_calls(self) -> None:
        handlers = {"scale": self._scale, "unscale_": self._unscale, "step": self._step, "update": self._update}
        handlers |= {"get_scale": self._get_scale}
        self.calls = list(self._uses())
        self.optimizers = [self._optimizer(call) for call, method, _ in self.calls if method == "step"]
        if not self.optimizers:
            raise stop(self.source, self.made or self.source.module, "a GradScaler whose step is never called",
                       "migrate the file that calls scaler.step together with this one, by hand")  # fmt: skip
        self.optimizers = list(dict.fromkeys(self.optimizers))
        for call, method, amp in self.calls:
            if method in handlers:
                handlers[method](call, amp)
            elif method in GETTERS:
                self.edits.expression(call, f"{amp}.loss_scale_settings.{GETTERS[method]}")
            elif method in ("state_dict", "load_state_dict"):
                continue
            else:
                raise stop(self.source, call, f"scaler.{method}()", "the session has no such call; see docs/migrate.md")

    def _optimizer(self, call: cst.Call) -> str:
        name = self.source.code(call.args[0].value) if len(call.args) == 1 else ""
        if not name.replace(".", "").replace("_", "").isalnum():
            raise stop(self.source, call, self.source.code(call), "`amp.step(optimizer)` takes one prepared optimizer")
        return name

    def _alone(self, call: cst.Call) -> Statement:
        """Return the statement that is this call and nothing else."""
        simple = self.source.simple(call)
        if not isinstance(simple, cst.Expr) or simple.value is not call:
            raise stop(self.source, call, f"the result of {self.source.code(call)} is used",
                       "`amp.step(optimizer)` returns a StepResult: `.applied` says whether it stepped")  # fmt: skip
        return self.source.statement(call)

    def _scale(self, call: cst.Call, amp: str) -> None:
        source = self.source
        outer = source.parents[source.parents[call]]
        if len(call.args) != 1 or literal(call.args[0].value) is not None:
            raise stop(source, call, source.code(call), "`amp.scale_loss(loss, optimizer)` takes one scalar loss")
        loss = source.code(call.args[0].value)
        if isinstance(outer, cst.Call) and dotted(outer.func) == "" and source.code(outer.func).endswith(".backward"):
            backward, name = outer, "scaled_loss"
        else:
            backward, name = self._scaled_apart(call)
        simple = source.simple(backward)
        if not isinstance(simple, cst.Expr) or simple.value is not backward or keywords(backward) - {"retain_graph"}:
            raise stop(source, call, source.code(simple or backward),
                       "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`")  # fmt: skip
        kept = ", ".join(source.code(arg).rstrip(", ") for arg in backward.args)
        named = self._trained_by(source.statement(backward))
        self.edits.statement(
            source.statement(backward),
            f"with {amp}.scale_loss({loss}, {named}) as {name}:\n    {name}.backward({kept})",
        )

    def _scaled_apart(self, call: cst.Call) -> tuple[cst.Call, str]:
        """Return the backward call of ``scaled = scaler.scale(loss)``, whose line goes."""
        source, assign = self.source, self.source.parents[call]
        name = dotted(assign.targets[0].target) if isinstance(assign, cst.Assign) else ""
        uses = [use for use in source.uses(name) if source.scope(use) is source.scope(call)] if name else []
        if len(uses) != 2 or "." in name:
            raise stop(source, call, f"{source.code(call)} is used for more than backward()",
                       "the handle of `with amp.scale_loss(...)` has the scaled loss in `.value`")  # fmt: skip
        backward = source.parents.get(source.parents[uses[1]])
        if not isinstance(backward, cst.Call) or dotted(backward.func) != f"{name}.backward":
            raise stop(source, call, f"{name} is used for more than backward()", "use `scaled_loss.value`")
        self.edits.statement(source.statement(call))
        return backward, name

    def _trained_by(self, statement: Statement) -> str:
        """Return the optimizers whose steps come next after a backward pass."""
        if len(self.optimizers) == 1:
            return self.optimizers[0]
        found: list[str] = []
        place: Statement | None = statement
        while place is not None and not found:
            for later in self.source.after(place):
                steps = [self._optimizer(c) for c, m, _ in self.calls if m == "step" and self.source.inside(c, later)]
                scales = [c for c, m, _ in self.calls if m == "scale" and self.source.inside(c, later)]
                if scales and found:
                    break
                found += steps
            above = self.source.parents[self.source.block(place)]
            place = self.source.statement(above) if isinstance(above, Statement) else None
            if isinstance(above, cst.FunctionDef):
                break
        found = list(dict.fromkeys(found))
        if not found:
            raise stop(self.source, statement, "a backward pass with no scaler.step behind it",
                       "name the optimizers that the loss trains: `amp.scale_loss(loss, [first, second])`")  # fmt: skip
        return found[0] if len(found) == 1 else f"[{', '.join(found)}]"

    def _unscale(self, call: cst.Call, amp: str) -> None:
        statement, optimizer = self._alone(call), self._optimizer(call)
        for later in self.source.after(statement):
            if any(self.source.inside(c, later) for c, m, _ in self.calls if m in ("step", "scale")):
                break
            if self._clip(later, optimizer, amp):
                self.edits.statement(statement)
                return
        self.edits.statement(statement, f"{amp}.unscale({optimizer})")

    def _clip(self, statement: Statement, optimizer: str, amp: str) -> bool:
        """Rewrite torch's own clipping of all that the optimizer trains; other clipping works as it is."""
        for old, (new, key) in CLIPS.items():
            for call in self.source.calls(old):
                limit, over = argument(call, key, 1), argument(call, "parameters", 0)
                if self.source.statement(call) is not statement or len(call.args) != 2 or not limit or not over:
                    continue
                if self.source.code(over) == self._trains(optimizer):
                    self.edits.expression(call, f"{amp}.{new}({optimizer}, {self.source.code(limit)})")
                    return True
        return False

    def _trains(self, optimizer: str) -> str | None:
        """Return the code of the parameters that an optimizer was made of."""
        made = [a.value for a in self.source.assigns(optimizer) if isinstance(a.value, cst.Call)]
        texts = {self.source.code(v.args[0].value) for v in made if v.args}
        text = texts.pop() if len(texts) == 1 else ""
        return text if text.endswith(".parameters()") else None

    def _step(self, call: cst.Call, amp: str) -> None:
        self.edits.statement(self._alone(call), f"{amp}.step({self._optimizer(call)})")

    def _update(self, call: cst.Call, amp: str) -> None:
        if call.args:
            raise stop(self.source, call, self.source.code(call), "the scale is moved by amp.step alone")
        self.edits.statement(self._alone(call))

    def _get_scale(self, call: cst.Call, amp: str) -> None:
        block = self.source.block(self.source.statement(call))
        here = [
            (self.source.order[c], m)
            for c, m, _ in self.calls
            if self.source.in_block(c, block) and m in ("step", "update")
        ]
        before = [m for order, m in sorted(here) if order < self.source.order[call]]
        if before[-1:] == ["step"]:
            raise stop(self.source, call, "the scale is read between scaler.step and scaler.update",
                       "to learn whether a step was skipped, read `amp.step(optimizer).applied`")  # fmt: skip
        self.edits.expression(call, f"{amp}.loss_scale")

    # -- preparing ---------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Add ``amp.prepare`` behind the optimizers, in each function that makes some."""
        source, made = self.source, self.made
        assert made is not None
        makers: dict[cst.CSTNode, list[cst.Assign]] = {}
        for optimizer in self.optimizers:
            for assign in source.assigns(optimizer):
                if isinstance(assign.value, cst.Call) and self._models(assign):
                    makers.setdefault(source.scope(assign), []).append(assign)
        if not makers:
            raise stop(source, made, f"no line that makes {' or '.join(self.optimizers)} from a model's parameters",
                       "make the session where model and optimizer are made, and add "
                       "`model, optimizer = amp.prepare(model, optimizer)`")  # fmt: skip
        for scope, assigns in makers.items():
            self._prepare_in(scope, assigns)

    def _models(self, assign: cst.Assign) -> list[str]:
        scope = self.source.scope(assign)
        models = models_of(self.source, assign.value, scope)
        if models or not isinstance(assign.value, cst.Call):
            return models
        given = [dotted(arg.value) for arg in assign.value.args]
        return [name for name in given if name and name.rpartition(".")[2] in ("model", "net", "network", "module")]

    def _prepare_in(self, scope: cst.CSTNode, assigns: list[cst.Assign]) -> None:
        source, made = self.source, self.made
        assert made is not None
        models = list(dict.fromkeys(name for assign in assigns for name in self._models(assign)))
        optimizers = list(dict.fromkeys(dotted(assign.targets[0].target) for assign in assigns))
        if source.scope(made) is scope:
            place, amp = source.statement(made), self.targets[dotted(made.targets[0].target)]
        else:
            place, seen = source.statement(assigns[-1]), self._sees(assigns[-1])
            if seen is None:
                raise stop(source, assigns[0], "the optimizer is made where the GradScaler cannot be seen",
                           "make the session there and call `amp.prepare(model, optimizer)`")  # fmt: skip
            amp = seen
        made_before = [a for model in models for a in source.assigns(model) if source.scope(a) is scope]
        used = min((source.order[call] for call, _, _ in self.calls), default=0)
        others = [a for a in (*assigns, *made_before) if source.order[a] < used or source.scope(a) is not scope]
        self.edits.after(behind(source, place, others), prepare_line(amp, models, optimizers))

    # -- the rest ----------------------------------------------------------------------------------------------

    def _rename(self) -> None:
        for old, new in self.targets.items():
            for use in self.source.uses(old):
                if not self.edits.covers(self.source, use):
                    self.edits.expression(use, new)
            for node in self.source.nodes:
                if isinstance(node, cst.Param) and node.name.value == old:
                    self.edits.change(node, lambda param: param.with_changes(name=cst.Name(self.names.amp)))


def _plain(node: cst.CSTNode) -> bool:
    name = dotted(node)
    return bool(name) and ("." not in name or (name.startswith("self.") and name.count(".") == 1))


__all__ = ["NAME", "OLD_IMPORTS", "CannotMigrate", "found", "plan"]
