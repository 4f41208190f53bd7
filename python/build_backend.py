"""Builds the wheel of package weft (PEP 517): libweft and the command by CMake, beside the Python files.

It needs nothing from the network. There is no extension module, so one wheel per architecture serves every Python;
its platform tag is the oldest glibc that the two binaries run on.

Settings (``pip install . -C key=value``): ``build-dir`` takes the binaries from a build that exists, ``cmake`` adds flags
(``-C cmake=-DWEFT_CUDA=OFF``; so does the variable CMAKE_ARGS). What is built, and what leaves kernels out that take
long, is told in one line, which pip shows with ``-v``.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-wheel"
Settings = Optional[Dict[str, Any]]


def _version() -> str:
    match = re.search(r"project\(weft VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert match is not None
    return match.group(1)


def _quoted(text: str) -> List[str]:
    return re.findall(r'"([^"]*)"', text)


def _metadata() -> str:
    project = (ROOT / "pyproject.toml").read_text()

    def field(name: str) -> str:
        match = re.search(rf"^{name} = (.*?)$(?=\n\S|\n\n|\Z)", project, flags=re.M | re.S)
        assert match is not None
        return match.group(1)

    lines = [
        "Metadata-Version: 2.1",
        "Name: weft",
        f"Version: {_version()}",
        f"Summary: {_quoted(field('description'))[0]}",
    ]
    lines += [f"Requires-Python: {_quoted(field('requires-python'))[0]}", "License: Apache-2.0"]
    lines += [f"Classifier: {c}" for c in _quoted(re.search(r"classifiers = \[(.*?)\]", project, flags=re.S).group(1))]  # type: ignore[union-attr]
    extras = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    for line in filter(None, extras.splitlines()):
        extra = line.partition("=")[0].strip()
        lines += [f"Provides-Extra: {extra}"]
        lines += [f'Requires-Dist: {need}; extra == "{extra}"' for need in _quoted(line)]
    lines += ["Description-Content-Type: text/markdown", "", (ROOT / "README.md").read_text()]
    return "\n".join(lines)


def _told(cache: str, jobs: str) -> str:
    """What a configured build will make."""
    line = f"weft: building libweft for {platform.machine()} with {jobs} jobs"
    if not re.search(r"^WEFT_CUDA:BOOL=(ON|1|TRUE|YES)$", cache, flags=re.M | re.I):
        return f"{line}, for CPUs only"
    if not re.search(r"^WEFT_CUDA_KERNELS:BOOL=(ON|1|TRUE|YES)$", cache, flags=re.M | re.I):
        return f"{line}, without the kernels of GPUs"
    kernels = len(re.findall(r"^weft_fatbin\(", (ROOT / "src/run/cuda/CMakeLists.txt").read_text(), flags=re.M))
    return (
        f"{line} and {kernels} files of kernels for GPUs, each up to a minute of a core; "
        "-C cmake=-DWEFT_CUDA=OFF leaves them out"
    )


def _binaries(settings: Settings) -> Tuple[Path, Path]:
    """libweft.so and the command, built unless a build is given."""
    settings = settings or {}
    given = settings.get("build-dir")
    build = ROOT / given if given else BUILD
    if not given:
        cmake = settings.get("cmake", [])
        flags = ([cmake] if isinstance(cmake, str) else list(cmake)) + shlex.split(os.environ.get("CMAKE_ARGS", ""))
        jobs = str(len(os.sched_getaffinity(0)))
        subprocess.run(
            ["cmake", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DWEFT_TESTS=OFF", "-DWEFT_PORTABLE=ON", *flags], check=True
        )
        print(_told((build / "CMakeCache.txt").read_text(), jobs), file=sys.stderr, flush=True)
        subprocess.run(["cmake", "--build", build, "-j", jobs, "--target", "weft", "weft_command"], check=True)
    library, command = (build / "libweft.so").resolve(), build / "weft"
    for binary in (library, command):
        if not binary.is_file():
            raise FileNotFoundError(f"{binary} was not built")
    return library, command


def _tag(binaries: List[Path]) -> str:
    """manylinux_2_X: the newest symbol version of glibc that any of them asks for, 2.28 at least."""
    asked = {int(v) for b in binaries for v in re.findall(rb"\0GLIBC_2\.(\d+)(?=[\0.])", b.read_bytes())}
    return f"py3-none-manylinux_2_{max(asked | {28})}_{platform.machine()}"


class _Wheel:
    def __init__(self, folder: str, tag: str) -> None:
        self.info = f"weft-{_version()}.dist-info"
        self.name = f"weft-{_version()}-{tag}.whl"
        self.tag = tag
        self.file = zipfile.ZipFile(Path(folder) / self.name, "w", zipfile.ZIP_DEFLATED)
        self.record: List[str] = []

    def add(self, name: str, data: bytes, executable: bool = False) -> None:
        entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        self.file.writestr(entry, data, zipfile.ZIP_DEFLATED)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self) -> str:
        self.add(f"{self.info}/METADATA", _metadata().encode())
        pure = "false" if "linux" in self.tag else "true"
        self.add(
            f"{self.info}/WHEEL",
            f"Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: {pure}\nTag: {self.tag}\n".encode(),
        )
        self.add(f"{self.info}/entry_points.txt", _entry_points().encode())
        self.add(f"{self.info}/LICENSE", (ROOT / "LICENSE").read_bytes())
        name = f"{self.info}/RECORD"
        self.file.writestr(
            zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), "\n".join([*self.record, f"{name},,", ""])
        )
        self.file.close()
        return self.name


def _entry_points() -> str:
    """The command, and the entry point by which torch finds the backend."""
    return "[console_scripts]\nweft = weft.__main__:main\n"


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    """PEP 517: the wheel, by its name in ``wheel_directory``."""
    library, command = _binaries(config_settings)
    wheel = _Wheel(wheel_directory, _tag([library, command]))
    for source in sorted((ROOT / "python" / "weft").rglob("*")):
        if source.suffix == ".py" or source.name == "py.typed":
            wheel.add(str(source.relative_to(ROOT / "python")), source.read_bytes())
    wheel.add("weft/_lib/libweft.so", _stripped(library), executable=True)
    wheel.add("weft/_lib/weft", _stripped(command), executable=True)
    wheel.add("weft/_lib/weft.h", (ROOT / "include" / "weft" / "weft.h").read_bytes())
    return wheel.close()


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """What a wheel says of itself, which takes no build: else pip makes the wheel while it says that it prepares."""
    info = Path(metadata_directory) / f"weft-{_version()}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(_metadata())
    (info / "entry_points.txt").write_text(_entry_points())
    return info.name


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    """PEP 660: the package where it stands in the clone, with the library that ``make`` builds there."""
    wheel = _Wheel(wheel_directory, "py3-none-any")
    wheel.add("weft.pth", f"{ROOT / 'python'}\n".encode())
    return wheel.close()


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """PEP 517: everything a build needs, as it stands in the clone."""
    base = f"weft-{_version()}"
    with tarfile.open(Path(sdist_directory) / f"{base}.tar.gz", "w:gz") as out:
        for path in sorted(
            p for p in ROOT.iterdir() if p.name not in ("demo-out",) and not p.name.startswith((".", "build"))
        ):
            out.add(path, f"{base}/{path.name}", filter=lambda t: None if "__pycache__" in t.name else t)
        metadata = Path(sdist_directory) / "PKG-INFO"
        metadata.write_text(_metadata())
        out.add(metadata, f"{base}/PKG-INFO")
        metadata.unlink()
    return f"{base}.tar.gz"


def _stripped(binary: Path) -> bytes:
    """Without debugging symbols, where `strip` is at hand."""
    if shutil.which("strip") is None:
        return binary.read_bytes()
    copy = binary.with_name(binary.name + ".stripped")
    subprocess.run(["strip", "--strip-unneeded", "-o", copy, binary], check=True)
    try:
        return copy.read_bytes()
    finally:
        copy.unlink()
