"""The examples run, on sizes that take no time, and so does what the README and docs/python.md show first."""

import contextlib
import importlib.util
import io
import os
import unittest
from pathlib import Path
from typing import Any, List

import support

support.need("torch")

import torch  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402

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


def snippets(rank: int) -> None:
    """The code of docs/python.md that needs no GPU, with what it leaves to its reader, on smaller sizes."""
    blocks: List[str] = []
    for line in (SOURCE / "docs" / "python.md").read_text().splitlines():
        if line.startswith("    "):
            blocks[-1] += line[4:] + "\n"
        elif line:
            blocks.append("")
    first, layers, backend, compiled = (
        next(block for block in blocks if mark in block)
        for mark in ("weft.init()", "import weft, weft.torch", "init_process_group", "compile.enable()")
    )
    names: Any = {"torch": torch, "w": torch.ones(512, 16, dtype=torch.bfloat16)}
    exec(first, names)
    assert names["y"].shape == (2 * 1024, 16) and names["y"].dtype == torch.bfloat16
    weights = {f"{part}_proj.weight": torch.ones(64, 128) for part in ("gate", "up")}
    names.update(weights_of_llama={**weights, "down_proj.weight": torch.ones(128, 64)}, x=torch.ones(3, 128, dtype=torch.bfloat16))
    exec(layers.replace("4096, 14336", "128, 64"), names)
    assert names["y"].shape == (3, 128)
    with torch.no_grad():
        torch.testing.assert_close(names["mlp"](names["x"]), names["y"], rtol=0.02, atol=0)
    exec(backend, names)
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    names.update(parallelize_module=parallelize_module, model=model, mesh=mesh, plan=plan)
    exec(compiled, names)
    torch.distributed.destroy_process_group()


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

    def test_snippets_of_the_documentation(self) -> None:
        support.ranks(2, snippets)

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
