"""The source layout: no import cycles, layers, private names, and the same rooms and roles in every backend."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
CORE = "unifiedamp"
BACKENDS = {"unifiedamp_torch": "Torch", "unifiedamp_tensorflow": "TensorFlow", "unifiedamp_mxnet": "MXNet"}
"""Package → what the names of its role classes begin with."""

LAYERS = (
    {"errors", "names", "visible"}, {"notebook", "plain_values"}, {"loss_scale"}, {"formats"}, {"policy"}, {"backend"},
    {"output", "machine"},
    {"config", "training", "recording", "forecast", "checkpoint", "explain", "custom_functions"}, {"measured"},
    {"session_start"}, {"session"}, {"conformance"}, {"workloads"}, {"compat", "migrate", "integrations"}, {"cli"},
    {"__main__"},
)  # fmt: skip
"""First-level parts of core, lower layers first: a part imports none of a higher layer."""

ROOMS = ("compiling", "conformance", "device", "distributed", "models", "precision", "recording", "training")
ROLES = {
    "Device": "device/device.py", "Precision": "precision/precision.py", "Training": "training/training.py",
    "Compiler": "compiling/compiler.py", "Recorder": "recording/recorder.py", "Weights": "models/weights.py",
    "Converter": "models/convert.py", "LayerShapes": "models/shapes.py", "Profiler": "device/profiler.py",
    "Averaging": "training/ema.py", "Tuner": "device/tuning.py", "Distributed": "distributed/distributed.py",
    "Backend": "backend.py",
}  # fmt: skip
"""Role → the file of every backend that holds its class."""

ABSENT = {("unifiedamp_mxnet", "Profiler")}
"""Optional roles that a backend has nowhere: its ``backend.py`` says why."""

FILES = (
    "plugin.py", "capabilities.py", "explain.py", "interop.py", "device/memory.py", "conformance/harness.py",
    *ROLES.values(),
)  # fmt: skip

SHORT = {"__init__.py", "__main__.py", "interop.py"}
"""Files that may have fewer than 25 lines: each backend has an ``interop.py``, and torch needs little there."""

PUBLIC_ALTHOUGH = {"_asdict", "_fields", "_make", "_replace"}
"""What a NamedTuple offers under a private name."""

FRAMEWORK_PRIVATES = {
    "check_numerics_callback._state", "context._state", "grad._values", "gradient._values", "layer._layers",
    "low._version",
    "model_param._version", "module._parameters", "optimizer._variables",
    "obj._params", "param._data", "param._version", "present._state", "tensor._version", "trainer._params",
    "trainer._scale",
}  # fmt: skip
"""Private names of frameworks' objects that our own modules happen to define too."""


class Module(NamedTuple):
    name: str
    is_package: bool
    tree: ast.Module


@cache
def modules(package: str) -> dict[str, Module]:
    base = ROOT if package == CORE else ROOT / "backends"
    found = {}
    for path in sorted((base / package).rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = Module(name, is_package, ast.parse(path.read_text(encoding="utf-8")))
    return found


def target(module: Module, node: ast.ImportFrom) -> str:
    """The absolute name of what ``from ... import`` names."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*parts, *filter(None, [node.module])])


def imports(module: Module, known: Mapping[str, Module]) -> Iterator[str]:
    """The modules of the same package that one imports, lazily or for types alone too."""
    for node in nodes(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = target(module, node)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield from [one for one in (full, base) if one in known][:1]


@cache
def graph(package: str) -> dict[str, set[str]]:
    known = modules(package)
    return {name: set(imports(module, known)) - {name} for name, module in known.items()}


def cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected parts of more than one node."""
    reached = {node: reachable(node, edges) for node in edges}
    parts = {frozenset(other for other in reached[node] if node in reached[other]) for node in edges}
    return sorted(sorted(part) for part in parts if len(part) > 1)


def reachable(node: str, edges: Mapping[str, set[str]]) -> set[str]:
    seen, left = set(), [node]
    while left:
        for other in edges.get(left.pop(), ()):
            if other not in seen:
                seen.add(other)
                left.append(other)
    return seen


def first_level(package: str) -> dict[str, set[str]]:
    """The same between the parts of a package; its ``__init__`` names what is public, and is no part."""
    edges: dict[str, set[str]] = {}
    for name, imported in graph(package).items():
        part = name.split(".")[1:2]
        others = {other.split(".")[1] for other in imported if "." in other}
        if part:
            edges.setdefault(part[0], set()).update(others - {part[0]})
    return edges


@pytest.mark.parametrize("package", [CORE, *BACKENDS])
def test_no_cycle_among_modules(package):
    assert cycles(graph(package)) == []


@pytest.mark.parametrize("package", [CORE, *BACKENDS])
def test_no_cycle_among_rooms(package):
    assert cycles(first_level(package)) == []


def test_every_part_of_core_imports_lower_layers_only():
    level = {part: number for number, layer in enumerate(LAYERS) for part in layer}
    edges = first_level(CORE)
    assert set(edges) <= set(level)
    assert [(a, b) for a, found in edges.items() for b in found if level[b] > level[a]] == []


def test_only_the_command_line_imports_the_public_package():
    allowed = ("unifiedamp.cli", "unifiedamp.compat", "unifiedamp.conformance", "unifiedamp.workloads")
    found = [name for name, imported in graph(CORE).items() if CORE in imported and not name.startswith(allowed)]
    assert found == []


# -- sizes and types ---------------------------------------------------------------------------------------------------


def sources(package: str) -> list[Path]:
    """The files of a package; those of the conformance suite are tests."""
    base = ROOT if package == CORE else ROOT / "backends"
    return [path for path in sorted((base / package).rglob("*.py")) if "suite" not in path.parts]


@pytest.mark.parametrize("package", [CORE, *BACKENDS])
def test_files_hold_one_idea(package):
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources(package)}
    assert [str(path) for path, count in lines.items() if count > 350] == []
    assert [str(path) for path, count in lines.items() if count < 25 and path.name not in SHORT] == []


@pytest.mark.parametrize("package", [CORE, *BACKENDS])
def test_every_ignored_type_has_a_code_and_a_reason(package):
    found = [
        f"{path}: {line.strip()}"
        for path in sources(package)
        for line in path.read_text(encoding="utf-8").splitlines()
        if "type: ignore" in line and not re.search(r"# type: ignore\[[a-z, -]+\]  # \w", line)
    ]
    assert found == []


@pytest.mark.parametrize("package", BACKENDS)
def test_parameters_of_backends_have_types(package):
    """At most 15 % are ``Any``."""
    functions = [node for module in modules(package).values() for node in nodes(module.tree)]
    functions = [node for node in functions if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    every = [arg for node in functions for arg in ast.walk(node.args) if isinstance(arg, ast.arg)]
    params = [ast.unparse(arg.annotation) for arg in every if arg.annotation is not None]
    assert params.count("Any") <= 0.15 * len(params)


# -- private names -----------------------------------------------------------------------------------------------------


@cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


@cache
def defined_privates(tree: ast.Module) -> set[str]:
    """Private names that a module defines: of its functions, classes, attributes and slots."""
    found = set()
    for node in nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            found |= {each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC_ALTHOUGH


@cache
def all_privates(package: str) -> set[str]:
    """Private names that core or a backend defines; other ones, and those in ``_types.py``, are a framework's."""
    names = set()
    for each in {CORE, package}:
        ours = [module for name, module in modules(each).items() if not name.endswith("._types")]
        names |= set().union(*[defined_privates(module.tree) for module in ours])
    return {name for name in names if is_private(name)}


def owner(node: ast.expr) -> str:
    """The last name of an expression: ``trainer`` of ``self._trainer``, ``params`` of ``params[0]``."""
    if isinstance(node, (ast.Subscript, ast.Call)):
        return owner(node.value if isinstance(node, ast.Subscript) else node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def private_accesses(module: Module, package: str) -> Iterator[str]:
    own, every = defined_privates(module.tree), all_privates(package)
    for node in nodes(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in every - own and owner(node.value) not in ("self", "cls"):
            name = owner(node.value).strip("_").removesuffix("s")
            if f"{name}.{node.attr}" not in FRAMEWORK_PRIVATES and name != "super":
                yield f"{module.name}:{node.lineno} {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and target(module, node).split(".")[0] in (CORE, *BACKENDS):
            yield from (f"{module.name}:{node.lineno} {alias.name}" for alias in node.names if is_private(alias.name))


@pytest.mark.parametrize("package", [CORE, *BACKENDS])
def test_no_module_reads_private_names_of_another(package):
    found = [access for module in modules(package).values() for access in private_accesses(module, package)]
    assert found == []


# -- core and backends -------------------------------------------------------------------------------------------------


ROLE_NAMES = {
    "backend", "device", "precision", "training", "compiler", "weights", "averaging", "converter", "layer_shapes",
    "profiler", "distributed", "tuner", "interop",
}  # fmt: skip


def written(node: ast.AST) -> list[ast.Attribute]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
        return [ast.Attribute(node.args[0], "?", ast.Store())]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return [node]
    return []


def test_core_writes_to_no_attribute_of_a_backend():
    found = []
    for module in modules(CORE).values():
        if module.name.startswith(("unifiedamp.conformance", "unifiedamp.compat")):
            continue
        for node in nodes(module.tree):
            for each in written(node):
                if owner(each.value).lstrip("_") in ROLE_NAMES:
                    found.append(f"{module.name}:{node.lineno} {ast.unparse(each)}")
    assert found == []


@pytest.mark.parametrize("package", BACKENDS)
def test_every_backend_has_the_same_rooms(package):
    folder = ROOT / "backends" / package
    rooms = sorted(path.name for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py")))
    assert rooms == sorted(ROOMS)
    absent = {ROLES[role] for name, role in ABSENT if name == package}
    assert {name for name in FILES if not (folder / name).is_file()} == absent


@cache
def classes(package: str) -> dict[str, ast.ClassDef]:
    """Class name → definition, of all modules of a package."""
    every = [node for module in modules(package).values() for node in nodes(module.tree)]
    return {node.name: node for node in every if isinstance(node, ast.ClassDef)}


def methods(name: str, known: Mapping[str, ast.ClassDef]) -> set[str]:
    """The methods and attributes of a class, inherited ones of the same package included."""
    if name not in known:
        return set()
    node = known[name]
    found = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    found |= {each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and hasattr(each.target, "id")}
    for base in node.bases:
        found |= methods(ast.unparse(base).split("[")[0].split(".")[-1], known)
    return found


def required(role: str) -> set[str]:
    """The methods of a role that a backend must write."""
    roles = [module for name, module in modules(CORE).items() if name.startswith("unifiedamp.backend.")]
    (node,) = [each for module in roles for each in module.tree.body if getattr(each, "name", "") == role]
    assert isinstance(node, ast.ClassDef)
    found = (each for each in node.body if isinstance(each, ast.FunctionDef))
    return {each.name for each in found if any(ast.unparse(one) == "required" for one in each.decorator_list)}


@pytest.mark.parametrize("package", BACKENDS)
@pytest.mark.parametrize("role", ROLES)
def test_every_backend_has_every_role(package, role):
    if (package, role) in ABSENT:
        assert f"{role.lower()} = Unsupported(" in (ROOT / "backends" / package / "backend.py").read_text(
            encoding="utf-8"
        )
        return
    path = ROLES[role].removesuffix(".py").replace("/", ".")
    name = f"{BACKENDS[package]}{role}"
    tree = modules(package)[f"{package}.{path}"].tree
    assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert required(role) - methods(name, classes(package)) == set()
