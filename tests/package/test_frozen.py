#!/usr/bin/env python3
"""The interface of 0.2 as header-0.2 has it, held against today's header and library.

A C file is made of the frozen header: it includes today's, declares everything of the frozen one again, its
structs and enumerators under other names, and asserts that they are the same. The compiler then says what
became different: the place, size or type of a field, the size of a struct that cannot grow, the size that is
asked of one that can, the value of an enumerator, a function's parameters, a macro. With a header that differs
in any struct, enum or function it must say so. The library must have every function under the version it came
with.

usage: test_frozen.py COMPILER NM FROZEN_HEADER HEADER LIBRARY
"""
import os
import re
import subprocess
import sys
import tempfile

# What is not compared: the version is what becomes different, and the others are the header's own means.
OWN_MACROS = re.compile(r"WEFT_(VERSION_\w+|API|WEFT_H)$")

SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src")


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def without_directives(text):
    return re.sub(r"^#(?:.*\\\n)*.*$", "", text, flags=re.M)


def macros(text):
    """The #define lines, as they stand: defining one again otherwise is an error."""
    lines = re.findall(r"^#define (?:.*\\\n)*.*$", text, flags=re.M)
    return [line for line in lines if not OWN_MACROS.match(re.match(r"#define (\w+)", line).group(1))]


def fields(body):
    """The names of a struct's members: behind each comma, before brackets, or as (*name) of a function."""
    names = []
    for member in (one.strip() for one in body.split(";")):
        if not member:
            continue
        function = re.match(r"[^(]*\(\*(\w+)\)", member)
        if function:
            names.append(function.group(1))
            continue
        names += [re.search(r"(\w+)\s*(?:\[[^]]*\])?\s*$", one).group(1) for one in member.split(",")]
    return names


class Interface:
    def __init__(self, header):
        text = without_comments(header)
        self.macros = macros(text)
        text = without_directives(text)
        self.structs = dict(re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, flags=re.S))
        self.enums = dict(re.findall(r"typedef enum (\w+) \{(.*?)\} \1;", text, flags=re.S))
        self.functions = re.findall(r"WEFT_API ([^;]*?\b(weft_\w+)\([^;]*\));", text)
        self.callbacks = re.findall(r"typedef [^;{]*\(\*\w+\)[^;]*;", text)

    def names(self):
        return [name for _, name in self.functions]

    def sized(self, struct):
        return self.structs[struct].strip().startswith("size_t size;")

    def assertions(self):
        lines = ['#include "api/least.h"', "#include <weft/weft.h>", *self.macros, *self.callbacks]
        for body in self.enums.values():
            lines.append("enum {%s};" % re.sub(r"\bWEFT_", "FROZEN_WEFT_", body))
            for name in re.findall(r"\bWEFT_\w+", body):
                lines.append('_Static_assert((int)%s == (int)FROZEN_%s, "%s");' % (name, name, name))
        for struct, body in self.structs.items():
            lines.append("struct frozen_%s {%s};" % (struct, body))
            lines.append('_Static_assert(sizeof(%s) %s sizeof(struct frozen_%s), "size of %s");'
                         % (struct, ">=" if self.sized(struct) else "==", struct, struct))
            if self.sized(struct):
                least = struct.upper() + "_LEAST"
                lines.append('_Static_assert(%s <= sizeof(struct frozen_%s), "%s");' % (least, struct, least))
            for field in fields(body):
                if field == "reserved":  # what it becomes has its place
                    continue
                what = '"%s.%s"' % (struct, field)
                lines.append("_Static_assert(offsetof(%s, %s) == offsetof(struct frozen_%s, %s), %s);"
                             % (struct, field, struct, field, what))
                lines.append("_Static_assert(__builtin_types_compatible_p(__typeof__(((%s *)0)->%s), "
                             "__typeof__(((struct frozen_%s *)0)->%s)), %s);" % (struct, field, struct, field, what))
        # Used before they are declared again: today's header must have them.
        lines.append("void (*const functions[])(void) = {%s};"
                     % ", ".join("(void (*)(void))%s" % name for name in self.names()))
        lines += [declaration + ";" for declaration, _ in self.functions]
        return "\n".join(lines) + "\n"


def mutations(header, interface):
    """Today's header with one thing different, and what: each must be found."""
    for struct in interface.structs:
        yield struct, re.sub(r"(typedef struct %s \{)" % struct, r"\1 char earlier;", header)
        if not interface.sized(struct):
            yield struct, re.sub(r"\} %s;" % struct, r"char later; } %s;" % struct, header)
    for enum in interface.enums:
        yield enum, re.sub(r"(\w+\s*\} %s;)" % enum, r"EARLIER_%s, \1" % enum, header)
    for name in interface.names():
        yield name, re.sub(r"\b%s\(" % name, name + "_other(", header)
    yield "a field's type", header.replace("float alpha, beta;", "int alpha, beta;", 1)
    yield "a parameter", header.replace("size_t alignment, void **pointer", "int alignment, void **pointer", 1)
    yield "a macro", header.replace("#define WEFT_SIGNAL_BYTES 128", "#define WEFT_SIGNAL_BYTES 64", 1)


def compile_with(compiler, folder, header, *more):
    os.makedirs(os.path.join(folder, "weft"), exist_ok=True)
    with open(os.path.join(folder, "weft", "weft.h"), "w", encoding="utf-8") as file:
        file.write(header)
    return subprocess.run([compiler, "-std=c11", "-Werror", "-I", folder, "-I", SOURCES,
                           os.path.join(folder, "frozen.c"), *more], capture_output=True, text=True, check=False)


def main():
    compiler, readelf, frozen_path, header_path, library = sys.argv[1:]
    with open(frozen_path, encoding="utf-8") as file:
        frozen = Interface(file.read())
    with open(header_path, encoding="utf-8") as file:
        header = file.read()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "frozen.c"), "w", encoding="utf-8") as file:
            file.write(frozen.assertions())
        result = compile_with(compiler, folder, header, "-fsyntax-only")
        if result.returncode != 0:
            sys.exit("the interface of 0.2 has changed:\n" + result.stderr)
        missed = []
        plain = without_comments(header)
        for what, mutated in mutations(plain, frozen):
            if mutated == plain or compile_with(compiler, folder, mutated, "-fsyntax-only").returncode == 0:
                missed.append(what)
        if missed:
            sys.exit("a header that differs here was not found: " + ", ".join(missed))
    symbols = subprocess.run([readelf, "-W", "--dyn-syms", library], capture_output=True, text=True, check=True)
    has = {line.split()[-1] for line in symbols.stdout.splitlines() if line.strip() and " UND " not in line}
    gone = [name for name in frozen.names() if name + "@@WEFT_0.2" not in has]
    if gone:
        sys.exit("the library has not, as of 0.2: " + ", ".join(gone))
    print("%d structs, %d enums, %d functions, %d macros of 0.2 are as they were" % (
        len(frozen.structs), len(frozen.enums), len(frozen.functions), len(frozen.macros)))


if __name__ == "__main__":
    main()
