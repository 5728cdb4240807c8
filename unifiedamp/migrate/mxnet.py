"""MXNet's ``amp``: ``init`` becomes a session, ``init_trainer`` prepares, losses become means as ``step`` divided."""

from __future__ import annotations

import libcst as cst

from .edits import Edits
from .report import Finding
from .sessions import Names, literal, prepare_line, session_line, share, stop
from .source import Source, Statement, argument, dotted, walk

NAME = "mxnet.amp"
OLD_IMPORTS = ("mxnet.amp", "mxnet.contrib.amp", "mxnet.autograd")
KNOWN = ("init", "init_trainer", "scale_loss", "unscale")
CONVERT = ("convert_model", "convert_hybrid_block", "convert_symbol", "convert_bucketing_module")
ROOTS = ("mxnet.amp", "mxnet.contrib.amp")


def found(source: Source) -> bool:
    """Whether the file uses this API."""
    return any(meaning in ROOTS for meaning in source.imports.values()) or any(
        isinstance(node, cst.Attribute) and source.meaning(node) in ROOTS for node in source.nodes
    )


def plan(source: Source, names: Names) -> tuple[Edits, list[Finding]]:
    """Return the changes to a file, and what is left to a person.

    Raises:
        CannotMigrate: the calls must stay as they are.
    """
    return _MXNet(source, names).plan()


class _MXNet:
    def __init__(self, source: Source, names: Names) -> None:
        self.source, self.names = source, names
        self.edits = Edits()
        self.findings: list[Finding] = []
        self.users: list[cst.CSTNode] = []
        self.means: dict[str, str] = {}

    def plan(self) -> tuple[Edits, list[Finding]]:
        source = self.source
        starts, scales = self._calls("init"), self._calls("scale_loss")
        self._refuse_unknown()
        if len(starts) != 1:
            used = [*starts[1:], *scales, *self._calls("init_trainer")]
            if not used:
                return self.edits, self.findings
            raise stop(source, used[0], f"amp.init is called {len(starts)} times in this file",
                       "make one session, `amp = ua.Amp(\"mxnet\", policy=...)`, and hand it to this code")  # fmt: skip
        self._init(starts[0])
        trainers = [self._trainer(call) for call in self._calls("init_trainer")]
        if not trainers:
            raise stop(
                source, starts[0], "amp.init without amp.init_trainer in this file", "call amp.prepare(net, trainer)"
            )
        for call in scales:
            self._scale_loss(call)
        self._steps(dict.fromkeys(trainers))
        share(source, self.edits, self.names.amp, starts[0], self.users)
        return self.edits, self.findings

    def _calls(self, name: str) -> list[cst.Call]:
        return self.source.calls(*(f"{root}.{name}" for root in ROOTS))

    def _refuse_unknown(self) -> None:
        for node in self.source.nodes:
            if not isinstance(node, cst.Call):
                continue
            root, _, name = self.source.meaning(node.func).rpartition(".")
            if root not in ROOTS or name in KNOWN:
                continue
            write = "see amp.convert_model and amp.inference" if name in CONVERT else "the session has no such call"
            raise stop(self.source, node, f"amp.{name}", write)

    def _alone(self, call: cst.Call, write: str) -> Statement:
        simple = self.source.simple(call)
        if not isinstance(simple, cst.Expr) or simple.value is not call:
            raise stop(self.source, call, self.source.code(call), write)
        return self.source.statement(call)

    # -- the session -------------------------------------------------------------------------------------------

    def _init(self, call: cst.Call) -> None:
        statement = self._alone(call, '`amp = ua.Amp("mxnet", policy=...)`')
        dtype = literal(argument(call, "target_dtype", 0))
        if argument(call, "target_dtype", 0) is not None and dtype not in ("float16", "bfloat16"):
            raise stop(self.source, call, self.source.code(call), '`amp = ua.Amp("mxnet", policy=...)`')
        lists = ("target_precision_ops", "conditional_fp32_ops", "fp32_ops", "layout_optimization")
        for position, key in enumerate(lists, 1):
            if argument(call, key, position) is not None:
                write = "op_overrides of the policy do it, in words of no one framework: see policies.md"
                self.findings.append(Finding(self.source.line(call), f"{key}= was left out", write))
        policy = f'"mixed_{dtype or "float16"}"'
        # MXNet scales the loss under bfloat16 too; the session does when it is asked to.
        scale = '"dynamic"' if dtype == "bfloat16" else None
        self.edits.statement(
            statement, session_line(self.names, self.names.amp, "mxnet", policy=policy, loss_scale=scale)
        )

    def _trainer(self, call: cst.Call) -> str:
        statement = self._alone(call, "`net, trainer = amp.prepare(net, trainer)`")
        given = argument(call, "optimizer_or_trainer", 0)
        trainer = dotted(given) if given is not None else ""
        models = [
            model
            for assign in self.source.assigns(trainer)
            if self.source.scope(assign) is self.source.scope(call)
            for model in _collected(assign.value)
        ]
        if not trainer or not models:
            what = f"no line `{trainer or 'trainer'} = gluon.Trainer(net.collect_params(), ...)` here"
            raise stop(self.source, call, what, "`net, trainer = amp.prepare(net, trainer)`")
        self.edits.statement(statement, prepare_line(self.names.amp, list(dict.fromkeys(models)), [trainer]))
        self.users.append(call)
        return trainer

    # -- the loop ----------------------------------------------------------------------------------------------

    def _scale_loss(self, call: cst.Call) -> None:
        source, amp = self.source, self.names.amp
        item = source.parents[call]
        with_ = source.parents.get(item)
        loss, trainer = argument(call, "loss", 0), argument(call, "optimizer_or_trainer", 1)
        if not isinstance(with_, cst.With) or loss is None or trainer is None or not dotted(loss):
            raise stop(source, call, source.code(call), "`with amp.scale_loss(loss, trainer) as scaled_loss:`")
        record = self._record(with_, dotted(loss))
        steps = self._steps_of(source.code(trainer), call)
        size = source.code(steps[0].args[0].value) if steps else "1"
        if len({source.code(step) for step in steps}) != 1 or not _simple(size):
            raise stop(source, call, f"no single {source.code(trainer)}.step(batch_size) beside this loss",
                       "divide the loss by the batch size in the region, and call `amp.step(trainer)`")  # fmt: skip
        mean = self._mean(dotted(loss), size, record)
        self._check_body(with_)
        text = f"with {amp}.scale_loss({mean}, {source.code(trainer)}) as scaled_loss:\n    scaled_loss.backward()"
        self.users.append(with_)
        self.edits.expression(record.items[0].item, f"{amp}.autocast()")
        if source.inside(with_, record):
            self.edits.statement(with_, self.means[mean])
            self.edits.after(record, text)
        else:
            self.edits.after(record.body.body[-1], self.means[mean])  # type: ignore[arg-type]
            self.edits.statement(with_, text)

    def _record(self, with_: cst.With, loss: str) -> cst.With:
        """Return ``with autograd.record():`` in which a loss is computed."""
        source = self.source
        for node in reversed(source.nodes):
            if not isinstance(node, cst.With) or len(node.items) != 1 or source.scope(node) is not source.scope(with_):
                continue
            item = node.items[0].item
            records = isinstance(item, cst.Call) and source.meaning(item.func) == "mxnet.autograd.record"
            if records and source.order[node] < source.order[with_] and loss in {dotted(n) for n in walk(node)}:
                if source.inside(with_, node) and node.body.body[-1] is not with_:
                    raise stop(source, with_, "more follows in `with autograd.record():`", "move it behind the region")
                return node
        raise stop(source, with_, f"no `with autograd.record():` around the computation of {loss}",
                   "compute it in `with amp.autocast():`")  # fmt: skip

    def _mean(self, loss: str, size: str, record: cst.With) -> str:
        """Return the variable for the loss divided as ``trainer.step(size)`` divided its gradients."""
        name = next(n for n in ("mean_loss", "mean_of_loss", "amp_loss") if n not in self.source.names())
        divided = "" if size == "1" else f" / {size}"
        values = [a.value for a in self.source.assigns(loss) if self.source.inside(a, record)]
        several = any(isinstance(value, cst.ListComp | cst.List) for value in values)
        one = f"[each.sum(){divided} for each in {loss}]" if several else f"{loss}.sum(){divided}"
        self.means[name] = f"{name} = {one}"
        return name

    def _check_body(self, with_: cst.With) -> None:
        body = with_.body.body
        code = self.source.code(body[0]).strip() if len(body) == 1 else ""
        if not code.replace(" ", "").endswith((".backward()", f"backward({self._handle(with_)})")):
            raise stop(self.source, with_, "more than backward() under amp.scale_loss", "move the rest behind it")

    def _handle(self, with_: cst.With) -> str:
        name = with_.items[0].asname
        return dotted(name.name) if name is not None else ""

    def _steps_of(self, trainer: str, near: cst.CSTNode) -> list[cst.Call]:
        scope = self.source.scope(near)
        calls = [c for c in self.source.methods("step") if dotted(c.func) == f"{trainer}.step"]
        return [c for c in calls if self.source.scope(c) is scope and c.args]

    def _steps(self, trainers: dict[str, None]) -> None:
        names = {*trainers, *(self.source.code(c.args[1].value) for c in self._calls("scale_loss") if len(c.args) > 1)}
        for name in names:
            for scaled in self._calls("scale_loss"):
                for step in self._steps_of(name, scaled):
                    if self.source.statement(step) not in self.edits.lines:
                        statement = self._alone(step, "`amp.step(trainer)`")
                        self.edits.statement(statement, f"{self.names.amp}.step({name})")
        for call in self._calls("unscale"):
            self._unscale(call)

    def _unscale(self, call: cst.Call) -> None:
        source = self.source
        statement, trainer = self._alone(call, "`amp.unscale(trainer)`"), source.code(call.args[0].value)
        sizes = {source.code(step.args[0].value) for step in self._steps_of(trainer, call)}
        for clip in source.calls("mxnet.gluon.utils.clip_global_norm"):
            if source.scope(clip) is not source.scope(call) or len(clip.args) < 2:
                continue
            place = self._clip_place(clip)
            if place is None or len(sizes) != 1:
                write = f"`{self.names.amp}.clip_grad_norm({trainer}, max_norm)`, of the gradients of the mean loss"
                raise stop(source, clip, source.code(clip), write)
            limit = _divided(source, clip.args[1].value, sizes.pop())
            self.edits.statement(statement)
            self.edits.statement(place[0], f"{self.names.amp}.clip_grad_norm({trainer}, {limit})")
            for gone in place[1:]:
                self.edits.statement(gone)
            return
        self.edits.statement(statement, f"{self.names.amp}.unscale({trainer})")
        write = "these gradients are of the mean loss: trainer.step divided by the batch size only afterwards"
        self.findings.append(Finding(source.line(call), "amp.unscale", write))

    def _clip_place(self, clip: cst.Call) -> list[Statement] | None:
        """Return the statements that clip the gradients of a Trainer's parameters, first the one to replace."""
        source = self.source
        grads, statement = dotted(clip.args[0].value), source.statement(clip)
        gathered = [a for a in source.assigns(grads) if source.block(a) is source.block(statement)]
        if len(gathered) != 1 or ".grad(" not in source.code(gathered[0].value):
            return None
        block = source.block(statement)
        loop = source.parents.get(block)
        if isinstance(loop, cst.For) and len(block.body) == 2:
            note = "clipped once, after the sum over devices, where each device's gradients were clipped before it"
            self.findings.append(Finding(source.line(clip), "clip_global_norm in a loop over devices", note))
            return [loop]
        return [statement, source.statement(gathered[0])]


def _collected(value: cst.CSTNode) -> list[str]:
    """Return the models whose ``collect_params()`` an expression takes."""
    owners = [n for n in walk(value) if isinstance(n, cst.Attribute) and n.attr.value == "collect_params"]
    return [name for name in (dotted(owner.value) for owner in owners) if name]


def _simple(code: str) -> bool:
    return code.replace(".", "").replace("_", "").replace("[", "").replace("]", "").isalnum()


def _divided(source: Source, limit: cst.BaseExpression, size: str) -> str:
    """Return the code of ``limit / size``."""
    if isinstance(limit, cst.BinaryOperation) and isinstance(limit.operator, cst.Multiply):
        left, right = source.code(limit.left), source.code(limit.right)
        if size in (left, right):
            return right if left == size else left
    code = source.code(limit)
    if size == "1":
        return code
    return f"{code} / {size}" if dotted(limit) or literal(limit) is not None else f"({code}) / {size}"
