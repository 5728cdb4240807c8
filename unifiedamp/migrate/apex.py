"""Apex amp: ``initialize`` becomes a session and ``prepare``; the forward pass, which Apex patched, gets its region."""

from __future__ import annotations

import libcst as cst

from .edits import Edits
from .forward import calls_one, wrap_forward
from .report import Finding
from .sessions import Names, dynamic, literal, prepare_line, session_line, share, stop
from .source import Source, Statement, argument, dotted, keywords, walk

NAME = "apex.amp"
OLD_IMPORTS = ("apex.amp", "apex")
DROPPED = {"verbosity", "loss_id", "num_losses"}
SAME = ("state_dict", "load_state_dict")
HANDS = {
    "half_function": "decorate the function with `ua.amp_function(cast_inputs=\"compute\")`",
    "float_function": "decorate the function with `ua.amp_function(cast_inputs=\"float32\")`",
    "promote_function": "decorate the function with `ua.amp_function`",
    "disable_casts": "write `with amp.autocast(enabled=False):`",
}  # fmt: skip
CLIP = "torch.nn.utils.clip_grad_norm_"


def found(source: Source) -> bool:
    """Whether the file uses this API."""
    return any(meaning == "apex.amp" or meaning.startswith("apex.amp.") for meaning in source.imports.values()) or any(
        isinstance(node, cst.Attribute) and source.meaning(node) == "apex.amp" for node in source.nodes
    )


def plan(source: Source, names: Names) -> tuple[Edits, list[Finding]]:
    """Return the changes to a file, and what is left to a person.

    Raises:
        CannotMigrate: the calls must stay as they are.
    """
    return _Apex(source, names).plan()


class _Apex:
    def __init__(self, source: Source, names: Names) -> None:
        self.source, self.names = source, names
        self.edits = Edits()
        self.findings: list[Finding] = []
        self.models: list[str] = []

    def plan(self) -> tuple[Edits, list[Finding]]:
        starts = self.source.calls("apex.amp.initialize")
        if not starts:
            return self._without_start()
        self._refuse_unknown()
        for call in starts:
            self._initialize(call)
        self.scaled = [(with_, item) for with_, item in self._scaled()]
        for with_, item in self.scaled:
            self._scale_loss(with_, item)
        self._clip()
        self._steps()
        self._rest()
        users = [call for name in ("scale_loss", "master_params", *SAME) for call in self._calls(name)]
        for call in starts:
            share(self.source, self.edits, self.names.amp, call, [*users, *starts])
        return self.edits, self.findings

    def _calls(self, name: str) -> list[cst.Call]:
        return self.source.calls(f"apex.amp.{name}")

    def _without_start(self) -> tuple[Edits, list[Finding]]:
        write = "give this code the session (`amp`) that the file with amp.initialize makes, then write it by hand"
        used = [c for name in ("scale_loss", "master_params", *SAME) for c in self._calls(name)]
        for call in sorted(used, key=self.source.line):
            self.findings.append(
                Finding(self.source.line(call), f"{dotted(call.func)}() without amp.initialize", write)
            )
        return self.edits, self.findings

    def _refuse_unknown(self) -> None:
        """Refuse what the session has no call for."""
        known = ("initialize", "scale_loss", "master_params", *SAME)
        for node in self.source.nodes:
            meaning = self.source.meaning(node) if isinstance(node, cst.Attribute | cst.Name) else ""
            name = meaning.removeprefix("apex.amp.")
            if name == meaning or "." in name or isinstance(self.source.parents[node], cst.ImportAlias):
                continue
            if isinstance(node, cst.Name) and not self.source.is_reference(node):
                continue
            if name not in known:
                raise stop(self.source, node, f"amp.{name}", HANDS.get(name, "the session has no such call"))

    # -- initialize --------------------------------------------------------------------------------------------

    def _initialize(self, call: cst.Call) -> None:
        source, edits = self.source, self.edits
        models = self._objects(call, argument(call, "models", 0))
        optimizers = self._objects(call, argument(call, "optimizers", 1))
        self.models = list(dict.fromkeys([*self.models, *models]))
        line = session_line(self.names, self.names.amp, "torch", **self._settings(call))
        statement, simple = source.statement(call), source.simple(call)
        objects = ", ".join([*models, *optimizers])
        if isinstance(simple, cst.Assign) and simple.value is call and len(simple.targets) == 1:
            given = [name for name in map(dotted, walk(simple.targets[0].target)) if name]
            given = [name for name in given if not any(other.startswith(f"{name}.") for other in given)]
            if len(given) != len(models) + len(optimizers):
                raise stop(source, call, "amp.initialize with other results than it has arguments", "call amp.prepare")
            self.models = list(dict.fromkeys([*self.models, *given[: len(models)]]))
            prepared = f"{', '.join(given)} = {self.names.amp}.prepare({objects})"
            if given == [*models, *optimizers]:
                prepared = prepare_line(self.names.amp, models, optimizers)
            edits.statement(statement, line, prepared)
        elif isinstance(simple, cst.Return) and simple.value is call:
            edits.statement(statement, line, f"return {self.names.amp}.prepare({objects})")
        else:
            raise stop(source, call, "amp.initialize inside an expression", "assign its result in a line of its own")

    def _objects(self, call: cst.Call, given: cst.BaseExpression | None) -> list[str]:
        if given is None or dotted(given) == "None":
            return []
        parts = [given]
        if isinstance(given, cst.List | cst.Tuple):
            parts = [element.value for element in given.elements]
        elif dotted(given).rpartition(".")[2] in ("models", "optimizers", "nets", "networks", "opts"):
            raise stop(
                self.source, call, f"amp.initialize of a list in {dotted(given)}",
                "make the session with `ua.Amp(...)` and call `amp.prepare(*models, *optimizers)`",
            )  # fmt: skip
        names = [dotted(part) for part in parts]
        if not all(names):
            raise stop(
                self.source, call, "amp.initialize of an expression",
                "assign models and optimizers to names before, and run migrate again",
            )  # fmt: skip
        return names

    def _settings(self, call: cst.Call) -> dict[str, str | None]:
        source = self.source
        level = argument(call, "opt_level", 3)
        enabled = argument(call, "enabled", 2)
        policy = '"O1"' if level is None else source.code(level)
        if enabled is not None and literal(enabled) is not True:
            policy = f'{policy} if {source.code(enabled)} else "O0"'
        self._say_what_has_no_meaning(call)
        return {"policy": policy, "loss_scale": self._loss_scale(call)}

    def _loss_scale(self, call: cst.Call) -> str | None:
        source = self.source
        low, high = argument(call, "min_loss_scale"), argument(call, "max_loss_scale")
        if low is not None or high is not None:
            bounds = {"min_scale": low, "max_scale": high}
            return dynamic(
                self.names, **{key: source.code(value) for key, value in bounds.items() if value is not None}
            )
        given = argument(call, "loss_scale")
        if given is None or source.code(given) in ("None", '"dynamic"', "'dynamic'"):
            return None
        code = source.code(given)
        value = literal(given)
        return str(float(value)) if isinstance(value, str) and _is_number(value) else code

    def _say_what_has_no_meaning(self, call: cst.Call) -> None:
        line = self.source.line(call)
        norm = argument(call, "keep_batchnorm_fp32")
        if norm is not None and literal(norm) in (False, "False"):
            write = (
                "the session keeps batch norm in float32: policy=ua.Policy.parse(...).replace(keep_norm_float32=False)"
            )
            self.findings.append(Finding(line, "keep_batchnorm_fp32=False", write))
        for key in ("cast_model_type", "patch_torch_functions", "master_weights", "cast_model_outputs"):
            given = argument(call, key)
            if given is not None and self.source.code(given) != "None":
                self.findings.append(
                    Finding(line, f"{key}= was left out", "choose the policy that does it: see policies.md")
                )
        many = argument(call, "num_losses")
        if many is not None and literal(many) != 1:
            self.findings.append(Finding(line, "num_losses= was left out", "all losses of a session share one scale"))

    # -- the loop ----------------------------------------------------------------------------------------------

    def _scaled(self) -> list[tuple[cst.With, cst.WithItem]]:
        found = []
        for call in self._calls("scale_loss"):
            item = self.source.parents[call]
            with_ = self.source.parents.get(item)
            if not isinstance(item, cst.WithItem) or not isinstance(with_, cst.With):
                raise stop(self.source, call, "amp.scale_loss outside a with statement",
                           "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`")  # fmt: skip
            found.append((with_, item))
        return found

    def _scale_loss(self, with_: cst.With, item: cst.WithItem) -> None:
        source, call = self.source, item.item
        assert isinstance(call, cst.Call)
        loss, optimizers = argument(call, "loss", 0), argument(call, "optimizers", 1)
        if loss is None or optimizers is None or keywords(call) & {"*"}:
            raise stop(source, call, source.code(call), "`amp.scale_loss(loss, optimizer)`")
        self.edits.expression(call, f"{self.names.amp}.scale_loss({source.code(loss)}, {source.code(optimizers)})")
        if item.asname is not None:
            self._handle(with_, dotted(item.asname.name))
        self._forward(call, loss)

    def _handle(self, with_: cst.With, name: str) -> None:
        """The handle's one method is ``backward``; everything else wants the number."""
        for use in self.source.uses(name):
            if not self.source.inside(use, with_.body):
                continue
            attribute = self.source.parents[use]
            if isinstance(attribute, cst.Attribute) and attribute.attr.value == "backward":
                continue
            self.edits.expression(use, f"{name}.value")

    def _forward(self, call: cst.Call, loss: cst.BaseExpression) -> None:
        ends = [with_ for with_, _ in self.scaled]
        names = [n.value for n in walk(loss) if isinstance(n, cst.Name) and self.source.is_reference(n)]
        header = f"with {self.names.amp}.autocast():"
        wrapped = [
            wrap_forward(self.source, self.edits, name, call, self.models, header, ends)
            for name in dict.fromkeys(names)
        ]
        if not any(wrapped) or calls_one(loss, self.models):
            raise stop(self.source, call, f"the loss {self.source.code(loss)} is not assigned in this function",
                       f"compute it in `{header}`")  # fmt: skip

    def _clip(self) -> None:
        """``amp.master_params(optimizer)``: in torch's clipping, and elsewhere."""
        source = self.source
        for call in self._calls("master_params"):
            optimizer = source.code(call.args[0].value) if call.args else ""
            clip = source.parents.get(source.parents[call])
            clips = isinstance(clip, cst.Call) and source.meaning(clip.func) == CLIP and clip.args[0].value is call
            if isinstance(clip, cst.Call) and clips and len(clip.args) == 2:
                limit = source.code(clip.args[1].value)
                self.edits.expression(clip, f"{self.names.amp}.clip_grad_norm({optimizer}, {limit})")
            else:
                self.edits.before(source.statement(call), f"{self.names.amp}.unscale({optimizer})")
                group = f'for group in {optimizer}.param_groups for param in group["params"]'
                self.edits.expression(call, f"[param {group}]")

    def _steps(self) -> None:
        """``optimizer.step()`` where its losses are scaled."""
        for call in self.source.methods("step"):
            assert isinstance(call.func, cst.Attribute)
            optimizer = dotted(call.func.value)
            if not optimizer or not any(self._trains(with_, item, optimizer, call) for with_, item in self.scaled):
                continue
            statement = self._alone(call)
            self.edits.statement(statement, f"{self.names.amp}.step({optimizer})")

    def _trains(self, with_: cst.With, item: cst.WithItem, optimizer: str, step: cst.Call) -> bool:
        call = item.item
        assert isinstance(call, cst.Call)
        named = argument(call, "optimizers", 1)
        same = self.source.scope(with_) is self.source.scope(step)
        return same and named is not None and any(dotted(part) == optimizer for part in walk(named))

    def _alone(self, call: cst.Call) -> Statement:
        simple = self.source.simple(call)
        if not isinstance(simple, cst.Expr) or simple.value is not call or call.args:
            raise stop(self.source, call, self.source.code(call), "`amp.step(optimizer)`, which takes no closure")
        return self.source.statement(call)

    def _rest(self) -> None:
        """``state_dict`` and ``load_state_dict`` have the same names."""
        for name in SAME:
            for call in self._calls(name):
                self.edits.expression(call.func, f"{self.names.amp}.{name}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
