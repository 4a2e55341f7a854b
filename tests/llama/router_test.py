"""hicache-router in front of real engines: who completes what, and what happens when one of them goes."""

import collections
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "examples/llama"), str(ROOT / "tests/system")]
import make_model
from harness import BIN, SystemTest, free_port

PAGE = 16
PATIENCE = 60


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("router", timeout=PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))


def ask(connection, method, path, body=None):
    """@returns the status, the headers and the body"""
    connection.request(method, path, body)
    with connection.getresponse() as response:
        answer = response.status, dict(response.getheaders()), response.read().decode()
    connection.close()
    return answer


def events_of(text):
    return [event[len("data: "):] for event in text.split("\n\n") if event]


class RouterCase(SystemTest):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "tiny"
        make_model.write_model(make_model.parse([str(self.model), "--kv-heads", "2"]))
        self.random = random.Random(3)

    # -- programs -----------------------------------------------------------------

    def start_engine(self, number, listen="127.0.0.1:0", flags=()):
        """One with endpoints of its own for events."""
        engine = self.start([BIN / "hicache-llama", self.model, "--listen", listen, "--page-size", PAGE, "--device", "host",
                             "--kv-events", f"ipc://{self.folder}/events{number}", "--kv-events-replay", f"ipc://{self.folder}/replay{number}", *flags],
                            f"engine{len(self.programs)}", {"OPENBLAS_NUM_THREADS": "1"})
        engine.address = engine.wait_for(r"listening on (\S+)").group(1)
        return engine

    def start_engines(self, count):
        return [self.start_engine(number) for number in range(count)]

    def start_lasting_engines(self, count):
        """At ports that nobody takes while an engine is away."""
        return [self.start_engine(number, f"127.0.0.1:{free_port()}") for number in range(count)]

    def start_router(self, engines, *flags):
        instances = []
        for i, engine in enumerate(engines):
            instances += ["--instance", f"{engine.address},events=ipc://{self.folder}/events{i},replay=ipc://{self.folder}/replay{i}"]
        router = self.start([BIN / "hicache-router", "--listen", "127.0.0.1:0", "--admin-socket", self.folder / "admin", "--probe-period", "50ms",
                             "--probe-pause-max", "200ms", *instances, *flags], "router")
        router.address = router.wait_for(r"listening on (\S+)").group(1)
        for engine in engines:
            self.wait_until(lambda engine=engine: self.instance(engine)["state"] == "closed")
        return router

    # -- requests -----------------------------------------------------------------

    def post(self, router, body):
        status, headers, text = ask(http.client.HTTPConnection(router.address, timeout=PATIENCE), "POST", "/v1/completions", json.dumps(body))
        return status, headers.get("X-Hicache-Instance"), json.loads(text)

    def complete(self, router, prompt, **more):
        """@returns who completed the prompt, the tokens, and how many of the prompt were cached there"""
        status, instance, answer = self.post(router, {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, **more})
        self.assertEqual(status, 200, answer)
        return instance, answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def prompt(self, length=100):
        return [self.random.randrange(256) for _ in range(length)]

    def open_stream(self, router, prompt, max_tokens):
        """Reads up to the first event. @returns the connection, the answer, and that event"""
        connection = http.client.HTTPConnection(router.address, timeout=PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}))
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        return connection, response, response.readline().decode()

    # -- what the router says -----------------------------------------------------

    def admin(self, method, path, body=None):
        status, _, text = ask(UnixConnection(self.folder / "admin"), method, path, body)
        return status, text

    def instance(self, engine):
        return next(each for each in json.loads(self.admin("GET", "/instances")[1]) if each["address"] == engine.address)

    def metric(self, server, name):
        status, _, text = ask(http.client.HTTPConnection(server.address, timeout=PATIENCE), "GET", "/metrics")
        self.assertEqual(status, 200)
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    def wait_until(self, holds):
        end = time.monotonic() + PATIENCE
        while not holds():
            self.assertLess(time.monotonic(), end, "\n".join(each.text() for each in self.programs))
            time.sleep(0.02)


class RouterTest(RouterCase):
    def test_a_conversation_stays_where_its_prefix_is(self):
        engines = self.start_engines(3)
        router = self.start_router(engines)
        homes, stored = set(), 0
        for _ in range(6):
            tokens, home, pages = self.prompt(), None, 0
            for turn in range(3):
                instance, answer, cached = self.complete(router, tokens)
                if turn > 0:
                    self.assertEqual(instance, home)
                    self.assertGreaterEqual(cached, pages * PAGE)
                home = instance
                # No two conversations begin alike.
                stored += len(tokens) // PAGE - pages
                pages = len(tokens) // PAGE
                self.wait_until(lambda: self.metric(router, "hicache_router_cached_pages") >= stored)
                tokens = tokens + answer + self.prompt(20)
            homes.add(home)
        self.assertEqual(homes, {engine.address for engine in engines}, "distinct conversations spread")
        # 100 tokens, then 128: 6 and 8 pages.
        self.assertGreaterEqual(self.metric(router, "hicache_router_expected_tokens_total"), 6 * (6 + 8) * PAGE)
        text = "What is a page of KV? " * 8
        home, _, cached = self.complete(router, text)
        self.assertLess(cached, PAGE)
        self.wait_until(lambda: self.metric(router, "hicache_router_cached_pages") >= stored + len(text) // PAGE)
        self.assertEqual(self.complete(router, text)[::2], (home, (len(text) - 1) // PAGE * PAGE), "the bytes of a text are its tokens")

    def test_a_router_that_starts_late_learns_what_is_cached(self):
        engines = self.start_engines(2)
        prompt = self.prompt(200)
        self.complete(engines[1], prompt)  # Without a router.
        router = self.start_router(engines)
        self.wait_until(lambda: self.instance(engines[1])["cached_pages"] >= 12)
        for _ in range(4):
            instance, _, cached = self.complete(router, prompt)
            self.assertEqual((instance, cached), (engines[1].address, 192))

    def test_load_spreads_distinct_prompts(self):
        engines = self.start_engines(2)
        router = self.start_router(engines)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            prompts = [self.prompt() for _ in range(32)]
            instances = list(pool.map(lambda prompt: self.complete(router, prompt)[0], prompts))
        for engine in engines:
            self.assertGreaterEqual(instances.count(engine.address), 4, "half of the eight that are side by side")
        self.assertEqual(self.metric(router, "hicache_router_requests_total"), 32)
        self.assertEqual(self.metric(router, "hicache_router_running"), 0)

    def test_a_killed_instance_costs_no_request(self):
        engines = self.start_lasting_engines(3)
        router = self.start_router(engines)
        victim = engines[0]
        prompts = [self.prompt() for _ in range(60)]
        expected = [self.complete(engines[1], prompt)[1] for prompt in prompts[:4]]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            victim.process.send_signal(signal.SIGSTOP)  # What it is given is under way when it dies.
            first = [pool.submit(self.complete, router, prompt) for prompt in prompts[:6]]
            self.wait_until(lambda: self.instance(victim)["running"] > 0)
            victim.kill()
            answers = list(pool.map(lambda prompt: self.complete(router, prompt), prompts))
            for number, each in enumerate(first):
                self.assertEqual(each.result()[1], answers[number][1])
        self.assertNotIn(victim.address, [instance for instance, _, _ in answers])
        self.assertEqual([tokens for _, tokens, _ in answers[:4]], expected)
        self.assertGreater(self.metric(router, "hicache_router_retries_total"), 0)
        self.wait_until(lambda: self.instance(victim)["state"] != "closed")
        self.wait_until(lambda: self.instance(victim)["cached_pages"] == 0)
        again = self.start_engine(0, victim.address)
        self.wait_until(lambda: self.instance(again)["state"] == "closed")
        self.wait_until(lambda: self.complete(router, self.prompt())[0] == again.address)
        self.wait_until(lambda: self.instance(again)["cached_pages"] > 0)

    def test_a_stream_that_breaks_off_ends_with_an_error(self):
        engines = self.start_engines(2)
        router = self.start_router(engines)
        connection, response, first = self.open_stream(router, self.prompt(), 8000)
        address = response.getheader("X-Hicache-Instance")
        next(engine for engine in engines if engine.address == address).kill()
        events = events_of(first + response.read().decode())
        connection.close()
        parts = [json.loads(event) for event in events]
        self.assertIn(f"{address} broke off", parts[-1]["error"]["message"])
        self.assertTrue(all("choices" in part for part in parts[:-1]), "nothing of another instance's answer")
        self.assertEqual(len({part["id"] for part in parts[:-1]}), 1)

    def test_a_stream_passes_unchanged(self):
        engines = self.start_engines(1)
        router = self.start_router(engines)
        prompt = self.prompt()
        _, expected, _ = self.complete(router, prompt, max_tokens=20)
        connection, response, first = self.open_stream(router, prompt, 20)
        events = events_of(first + response.read().decode())
        connection.close()
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual([token for event in events[:-1] for token in json.loads(event)["choices"][0]["token_ids"]], expected)

    def test_a_client_that_goes_ends_its_completion(self):
        engine, = self.start_engines(1)
        router = self.start_router([engine])
        connection, response, _ = self.open_stream(router, self.prompt(), 8000)
        response.close()
        connection.close()
        self.wait_until(lambda: self.metric(engine, 'llama_requests_total{finish="abort"}') == 1)
        self.wait_until(lambda: self.instance(engine)["running"] == 0)
        # One that waits for the whole answer.
        waiting = socket.create_connection(router.address.split(":"))
        body = json.dumps({"prompt": self.prompt(), "max_tokens": 3000, "ignore_eos": True}).encode()
        waiting.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        self.wait_until(lambda: self.instance(engine)["running"] == 1)
        waiting.close()
        self.wait_until(lambda: self.instance(engine)["running"] == 0)
        self.assertEqual(self.metric(router, f'hicache_router_requests_total{{upstream="{engine.address}",outcome="abandoned"}}'), 2)

    def test_a_drained_instance_finishes_and_gets_nothing_new(self):
        engines = self.start_engines(2)
        router = self.start_router(engines)
        connection, response, first = self.open_stream(router, self.prompt(), 200)
        address = response.getheader("X-Hicache-Instance")
        self.assertEqual(self.admin("POST", f"/instances/{address}/drain"), (204, ""))
        for _ in range(8):
            self.assertNotEqual(self.complete(router, self.prompt())[0], address)
        events = events_of(first + response.read().decode())
        connection.close()
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(json.loads(events[-2])["choices"][0]["finish_reason"], "length")
        self.assertEqual(self.admin("POST", f"/instances/{address}/undrain")[0], 204)
        self.assertIn(address, [self.complete(router, self.prompt())[0] for _ in range(4)])

    def test_instances_come_and_go(self):
        engines = self.start_engines(2)
        router = self.start_router(engines[:1])
        self.assertEqual(self.complete(router, self.prompt())[0], engines[0].address)
        self.assertEqual(self.admin("POST", "/instances", f"{engines[1].address},events=ipc://{self.folder}/events1"), (204, ""))
        self.assertEqual(self.admin("DELETE", f"/instances/{engines[0].address}"), (204, ""))
        self.wait_until(lambda: self.instance(engines[1])["state"] == "closed")
        self.assertEqual(self.complete(router, self.prompt())[0], engines[1].address)
        for method, path, body, status, sentence in (
                ("POST", "/instances", "nowhere", 400, "'nowhere' is no address of an instance; expected HOST:PORT"),
                ("POST", "/instances", engines[1].address, 400, "is an instance already"),
                ("POST", "/instances", "127.0.0.1:9,events=bad", 400, "'bad' is no endpoint of events"),
                ("DELETE", "/instances/127.0.0.1:9", None, 404, "127.0.0.1:9 is no instance"),
                ("POST", "/instances/127.0.0.1:9/drain", None, 404, "127.0.0.1:9 is no instance")):
            with self.subTest(path=path, body=body):
                found, text = self.admin(method, path, body)
                self.assertEqual(found, status, text)
                self.assertIn(sentence, json.loads(text)["error"]["message"])

    def test_a_signal_drains_the_router(self):
        engine, = self.start_engines(1)
        router = self.start_router([engine])
        connection, response, first = self.open_stream(router, self.prompt(), 4000)
        router.terminate()
        self.wait_until(lambda: ask(http.client.HTTPConnection(router.address, timeout=PATIENCE), "GET", "/health")[0] == 503)
        self.assertEqual(self.post(router, {"prompt": "a"})[2]["error"]["message"], "the router is stopping")
        self.assertEqual(events_of(first + response.read().decode())[-1], "[DONE]")
        connection.close()
        self.assertEqual(router.wait(), 0)

    def test_what_cannot_be_served_is_one_sentence(self):
        engine, = self.start_engines(1)
        router = self.start_router([engine], "--request-time", "1s", "--connect-time", "1s")
        status, headers, text = ask(http.client.HTTPConnection(router.address, timeout=PATIENCE), "GET", "/v1/models")
        self.assertEqual((status, json.loads(text)["data"][0]["id"]), (200, "tiny"))
        status, instance, answer = self.post(router, {"prompt": [100000]})
        self.assertEqual((status, instance), (400, engine.address), "the engine's own answer")
        self.assertIn("expected tokens below", answer["error"]["message"])
        self.assertIn("a JSON object", self.post(router, [])[2]["error"]["message"])
        self.assertEqual(self.post(router, "x" * (17 << 20))[0], 413)
        engine.process.send_signal(signal.SIGSTOP)
        status, _, answer = self.post(router, {"prompt": "a"})
        engine.process.send_signal(signal.SIGCONT)
        self.assertEqual(status, 504, answer)
        self.assertIn("did not answer in time", answer["error"]["message"])
        engine.kill()
        self.wait_until(lambda: ask(http.client.HTTPConnection(router.address, timeout=PATIENCE), "GET", "/health")[0] == 503)
        status, _, answer = self.post(router, {"prompt": "a"})
        self.assertEqual((status, answer["error"]["message"]), (503, "no instance takes requests now"))

    def test_prompts_are_computed_where_they_are_prefilled(self):
        engines = [self.start_engine(0, flags=["--role", "prefill"]), self.start_engine(1, flags=["--role", "prefill"]),
                   self.start_engine(2, flags=["--role", "decode"])]
        router = self.start_router(engines)
        decode = engines[2]
        self.assertEqual([self.instance(engine)["role"] for engine in engines], ["prefill", "prefill", "decode"])
        whole = self.start_engine(3)
        prompts = [self.prompt(200) for _ in range(4)]
        for prompt in prompts:
            status, instance, answer = self.post(router, {"prompt": prompt, "max_tokens": 8, "ignore_eos": True})
            self.assertEqual((status, instance), (200, decode.address), answer)
            self.assertGreater(answer["usage"]["prompt_tokens_details"]["handed_tokens"], 0)
            self.assertEqual(answer["choices"][0]["token_ids"], self.complete(whole, prompt)[1])
        for engine in engines[:2]:
            self.assertGreater(self.instance(engine)["cached_pages"], 0, "both prefill")
        # Prefill instances are tried in the router's order; a dead one costs nothing but its work.
        engines[0].kill()
        prompt = self.prompt(200)
        self.assertEqual(self.complete(router, prompt)[1], self.complete(whole, prompt)[1])
        # Without the decode instance, those that prefill complete by themselves.
        decode.kill()
        self.wait_until(lambda: self.instance(decode)["state"] != "closed")
        instance, tokens, _ = self.complete(router, prompts[0])
        self.assertEqual((instance, tokens), (engines[1].address, self.complete(whole, prompts[0])[1]))

    def test_bad_flags_are_one_sentence(self):
        for flags, sentence in (([], "--instance is missing"), (["--instance", "nowhere"], "--instance: 'nowhere' is no address of an instance"),
                                (["--instance", "h:1,role=king"], "role 'king' is not known"),
                                (["--instance", "h:1", "--listen", "0.0.0.0:0"], "--insecure"),
                                (["--instance", "h:1", "--retries", "many"], "--retries"), (["--instances", "h:1"], "--help")):
            with self.subTest(flags=flags):
                done = subprocess.run([BIN / "hicache-router", *flags], capture_output=True, text=True, timeout=PATIENCE)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(sentence, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)



class RouterChaosTest(RouterCase):
    """Instances that come and go while completions run: whole ones succeed, streams are right as far as they go."""

    ROUNDS = int(os.environ.get("HICACHE_CHAOS_ROUNDS", "6"))
    SEED = int(os.environ.get("HICACHE_CHAOS_SEED", time.time_ns()))

    def test_text_stays_right(self):
        print(f"HICACHE_CHAOS_SEED={self.SEED}", flush=True)
        chosen = random.Random(self.SEED)
        engines = self.start_lasting_engines(3)
        router = self.start_router(engines)
        beginnings = [self.prompt(150) for _ in range(4)]
        prompts = [beginnings[i % 4][:chosen.randrange(40, 150)] + self.prompt(chosen.randrange(1, 60)) for i in range(24)]
        expected = [self.complete(engines[0], prompt, max_tokens=24)[1] for prompt in prompts]
        over, counts = threading.Event(), collections.Counter()

        def load(seed):
            mine = random.Random(seed)
            while not over.is_set():
                number = mine.randrange(len(prompts))
                if mine.random() < 0.6:
                    self.assertEqual(self.complete(router, prompts[number], max_tokens=24)[1], expected[number])
                    counts["whole"] += 1
                    continue
                connection, response, first = self.open_stream(router, prompts[number], 24)
                events = events_of(first + response.read().decode())
                connection.close()
                parts = [json.loads(event) for event in events if event != "[DONE]"]
                tokens = [token for part in parts if "choices" in part for token in part["choices"][0]["token_ids"]]
                is_broken = "error" in parts[-1]
                # An engine that is told to stop ends its streams in order.
                is_whole = not is_broken and parts[-1]["choices"][0]["finish_reason"] != "abort"
                self.assertEqual(tokens, expected[number] if is_whole else expected[number][:len(tokens)])
                self.assertEqual(is_broken, events[-1] != "[DONE]")
                self.assertTrue(not is_broken or "broke off" in parts[-1]["error"]["message"], events)
                counts["streams" if is_whole else "broken" if is_broken else "aborted"] += 1

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            loads = [pool.submit(load, chosen.random()) for _ in range(6)]
            try:
                for _ in range(self.ROUNDS):
                    self.disturb(chosen, engines)
                    before = counts.total()
                    self.wait_until(lambda: counts.total() >= before + 30 or any(each.done() for each in loads))
            finally:
                over.set()
            for each in loads:
                each.result()
        print(dict(counts), f"{self.metric(router, 'hicache_router_retries_total'):g} retries", flush=True)
        self.assertEqual(self.metric(router, "hicache_router_running"), 0)

    def disturb(self, chosen, engines):
        """Something happens to one instance, and it is back afterwards."""
        number = chosen.randrange(len(engines))
        victim = engines[number]
        what = chosen.choice(("kill", "stop", "terminate", "drain"))
        if what == "drain":
            self.assertEqual(self.admin("POST", f"/instances/{victim.address}/drain")[0], 204)
            self.wait_until(lambda: self.instance(victim)["running"] == 0)
            self.assertEqual(self.admin("POST", f"/instances/{victim.address}/undrain")[0], 204)
            return
        if what == "terminate":
            victim.terminate()
            self.assertEqual(victim.wait(), 0)
        else:
            victim.process.send_signal(signal.SIGSTOP)
            self.wait_until(lambda: self.instance(victim)["running"] > 0)
            if what == "stop":
                victim.process.send_signal(signal.SIGCONT)
                return
            victim.kill()
        self.wait_until(lambda: self.instance(victim)["state"] != "closed")
        engines[number] = self.start_engine(number, victim.address)
        self.wait_until(lambda: self.instance(victim)["state"] == "closed")


if __name__ == "__main__":
    unittest.main(verbosity=2)
