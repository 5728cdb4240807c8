"""The process of ``replica_cases.py``: logical devices must be made before TensorFlow starts."""

from __future__ import annotations

import functools
import json
import os
import select
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked

LIMIT = 600
"""Seconds that one case may take, with the start of the process."""


def answer_requests(run: Callable[[str, str], Any]) -> None:
    """Answer each line ``CASE FORM`` of standard input by a line of JSON: what ``run`` returned, or its traceback."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks print is no answer
    for line in sys.stdin:
        try:
            answer = {"returned": run(*line.split())}
        except BaseException:
            answer = {"raised": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


class ReplicaCases:
    """Case → form → what it returned. Each runs once, when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, str(Path(__file__).with_name("replica_cases.py"))]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._errors = folder / "errors.txt"
        with self._errors.open("w") as errors:
            self._process = forked.Popen(command, forked.PIPE, forked.PIPE, errors, env=environment, text=True)
        self._answers: dict[tuple[str, str], Any] = {}

    def __getitem__(self, case: str) -> _Forms:
        return _Forms(functools.partial(self._answer, case))

    def _answer(self, case: str, form: str) -> Any:
        if (case, form) not in self._answers:
            self._answers[case, form] = self._ask(case, form)
        return self._answers[case, form]

    def _ask(self, case: str, form: str) -> Any:
        process = self._process
        if process.poll() is None:
            print(case, form, file=process.stdin, flush=True)
            line = process.stdout.readline() if select.select([process.stdout], [], [], LIMIT)[0] else ""
        else:
            line = ""
        if not line:
            process.kill()
            raise RuntimeError(f"case {case} in form {form} gave no answer:\n{self._errors.read_text()[-4000:]}")
        answer = json.loads(line)
        if "raised" in answer:
            raise RuntimeError(f"case {case} in form {form} failed:\n{answer['raised']}")
        return answer["returned"]

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        with self._process:
            self._process.kill()


class _Forms:
    def __init__(self, ask: Callable[[str], Any]) -> None:
        self._ask = ask

    def __getitem__(self, form: str) -> Any:
        return self._ask(form)
