"""Where the library and the programs are: in the package, as `pip install` puts them there; where a variable says; or on the system."""

from __future__ import annotations

import ctypes.util
import os
import pathlib
import sys

PACKAGE = pathlib.Path(__file__).resolve().parent

PROGRAMS = ("hicache-node", "hicache-index", "hicachectl")


def find_library() -> str:
    """libhicache.so: $HICACHE_LIBRARY, the package's own, or what the linker of this system finds."""
    named = os.environ.get("HICACHE_LIBRARY")
    if named:
        return named
    own = PACKAGE / "lib" / "libhicache.so.1"
    if own.exists():
        return str(own)
    found = ctypes.util.find_library("hicache")
    if found:
        return found
    raise ImportError(f"there is no libhicache.so: neither {own} nor one that the linker finds; HICACHE_LIBRARY can name one")


def find_tree_library() -> str:
    """libhicache_tree.so: $HICACHE_TREE_LIBRARY, the one beside libhicache.so, or what the linker of this system finds."""
    named = os.environ.get("HICACHE_TREE_LIBRARY")
    if named:
        return named
    library = pathlib.Path(find_library())
    beside = library.with_name("libhicache_tree.so.1")
    if library.is_absolute() and beside.exists():
        return str(beside)
    found = ctypes.util.find_library("hicache_tree")
    if found:
        return found
    raise ImportError(f"there is no libhicache_tree.so: neither {beside} nor one that the linker finds; HICACHE_TREE_LIBRARY can name one")


def find_program(name: str) -> pathlib.Path | None:
    """A program of hicache: in $HICACHE_BIN, in the package, or on PATH; None if there is none."""
    folders = [os.environ.get("HICACHE_BIN"), PACKAGE / "bin", *os.get_exec_path()]
    programs = (pathlib.Path(folder) / name for folder in folders if folder)
    return next((program for program in programs if _is_program(program)), None)


def _is_program(path: pathlib.Path) -> bool:
    """Whether this is a program itself, and not the script of a package of this name."""
    if not path.is_file() or not os.access(path, os.X_OK):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def _become(name: str) -> None:
    program = find_program(name)
    if program is None:
        sys.exit(f"{name}: this installation of the Python package has no programs")
    os.execv(program, [name, *sys.argv[1:]])


def node_main() -> None:
    _become("hicache-node")


def index_main() -> None:
    _become("hicache-index")


def ctl_main() -> None:
    _become("hicachectl")
