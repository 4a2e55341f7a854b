"""The package sees the same C ABI as a C compiler."""

import ctypes
import pathlib
import re

import pytest

import hicache
from hicache import _abi, _tree_abi, ops
from hicache._files import find_tree_library

LIST = pathlib.Path(__file__).resolve().parents[3] / "tests/c_abi/abi.txt"

STRUCTS = {"hc_error": _abi.Error, "hc_part": _abi.Part, "hc_page": _abi.Page, "hc_call": _abi.Call, "hc_completion": _abi.Completion,
           "hc_leased_page": _abi.LeasedPage, "hc_counters": _abi.Counters, "hc_node_state": _abi.NodeState, "hc_options": _abi.Options, "hc_tensor": _abi.Tensor,
           "hc_layout": _abi.Layout, "hc_offload_page": _abi.OffloadPage}
TREE_LIST = LIST.with_name("tree_abi.txt")

TREE_STRUCTS = {"hc_layer": _tree_abi.Layer, "hc_cache_options": _tree_abi.Options, "hc_cache_info": _tree_abi.Info,
                "hc_cache_counters": _tree_abi.Counters, "hc_op": _tree_abi.Op, "hc_answer": _tree_abi.Answer, "hc_ready": _tree_abi.Ready,
                "hc_facts": _tree_abi.Facts, "hc_news": _tree_abi.News, "hc_l3_use": _tree_abi.L3Use, "hc_tier_tokens": _tree_abi.TierTokens}


def layout_of(structs):
    for name, struct in structs.items():
        yield f"{name} {ctypes.sizeof(struct)}"
        yield from (f"{name}.{member} at {getattr(struct, member).offset}, {getattr(struct, member).size}" for member, _ in struct._fields_)


def enumerators(name):
    found = re.findall(rf"^{name} HC_(\w+) (\d+)$", LIST.read_text() + TREE_LIST.read_text(), re.MULTILINE)
    return {each: int(value) for each, value in found}


def test_structs_have_the_sizes_and_offsets_of_the_list():
    others = ("hc_code ", "hc_flag ", "hc_level ", "hc_device ")
    expected = [line for line in LIST.read_text().splitlines() if re.match(r"hc_\w+(\.\w+)? ", line) and not line.startswith(others)
                and not line.startswith("hc_key")]
    assert sorted(layout_of(STRUCTS)) == sorted(expected)


def test_structs_of_a_rank_have_the_sizes_and_offsets_of_the_list():
    expected = [line for line in TREE_LIST.read_text().splitlines() if re.match(r"hc_\w+ \d|hc_\w+\.", line)]
    assert sorted(layout_of(TREE_STRUCTS)) == sorted(expected)


def test_kinds_are_those_of_the_list():
    assert enumerators("hc_op_kind") == {f"OP_{name.upper()}": i + 1 for i, name in enumerate(_tree_abi.KINDS)}
    assert enumerators("hc_news_kind") == {f"NEWS_{name.upper()}": i + 1 for i, name in enumerate(_tree_abi.NEWS_KINDS)}
    assert enumerators("hc_op_flag") == {"OP_CHUNKED": _tree_abi.CHUNKED, "OP_STREAMING": _tree_abi.STREAMING}
    assert enumerators("hc_cache_flag") == {"CACHE_EVENTS": _tree_abi.EVENTS}
    assert [kind.__name__.lower() for kind in ops.KINDS] == [name.replace("_", "") for name in _tree_abi.KINDS]


def test_codes_are_those_of_the_list():
    expected = enumerators("hc_code") | enumerators("hc_cache_code")
    assert {code.name: int(code) for code in hicache.Code} == expected
    assert (_abi.CHAIN, _abi.IN_PLACE, _abi.HOST) == (1, 2, -1)


def test_all_functions_of_the_list_are_bound():
    exported = set(re.findall(r"^exported (hc_\w+)@", LIST.read_text(), re.MULTILINE))
    assert set(_abi._FUNCTIONS) == exported
    exported = set(re.findall(r"^exported (hc_\w+)@", TREE_LIST.read_text(), re.MULTILINE))
    assert set(_tree_abi._FUNCTIONS) == exported


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


def test_a_library_for_ranks_that_is_not_there_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("HICACHE_LIBRARY", str(tmp_path / "libhicache.so"))
    monkeypatch.delenv("HICACHE_TREE_LIBRARY", raising=False)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    with pytest.raises(ImportError, match=f"neither {tmp_path}/libhicache_tree.so.1 nor"):
        find_tree_library()
    (tmp_path / "libhicache_tree.so.1").touch()
    assert find_tree_library() == str(tmp_path / "libhicache_tree.so.1")
