"""Torch files that share one session, migrated together: all of them, or none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from types import ModuleType

import libcst as cst

from . import apex, keras, mxnet, torch_amp
from .bounds import too_big
from .check import problems, with_rejections
from .checked import WRITE, old_lines
from .edits import Edits
from .folds import as_before, without_names
from .imports import tidy
from .planning import UNREADABLE, check_result, package_name, plan
from .program import connected, links
from .report import NOTHING, CannotMigrate, Finding, Migration
from .source import Source
from .torch_amp.scaler import find_scalers
from .training.aliases import Aliases
from .training.handover import Handover
from .training.merge import merge
from .work import Names, Work

APIS: tuple[ModuleType, ...] = (apex, torch_amp)
GLOBAL: tuple[ModuleType, ...] = (keras, mxnet)
"""APIs that turn mixed precision on for the whole process: files that import each other depend on one call."""
_MAKES = re.compile(rb"GradScaler|initialize")
_IMPORT = re.compile(rb"^\s*(?:from|import)\b[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
_WORD = re.compile(rb"\w+")
_ANY = re.compile(rb"\A")
_CONCERNS = re.compile(rb"GradScaler|\bamp\b|scaler|\.backward\(")

_BASES = re.compile(rb"^class \w+\(\s*(\w+)\s*\)", re.MULTILINE)
_SCALES = re.compile(rb"\bself\.\w+\.scale\(")


def sharing(contents: Mapping[str, bytes]) -> list[list[str]]:
    """Return the groups of files that share a session; a file that shares none is in no group."""
    sources = dict(_readable(contents))
    if not any(_MAKES.search(contents[path]) for path in sources):
        return []
    stems = {PurePath(path).stem.encode() for path in sources}
    importers = re.compile(rb"^\s*(from|import)\b.*\b(" + b"|".join(map(re.escape, stems)) + rb")\b", re.MULTILINE)
    sources |= dict(_readable({path: content for path, content in contents.items() if path not in sources}, importers))
    found: list[list[str]] = []
    for group in connected(sources):
        if len(group) > 1:
            found += _sessions({path: sources[path] for path in group})
    return found


def imported(contents: Mapping[str, bytes]) -> set[str]:
    """Return the files that others of these may import, by the names in the others' imports alone."""
    words: dict[bytes, set[str]] = {}
    for path, content in contents.items():
        for line in _IMPORT.findall(content):
            for word in _WORD.findall(line):
                words.setdefault(word, set()).add(path)
    return {path for path in contents if words.get(_module(path), set()) - {path}}


def inheriting(contents: Mapping[str, bytes]) -> set[str]:
    """Return the files that scale losses in a class whose base class comes from another of these files."""
    modules, found = {_module(path) for path in contents}, set[str]()
    for path, content in contents.items():
        bases = set(_BASES.findall(content)) if _SCALES.search(content) else set()
        lines = [set(_WORD.findall(line)) for line in _IMPORT.findall(content)] if bases else []
        if any(words & bases and words & modules - {_module(path)} for words in lines):
            found.add(path)
    return found


def _module(path: str) -> bytes:
    """Return the last part of the name that a file is imported by."""
    file = PurePath(path)
    return (file.parent.name if file.stem == "__init__" else file.stem).encode()


def migrate_together(contents: Mapping[str, bytes]) -> list[Migration]:
    """Migrate files that share a session; where one is refused, all are."""
    whole = joined({path: Source(content) for path, content in contents.items()})
    folded = {path: without_names(one) for path, one in whole.files.items()}
    source = joined({path: Source(text) for path, (text, _) in folded.items()})
    try:
        after, findings, names = rewritten(source)
    except CannotMigrate as error:
        return _refused(contents, whole, _unfolded(whole, source, error.findings))
    findings = _unfolded(whole, source, findings)
    if any(found.blocks for found in findings):
        return _refused(contents, whole, findings)
    for path, (text, notes) in folded.items():
        changed = after[path] != text
        after[path] = after[path] if changed else contents[path]
        findings += [replace(note, path=path) for note in notes if changed]
    for path, content in contents.items():
        check_result(path, content, after[path])
    return [
        Migration(path, content, after[path], names if after[path] != content else (), _of(findings, path))
        for path, content in contents.items()
    ]


def _unfolded(whole: Source, source: Source, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings of files without flags with the lines of the files as they were."""
    texts = {path: (one.text, source.files[path].text) for path, one in whole.files.items()}
    same = [found for found in findings if found.path not in texts or len(set(texts[found.path])) == 1]
    moved = [found for found in findings if found not in same]
    return [*same, *(one for found in moved for one in as_before([found], *texts[found.path]))]


def hold_back(done: Sequence[Migration]) -> list[Migration]:
    """Leave files as they are that depend on a refused file's process-wide mixed precision."""
    contents = {one.path: one.before for one in done if one.path.endswith(".py") and one.status != NOTHING}
    sources = dict(_readable(contents, _ANY))
    held: dict[str, str] = {}
    for api in GLOBAL:
        for group in connected({path: source for path, source in sources.items() if api.found(source)}):
            refused = [one.path for one in done if one.path in group and one.refused]
            held |= dict.fromkeys(group, ", ".join(refused)) if refused else {}
    return [_held(one, sources[one.path], held[one.path]) if one.changed and one.path in held else one for one in done]


def _held(one: Migration, source: Source, by: str) -> Migration:
    return Migration(one.path, one.before, one.before, (), (_shared(source, one.path, by),))


def _readable(contents: Mapping[str, bytes], concerns: re.Pattern[bytes] = _CONCERNS) -> Iterator[tuple[str, Source]]:
    for path, content in contents.items():
        uses = len(concerns.findall(content))
        if uses and too_big(content, uses) is None:
            try:
                yield path, Source(content)
            except (*UNREADABLE, RecursionError):
                continue  # said of the file itself


def joined(sources: Mapping[str, Source]) -> Source:
    """Return files as one program."""
    return Source.joined(sources, links(sources))


def _sessions(sources: Mapping[str, Source]) -> list[list[str]]:
    """Return the groups among connected files: those with a scaler's uses, and those with Apex's calls."""
    source = joined(sources)
    groups: list[set[str]] = []
    aliases = Aliases(source)
    for scaler in find_scalers(Work(source, Names()), aliases, source.calls(*torch_amp.SCALERS)):
        callers = [call for function in scaler.functions for call in aliases.reached.calls(function)]
        groups.append({source.path(node) for node in (*scaler.uses, *callers)})
    with_apex = {path for path, one in sources.items() if apex.found(one)}
    if source.calls("apex.amp.initialize"):
        groups.append(with_apex)
    merged: list[set[str]] = []
    for group in groups:
        for other in [one for one in merged if one & group]:
            merged.remove(other)
            group |= other
        merged.append(group)
    return [sorted(group) for group in merged if len(group) > 1]


def rewritten(source: Source) -> tuple[dict[str, bytes], list[Finding], tuple[str, ...]]:
    """Return, for files read as one program, path → migrated text, what is left to the user, and the APIs.

    Raises:
        CannotMigrate: something stands in the way.
    """
    edits, findings, apis = Edits(), [], []
    for api in APIS:
        if api.found(source):
            made, said = plan(api, source)
            findings += said
            if made:
                edits.merge(made)
                apis.append(api)
    if any(found.blocks for found in findings) or not edits:
        return {path: one.text for path, one in source.files.items()}, findings, ()
    modules = with_imports(source, edits, apis)
    after = {path: merge(module).bytes for path, module in modules.items()}
    result = handed(source, after) if apex in apis else after
    program = _check(source, result)
    return with_rejections(program), findings, tuple(api.NAME for api in apis)


def with_imports(source: Source, edits: Edits, apis: Sequence[ModuleType]) -> dict[str, cst.Module]:
    """Return the changed files, with the imports that they need now."""
    old, ua = [name for api in apis for name in api.OLD_IMPORTS], package_name(source)
    found = {}
    for path, one in source.files.items():
        makes = re.search(rf"\b{ua}\.", edits.apply(one.module).code) is not None
        tidy(one, edits, old, ua, package=makes)
        found[path] = edits.apply(one.module)
    return found


def handed(source: Source, after: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the texts in which the session is handed to the functions of other files.

    Raises:
        CannotMigrate: a function cannot be handed it.
    """
    result = joined({path: Source(text) for path, text in after.items()})
    made = [one for one in result.of(cst.Assign) if _makes_session(result, one)]
    handover = Handover(result, made[0])
    if handover.problems:
        raise CannotMigrate(*_by_old_line(source, after, result, handover.problems))
    return {path: handover.edits.apply(one.module).bytes for path, one in result.files.items()}


def _makes_session(result: Source, assign: cst.Assign) -> bool:
    return isinstance(assign.value, cst.Call) and result.meaning(assign.value.func) == "unifiedamp.Amp"


def _check(source: Source, after: Mapping[str, bytes]) -> Source:
    """Return the migrated files as one program.

    Raises:
        CannotMigrate: they would go wrong.
    """
    result = joined({path: Source(text) for path, text in after.items()})
    found = problems(result)
    if found:
        raise CannotMigrate(*_by_old_line(source, after, result, found))
    return result


def _by_old_line(
    source: Source, after: Mapping[str, bytes], result: Source, found: Sequence[tuple[cst.CSTNode, str, str]]
) -> Iterator[Finding]:
    for node, what, write in found:
        path = result.path(node)
        lines = old_lines(source.files[path].text, after[path])
        reason = " ".join(f"{what}; write {write}".split())
        yield Finding(lines.get(result.line(node), 1), reason, WRITE, blocks=True, path=path)


def _refused(contents: Mapping[str, bytes], source: Source, findings: Sequence[Finding]) -> list[Migration]:
    """Return the files as they are: those with reasons say these, the others that they share the session."""
    refused = sorted({found.path for found in findings if found.blocks})
    done = []
    for path, content in contents.items():
        found = _of(findings, path)
        if path not in refused:
            found = (*found, _shared(source.files[path], path, ", ".join(refused)))
        done.append(Migration(path, content, content, (), tuple(sorted(found))))
    return done


def _shared(source: Source, path: str, by: str) -> Finding:
    line = min((source.line(node) for node in _first_use(source)), default=1)
    what = f"this file shares a session with {by}, which cannot be migrated"
    return Finding(line, what, "see the reasons given for that file", blocks=True, path=path)


def _first_use(source: Source) -> list[cst.Call]:
    words = ("scale", "step", "scale_loss", "initialize", "GradScaler", "autocast", "state_dict")
    return [call for word in words for call in source.methods(word)][:1] or source.of(cst.Call)[:1]


def _of(findings: Sequence[Finding], path: str) -> tuple[Finding, ...]:
    return tuple(sorted(found for found in findings if found.path == path))
