"""What the package reads from weft.h is what a C compiler reads: every size, offset and enumerator."""

import ctypes
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import support
from weft import _header
from weft._library import header_path, interface


class Header(unittest.TestCase):
    def test_layout_is_the_compilers(self) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            self.skipTest("no C compiler")
        lines, expected = [], []
        for name, struct in interface.structs.items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            expected.append(f"{name} {ctypes.sizeof(struct)}")
            for field, _ in struct._fields_:
                member = f"(({name} *)0)->{field}"
                lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof({member}));')
                found = getattr(struct, field)
                expected.append(f"{name}.{field} {found.offset} {found.size}")
        for name, values in interface.enums.items():
            for key, value in values.items():
                lines.append(f'printf("{key} %d\\n", (int){key});')
                expected.append(f"{key} {value}")
        program = (
            "#include <stddef.h>\n#include <stdio.h>\n#include <weft/weft.h>\nint main(void){"
            + "\n".join(lines)
            + "return 0;}"
        )
        with tempfile.TemporaryDirectory() as folder:
            source, binary = Path(folder) / "layout.c", Path(folder) / "layout"
            source.write_text(program)
            include = Path(os.environ["WEFT_SOURCE"]) / "include"
            subprocess.run([compiler, "-std=c11", f"-I{include}", "-o", binary, source], check=True)
            printed = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
        self.assertEqual(printed.splitlines(), expected)

    def test_every_function_is_there(self) -> None:
        text = header_path.read_text()
        declared = text.count("WEFT_API ") - text.count("#define WEFT_API ")
        self.assertEqual(len(interface.functions), declared)
        self.assertGreater(declared, 50)

    def test_every_struct_and_enum_is_there(self) -> None:
        text = header_path.read_text()
        self.assertEqual(
            len(interface.structs),
            text.count("typedef struct")
            - sum(1 for line in text.splitlines() if line.startswith("typedef struct") and line.endswith(";")),
        )
        self.assertEqual(len([e for e in interface.enums if e]), text.count("typedef enum"))

    def test_parts_of_c_that_a_growing_header_may_use(self) -> None:
        read = _header.read(
            """
            #define WEFT_PLACES 4
            typedef enum weft_flag { WEFT_A = 1 << 2, WEFT_B, WEFT_C = WEFT_A | 0x10u } weft_flag;
            typedef struct weft_thing weft_thing;
            typedef struct weft_pair { /* two; of them */
                const void *const *row, *other; // a comment
                int64_t extent[WEFT_PLACES], step;
                void (*call)(void *context, int, const weft_thing *);
                weft_flag flag;
                const char *name;
                unsigned char id[128];
            } weft_pair;
            typedef int (*weft_gather_fn)(void *context, const void *mine, size_t bytes, void *all);
            WEFT_API weft_flag weft_meet(weft_gather_fn gather, unsigned count);
            WEFT_API weft_pair weft_make(const weft_thing *thing, weft_flag flag, void (*then)(int, void *), char *text);
            WEFT_API const char *weft_name(void);
            """
        )
        self.assertEqual(read.enums["weft_flag"], {"WEFT_A": 4, "WEFT_B": 5, "WEFT_C": 20})
        pair = read.structs["weft_pair"]
        self.assertEqual(
            [f for f, _ in pair._fields_], ["row", "other", "extent", "step", "call", "flag", "name", "id"]
        )
        self.assertEqual(
            (pair.other.offset, pair.extent.size, pair.call.offset, pair.name.offset, pair.id.size),
            (8, 32, 56, 72, 128),
        )
        make = read.functions["weft_make"]
        self.assertIs(make.restype, pair)
        self.assertEqual(make.argtypes, (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p))
        self.assertEqual(read.functions["weft_meet"].argnames, ("gather", "count"))
        self.assertEqual(read.functions["weft_meet"].argtypes, (ctypes.c_void_p, ctypes.c_uint))
        self.assertEqual(read.functions["weft_name"], _header.Function("weft_name", ctypes.c_char_p, (), ()))

    def test_an_integer_of_a_struct_refuses_what_it_cannot_hold(self) -> None:
        kind = _header.read("typedef struct weft_few { int a; size_t b; uint8_t c; int64_t d; } weft_few;").structs["weft_few"]
        for name, least, most in (("a", -(2**31), 2**31 - 1), ("b", 0, 2**64 - 1), ("c", 0, 255), ("d", -(2**63), 2**63 - 1)):
            for value in (least, most):
                self.assertEqual(getattr(kind(**{name: value}), name), value)
            for value in (least - 1, most + 1):
                with self.assertRaisesRegex(ValueError, f"weft_few.{name} is {value}; it can be from {least} to {most}"):
                    kind(**{name: value})

    def test_an_unknown_type_is_an_error(self) -> None:
        with self.assertRaisesRegex(ValueError, "wchar_t"):
            _header.read("WEFT_API int weft_wide(wchar_t c);")


support.main()
