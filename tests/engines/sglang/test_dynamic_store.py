"""Classes that were written for SGLang below hicache's ranks (`--hicache-storage-backend dynamic`): SGLang's own files, and AIBrix's with RocksDB."""

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "system"))

from harness import SMALL_KV, SharedPagesTest  # noqa: E402

# AIBrix's package and what it needs beside SGLang's, which the environment has.
AIBRIX = ("aibrix-kvcache==0.8.0", "cityhash==0.4.10", "more-itertools==11.2.1", "nvtx==0.2.17", "redis==6.0.0", "rocksdict==0.3.29", "sortedcontainers==2.4.0",
          "validators==0.36.0")
# K and V of one head and layer: tokens, elements, and two bytes for each.
OBJECT_BYTES = 2 * SharedPagesTest.PAGE * 4 * 2


def aibrix_packages():
    """A folder with them beside the environment, which stays as it is."""
    folder = pathlib.Path(sys.prefix).parent / "aibrix"
    made = folder / "made_from"
    if not made.exists() or made.read_text() != str(AIBRIX):
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", folder, *AIBRIX], check=True)
        made.write_text(str(AIBRIX))
    return folder


class DynamicStoreTest(SharedPagesTest):
    def assert_shared(self, config):
        config = {"prefetch_threshold": self.PAGE, "python": sys.executable, "start_time": 300, "prefetch_timeout_base": 60, **config}
        flags = ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", self.PAGE, "--device-pages", 512, "--hicache-ratio", 4,
                 "--hicache-storage-backend", "dynamic", "--hicache-storage-backend-extra-config", json.dumps(config)]
        self.assert_clean(self.replay("first", 1, *flags))
        self.assert_all_found(self.replay("second", 1, *flags))

    def test_instances_share_what_sglangs_class_keeps(self):
        stored = self.folder / "stored"
        os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(stored)
        self.assert_shared({"backend_name": "files", "module_path": "sglang.srt.mem_cache.hicache_storage", "class_name": "HiCacheFile", "interface_v1": 0})
        self.assertGreater(len(list(stored.glob("*.bin"))), 0)

    def test_instances_share_what_aibrixs_class_keeps_in_rocksdb(self):
        stored = self.folder / "stored"
        os.environ |= {"PYTHONPATH": f"{os.environ['PYTHONPATH']}:{aibrix_packages()}:{HERE}", "AIBRIX_KV_CACHE_OL_L1_CACHE_ENABLED": "0",
                       "AIBRIX_KV_CACHE_OL_L2_CACHE_BACKEND": "ROCKSDB", "AIBRIX_KV_CACHE_OL_L2_CACHE_INGESTION_TYPE": "ALL",
                       "AIBRIX_KV_CACHE_OL_ROCKSDB_ROOT": str(stored)}
        self.assert_shared({"backend_name": "aibrix", "module_path": "unpinned_aibrix", "class_name": "AibrixKVCacheStorage", "object_bytes": OBJECT_BYTES})
        self.assertGreater(len(list(stored.rglob("*"))), 0)
