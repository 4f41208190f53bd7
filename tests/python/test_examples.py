"""The examples run, on sizes that take no time, and so does what the README shows first."""

import contextlib
import importlib.util
import io
import os
import unittest
from pathlib import Path
from typing import Any, List

import support

support.need("torch")

import weft.torch  # noqa: E402, F401

SOURCE = Path(os.environ["WEFT_SOURCE"])


def example(rank: int, name: str, arguments: List[str]) -> str:
    """What an example prints on this rank."""
    for stream in (1, 2):  # gloo prints what it connects to
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    spec: Any = importlib.util.spec_from_file_location(name, SOURCE / "examples" / "python" / f"{name}.py")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if hasattr(module, "main"):
            module.main(arguments)
    return printed.getvalue()


class Examples(unittest.TestCase):
    def lines(self, name: str, *arguments: str, size: int = 2) -> List[str]:
        return support.ranks(size, example, name, list(arguments))[0].splitlines()

    def test_quickstart(self) -> None:
        self.assertEqual(self.lines("quickstart"), [])

    def test_the_readme_shows_the_quickstart(self) -> None:
        text = (SOURCE / "README.md").read_text()
        shown = [line.strip() for line in text.partition("## In Python")[2].partition("\n## ")[0].splitlines()]
        code = [line.partition("  #")[0].strip() for line in shown if line]
        for line in (SOURCE / "examples" / "python" / "quickstart.py").read_text().splitlines()[2:]:
            plain = line.partition("  #")[0].strip()
            if plain and not plain.startswith("assert"):
                self.assertIn(plain, code)


support.main()
