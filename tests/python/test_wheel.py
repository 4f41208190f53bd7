"""The wheel: it installs, has the library and the command inside, and works away from the sources."""

import os
import platform
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import support

SOURCE = Path(os.environ["WEFT_SOURCE"])
BUILD = Path(os.environ["WEFT_LIBRARY"]).parent


class Wheel(unittest.TestCase):
    def test_it_installs_and_works_by_itself(self) -> None:
        support.need("pip")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "PYTHON"))}

        def python(*arguments: str, **options: str) -> str:
            run = subprocess.run(
                [sys.executable, *arguments], cwd=folder, env={**environment, **options}, capture_output=True, text=True
            )
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            return run.stdout

        with tempfile.TemporaryDirectory() as folder:
            python(
                "-m",
                "pip",
                "wheel",
                "-q",
                "--no-index",
                "--no-deps",
                "--no-build-isolation",
                "-w",
                folder,
                "-C",
                f"build-dir={BUILD}",
                str(SOURCE),
            )
            (wheel,) = Path(folder).glob("weft-*.whl")
            self.assertRegex(wheel.name, rf"^weft-[\d.]+-py3-none-manylinux_2_\d+_{platform.machine()}\.whl$")
            names = zipfile.ZipFile(wheel).namelist()
            for name in (
                "weft/_lib/libweft.so",
                "weft/_lib/weft",
                "weft/_lib/weft.h",
                "weft/py.typed",
                "weft/group.py",
            ):
                self.assertIn(name, names)
            self.assertFalse([n for n in names if "__pycache__" in n])
            place = str(Path(folder) / "place")
            python("-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", place, str(wheel))
            program = "import weft, weft._library as l; print(l.library_path); g = weft.init(); g.barrier(); print(g, weft.__version__)"
            printed = python("-c", program, PYTHONPATH=place).splitlines()
            self.assertEqual(printed[0], str((Path(place) / "weft" / "_lib" / "libweft.so").resolve()))
            version = printed[1].rpartition(" ")[2]
            self.assertEqual(printed[1], f"<weft.Group rank 0 of 1> {version}")
            self.assertEqual(python("-m", "weft", "--version", PYTHONPATH=place), f"weft {version}\n")
            self.assertEqual(
                python(
                    "-c", "import weft, sys; print('numpy' in sys.modules, 'torch' in sys.modules)", PYTHONPATH=place
                ),
                "False False\n",
            )

    def test_a_build_tells_what_takes_long(self) -> None:
        sys.path.insert(0, str(SOURCE / "python"))
        import build_backend

        both = "WEFT_CUDA:BOOL=ON\nWEFT_CUDA_KERNELS:BOOL=ON\n"
        self.assertRegex(build_backend._told(both, "2"), r"with 2 jobs and \d\d files .* -C cmake=-DWEFT_CUDA=OFF")
        self.assertRegex(build_backend._told(both.replace("ON\n", "OFF\n", 1), "2"), "for CPUs only$")
        self.assertRegex(build_backend._told("WEFT_CUDA:BOOL=1\nWEFT_CUDA_KERNELS:BOOL=OFF\n", "2"), "without the kernels")

    def test_an_editable_install_uses_the_clone(self) -> None:
        sys.path.insert(0, str(SOURCE / "python"))
        import build_backend

        with tempfile.TemporaryDirectory() as folder:
            wheel = zipfile.ZipFile(Path(folder) / build_backend.build_editable(folder))
            prepared = build_backend.prepare_metadata_for_build_wheel(folder)
            self.assertEqual((Path(folder) / prepared / "METADATA").read_bytes(), wheel.read(f"{prepared}/METADATA"))
            self.assertEqual(wheel.read("weft.pth").decode(), f"{SOURCE / 'python'}\n")
            sdist = build_backend.build_sdist(folder)
            self.assertTrue((Path(folder) / sdist).stat().st_size > 100000)


support.main()
