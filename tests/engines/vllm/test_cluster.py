"""Engines at nodes of several hosts: HicacheConnector with an index."""

import signal

import hicache
from conftest import CACHED, CHUNKS, PROMPTS, Engine, cached, same, transfer, until

from hicache.doctor import _Index


def pages(node):
    with node.store("looks") as store:
        return store.node_status()["pages"]


def test_an_engine_finds_the_pages_of_another_host_and_survives_the_index(tmp_path, expected):
    with _Index(tmp_path) as index, hicache.node("256MiB", flags=["--index", index.address]) as near, \
            hicache.node("256MiB", flags=["--index", index.address]) as far:
        with Engine(tmp_path / "far", together=True, transfer=transfer(far)) as engine:
            engine.generate()
            until(lambda: pages(far) == CHUNKS, "the last page")
        with Engine(tmp_path / "near", together=True, transfer=transfer(near)) as engine:
            outputs = engine.generate()
            assert cached(outputs) == CACHED and same(outputs, expected)
            assert pages(near) == CHUNKS
            others = [[token + 1 for token in prompt] for prompt in PROMPTS]
            for prompt in [*PROMPTS, *others, *PROMPTS, *others]:
                engine.ask("reset")
                engine.ask("generate", prompts=[prompt])
            answers = [engine.answer()]
            index._process.send_signal(signal.SIGKILL)
            answers += [engine.answer() for _ in range(8 * len(PROMPTS) - 1)]
            outputs = [output for [output] in answers[1::2]]
            assert same(outputs[:3] + outputs[6:9], 2 * expected)
            assert [output["tokens"] for output in outputs[9:]] == [output["tokens"] for output in outputs[3:6]]
