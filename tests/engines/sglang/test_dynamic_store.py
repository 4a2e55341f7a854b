"""SGLang's own file store below hicache's ranks: `--hicache-storage-backend dynamic`, which runs a class that was written for SGLang."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "system"))

from harness import SMALL_KV, SharedPagesTest  # noqa: E402


class DynamicStoreTest(SharedPagesTest):
    def test_instances_share_what_sglangs_class_keeps(self):
        stored = self.folder / "stored"
        os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(stored)
        flags = ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", self.PAGE, "--device-pages", 512, "--hicache-ratio", 4,
                 "--hicache-storage-backend", "dynamic", "--hicache-storage-backend-extra-config",
                 f'{{"prefetch_threshold": {self.PAGE}, "backend_name": "files", "module_path": "sglang.srt.mem_cache.hicache_storage", '
                 f'"class_name": "HiCacheFile", "interface_v1": 0, "python": "{sys.executable}", "start_time": 300, "prefetch_timeout_base": 60}}']
        self.assert_clean(self.replay("first", 1, *flags))
        self.assertGreater(len(list(stored.glob("*.bin"))), 0)
        self.assert_all_found(self.replay("second", 1, *flags))
