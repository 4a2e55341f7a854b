"""hicache as the external linker of SGLang's prefix cache (`--enable-unified-cache-external-linker`)."""

import pytest
from engines import PAGE, PROMPT_PAGES, PROMPTS, tokens, until

NOTHING = [0] * len(PROMPTS)
HITS = [count * PAGE for count in PROMPT_PAGES]
#: Parts in which the linker stores a page of the tiny model.
PARTS = 4


def linked(node, **more):
    """Arguments of an engine whose L2 and L3 are the node."""
    return {"enable_unified_cache_external_linker": True, "unified_cache_external_linker_backend": "dynamic",
            "unified_cache_external_linker_config": {"linker": "HicacheLinker", "linker_module_path": "hicache.sglang_linker",
                                                     "linker_extra_config": {"socket": node.socket}}, **more}


def hits(outputs):
    return [output["cached"] for output in outputs]


@pytest.mark.short
def test_pages_outlive_the_engine_and_neither_damage_nor_a_killed_node_gives_wrong_text(engine, node, state, damage, oracle):
    first = engine(**linked(node))
    outputs = first.generate()
    assert tokens(outputs) == oracle and hits(outputs) == NOTHING
    until(lambda: state().pages >= PARTS * sum(PROMPT_PAGES), "the pages of all prompts")
    first.flush()
    outputs = first.generate()
    assert tokens(outputs) == oracle and hits(outputs) == HITS
    until(lambda: state().leases == 0, "the end of all leases")

    # What is computed by decoding is stored too: with the answer's tokens the second turn is a longer prefix.
    turn = PROMPTS[2] + first.generate([PROMPTS[2]], tokens=PAGE)[0]["tokens"]
    stored = state().pages
    until(lambda: state().pages >= PARTS * (sum(PROMPT_PAGES) + 1), f"a page of the answer beyond {stored}")
    first.flush()
    assert hits(first.generate([turn])) == [(len(turn) - 1) // PAGE * PAGE]

    # SGLang's answer to a load that fails is to abort the request. A damaged page fails one load, so this ends.
    damage()

    def is_mended():
        first.flush()
        first.begin()
        answers = [first.answer(may_fail=True) for _ in oracle]
        assert all("load failed" in answer["trouble"] if "trouble" in answer else answer[0]["tokens"] == right
                   for answer, right in zip(answers, oracle, strict=True))
        return [0 if "trouble" in answer else answer[0]["cached"] for answer in answers] == HITS

    until(is_mended, "the end of all damaged pages")
    assert "corrupt_page" in first.log

    first.flush()
    first.begin()
    outputs = first.answer()
    node.kill()
    outputs += first.answer() + first.answer()
    assert tokens(outputs) == oracle
    first.flush()
    outputs = first.generate()
    assert tokens(outputs) == oracle and hits(outputs) == NOTHING
    node.start()

    def has_stored_again():
        first.flush()
        assert tokens(first.generate()) == oracle
        return state().pages >= PARTS * sum(PROMPT_PAGES)

    until(has_stored_again, "the pages of all prompts, once more")

    first.begin()
    first.kill()
    until(lambda: state().clients == 1, "the end of the engine's connection")
    second = engine(**linked(node))
    outputs = second.generate()
    assert tokens(outputs) == oracle and hits(outputs) == HITS
    assert f"in {PARTS} parts" in second.log


def test_two_ranks_load_their_own_pages_which_an_engine_of_one_never_sees(engine, node, state, oracle):
    two = engine(**linked(node, tp_size=2))
    computed = two.generate()
    assert hits(computed) == NOTHING
    until(lambda: state().pages >= 2 * sum(PROMPT_PAGES), "the pages of both ranks")
    two.flush()
    outputs = two.generate()
    assert tokens(outputs) == tokens(computed) and hits(outputs) == HITS
    two.kill()
    one = engine(**linked(node))
    outputs = one.generate()
    assert tokens(outputs) == oracle and hits(outputs) == NOTHING
