"""``unifiedamp migrate`` on files: what it shows, what it writes, what it refuses."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from migrating import listing
from typer.testing import CliRunner

from unifiedamp.cli import app
from unifiedamp.migrate import files
from unifiedamp.migrate.engine import migrate

LEFT = """\
from torch.amp import GradScaler, autocast

scaler = GradScaler("cuda")
other = GradScaler("cuda")
"""


@pytest.fixture
def old(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("train.py")
    path.write_text(listing("torch_amp"), encoding="utf-8")
    return path


def command(*arguments):
    return CliRunner().invoke(app, ["migrate", *map(str, arguments)], prog_name="unifiedamp")


def test_a_dry_run_shows_the_diff_and_changes_nothing(old):
    before = old.read_bytes(), old.stat().st_mtime_ns
    done = command(old)
    assert done.exit_code == 0
    assert '-    scaler = torch.amp.GradScaler("cpu")  # scales the loss\n' in done.stdout
    assert '+    amp = ua.Amp("torch", policy="mixed_float16", device="cpu")  # scales the loss\n' in done.stdout
    assert "train.py: migrated (torch.amp)" in done.stdout
    assert "--write" in done.stdout
    assert (old.read_bytes(), old.stat().st_mtime_ns) == before
    assert os.listdir() == ["train.py"]


def test_the_diff_can_be_applied(old):
    done = command("--json", old)
    (one,) = json.loads(done.stdout)["files"]
    subprocess.run(["patch", "-p1"], input=one["diff"] + "\n", text=True, check=True, capture_output=True, timeout=60)
    patched = old.read_text()
    old.write_text(listing("torch_amp"))
    command("--write", old)
    assert old.read_text() == patched


def test_write_changes_the_file_and_a_second_run_finds_nothing(old):
    old.chmod(0o640)
    assert command("--write", old).exit_code == 0
    text = old.read_text(encoding="utf-8")
    assert "amp.step(optimizer)" in text
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert os.listdir() == ["train.py"]
    again = command("--check", old)
    assert (again.exit_code, again.stdout) == (0, "train.py: nothing to migrate\n")
    assert old.read_text(encoding="utf-8") == text


def test_write_leaves_the_old_file_when_it_fails(old, monkeypatch):
    before = old.read_bytes()
    monkeypatch.setattr(files.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    done = command("--write", old)
    assert done.exit_code == 2
    assert done.stderr == "unifiedamp: train.py: No space left on device\n"
    assert old.read_bytes() == before
    assert os.listdir() == ["train.py"]


def test_write_follows_a_link(old):
    Path("link.py").symlink_to(old)
    command("--write", "link.py")
    assert Path("link.py").is_symlink()
    assert "amp.step(optimizer)" in old.read_text(encoding="utf-8")


def test_check_tells_by_its_exit_code(old):
    assert command("--check", old).exit_code == 1
    Path("plain.py").write_text("x = 1\n")
    assert command("--check", "plain.py").exit_code == 0
    Path("left.py").write_text(LEFT)
    assert command("--check", "left.py").exit_code == 1


def test_what_it_cannot_do_is_said_by_line(old):
    Path("left.py").write_text(LEFT)
    done = command("--write", "left.py")
    assert done.exit_code == 0
    assert "left.py: by hand\nleft.py:3: a GradScaler that nothing here uses: remove it; where" in done.stdout
    assert Path("left.py").read_text() == LEFT


def test_json_holds_what_is_shown(old):
    Path("left.py").write_text(LEFT)
    done = command("--json", "left.py", old)
    left, migrated = json.loads(done.stdout)["files"]
    assert (left["status"], left["diff"], left["written"]) == ("by hand", "", False)
    assert (left["by_hand"][0]["line"], left["by_hand"][0]["blocks"]) == (3, True)
    assert (migrated["status"], migrated["apis"], migrated["by_hand"]) == ("migrated", ["torch.amp"], [])
    assert migrated["diff"].startswith("--- a/train.py\n+++ b/train.py\n")


def test_a_folder_is_every_python_file_in_it(old):
    Path("pack/age").mkdir(parents=True)
    Path("pack/age/deep.py").write_text(listing("torch_amp"))
    Path("pack/notes.txt").write_text("GradScaler(")
    Path("pack/plain.py").write_text("x = 1\n")
    done = command("--write", "pack")
    assert "pack/age/deep.py: written (torch.amp)" in done.stdout
    assert "pack: 2 files: 1 written, 0 by hand, 1 with nothing to do" in done.stdout
    assert "plain" not in done.stdout
    assert "notes" not in done.stdout


def test_files_of_a_folder_that_share_nothing_with_a_refused_one_are_written(old):
    Path("pack").mkdir()
    Path("pack/good.py").write_text(listing("torch_amp"))
    Path("pack/left.py").write_text(LEFT)
    done = command("--write", "pack")
    assert done.exit_code == 0
    assert "pack: 2 files: 1 written, 1 by hand, 0 with nothing to do" in done.stdout
    assert "amp.step(optimizer)" in Path("pack/good.py").read_text()
    assert Path("pack/left.py").read_text() == LEFT
    assert command("--check", "pack").exit_code == 1
    assert "migrate --to compat pack" in done.stdout


def test_a_folder_with_a_file_that_cannot_be_written_is_put_back(old, monkeypatch):
    Path("pack").mkdir()
    for name in ("a", "b"):
        Path(f"pack/{name}.py").write_text(listing("torch_amp"))
    real = files._replace

    def fail_on_b(path, content):
        if path.name == "b.py":
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(files, "_replace", fail_on_b)
    assert command("--write", "pack").exit_code == 2
    assert Path("pack/a.py").read_text() == listing("torch_amp")


def test_environments_and_installed_packages_are_skipped(old):
    for folder in (".venv/lib", "lib/site-packages/x", "node_modules/y", ".git", "mine", "made"):
        Path("pack", folder).mkdir(parents=True)
        Path("pack", folder, "train.py").write_text(listing("torch_amp"))
    Path("pack/made/pyvenv.cfg").write_text("home = /usr\n")
    done = command("pack")
    assert "pack/mine/train.py: migrated" in done.stdout
    assert "pack: 1 files: 1 migrated" in done.stdout


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"scaler = GradScaler(\n", "wrong.py:1: not valid Python: '(' was never closed\n"),
        (b"# nothing of interest\nif\n", "wrong.py:2: not valid Python"),
        (b"x = 'GradScaler \xff'\n", "wrong.py"),
        (b"# -*- coding: nowhere -*-\nGradScaler()\n", "wrong.py: cannot be read as Python"),
        (b"GradScaler()\0\n", "wrong.py"),
        (None, "wrong.py: No such file or directory"),
    ],
)
def test_a_wrong_file_gets_one_line_and_the_others_are_done(old, content, wanted):
    if content is not None:
        Path("wrong.py").write_bytes(content)
    done = command("--write", "wrong.py", old)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"unifiedamp: {wanted}")
    assert done.stderr.count("\n") == 1
    assert "amp.step(optimizer)" in old.read_text(encoding="utf-8")


def test_without_libcst_it_says_what_to_install(old, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = command(old)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "unifiedamp: migrate needs libcst: pip install libcst\n"


def test_other_commands_do_not_load_libcst():
    code = "import sys, unifiedamp, unifiedamp.cli; print('libcst' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout == "False\n"


def test_line_ends_encoding_and_the_rest_of_the_text_are_kept():
    text = listing("torch_amp").replace("\n", "\r\n").replace("A classifier", "Ein Klassifikator für Äpfel")
    content = ("# -*- coding: latin-1 -*-\r\n" + text).encode("latin-1")
    after = migrate("old.py", content).after
    assert b"\n" not in after.replace(b"\r\n", b"")
    assert "für Äpfel".encode("latin-1") in after
    kept = [line for line in content.split(b"\r\n") if b"scaler" not in line and b"autocast" not in line]
    kept = [line for line in kept if b"clip_grad" not in line and b"Unscales" not in line and b"Updates" not in line]
    new = after.split(b"\r\n")
    assert [line for line in kept if line not in new] == []
