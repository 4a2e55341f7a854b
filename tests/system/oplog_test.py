"""hicachectl oplog: scripts, recordings of real ranks, and what is said about bad ones."""

import json
import subprocess

from harness import BIN, ROOT, SMALL_KV, SystemTest, main, write_trace

HICACHECTL = BIN / "hicachectl"
CONFIG = {"op": "config", "page_size": 4, "device_tokens": 64, "host_tokens": 64}


def oplog(*arguments, text=None):
    return subprocess.run([HICACHECTL, "oplog", *map(str, arguments)], input=text, capture_output=True, text=True, timeout=60)


class ScriptTest(SystemTest):
    def write(self, name, *lines):
        path = self.folder / name
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    def test_answers_a_file_line_by_line(self):
        done = oplog("run", self.write("a.jsonl", CONFIG, {"op": "insert", "tokens": list(range(8))}, "",
                                       {"op": "match", "tokens": list(range(6))}, {"op": "evict", "tokens": 1}))
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(answers[0], {})
        self.assertEqual(answers[1]["prefix"], 0)
        self.assertEqual((answers[2]["device"], answers[2]["host"]), (4, 0))
        self.assertEqual(answers[3], {"evicted": 4})
        self.assertEqual(done.stderr, "")

    def test_every_case_file_runs_by_hand(self):
        files = sorted((ROOT / "tests/cases").glob("*.jsonl"))
        self.assertTrue(files)
        for path in files:
            with self.subTest(file=path.name):
                done = oplog("run", path)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(len(done.stdout.splitlines()), len(path.read_text().splitlines()))

    def test_standard_input_is_answered_before_the_next_line_is_read(self):
        process = subprocess.Popen([HICACHECTL, "oplog", "run", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        for op, expected in ((CONFIG, {}), ({"op": "evict", "tokens": 1}, {"evicted": 0}),
                             ({"op": "match", "tokens": []}, {"device": 0, "host": 0, "node": 0})):
            process.stdin.write(json.dumps(op) + "\n")
            process.stdin.flush()
            self.assertEqual(json.loads(process.stdout.readline()), expected)
        process.stdin.close()
        self.assertEqual(process.wait(10), 0)

    def test_an_operation_that_cannot_be_done_is_an_answer(self):
        done = oplog("run", "-", text=json.dumps(CONFIG) + '\n{"op":"match","tokens":[4294967296]}\n{"op":"match","tokens":[1]}\n')
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(answers[1]["error"], "invalid_argument")
        self.assertIn("token id does not fit in uint32", answers[1]["message"])
        self.assertEqual(answers[2]["device"], 0)

    def refuse(self, *arguments, expected, text=None):
        done = oplog(*arguments, text=text)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for part in expected:
            self.assertIn(part, done.stderr)

    def test_bad_files_cost_one_sentence(self):
        options = '{"op":"options","page_size":4}'
        self.refuse("run", "/no/such/file", expected=["/no/such/file"])
        self.refuse("run", self.write("bad.jsonl", CONFIG, "nonsense"), expected=["bad.jsonl:2:", "JSON"])
        self.refuse("run", "-", text="[1]\n", expected=["-:1:", "JSON object"])
        self.refuse("replay", "/no/such/file", expected=["/no/such/file"])
        self.refuse("replay", self.write("empty.jsonl"), expected=["empty.jsonl", "empty"])
        self.refuse("replay", self.write("short.jsonl", options), expected=["short.jsonl:1:", "device_pages"])
        self.refuse("replay", self.write("none.jsonl", '{"op":"clear"}'), expected=["none.jsonl", "line 1", "options"])
        self.refuse("diff", "/no/such/file", self.write("b.jsonl", options), expected=["/no/such/file"])
        self.refuse("diff", self.write("c.jsonl", options), self.write("d.jsonl", "{"), expected=["c.jsonl:1:"])
        self.refuse("run", expected=["script is required"])
        self.refuse(expected=["subcommand"])

    def test_help(self):
        for arguments, expected in ((["--help"], "diff"), (["run", "--help"], "FILE.jsonl|-"), (["replay", "--help"], "--record-ops"),
                                    (["diff", "--help"], "exit code")):
            done = oplog(*arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(expected, done.stdout)


class RecordingTest(SystemTest):
    def record(self, name, ranks, *flags, code=0, requests=60):
        """Replays a made-up trace on few pages; returns the logs of its ranks."""
        trace = self.folder / "trace.jsonl"
        write_trace(trace, requests)
        log = self.folder / f"{name}.ops"
        self.replay(name, ranks, "--trace", trace, "--device-pages", "120", "--hicache-ratio", "1.5", "--record-ops", log, *SMALL_KV,
                    *flags, code=code)
        return [log] if ranks == 1 else [self.folder / f"{name}.ops.{rank}" for rank in range(ranks)]

    def last_digest(self, log):
        return json.loads(log.read_text().splitlines()[-1])["digest"]

    def check(self, logs):
        for log in logs:
            done = oplog("replay", log)
            self.assertEqual(done.returncode, 0, done.stderr)
            summary = json.loads(done.stdout)
            self.assertEqual(summary["operations"], len(log.read_text().splitlines()) - 1)
            self.assertEqual(summary["digest"], self.last_digest(log))

    def test_replaying_two_ranks_gives_their_digests(self):
        logs = self.record("two", 2)
        self.check(logs)
        done = oplog("diff", *logs)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stdout + done.stderr)

    def test_one_rank_writes_the_file_itself(self):
        self.check(self.record("one", 1, "--hicache-write-policy", "write_back", "--radix-eviction-policy", "slru"))

    def test_prefetches_are_replayed(self):
        config = f'{{"path": "{self.folder}/pages", "prefetch_threshold": 64}}'
        logs = self.record("l3", 2, "--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config", config)
        self.assertIn('"arrived":[[', logs[0].read_text())
        self.check(logs)
        self.assertEqual(oplog("diff", *logs).returncode, 0)

    def test_the_first_difference_is_named(self):
        log, = self.record("one", 1, requests=10)
        lines = log.read_text().splitlines()
        entry = json.loads(lines[5])
        right = entry["digest"]
        entry["digest"] = "0123456789abcdef"
        lines[5] = json.dumps(entry)
        spoilt = self.folder / "spoilt.ops"
        spoilt.write_text("\n".join(lines) + "\n")
        replayed = oplog("replay", spoilt)
        self.assertEqual(replayed.returncode, 1)
        self.assertIn("line 6", replayed.stderr)
        compared = oplog("diff", log, spoilt)
        self.assertEqual(compared.returncode, 1)
        for said in (replayed.stderr, compared.stdout):
            self.assertIn(right, said)
            self.assertIn("0123456789abcdef", said)
        self.assertIn("line 6 differs", compared.stdout)
        self.assertEqual(len(compared.stdout.splitlines()), 5)
        spoilt.write_text("\n".join(lines[:3]) + "\n")
        shorter = oplog("diff", log, spoilt)
        self.assertEqual(shorter.returncode, 1)
        self.assertIn("ends here", shorter.stdout)

    def test_a_full_disk_ends_the_recording_only(self):
        trace = self.folder / "trace.jsonl"
        write_trace(trace, 10)
        program = self.start_replay("full", 1, "--trace", trace, "--record-ops", "/dev/full", *SMALL_KV)
        self.assertEqual(program.wait(60), 0, program.text())
        self.assert_clean(self.read_report(program))
        self.assertEqual(program.err.read_text().count("the op log ends here"), 1, program.text())

    def test_a_file_that_cannot_be_written_is_refused(self):
        program = self.start_replay("refused", 2, "--workload", "multi-turn", "--record-ops", "/no/such/folder/ops", *SMALL_KV)
        self.assertEqual(program.wait(60), 2, program.text())
        self.assertIn("/no/such/folder/ops", program.err.read_text())


if __name__ == "__main__":
    main()
