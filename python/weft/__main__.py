"""``python -m weft …`` is the command ``weft``, as the package has it inside."""

import os
import sys
from pathlib import Path

from ._library import library_path


def main() -> None:
    """Becomes the command."""
    command = library_path.parent / "weft"
    if not os.access(command, os.X_OK):
        sys.exit(f"weft: there is no command beside {library_path}")
    os.execv(command, [str(Path(command)), *sys.argv[1:]])


if __name__ == "__main__":
    main()
