"""Prefill and decode in different instances of the engine of examples/llama: the tokens are those of one instance, whatever dies between."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import time
import unittest

from engine_case import STEPS, EngineCase, make_model
from certificates import Authority

#: Instances that are killed by each of the tests that kill.
ROUNDS = int(os.environ.get("HICACHE_HANDOFF_ROUNDS", "1"))
#: (ranks of the prefill instance, ranks of the decode instance)
RANKS = ((1, 2), (2, 1), (2, 2))
#: Small enough that a prompt can fill it, large enough for the prompts that run side by side.
PAGES = ("--device-pages", "96")


class RolesCase(EngineCase):
    def start_prefill(self, ranks=1, *flags):
        return self.start("--role", "prefill", *PAGES, *flags, ranks=ranks)

    def start_decode(self, prefill, ranks=1, *flags):
        named = ["--prefill", ",".join(each.address for each in prefill)] if prefill else []
        return self.start("--role", "decode", *PAGES, *named, *flags, ranks=ranks)

    def kill(self, engine):
        """Kills its ranks as a crash does. What started them ends ten seconds later, which only the end of the test waits for."""
        engine.signal(signal.SIGKILL)
        self.addCleanup(engine.wait, 60)

    def usage(self, engine, prompt, **more):
        status, answer = self.post(engine, {"prompt": prompt, "max_tokens": STEPS, **more})
        self.assertEqual(status, 200, answer)
        details = answer["usage"]["prompt_tokens_details"]
        return answer["choices"][0]["token_ids"], details["cached_tokens"], details["handed_tokens"]

    @contextlib.contextmanager
    def stream(self, engine, body):
        """The tokens of a completion, part by part; leaving closes the connection, which ends the completion."""
        connection = http.client.HTTPConnection(engine.address, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        try:
            yield self.parts(connection.getresponse())
        finally:
            connection.close()

    def parts(self, response):
        for line in response:
            if line.startswith(b"data: {"):
                choice = json.loads(line[len("data: "):])["choices"][0]
                self.assertIsNone(choice["finish_reason"], "the completion ended first")
                yield choice["token_ids"]

    def assert_nothing_leaks(self, prefill, decode):
        """No page waits for a receiver, and a prompt as long as the pool finds room on both."""
        for engine in prefill:
            self.wait_until(lambda engine=engine: self.metric(engine, "llama_handoff_bytes") == 0, f"a handoff stays open\n{engine.text()}")
        long = [each % 272 for each in range(96 * 16 - STEPS)]
        if not hasattr(type(self), "long_answer"):
            type(self).long_answer = self.answers_without_cache([long])[0]
        for engine in (*prefill, *decode):
            tokens, _, _ = self.usage(engine, long)
            self.assertEqual(tokens, self.long_answer, engine.text())


class OffloadTest(RolesCase):
    def test_decoded_pages_are_in_l3_while_the_completion_goes_on(self):
        for ranks, other_ranks in ((2, 1), (1, 2)):
            with self.subTest(ranks=ranks):
                folder = self.folder / f"store{ranks}"
                decode = self.start_decode([], ranks, *self.store("file", path=str(folder)))
                other = self.start_prefill(other_ranks, *self.store("file", path=str(folder)))
                prompt = self.prompts[ranks]
                wanted = len(prompt) // 16 + 4  # Four pages of decoded tokens.
                tokens = []
                with self.stream(decode, {"prompt": prompt, "max_tokens": 4000, "ignore_eos": True}) as parts:
                    while len(tokens) < 64 + STEPS or len(list(folder.glob("*/*.kv"))) < 2 * wanted:
                        tokens += next(parts)
                    turn = prompt + tokens[:64]
                    answer, cached, _ = self.usage(other, turn)
                    next(parts)  # It goes on.
                self.assertEqual(answer, tokens[64:64 + STEPS])
                self.assertEqual(cached, (len(turn) - 1) // 16 * 16)
                self.stop(decode)
                self.stop(other)


class HandoffTest(RolesCase):
    def test_the_tokens_are_those_of_one_instance(self):
        for ranks in ((1, 1), *RANKS):
            with self.subTest(ranks=ranks):
                prefill = self.start_prefill(ranks[0], "--pass-tokens", "48")
                decode = self.start_decode([prefill], ranks[1])
                self.complete_all(decode, side_by_side=4)
                handed, cached = self.metric(decode, "llama_handed_tokens_total"), self.metric(decode, "llama_cached_tokens_total")
                self.assertGreater(handed, 1500, decode.text())
                self.assertGreater(cached, 1000, "what it has cached is not sent")
                self.assertGreaterEqual(handed + cached, sum(map(len, self.prompts)) - 16 * len(self.prompts), "nothing else was computed")
                self.assertEqual(self.metric(prefill, "llama_generated_tokens_total"), self.metric(prefill, "llama_requests_total"))
                self.assert_nothing_leaks([prefill], [decode])
                self.stop(prefill)
                self.stop(decode)

    def test_ranks_on_other_machines_are_read_over_the_network(self):
        index = self.start_index()
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                remote = self.cluster(index, force_remote_reads=True)
                prefill = self.start_prefill(ranks[0])
                decode = self.start_decode([prefill], ranks[1], *remote)
                self.complete_all(decode, side_by_side=4)
                self.assertGreater(self.metric(decode, "llama_handed_tokens_total"), 1500, decode.text())
                self.stop(prefill)
                self.stop(decode)

    def test_only_holders_of_a_certificate_are_served_over_the_network(self):
        remote = ["--hicache-storage-backend-extra-config", json.dumps({"force_remote_reads": True})]
        authority, strangers = Authority(self.folder, "ca"), Authority(self.folder, "other")
        prefill = self.start_prefill(1, *authority.sign("prefill"))
        decode = self.start_decode([prefill], 1, *remote, *authority.sign("decode"))
        self.assertEqual(self.usage(decode, self.prompts[0]), (self.expected[0], 0, len(self.prompts[0])))
        stranger = self.start_decode([prefill], 1, *remote, *strangers.sign("stranger"))
        self.assertEqual(self.usage(stranger, self.prompts[1]), (self.expected[1], 0, 0))
        plain = self.start_decode([prefill], 1, *remote)
        self.assertEqual(self.usage(plain, self.prompts[2]), (self.expected[2], 0, 0))
        self.assert_nothing_leaks([prefill], [decode])
        for engine in (prefill, decode, stranger, plain):
            self.stop(engine)

    def test_what_the_receiver_has_cached_is_not_sent(self):
        prefill = self.start_prefill()
        decode = self.start_decode([prefill])
        prompt = self.prompts[0]
        tokens, cached, handed = self.usage(decode, prompt)
        self.assertEqual((tokens, cached, handed), (self.expected[0], 0, len(prompt)))
        tokens, cached, handed = self.usage(decode, prompt)
        self.assertEqual((tokens, cached, handed), (self.expected[0], (len(prompt) - 1) // 16 * 16, 0))
        longer = prompt + self.prompts[1]
        _, cached, handed = self.usage(decode, longer)
        self.assertGreaterEqual(cached, len(prompt) // 16 * 16)
        self.assertEqual(cached + handed, len(longer))
        self.stop(prefill)
        self.stop(decode)

    def test_a_decode_instance_needs_no_cache(self):
        prefill = self.start_prefill()
        decode = self.start_decode([prefill], 1, "--disable-radix-cache")
        for prompt, expected in zip(self.prompts[:4] * 2, self.expected[:4] * 2, strict=True):
            self.assertEqual(self.usage(decode, prompt), (expected, 0, len(prompt)))
        self.assertGreater(self.metric(prefill, "llama_cached_tokens_total"), 0, "the prefill instance has one")
        self.assert_nothing_leaks([prefill], [decode])
        self.stop(prefill)
        self.stop(decode)

    def test_a_request_names_its_prefill_instances(self):
        first, second = self.start_prefill(), self.start_prefill()
        decode = self.start_decode([first])
        self.assertEqual(self.usage(decode, self.prompts[0], prefill=[])[2], 0)
        self.assertEqual(self.metric(first, "llama_requests_total"), 0)
        self.assertGreater(self.usage(decode, self.prompts[1], prefill=[second.address])[2], 0)
        self.assertEqual((self.metric(first, "llama_requests_total"), self.metric(second, "llama_requests_total")), (0, 1))
        self.kill(first)
        tokens, _, handed = self.usage(decode, self.prompts[2], prefill=[first.address, second.address])
        self.assertEqual(tokens, self.expected[2])
        self.assertGreater(handed, 0, "the second one of the list")
        for bad in ("x", [1], ["a"] * 9):
            status, answer = self.post(decode, {"prompt": "a", "prefill": bad})
            self.assertEqual(status, 400)
            self.assertIn('"prefill": expected a list', answer["error"]["message"])
        self.stop(second)
        self.stop(decode)

    def test_a_prompt_that_cannot_be_handed_over_is_computed(self):
        other_model = self.shared / "other"
        if not other_model.exists():
            make_model.write_model(make_model.parse([str(other_model), "--kv-heads", "2", "--seed", "77"]))
        small = self.start_prefill(1, "--handoff-memory", "64KiB")
        mine, self.model = self.model, other_model
        stranger = self.start_prefill()
        self.model = mine
        both = self.start()
        decode = self.start_decode([small, stranger, both])
        self.complete_all(decode, side_by_side=4)
        for sentence in ("does not fit into the memory for handoffs", "another model", "expected --role prefill"):
            self.assertIn(sentence, decode.text())
        self.assert_nothing_leaks([small], [decode])
        for engine in (small, stranger, both, decode):
            self.stop(engine)

    def test_a_client_that_goes_away_frees_both_sides(self):
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                prefill = self.start_prefill(ranks[0], "--pass-tokens", "16")
                decode = self.start_decode([prefill], ranks[1])
                for prompt in self.prompts[:8]:
                    with self.stream(decode, {"prompt": prompt, "max_tokens": 2000, "ignore_eos": True}):
                        pass
                self.complete_all(decode, side_by_side=4)
                self.assert_nothing_leaks([prefill], [decode])
                self.stop(prefill)
                self.stop(decode)

    def test_a_prefill_instance_that_stops_is_no_error(self):
        prefill = self.start_prefill(2, "--pass-tokens", "16")
        decode = self.start_decode([prefill], 1)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(self.usage, decode, prompt) for prompt in self.prompts]
            answers[0].result()
            self.stop(prefill)
            for answer, expected in zip(answers, self.expected, strict=True):
                self.assertEqual(answer.result()[0], expected, decode.text())
        self.assert_nothing_leaks([], [decode])
        self.stop(decode)

    def test_a_prefill_instance_that_hangs_is_not_waited_for(self):
        prefill = self.start_prefill()
        decode = self.start_decode([prefill])
        self.assertGreater(self.usage(decode, self.prompts[0])[2], 0)
        prefill.process.send_signal(signal.SIGSTOP)
        tokens, _, handed = self.usage(decode, self.prompts[1])
        self.assertEqual((tokens, handed), (self.expected[1], 0))
        prefill.process.send_signal(signal.SIGCONT)
        self.assert_nothing_leaks([prefill], [decode])
        self.stop(prefill)
        self.stop(decode)

    def test_a_decode_instance_that_hangs_keeps_no_pages(self):
        prefill = self.start_prefill(1, "--pass-tokens", "16")
        decode, other = self.start_decode([prefill]), self.start_decode([prefill])
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(self.usage, decode, prompt) for prompt in self.prompts[:8]]
            self.wait_until(lambda: self.metric(prefill, "llama_handoff_bytes") > 0, "no handoff began")
            decode.process.send_signal(signal.SIGSTOP)
            self.assert_nothing_leaks([prefill], [other])
            decode.process.send_signal(signal.SIGCONT)
            for answer, expected in zip(answers, self.expected, strict=False):
                self.assertEqual(answer.result()[0], expected)
        self.stop(prefill)
        self.stop(decode)
        self.stop(other)

    def test_prefill_instances_die(self):
        for ranks in RANKS:
            decode = self.start_decode([], ranks[1])
            for number in range(ROUNDS):
                with self.subTest(ranks=ranks, round=number):
                    prefill = self.start_prefill(ranks[0], "--pass-tokens", "16")
                    salt = str(number)  # Nothing is cached from the round before.
                    with concurrent.futures.ThreadPoolExecutor(4) as pool:
                        answers = [pool.submit(self.usage, decode, prompt, prefill=[prefill.address], cache_salt=salt) for prompt in self.prompts[:12]]
                        answers[number % 8].result()
                        self.kill(prefill)
                        for answer, expected in zip(answers, self.expected, strict=False):
                            self.assertEqual(answer.result()[0], expected, decode.text())
            self.assertGreater(self.metric(decode, "llama_handed_tokens_total"), 0)
            self.assert_nothing_leaks([], [decode])
            self.stop(decode)

    def test_decode_instances_die(self):
        for ranks in RANKS:
            prefill = self.start_prefill(ranks[0], "--pass-tokens", "16")
            for number in range(ROUNDS):
                with self.subTest(ranks=ranks, round=number):
                    decode = self.start_decode([prefill], ranks[1])
                    with concurrent.futures.ThreadPoolExecutor(4) as pool:
                        answers = [pool.submit(self.usage, decode, prompt, cache_salt=str(number)) for prompt in self.prompts[:12]]
                        answers[number % 8].result()
                        self.kill(decode)
                        died = 0
                        for answer, expected in zip(answers, self.expected, strict=False):
                            try:
                                self.assertEqual(answer.result()[0], expected)
                            except (OSError, http.client.HTTPException):
                                died += 1
                        self.assertLess(died, 12)
            decode = self.start_decode([prefill], ranks[1])
            self.complete_all(decode, side_by_side=4)
            self.assertGreater(self.metric(decode, "llama_handed_tokens_total"), 1500)
            self.assert_nothing_leaks([prefill], [decode])
            self.stop(prefill)
            self.stop(decode)


if __name__ == "__main__":
    unittest.main(verbosity=2)
