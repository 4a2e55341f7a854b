"""The engine of examples/llama on hicache: what it answers with cached KV is what the model answers without any cache, token by token."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import unittest
import urllib.request

from engine_case import BIN, FEW_PAGES, STEPS, EngineCase


class EngineTest(EngineCase):
    def test_cached_prompts_give_the_same_tokens(self):
        engine = self.start()
        self.complete_all(engine)
        for prompt, cached in zip(self.prompts, self.complete_all(engine), strict=True):
            self.assertEqual(cached, (len(prompt) - 1) // 16 * 16)
        self.stop(engine)

    def test_many_at_once_give_the_same_tokens(self):
        engine = self.start("--pass-tokens", "48")
        self.complete_all(engine, side_by_side=8)
        self.assertGreater(sum(self.complete_all(engine, side_by_side=8)), 2000)
        self.stop(engine)

    def test_what_left_the_device_pool_comes_back_from_l2(self):
        for flags in ([], ["--hicache-write-policy", "write_back"], ["--hicache-mem-layout", "layer_first", "--hicache-io-backend", "direct"]):
            with self.subTest(flags=flags):
                engine = self.start(*FEW_PAGES, *flags)
                self.complete_all(engine, side_by_side=4)
                self.assertGreater(sum(self.complete_all(engine, side_by_side=4)), 2000)
                self.stop(engine)

    def test_a_second_instance_finds_in_l3_what_the_first_computed(self):
        store = self.store("file", path=str(self.folder / "store"))
        # Of four ranks two each have the same KV head.
        for ranks in (1, 4, 2):
            engine = self.start(*store, ranks=ranks)
            cached = sum(self.complete_all(engine, side_by_side=4))
            if ranks > 1:
                self.assertGreater(cached, 3000, "the first instance had one rank")
            self.stop(engine)

    def test_instances_of_other_ranks_share_a_cluster(self):
        index = self.start_index()
        first = self.start(*self.cluster(index), ranks=2)
        self.complete_all(first, side_by_side=4)
        for ranks, more in ((1, {}), (1, {"force_remote_reads": True}), (2, {"force_remote_reads": True})):
            with self.subTest(ranks=ranks, **more):
                engine = self.start(*self.cluster(index, **more), ranks=ranks)
                self.assertGreater(sum(self.complete_all(engine, side_by_side=4)), 3000)
                self.stop(engine)
        self.stop(first)

    def test_damaged_pages_in_l3_change_no_token(self):
        folder = self.folder / "store"
        store = self.store("file", path=str(folder))
        engine = self.start(*store)
        before = sum(self.complete_all(engine))
        self.stop(engine)
        files = sorted(folder.glob("*/*.kv"))
        self.assertGreater(len(files), 100)
        for file in files[::10]:
            damaged = bytearray(file.read_bytes())
            damaged[len(damaged) // 2] ^= 64
            file.write_bytes(damaged)
        engine = self.start(*store)
        self.assertGreater(sum(self.complete_all(engine)), before, "others are served")
        self.stop(engine)

    def test_ranks_give_what_one_gives(self):
        engine = self.start(*FEW_PAGES, ranks=2)
        self.complete_all(engine, side_by_side=4)
        self.assertGreater(sum(self.complete_all(engine, side_by_side=4)), 2000)
        self.stop(engine)

    def test_a_session_goes_on_after_its_last_token(self):
        turns = [self.prompts[0]]
        for more in (3, 40):
            turns.append(turns[-1] + self.answers_without_cache([turns[-1]])[0] + self.prompts[1][:more])
        expected = self.answers_without_cache(turns)
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                engine = self.start("--device-pages", "128", ranks=ranks)
                had = 0
                for number, prompt in enumerate(turns):
                    tokens, cached = self.complete(engine, prompt, session=7, ends_session=number == 2)
                    self.assertEqual(tokens, expected[number], engine.text())
                    self.assertEqual(cached, had, "to the token, not to the page")
                    had = len(prompt) + STEPS - 1
                self.assertEqual(self.complete(engine, turns[2], session=7)[1], (len(turns[2]) - 1) // 16 * 16, "another session of the same number")
                self.stop(engine)

    def test_sessions_that_keep_all_pages_give_way(self):
        engine = self.start(*FEW_PAGES)
        for _ in range(2):
            for number, prompt in enumerate(self.prompts):
                tokens, _ = self.complete(engine, prompt, session=number + 1)
                self.assertEqual(tokens, self.expected[number], engine.text())
        last = self.prompts[-1] + self.expected[-1]
        self.assertEqual(self.complete(engine, last, session=len(self.prompts))[1], len(last) - 1, "the last one is still open")
        self.stop(engine)

    def test_a_stream_has_the_tokens_one_by_one(self):
        engine = self.start()
        body = {"prompt": self.prompts[0], "max_tokens": STEPS, "stream": True, "stream_options": {"include_usage": True}}
        request = urllib.request.Request(f"http://{engine.address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            events = [line[len("data: "):] for line in response.read().decode().split("\n\n") if line]
        self.assertEqual(events[-1], "[DONE]")
        parts = [json.loads(event) for event in events[:-1]]
        choices = [part["choices"][0] for part in parts if part["choices"]]
        self.assertEqual([token for each in choices for token in each["token_ids"]], self.expected[0])
        self.assertEqual([each["finish_reason"] for each in choices if each["finish_reason"]], ["length"])
        self.assertEqual(parts[-1]["usage"]["completion_tokens"], STEPS)
        self.assertEqual(self.metric(engine, "llama_generated_tokens_total"), STEPS)
        self.stop(engine)

    def test_a_client_that_goes_ends_its_completion(self):
        engine = self.start()
        for number, streams in enumerate((False, True), 1):
            with self.subTest(streams=streams):
                connection = http.client.HTTPConnection(engine.address, timeout=60)
                body = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": streams}
                before = self.metric(engine, "llama_generated_tokens_total")
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                self.wait_until(lambda before=before: self.metric(engine, "llama_generated_tokens_total") > before, "no token")
                connection.close()
                self.wait_until(lambda number=number: self.metric(engine, "llama_requests_total") == number, "it goes on")
                self.assertEqual(self.metric(engine, 'llama_requests_total{finish="abort"}'), number)
        self.stop(engine)

    def test_connections_wait_for_an_engine_that_is_busy(self):
        engine = self.start()
        os.kill(engine.process.pid, signal.SIGSTOP)
        host, port = engine.address.rsplit(":", 1)
        with contextlib.ExitStack() as connections:
            try:
                for _ in range(64):
                    connections.enter_context(socket.create_connection((host, int(port)), timeout=10))
            finally:
                os.kill(engine.process.pid, signal.SIGCONT)
        self.complete(engine, self.prompts[0])
        self.stop(engine)

    def test_bad_requests_are_one_sentence(self):
        engine = self.start("--device-pages", "8")
        for body, expected in (({"prompt": []}, "prompt"), ({"prompt": [272]}, '"prompt": expected tokens below 272'), ({"prompt": "a" * 128}, "fewer than 128"),
                               ({"prompt": "a", "max_tokens": 0}, "max_tokens"), ({"prompt": "a", "n": 2}, '"n": expected 1'), ([], "a JSON object"),
                               ({"prompt": "a", "temperature": 0.7}, '"temperature": expected 0'), ({"prompt": "a", "stop": ["b"]}, '"stop": not supported'),
                               ({"prompt": "a", "priority": 2**64 - 1}, '"priority": expected a number'),
                               ({"prompt": "a", "session": 0}, '"session": expected a number from 1')):
            with self.subTest(body=body):
                status, answer = self.post(engine, body)
                self.assertEqual(status, 400)
                self.assertIn(expected, answer["error"]["message"])
        status, answer = self.post(engine, {"prompt": "a" * 100, "max_tokens": 1000, "ignore_eos": True})
        self.assertEqual((status, answer["usage"]["total_tokens"]), (200, 128), "as long as the pool allows")
        self.stop(engine)

    def test_a_signal_ends_completions_under_way(self):
        engine = self.start(ranks=2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            long = pool.submit(self.post, engine, {"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": False})
            self.complete(engine, self.prompts[0])  # The other one was given to the engine before.
            self.stop(engine)
            self.assertIn(long.result()[0], (200, 503))

    def test_a_folder_without_a_model_is_one_sentence(self):
        done = subprocess.run([BIN / "hicache-llama", self.folder], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("config.json", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
