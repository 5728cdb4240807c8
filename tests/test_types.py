"""What type checkers and editors see: the quickstarts pass, what ``prepare`` returns is what it was given."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
pytest.importorskip("pyright")
pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[1]
QUICKSTARTS = sorted((ROOT / "examples" / "quickstart").glob("*.py"))
CALLS = ROOT / "tests" / "typing" / "calls.py"
REVEALED = {
    "model": "Sequential",
    "optimizer": "SGD",
    "train_step": "(x: Tensor, y: Tensor) -> Tensor",
    "loss": "Tensor",
    "amp.scale_loss(loss, optimizer).__enter__().value": "Tensor",
    "amp.backward(lambda: loss, optimizer)": "Tensor",
    "amp.step(optimizer)": "StepResult",
    "amp.step(optimizer).applied": "bool",
    "amp.step(optimizer).next_scale": "float",
}
"""Expression at the end of the quickstart for torch → its type."""


@pytest.fixture(scope="module")
def revealing(tmp_path_factory):
    """The quickstart for torch, with a ``reveal_type`` of each expression at its end."""
    path = tmp_path_factory.mktemp("typed") / "revealing.py"
    text = (ROOT / "examples" / "quickstart" / "pytorch.py").read_text(encoding="utf-8")
    text += "loss = train_step(amp.to_native(images), amp.to_native(labels))\n"
    path.write_text(text + "".join(f"reveal_type({each})\n" for each in REVEALED), encoding="utf-8")
    return path


def run(*command):
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=400, check=False)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def mypy(revealing):
    """Return (file name, line, kind, message) of all that mypy says, strict and without a configuration."""
    options = ("--strict", "--config-file=", "--no-pretty", "--cache-dir", str(revealing.parent / "cache"))
    said = run("mypy", *options, *map(str, [*QUICKSTARTS, CALLS, revealing]))
    found = re.findall(r"^(.*?):(\d+): (error|note): (.*)$", said, re.MULTILINE)
    assert found, said
    return [(Path(path).name, int(line), kind, message) for path, line, kind, message in found]


@pytest.fixture(scope="module")
def pyright(revealing):
    """Return the same of pyright, of copies: beside examples/, it takes the folder mxnet there for the framework."""
    files = [str(revealing), *(shutil.copy(path, revealing.parent) for path in (*QUICKSTARTS, CALLS))]
    said = json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable, *files))
    kinds = {"error": "error", "warning": "error", "information": "note"}
    return [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, kinds[each["severity"]], each["message"])
        for each in said["generalDiagnostics"]
    ]


@pytest.fixture(params=["mypy", "pyright"])
def said(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("path", QUICKSTARTS, ids=lambda path: path.stem)
def test_the_quickstarts_pass(said, path):
    missing = ("could not be resolved", "stub file not found")  # of a framework that is not installed here
    found = [each for each in said if each[0] == path.name and each[2] == "error"]
    assert [each for each in found if not any(word in each[3] for word in missing)] == []


def test_nothing_is_any_after_prepare(said):
    revealed = [message for name, _, kind, message in said if name == "revealing.py" and kind == "note"]
    types = [plain(message) for message in revealed if "type" in message.lower()]
    assert types == [plain(f'"{each}"') for each in REVEALED.values()]
    assert not any("Any" in each or "Unknown" in each for each in types)


def plain(message: str) -> str:
    """Return the type in a message, as either checker writes it."""
    text = re.findall(r'"([^"]*)"', message)[-1]
    if text.startswith("def "):  # mypy: def (x: torch._tensor.Tensor) -> torch._tensor.Tensor
        text = text.removeprefix("def ")
    return re.sub(r"\b[a-z_]\w*\.(?=[\w.]*[A-Z])|\bbuiltins\.|\b[a-z_]+\.(?=[a-z_]+\.)", "", text)


def test_calls_are_taken_and_refused(said):
    lines = CALLS.read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if "  # wrong" in line}
    found = {line: message for name, line, kind, message in said if name == CALLS.name and kind == "error"}
    assert len(wrong) > 10
    assert {line: message for line, message in found.items() if line not in wrong} == {}
    assert wrong - found.keys() == set()


# -- editors -----------------------------------------------------------------------------------------------------------


class Editor:
    """A language server that is asked as an editor asks it."""

    def __init__(self, text: str) -> None:
        command = [sys.executable, "-m", "pyright.langserver", "--stdio"]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        self.asked, self.uri = 0, (ROOT / "not_saved.py").as_uri()
        folders = [{"uri": ROOT.as_uri(), "name": "root"}]
        self.ask("initialize", processId=None, rootUri=ROOT.as_uri(), capabilities={}, workspaceFolders=folders)
        self.send(method="initialized", params={})
        document = {"uri": self.uri, "languageId": "python", "version": 1, "text": text}
        self.send(method="textDocument/didOpen", params={"textDocument": document})

    def send(self, **message):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.server.stdin.flush()

    def receive(self):
        length = 0
        while line := self.server.stdout.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return json.loads(self.server.stdout.read(length))

    def ask(self, method, **params):
        self.asked += 1
        self.send(id=self.asked, method=method, params=params)
        while True:
            answer = self.receive()
            if "method" not in answer and answer.get("id") == self.asked:
                return answer["result"]
            if "method" in answer and "id" in answer:  # the server asks for settings
                self.send(id=answer["id"], result=[{"python": {"pythonPath": sys.executable}}])

    def complete(self, line, character):
        position = {"line": line, "character": character}
        found = self.ask("textDocument/completion", textDocument={"uri": self.uri}, position=position)
        return {each["label"].strip('"') for each in (found or {}).get("items", ())}


COMPLETED = {
    'ua.Amp("")': {"torch", "tensorflow", "mxnet"},
    'ua.Amp("torch", policy="")': {"float32", "mixed_float16", "mixed_bfloat16", "mixed_float8"},
    'ua.Amp("torch", loss_scale="")': {"dynamic", "none"},
    'ua.Amp("torch", compile="")': {"default", "max", "off"},
    'ua.Amp("torch", tuning="")': {"fast", "off"},
    'ua.Amp("torch").to_native(0, dtype="")': {"float32", "float16", "bfloat16", "float64"},
}
"""Line with the cursor between two quotes → names that are suggested there."""


@pytest.fixture(scope="module")
def editor():
    opened = Editor("\n".join(["import unifiedamp as ua", *COMPLETED, ""]))
    yield opened
    opened.server.kill()
    opened.server.communicate(timeout=60)


@pytest.mark.parametrize(("number", "call"), [*enumerate(COMPLETED, 1)])
def test_editors_complete_names(editor, number, call):
    assert COMPLETED[call] <= editor.complete(number, call.index('""') + 1)
