#!/usr/bin/env python3
"""Which source files need which, read from their text: "user definer", a line for each pair.

usage: scripts/circles.py uses|includes

uses: of C files, by the functions and variables (weft_…) that one defines and another names, itself or by way of an inline
function or a macro of a header. Objects say the same of what a build has, and also of what macros define; this is for what
it has not: src/run/cuda where there is no nvcc. includes: of headers and kernels; a kernel's functions stand in those.
"""

import pathlib
import re
import sys

SRC = pathlib.Path(__file__).resolve().parent.parent / "src"
NAME = re.compile(r"\b[a-zA-Z_]\w*\b")
NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
ELSEWHERE = r"^(?!static\b|typedef\b|extern\b|struct \w+ \{|return\b|else\b)"
FUNCTION = re.compile(ELSEWHERE + r"[A-Za-z_][\w *]*?\b(weft_\w+)\([^;{}]*\)\s*\{", re.M)
VARIABLE = re.compile(ELSEWHERE + r"[A-Za-z_][\w *]*\b(weft_\w+)(?:\[[^\]]*\])* *(?:=|;)", re.M)
POINTER = re.compile(ELSEWHERE + r"[A-Za-z_][\w *]*\(\*(weft_\w+)\)\([^;{}]*\) *(?:=|;)", re.M)
INLINE = re.compile(r"^static (?:inline|__device__)[^;{}]*?\b(\w+)\([^;{}]*\)\s*\{(.*?)^\}", re.M | re.S)
MACRO = re.compile(r"^# *define (\w+)((?:.*\\\n)*.*)$", re.M)
INCLUDE = re.compile(r'^ *# *include "([^"]+)"', re.M)


def files(*patterns):
    return {str(path.relative_to(SRC)): path.read_text() for pattern in patterns for path in sorted(SRC.rglob(pattern))}


def through_headers(names, inside):
    """What is named, and what the inline functions and macros among it name in turn."""
    seen, left = set(), list(names)
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left.extend(inside.get(name, ()))
    return seen


def uses():
    code = {name: NOT_CODE.sub(" ", text) for name, text in files("*.c").items()}
    inside = {}
    for text in files("*.h").values():
        text = NOT_CODE.sub(" ", text)
        for pattern in INLINE, MACRO:
            for name, body in pattern.findall(text):
                inside.setdefault(name, set()).update(NAME.findall(body))
    definers = {}
    for name, text in code.items():
        for pattern in FUNCTION, VARIABLE, POINTER:
            for symbol in pattern.findall(text):
                definers.setdefault(symbol, set()).add(name)
    for name, text in code.items():
        for symbol in through_headers(NAME.findall(text), inside):
            for definer in definers.get(symbol, ()):
                if definer != name and name not in definers[symbol]:
                    yield name, definer


def includes():
    text = files("*.h", "*.cuh", "*.cu")
    for name in text:
        for included in INCLUDE.findall(text[name]):
            for path in str(pathlib.PurePath(name).parent / included), included:
                if path in text:
                    yield name, path
                    break


for pair in sorted(set({"uses": uses, "includes": includes}[sys.argv[1]]())):
    print(*pair)
