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

import weft.torch.compile  # noqa: E402, F401

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

    def test_all_reduce(self) -> None:
        lines = self.lines("all_reduce", "--max-bytes", "4096", "--iterations", "2")
        self.assertEqual([line.split()[0] for line in lines], ["all_reduce", "bytes", "1024", "4096"])

    def test_all_gather_matmul(self) -> None:
        lines = self.lines("all_gather_matmul", "--M", "8", "--N", "16", "--K", "8", "--iterations", "1")
        self.assertEqual(lines[-1].split()[0], "8")

    def test_llama_layer(self) -> None:
        sizes = ["--hidden", "64", "--inter", "96", "--kv", "16", "--tokens", "4", "--iterations", "1"]
        for more in ([], ["--backward"]):
            self.assertEqual(self.lines("llama_layer", *sizes, *more)[-1].split()[0], "4")

    def test_dtensor(self) -> None:
        sizes = ["--hidden", "32", "--inter", "64", "--tokens", "8", "--steps", "3"]
        losses = [
            [line.split(",")[0] for line in self.lines("dtensor", "--backend", backend, *sizes)]
            for backend in ("gloo", "weft")
        ]
        self.assertEqual(len(losses[0]), 3)
        self.assertEqual(losses[0], losses[1])

    def test_serving(self) -> None:
        self.assertEqual(self.lines("serving"), ["the adapters give what gloo gives, on 2 ranks"])

    def test_strategies(self) -> None:
        lines = self.lines("strategies", "--tokens", "8", "--hidden", "32", "--inter", "48", "--iterations", "1")
        self.assertEqual(len(lines), 11)

    def test_moe_layer(self) -> None:
        sizes = ["--tokens", "6", "--hidden", "32", "--inter", "16", "--experts", "4", "--topk", "2", "--iterations", "1"]
        self.assertEqual(self.lines("moe_layer", *sizes)[-1].split()[0], "6")


support.main()
