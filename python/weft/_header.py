"""Reads weft.h: enums, structs and functions as ctypes knows them.

The header that lies beside the library is the only description of its interface. Nothing of it is written
down a second time in Python, so a struct that grows in C has grown here too. The header keeps to a small part
of C (no conditional declarations, no bit fields, one typedef per type), and that part is all that is read;
tests/python/test_header.py compares every size and offset with what a C compiler says.

Pointers are addresses (``c_void_p``), except ``const char *``, which is text.
"""

from __future__ import annotations

import ctypes as C
import re
from dataclasses import dataclass
from operator import index
from typing import Any, Dict, List, Tuple

from .errors import ArgumentError

_SCALARS: Dict[str, Any] = {
    "void": None,
    "char": C.c_char,
    "int": C.c_int,
    "unsigned": C.c_uint,
    "unsigned int": C.c_uint,
    "unsigned char": C.c_ubyte,
    "float": C.c_float,
    "double": C.c_double,
    "size_t": C.c_size_t,
    "int8_t": C.c_int8,
    "int16_t": C.c_int16,
    "int32_t": C.c_int32,
    "int64_t": C.c_int64,
    "uint8_t": C.c_uint8,
    "uint16_t": C.c_uint16,
    "uint32_t": C.c_uint32,
    "uint64_t": C.c_uint64,
}


_INTEGERS = {kind for name, kind in _SCALARS.items() if name not in ("void", "char", "float", "double")}
LIMITS: Dict[Any, Tuple[int, int]] = {
    kind: (-(1 << 8 * C.sizeof(kind) - 1), (1 << 8 * C.sizeof(kind) - 1) - 1)
    if kind(-1).value < 0
    else (0, (1 << 8 * C.sizeof(kind)) - 1)
    for kind in _INTEGERS
}
"""The least and the most that an integer of a C type can be."""


def check_number(what: str, value: Any, least: int, most: int) -> None:
    """ctypes would pass the remainder of an integer that is too large, numpy's too: root 2**32 would be root 0."""
    try:
        whole = index(value)
    except TypeError:
        raise ArgumentError(f"{what} is {value!r}; it must be an integer") from None
    if not least <= whole <= most:
        raise ArgumentError(f"{what} is {value}; it can be from {least} to {most}")


class _Number(property):
    """An integer of a struct, which refuses what it cannot hold. Read as it was, for calls read more than they write."""

    def __init__(self, field: Any, what: str, kind: Any) -> None:
        least, most = LIMITS[kind]
        self.offset, self.size = field.offset, field.size

        def put(struct: Any, value: Any) -> None:
            check_number(what, value, least, most)
            field.__set__(struct, value)

        super().__init__(field.__get__, put)


@dataclass(frozen=True)
class Function:
    """A function of the header: what it returns and takes, as ctypes types."""

    name: str
    restype: Any
    argtypes: Tuple[Any, ...]
    argnames: Tuple[str, ...]


@dataclass
class Interface:
    """What a header declares."""

    constants: Dict[str, int]
    """Every enumerator, and every ``#define`` of an integer, by name."""
    enums: Dict[str, Dict[str, int]]
    structs: Dict[str, Any]
    functions: Dict[str, Function]


def _blank(source: str) -> Tuple[str, Dict[str, int]]:
    """The declarations alone, and the integers that the preprocessor defines."""
    source = re.sub(r"/\*.*?\*/|//[^\n]*", " ", source, flags=re.S)
    source = source.replace("\\\n", " ")
    number = r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\d+)[ \t]*$"
    defines = {name: int(value) for name, value in re.findall(number, source, flags=re.M)}
    source = re.sub(r"^[ \t]*#.*$", "", source, flags=re.M)
    return re.sub(r'extern\s+"C"\s*\{', "", source), defines


def _split(text: str) -> List[str]:
    """At the commas that stand in no parentheses."""
    depth, parts = 0, [""]
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part.strip()]


# The words of a type, and the declarators after them.
_TYPED = re.compile(r"((?:(?:const|struct|enum) )*(?:unsigned (?:char|int)\b|\w+)(?: const)?)\s*(.*)$")


class _Reader:
    def __init__(self, source: str) -> None:
        self.text, defines = _blank(source)
        self.out = Interface(dict(defines), {}, {}, {})
        self.callbacks = set(re.findall(r"typedef\s[^;{}()]*\(\s*\*\s*(\w+)\s*\)", self.text))

    def type_of(self, words: List[str], stars: int) -> Any:
        name = " ".join(w for w in words if w not in ("const", "struct", "enum"))
        if stars:
            return C.c_char_p if stars == 1 and name == "char" and "const" in words else C.c_void_p
        if name in _SCALARS:
            return _SCALARS[name]
        if name in self.out.enums:
            return C.c_int
        if name in self.callbacks:
            return C.c_void_p
        if name in self.out.structs:
            return self.out.structs[name]
        raise ValueError(f"weft.h: the type '{name}' is not one this reader knows")

    def declarator(self, words: List[str], text: str) -> Tuple[str, Any]:
        """``* const *name[3]`` after the words of a type: its name and its type."""
        if "(" in text:  # a function pointer
            match = re.match(r"\(\s*\*\s*(\w+)\s*\)", text.strip())
            if match is None:
                raise ValueError(f"weft.h: cannot read '{text}'")
            return match.group(1), C.c_void_p
        stars = text.count("*")
        plain = re.sub(r"\bconst\b", " ", text.replace("*", " ")).strip()
        match = re.search(r"(\w+)?\s*((?:\[\s*\w+\s*\]\s*)*)$", plain)
        assert match is not None
        kind = self.type_of(words, stars)
        for extent in reversed(re.findall(r"\[\s*(\w+)\s*\]", match.group(2))):
            kind = kind * self.number(extent)
        return match.group(1) or "", kind

    def number(self, text: str) -> int:
        """A value of an enumerator or an extent: a number, a name, or sums and shifts of them."""
        names = self.out.constants
        decimal = re.sub(r"\b0[xX][0-9a-fA-F]+", lambda m: str(int(m.group(), 16)), text)
        decimal = re.sub(r"(?<=\d)[uUlL]+\b", "", decimal)
        value = re.sub(r"[A-Za-z_]\w*", lambda m: str(names[m.group()]), decimal)
        if not re.fullmatch(r"[\d\s()+\-*|<>]+", value):
            raise ValueError(f"weft.h: cannot read the number '{text}'")
        return int(eval(value, {"__builtins__": {}}))  # digits and operators only, see above

    def enum(self, name: str, body: str) -> None:
        values, following = {}, 0
        for item in filter(None, (part.strip() for part in body.split(","))):
            key, _, value = (part.strip() for part in item.partition("="))
            following = self.number(value) if value else following
            values[key] = self.out.constants[key] = following
            following += 1
        self.out.enums[name] = values

    def struct(self, name: str, body: str) -> None:
        fields: List[Tuple[str, Any]] = []
        for line in filter(None, (part.strip() for part in body.split(";"))):
            line = re.sub(r"\s+", " ", line)
            match = _TYPED.match(line)
            assert match is not None
            words, rest = match.group(1).split(), match.group(2)
            parts = [rest] if "(" in rest else rest.split(",")
            fields += [self.declarator(words, part) for part in parts]
        kind: Any = type(name, (C.Structure,), {"_fields_": fields, "__slots__": ()})
        for field, of in fields:
            if of in LIMITS:
                setattr(kind, field, _Number(getattr(kind, field), f"{name}.{field}", of))
        self.out.structs[name] = kind

    def function(self, line: str) -> None:
        match = re.match(r"(.*?)(\w+)\s*\((.*)\)$", re.sub(r"\s+", " ", line).strip())
        if match is None:
            raise ValueError(f"weft.h: cannot read the function '{line}'")
        result, name, inside = match.groups()

        def argument(text: str) -> Tuple[str, Any]:
            words = _TYPED.match(text.strip())
            assert words is not None
            return self.declarator(words.group(1).split(), words.group(2))

        inside = "" if inside.strip() == "void" else inside
        arguments = tuple(argument(a) for a in _split(inside))
        restype = self.type_of(result.replace("*", " ").split(), result.count("*"))
        names, kinds = tuple(a for a, _ in arguments), tuple(kind for _, kind in arguments)
        self.out.functions[name] = Function(name, restype, kinds, names)

    def read(self) -> Interface:
        pattern = re.compile(
            r"typedef\s+enum\s*\w*\s*\{(?P<enum>[^}]*)\}\s*(?P<enum_name>\w+)\s*;"
            r"|typedef\s+struct\s*\w*\s*\{(?P<struct>[^}]*)\}\s*(?P<struct_name>\w+)\s*;"
            r"|enum\s*\w*\s*\{(?P<plain>[^}]*)\}\s*;"
            r"|WEFT_API\s+(?P<function>[^;]*?)\s*;",
            flags=re.S,
        )
        for match in pattern.finditer(self.text):
            if match["enum"] is not None:
                self.enum(match["enum_name"], match["enum"])
            elif match["struct"] is not None:
                self.struct(match["struct_name"], match["struct"])
            elif match["plain"] is not None:
                self.enum("", match["plain"])
            else:
                self.function(match["function"])
        return self.out


def read(source: str) -> Interface:
    """The interface that the text of a weft.h declares."""
    return _Reader(source).read()
