"""environment.py ENGINE FOLDER

Makes a virtual environment in FOLDER that holds a real engine, or (`stores`) the servers of real stores, on a machine that needs no GPU: what
`packages_ENGINE.txt` lists, and nothing else. PyPI has torch for Linux with CUDA only, 4 GB of libraries on top of it that a CPU has no use for. They are left out, and libraries
of their names are put beside torch whose functions fail: torch finds no GPU and does without.

ENGINE@RELEASE makes a folder of packages that come before those of the engine's environment, beside which it is: of another release of the engine. What a release
has in kernels for CUDA alone gets those for CPUs of the environment.

A folder that was made from the same list already is kept. Needs cc and binutils.
"""

import hashlib
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# CUDA's functions: what torch looks up in libraries that are not there and that no other library has.
CUDA_FUNCTION = re.compile(r"_{0,2}p?(cu[a-zA-Z]|nccl|nvrtc|nvshmem)\w*")
CUDA_LIBRARY = re.compile(r"lib(cu|nccl|nvrtc|nvshmem)\w*\.so")
# Their results are printed: a number would be taken for the address of a text.
NAMES_AN_ERROR = re.compile(r"Error(String|Name)|Status(_t2str|Name|String)|LastError")


def output_of(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def undefined_functions(library):
    """What a library expects of others: (function, version or "")."""
    for line in output_of("nm", "-D", "--undefined-only", "--with-symbol-versions", library).splitlines():
        name, _, version = line.split()[-1].partition("@")
        if CUDA_FUNCTION.fullmatch(name):
            yield name, version.lstrip("@")


def versions_of_libraries(library):
    """In which of the libraries that it needs a library looks for each version: {version: library}."""
    where, file = {}, ""
    for line in output_of("readelf", "--wide", "--version-info", library).splitlines():
        if found := re.search(r"File: (\S+)", line):
            file = found[1]
        elif (found := re.search(r"Name: (\S+)", line)) and file:
            where[found[1]] = file
    return where


def make_library(path, functions):
    """A library whose functions fail. functions: {name: version or ""}."""
    source = "".join(f'const char* {name}(void) {{ return "no CUDA here"; }}\n' if NAMES_AN_ERROR.search(name) else
                     f"long {name}(void) {{ return 999; }}\n" for name in sorted(functions))
    versions = {}
    for name, version in functions.items():
        versions.setdefault(version, []).append(name)
    versions.pop("", None)
    script = "".join(f"{version} {{ global: {'; '.join(sorted(names))}; }};\n" for version, names in sorted(versions.items()))
    map_file = path.with_suffix(".map")
    map_file.write_text(script)
    subprocess.run(["cc", "-w", "-shared", "-fPIC", "-fno-builtin", "-x", "c", "-", "-o", path, f"-Wl,-soname,{path.name}",
                    *([f"-Wl,--version-script={map_file}"] if script else [])], input=source or "int nothing;\n", text=True, check=True)
    map_file.unlink()


def stand_in_for_cuda(folder):
    """Libraries for all that torch's own, in this folder, would load of CUDA's."""
    own = [path for path in folder.glob("*.so*") if not CUDA_LIBRARY.match(path.name)]
    needed, functions = set(), {}
    for library in own:
        needed |= {name for name in re.findall(r"NEEDED.*\[(.+?)\]", output_of("readelf", "--wide", "--dynamic", library)) if CUDA_LIBRARY.match(name)}
        where = versions_of_libraries(library)
        for name, version in undefined_functions(library):
            functions[name] = (where.get(version, ""), version)
    defined = {line.split()[-1].partition("@")[0] for library in own for line in output_of("nm", "-D", "--defined-only", library).splitlines()}
    # What has no version is found in whichever of them is loaded.
    others = min(needed, default=None)
    for library in sorted(needed):
        make_library(folder / library, {name: version for name, (where, version) in functions.items()
                                        if name not in defined and (where or others) == library})
    print(f"{len(needed)} libraries stand in for CUDA's", flush=True)


def install(python, packages, *more):
    # The list is complete: what these packages ask for beyond it is CUDA's.
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--requirement", packages, *more], check=True)


def make_environment(packages, folder):
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install(folder / "bin/python", packages)
    [torch] = folder.glob("lib/python*/site-packages/torch/lib")
    stand_in_for_cuda(torch)
    subprocess.run([folder / "bin/python", "-c", "import torch; assert not torch.cuda.is_available()"], check=True)


def make_release(packages, folder, environment):
    install(environment / "bin/python", packages, "--target", folder)
    [own] = environment.glob("lib/python*/site-packages")
    for metadata in folder.glob("vllm-*.dist-info/METADATA"):
        # The operations of the two are alike, but for those of experts. By its version vLLM knows what it was built for.
        for library in [*folder.glob("vllm/**/*.so")]:
            library.unlink()
        for library in own.glob("vllm/*.so"):
            shutil.copy(library, folder / "vllm")
        metadata.write_text(re.sub(r"^(Version: .+)$", r"\1+cpu", metadata.read_text(), count=1, flags=re.MULTILINE))


def main():
    engine, folder = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    packages = HERE / f"packages_{engine}.txt"
    recipe = hashlib.sha256(packages.read_bytes() + pathlib.Path(__file__).read_bytes() + sys.version.encode()).hexdigest()
    made = folder / "made_from"
    if made.exists() and made.read_text() == recipe:
        return
    print(f"Making the environment of {engine} in {folder}: some GB, some minutes", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    if "@" in engine:
        make_release(packages, folder, folder.with_name(engine.partition("@")[0]))
    else:
        make_environment(packages, folder)
    made.write_text(recipe)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main()
