"""The package sees the same C ABI as a C compiler."""

import ctypes
import pathlib
import re

import hicache
from hicache import _abi

LIST = pathlib.Path(__file__).resolve().parents[3] / "tests/c_abi/abi.txt"

STRUCTS = {"hc_error": _abi.Error, "hc_part": _abi.Part, "hc_page": _abi.Page, "hc_call": _abi.Call, "hc_completion": _abi.Completion,
           "hc_leased_page": _abi.LeasedPage, "hc_counters": _abi.Counters, "hc_node_state": _abi.NodeState, "hc_options": _abi.Options, "hc_tensor": _abi.Tensor,
           "hc_layout": _abi.Layout, "hc_offload_page": _abi.OffloadPage}


def listed():
    return LIST.read_text().splitlines()


def test_structs_have_the_sizes_and_offsets_of_the_list():
    expected = [line for line in listed() if re.match(r"hc_\w+(\.\w+)? ", line) and not line.startswith(("hc_code ", "hc_flag ", "hc_level ", "hc_device "))
                and not line.startswith("hc_key")]
    seen = []
    for name, struct in STRUCTS.items():
        seen.append(f"{name} {ctypes.sizeof(struct)}")
        seen += [f"{name}.{member} at {getattr(struct, member).offset}, {getattr(struct, member).size}" for member, _ in struct._fields_]
    assert sorted(seen) == sorted(expected)


def test_codes_are_those_of_the_list():
    expected = {name: int(value) for name, value in re.findall(r"^hc_code HC_(\w+) (\d+)$", LIST.read_text(), re.MULTILINE)}
    assert {code.name: int(code) for code in hicache.Code} == expected
    assert (_abi.CHAIN, _abi.IN_PLACE, _abi.HOST) == (1, 2, -1)


def test_all_functions_of_the_list_are_bound():
    exported = set(re.findall(r"^exported (hc_\w+)@", LIST.read_text(), re.MULTILINE))
    assert set(_abi._FUNCTIONS) == exported


def test_codes_have_the_names_of_the_library():
    for code in hicache.Code:
        if code != hicache.Code.OK:
            assert _abi.library().hc_code_name(code).decode() == code.name.lower()


def test_a_library_that_is_not_there_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.delenv("HICACHE_LIBRARY", raising=False)
    monkeypatch.setattr("hicache._files.PACKAGE", tmp_path)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    try:
        _abi.find_library()
    except ImportError as trouble:
        assert "HICACHE_LIBRARY" in str(trouble)
    else:
        raise AssertionError("a library was found")
