"""The public workflow and the Dockerfiles: well-formed, and what they call is there.

usage: test_recipes.py SOURCE_DIR        (status 77 where Python has no yaml)
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any, Dict, List

try:
    import yaml
except ImportError:
    sys.exit(77)

SOURCE = sys.argv[1]
failures: List[str] = []


def fail(text: str) -> None:
    failures.append(text)


def read(path: str) -> str:
    with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
        return file.read()


def known_targets() -> List[str]:
    return re.search(r"^\.PHONY: (.*)$", read("Makefile"), re.M).group(1).split()


def known_options() -> List[str]:
    """What -D may set: the project's own options."""
    lists = read("CMakeLists.txt") + read("src/run/cuda/CMakeLists.txt")
    return re.findall(r"^\s*(?:option|set)\((WEFT_[A-Z_]+)", lists, re.M)


def check_shell(where: str, script: str) -> None:
    """A script that bash reads, whose files, make targets and CMake options exist."""
    if subprocess.run(["bash", "-n"], input=script, text=True).returncode:
        fail(f"{where}: not a shell script: {script}")
    for part in re.split(r"&&|\|\||;|\n", script):
        words = [word for word in part.split() if word != "time"]
        if not words:
            continue
        if words[0].startswith((".ci/", "scripts/", "./")) and not os.access(os.path.join(SOURCE, words[0]), os.X_OK):
            fail(f"{where}: no program {words[0]}")
        if words[0] == "make":
            for word in words[1:]:
                if not word.startswith("-") and "=" not in word and word not in known_targets():
                    fail(f"{where}: make has no target {word}")
        for option in re.findall(r"-D(WEFT_\w+)", part):
            if option not in known_options():
                fail(f"{where}: CMake has no option {option}")


def check_workflow(path: str) -> None:
    flow: Dict[Any, Any] = yaml.safe_load(read(path))
    # YAML 1.1 reads the key `on` as true.
    if not set(flow) >= {"name", True, "jobs"} or not set(flow[True]) >= {"push", "pull_request"}:
        fail(f"{path}: has {list(flow)}")
    if flow.get("defaults", {}).get("run", {}).get("shell") != "bash":
        fail(f"{path}: in containers the shell of a step is sh unless it says bash")
    machines = set()
    for name, job in flow["jobs"].items():
        matrix = job.get("strategy", {}).get("matrix", {})
        for used in re.findall(r"\$\{\{ *matrix\.(\w+) *\}\}", str(job)):
            if used not in matrix:
                fail(f"{path}: {name} uses matrix.{used}, which it does not have")
        machines.update(matrix.get("machine", [job["runs-on"]]))
        if not isinstance(job.get("timeout-minutes"), int):
            fail(f"{path}: {name} has no end")
        for step in job["steps"]:
            if ("run" in step) == ("uses" in step):
                fail(f"{path}: {name}: a step either runs or uses something: {step}")
            if "uses" in step and not re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]):
                fail(f"{path}: {name}: {step['uses']} names no version")
            if "run" in step:
                check_shell(f"{path}: {name}", step["run"])
    if not (any("arm" in machine for machine in machines) and any("arm" not in machine for machine in machines)):
        fail(f"{path}: not both architectures: {machines}")


def check_dockerfile(path: str) -> None:
    stages: List[str] = []
    known = "FROM RUN COPY ENTRYPOINT CMD ENV WORKDIR".split()
    for line in re.sub(r"\\\n", " ", read(path)).splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word not in known:
            fail(f"{path}: {word} is none of {known}")
        elif word == "FROM":
            stages.append(rest.partition(" AS ")[2])
            if ":" not in rest.split()[0]:
                fail(f"{path}: {rest} names no version")
        elif not stages:
            fail(f"{path}: {line} before FROM")
        elif word == "RUN":
            check_shell(path, rest)
        elif word == "COPY":
            origin = re.match(r"--from=(\w+) ", rest)
            if origin and origin.group(1) not in stages[:-1]:
                fail(f"{path}: no stage {origin.group(1)} before this one")
            if not origin and not os.path.exists(os.path.join(SOURCE, rest.split()[0])):
                fail(f"{path}: no {rest.split()[0]} to copy")
        elif word in ("ENTRYPOINT", "CMD") and not isinstance(yaml.safe_load(rest), list):
            fail(f"{path}: {line} is not a list")


for folder, check in ((".github/workflows", check_workflow), ("docker", check_dockerfile)):
    for file in sorted(os.listdir(os.path.join(SOURCE, folder))):
        check(os.path.join(folder, file))
for text in failures:
    print(f"test_recipes: {text}", file=sys.stderr)
sys.exit(1 if failures else 0)
