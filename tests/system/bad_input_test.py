"""Bad input costs one sentence and exit code 2, and leaves nothing behind."""

import os
import socket
import subprocess

from harness import BIN, MPIRUN, SystemTest, main

REPLAY = "hicache-replay"
TURNS = ["--workload", "multi-turn", "--clients", "1", "--rounds", "1"]


class BadInputTest(SystemTest):
    def refuse(self, program, arguments, *expected, env=None):
        """Runs the program and checks that it says one sentence with all of `expected` in it."""
        done = subprocess.run([BIN / program, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                              env={**os.environ, **(env or {})})
        said = [line for line in done.stderr.splitlines() if line.startswith(f"{program}: ")]
        self.assertEqual(done.returncode, 2, done.stderr + done.stdout)
        self.assertEqual(len(said), 1, done.stderr)
        # A slow machine hears of the host pool's progress, too.
        said = [line for line in done.stderr.splitlines() if "host pool" not in line or "are ready" not in line]
        self.assertEqual(len(said), 1, done.stderr)
        for text in expected:
            self.assertIn(text, said[0])

    def test_model_ids(self):
        file = ["--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config", '{"path": "%s"}' % (self.folder / "kv")]
        self.refuse("hicache-rank", file, "--model-id is missing", "hicachectl model-id")
        self.refuse("hicache-rank", ["--rope", "yarn"], "--rope", "JSON object")
        self.assertFalse((self.folder / "kv").exists())
        self.refuse("hicachectl", ["model-id", self.folder], "no config.json")
        self.write("config.json", "{}")
        self.refuse("hicachectl", ["model-id", self.folder], "has no weights; expected *.safetensors")
        header = b'{"w": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}'
        (self.folder / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"weights")
        self.refuse("hicachectl", ["model-id", self.folder], "w.safetensors holds 7 bytes of tensors where its header says 9")
        (self.folder / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"weights!!")
        named = subprocess.run([BIN / "hicachectl", "model-id", self.folder], capture_output=True, text=True)
        self.assertEqual((named.returncode, named.stderr), (0, ""))
        self.assertRegex(named.stdout, "^content:[0-9a-f]{64}\n$")

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def test_flags(self):
        for arguments, *expected in (
            (["--no-such-flag"], "--no-such-flag"),
            (TURNS + ["--page-size", "0"], "--page-size"),
            (TURNS + ["--page-size", "-4"], "--page-size"),
            (TURNS + ["--page-size", "48"], "--page-size", "48", "power of two"),
            (TURNS + ["--device-pages", "0"], "--device-pages"),
            (TURNS + ["--device-pages", "many"], "--device-pages", "many"),
            (TURNS + ["--hicache-ratio", "0"], "--hicache-ratio"),
            (TURNS + ["--hicache-ratio", "nan"], "--hicache-ratio"),
            (TURNS + ["--hicache-size", "-1"], "--hicache-size"),
            (TURNS + ["--segment-size", "-5"], "--segment-size", "-5"),
            (TURNS + ["--segment-size", "5XB"], "5XB", "64MiB"),
            (TURNS + ["--kv-heads", "0", "--model", "nope"], "--model", "nope", "tiny"),
            (TURNS + ["--dtype", "int3"], "--dtype", "int3"),
            (TURNS + ["--hicache-mem-layout", "diagonal"], "diagonal", "page_first"),
            (TURNS + ["--hicache-write-policy", "never"], "--hicache-write-policy", "write_through"),
            (TURNS + ["--hicache-storage-backend", "tape"], "tape", "cluster"),
            (TURNS + ["--hicache-storage-backend", "file"], "path"),
            (TURNS + ["--hicache-storage-backend", "cluster"], "--index"),
            (TURNS + ["--hicache-storage-backend-extra-config", "{nonsense"], "extra-config"),
            (TURNS + ["--hicache-storage-backend-extra-config", '{"speed": 3}'], "speed", "prefetch_threshold"),
            (TURNS + ["--hicache-storage-backend-extra-config", "@/no/such/file"], "/no/such/file"),
            (TURNS + ["--hicache-storage-backend-extra-config", '{"tp_lcm_size": 3}'], "tp_lcm_size", "divides the 4 KV heads"),
            (TURNS + ["--device", "abacus"], "abacus", "host"),
            (TURNS + ["--metrics-port", "65536"], "--metrics-port", "65535"),
            (TURNS + ["--metrics-port", "-1"], "--metrics-port"),
            (TURNS + ["--metrics-port", "9100", "--metrics-host", ""], "--metrics-host", "127.0.0.1"),
            (TURNS + ["--linger", "soon"], "--linger", "soon"),
            (TURNS + ["--report", "/no/such/folder/report.json"], "/no/such/folder/report.json"),
            (TURNS + ["--config", "/no/such/config.toml"], "/no/such/config.toml"),
            ([], "--trace"),
        ):
            with self.subTest(arguments=arguments):
                self.refuse(REPLAY, arguments, *expected)

    def test_config_file(self):
        self.refuse(REPLAY, TURNS + ["--config", self.write("a.toml", "colour = 3\n")], "--config", "colour", "named like the flags")
        self.refuse(REPLAY, TURNS + ["--config", self.write("b.toml", "page-size = 48\n")], "--page-size", "48")

    def test_trace(self):
        good = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n'
        for text, *expected in (
            ("", "no request"),
            (good + "{broken\n", ":2:", "JSON"),
            (good + good + '{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}\n', ":3:", "input_length"),
            ('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}\n', ":1:", "hash_ids"),
            ('{"timestamp": -1, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n', ":1:", "timestamp"),
        ):
            with self.subTest(text=text):
                self.refuse(REPLAY, ["--trace", self.write("trace.jsonl", text)], "trace.jsonl", *expected)
        self.refuse(REPLAY, ["--trace", "/no/such/trace"], "/no/such/trace")
        self.refuse(REPLAY, ["--trace", self.write("long.jsonl", good), "--device-pages", "4"], "request 1", "--device-pages")

    def test_memory_that_is_not_there(self):
        self.refuse(REPLAY, TURNS + ["--hicache-size", "20000"], "--hicache-size", "available")
        self.refuse(REPLAY, TURNS + ["--hicache-size", "100000"], "--hicache-size", "host pages")
        self.refuse(REPLAY, TURNS + ["--device-pages", "500000000"], "--device-pages", "available")
        index, address = self.start_index()
        self.refuse(REPLAY, TURNS + ["--hicache-storage-backend", "cluster", "--index", address, "--segment-size", "100TB"],
                    "--segment-size", "available")
        self.refuse(REPLAY, TURNS + ["--hicache-storage-backend", "cluster", "--index", address, "--segment-size", "100"],
                    "--segment-size", "at least")
        index.terminate()
        self.assertEqual(index.wait(10), 0)

    def test_index_that_is_not_there(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # Bound but not listening: connections are refused.
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            self.refuse(REPLAY, TURNS + ["--hicache-storage-backend", "cluster", "--index", address], address, "hicache-index")
            self.refuse("hicachectl", ["status", "--index", address, "--timeout", "200ms"], address)
        self.refuse("hicachectl", ["status", "--index", "nowhere"], "nowhere", "127.0.0.1:7000")
        self.refuse("hicachectl", [])

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            self.refuse("hicache-index", ["--listen", address], address, "free port")
            port = str(taken.getsockname()[1])
            self.refuse("hicache-index", ["--listen", "127.0.0.1:0", "--metrics-port", port], "--metrics-port", address, "free")
            self.refuse(REPLAY, TURNS + ["--metrics-port", port], "--metrics-port", address, "free")
        self.refuse("hicache-index", ["--listen", "here"], "here")
        self.refuse("hicache-index", ["--member-ttl", "fast"], "fast", "250ms")

    def test_heads_that_ranks_cannot_share(self):
        program = self.start_replay("heads", 3, *TURNS, "--kv-heads", "4")
        self.assertEqual(program.wait(60), 2, program.text())
        self.assertIn("--kv-heads: '4' is not divisible by the number of ranks, 3, nor a divisor of it", program.err.read_text())
        self.assert_all_gone(program)

    def test_mpi_without_threads(self):
        # The real MPI, started for one thread only.
        preload = f"LD_PRELOAD={os.environ['HICACHE_MPI_FUNNELED']}"
        program = self.start([MPIRUN, 2, "env", preload, BIN / REPLAY, *TURNS], "threads")
        self.assertEqual(program.wait(60), 2, program.text())
        said = [line for line in program.err.read_text().splitlines() if line.startswith("hicache-replay: ")]
        self.assertEqual(len(said), 1, program.text())
        self.assertIn("MPI_THREAD_MULTIPLE", said[0])
        self.assert_all_gone(program)

    def test_help_and_version(self):
        for name in ("hicache-index", "hicache-rank", REPLAY, "hicachectl", "hicache-bench"):
            for flag, expected in (("--help", "--version"), ("--version", "UCX")):
                done = subprocess.run([BIN / name, flag], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(expected, done.stdout)
                self.assertEqual(done.stderr, "")


if __name__ == "__main__":
    main()
