"""Codecs of L3: instances read what others stored by the same codecs and keys, and no page comes back wrong."""

from harness import BIN, SMALL_KV, SharedPagesTest, main

PAGE = SharedPagesTest.PAGE


class CodecsTest(SharedPagesTest):
    def setUp(self):
        super().setUp()
        self.stored = self.folder / "stored"

    def keys(self, *lines):
        path = self.folder / f"keys{len(lines)}"
        path.write_text("".join(line + "\n" for line in lines))
        return path

    def flags(self, codecs, *more, backend="file", **config):
        options = "".join(f', "{key}": "{value}"' for key, value in {**({"path": self.stored} if backend == "file" else {}), **config}.items())
        # L2 has room for all that waits for a slow disk: of what is too much, the oldest would not be stored.
        return ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", PAGE, "--device-pages", 512, "--hicache-ratio", 4,
                "--hicache-storage-backend", backend, "--hicache-storage-backend-extra-config",
                f'{{"prefetch_threshold": {PAGE}, "codecs": "{codecs}"{options}}}', *more]

    def objects(self):
        return {path.name: path.read_bytes() for path in self.stored.glob("*/*.kv")}

    def test_a_later_instance_of_another_size_reads_compressed_and_encrypted_pages(self):
        october = f"* october {'0a' * 32}"
        november = f"* november {'1b' * 32}"
        codecs = "zstd+aes-256-gcm"
        self.assert_clean(self.replay("first", 2, *self.flags(codecs, key_file=self.keys(october))))
        stored = self.objects()
        self.assertGreater(len(stored), 0)
        self.assert_all_found(self.replay("later", 1, *self.flags(codecs, key_file=self.keys(october))))
        self.assert_all_found(self.replay("rotated", 1, *self.flags(codecs, key_command=f"cat {self.keys(october, november)}")))
        self.assertEqual(self.objects(), stored, "what is there is not stored again")
        # Without a codec, or encryption alone: other names, or the same ones.
        open_report = self.replay("open", 1, *self.flags("none"))
        self.assert_clean(open_report)
        self.assertEqual(open_report["cached_tokens"]["l3"], 0)
        self.assertFalse(set(stored) - set(self.objects()), "the objects of others stay")
        self.assert_all_found(self.replay("lz4", 1, *self.flags("lz4+aes-256-gcm", key_file=self.keys(october))))

    def test_another_key_finds_nothing(self):
        self.assert_clean(self.replay("first", 1, *self.flags("aes-256-gcm", key_file=self.keys(f"* a {'0a' * 32}"))))
        report = self.replay("other", 1, *self.flags("aes-256-gcm", key_file=self.keys("# another one", f"* a {'0b' * 32}")))
        self.assert_clean(report)
        self.assertEqual(report["cached_tokens"]["l3"], 0)

    def test_pages_stay_whole_in_the_memory_of_the_cluster(self):
        index, address = self.start_index()
        flags = self.flags("aes-256-gcm", "--index", address, "--segment-size", "64MiB", backend="cluster", key_file=self.keys(f"* a {'0a' * 32}"))
        owner = self.start_replay("owner", 2, *flags, "--linger", "forever")
        owner.wait_for("requests in")
        self.assert_clean(self.read_report(owner))
        self.assert_all_found(self.replay("reader", 1, *flags))
        for program in (owner, index):
            program.terminate()
            program.wait(20)

    def test_what_cannot_be_is_refused_with_a_sentence(self):
        for number, (flags, sentence) in enumerate((
            (self.flags("gzip"), "key 'codecs': "),
            (self.flags("aes-256-gcm"), "codecs of L3: aes-256-gcm needs its keys from either a file or a command"),
            (self.flags("aes-256-gcm", key_file=self.folder / "none"), "codecs of L3: "),
            (self.flags("aes-256-gcm", key_command="false"), "codecs of L3: "),
        )):
            with self.subTest(sentence=sentence):
                program = self.start([BIN / "hicache-replay", *flags], f"refused{number}")
                self.assertEqual(program.wait(60), 2)
                self.assertEqual([line for line in program.err.read_text().splitlines() if sentence in line][1:], [])
                self.assertIn(sentence, program.err.read_text())


if __name__ == "__main__":
    main()
