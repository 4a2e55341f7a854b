// Settings: the extra config of the storage backend, and those of a rank.

#include "launch/rank_config.hpp"
#include "tests/launch/support.hpp"

#include <cmath>
#include <functional>
#include <map>

namespace hicache {
namespace {

// -- extra config -------------------------------------------------------------

class StorageConfigTest : public test::folder_test {
protected:
  static std::string complaint(const std::string& text) {
    const auto config = parse_storage_config(text);
    if (config)
      return "none";
    EXPECT_EQ(config.error().code, ec::invalid_argument);
    return config.error().detail;
  }

  static void expect_all_keys(const result<storage_config>& config) {
    ASSERT_TRUE(config) << config.error().detail;
    EXPECT_EQ(config->prefetch_threshold, 512u);
    EXPECT_EQ(config->path, "/data/kv");
    EXPECT_EQ(config->max_bytes, uint64_t{64} << 20);
    EXPECT_TRUE(config->force_remote_reads);
    EXPECT_EQ(config->threads, 3u);
  }

  const std::string json_ = R"({"prefetch_threshold": 512, "path": "/data/kv", "max_bytes": "64MiB",
                                "force_remote_reads": true, "threads": 3})";
};

TEST_F(StorageConfigTest, NothingMeansDefaults) {
  const auto config = parse_storage_config("");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->prefetch_threshold, 256u);
  EXPECT_EQ(config->threads, 2u);
  EXPECT_FALSE(config->force_remote_reads);
  EXPECT_EQ(config->max_bytes, 0u);
}

TEST_F(StorageConfigTest, ReadsJson) {
  expect_all_keys(parse_storage_config(json_));
  EXPECT_EQ(parse_storage_config(R"({"max_bytes": 1000})")->max_bytes, 1000u);
}

TEST_F(StorageConfigTest, ReadsFilesOfAllThreeKinds) {
  expect_all_keys(parse_storage_config("@" + write("x.json", json_)));
  expect_all_keys(parse_storage_config(
    "@"
    + write("x.toml", "prefetch_threshold = 512\npath = \"/data/kv\"\nmax_bytes = \"64MiB\"\n"
                      "force_remote_reads = true\nthreads = 3\n")));
  for (const auto* name : {"x.yaml", "x.yml"})
    expect_all_keys(parse_storage_config(
      "@"
      + write(name, "prefetch_threshold: 512\npath: /data/kv\nmax_bytes: 64MiB\n"
                    "force_remote_reads: true\nthreads: 3\n")));
}

TEST_F(StorageConfigTest, UnknownKeysAreNamed) {
  EXPECT_EQ(complaint(R"({"pathh": "x"})"),
            "key 'pathh' is not known; expected prefetch_threshold, path, max_bytes, threads or "
            "force_remote_reads");
  EXPECT_NE(complaint("@" + write("x.toml", "pathh = 1")).find("key 'pathh' is not known"),
            std::string::npos);
}

TEST_F(StorageConfigTest, WrongTypesAreNamedWithWhatWasExpected) {
  EXPECT_EQ(complaint(R"({"prefetch_threshold": "many"})"),
            "key 'prefetch_threshold' holds \"many\"; expected a number");
  EXPECT_EQ(complaint(R"({"prefetch_threshold": -1})"),
            "key 'prefetch_threshold' holds -1; expected a number");
  EXPECT_EQ(complaint(R"({"threads": 0})"), "key 'threads' holds 0; expected a positive number");
  EXPECT_EQ(complaint(R"({"path": 7})"), "key 'path' holds 7; expected the name of a folder");
  EXPECT_EQ(complaint(R"({"max_bytes": "64MiBs"})"),
            "key 'max_bytes' holds \"64MiBs\"; expected a size such as 64MiB");
  EXPECT_EQ(complaint(R"({"max_bytes": true})"), "key 'max_bytes' holds true; expected a number");
  EXPECT_EQ(complaint(R"({"force_remote_reads": 1})"),
            "key 'force_remote_reads' holds 1; expected true or false");
}

TEST_F(StorageConfigTest, BrokenTextAndMissingFilesAreSaidSo) {
  EXPECT_EQ(complaint("[1, 2]"), "expected keys and values, as in {\"prefetch_threshold\": 256}");
  EXPECT_EQ(complaint("{\"path\":").substr(0, 16), "cannot be read: ");
  EXPECT_EQ(complaint("@" + write("x.toml", "path = ")).substr(0, 16), "cannot be read: ");
  EXPECT_EQ(complaint("@" + write("x.yaml", "path: [1, 2")).substr(0, 16), "cannot be read: ");
  const auto absent = (folder_ / "absent.json").string();
  EXPECT_EQ(complaint("@" + absent), "cannot read the file " + absent);
}

// -- settings of a rank -------------------------------------------------------

using change = std::function<void(rank_config&)>;

std::string complaint_of(const change& spoil, uint32_t ranks = 2) {
  auto config = rank_config{};
  spoil(config);
  const auto finished = config.finish(ranks);
  if (finished)
    return "none";
  EXPECT_EQ(finished.error().code, ec::invalid_argument);
  return finished.error().detail;
}

TEST(RankConfigTest, DefaultsAreComplete) {
  auto config = rank_config{};
  ASSERT_TRUE(config.finish(2));
  EXPECT_EQ(config.layers, 2u);
  EXPECT_EQ(config.v_head_dim, config.head_dim);
  EXPECT_EQ(config.dtype, "bf16");
  EXPECT_EQ(config.shape(2), (pool_shape{attention_kind::mha, 2, 2, 8, 8, 2, 64}));
  EXPECT_EQ(config.host_pages(2), 8192u);
  EXPECT_FALSE(config.tree(2).storage_attached);
  EXPECT_TRUE(config.tree(2).share_prefixes);
  EXPECT_EQ(config.tree(2).prefetch_reserve_pages, 0u);
}

TEST(RankConfigTest, EachBadValueIsNamedInOneSentence) {
  const auto expected = std::map<std::string, change>{
    {"--model: 'gpt' is not a preset; expected tiny, llama-3.1-8b, llama-3.1-70b, qwen3-32b, "
     "deepseek-v3, deepseek-v3.2",
     [](rank_config& x) { x.model = "gpt"; }},
    {"--dtype: 'int4' is not an element type; expected fp8, fp16, bf16, fp32",
     [](rank_config& x) { x.dtype = "int4"; }},
    {"--page-size: '48' is not a power of two from 1 to 4096",
     [](rank_config& x) { x.page_size = 48; }},
    {"--page-size: '8192' is not a power of two from 1 to 4096",
     [](rank_config& x) { x.page_size = 8192; }},
    {"--page-size: '0' is not a power of two from 1 to 4096",
     [](rank_config& x) { x.page_size = 0; }},
    {"--kv-heads: '3' is not divisible by the number of ranks, which is 2",
     [](rank_config& x) { x.kv_heads = 3; }},
    {"--attention: 'linear' is not a kind of attention; expected mha, mla or nsa",
     [](rank_config& x) { x.attention = "linear"; }},
    {"--kv-heads and --v-head-dim: attention mla keeps one latent for all heads; expected "
     "--head-dim alone",
     [](rank_config& x) {
       x.attention = "mla";
       x.kv_heads = 4;
     }},
    {"--index-key-bytes: attention mla has no index keys; expected it with nsa alone",
     [](rank_config& x) {
       x.attention = "mla";
       x.index_key_bytes = 132;
     }},
    {"--hicache-write-policy: 'never' is not known; expected write_through or "
     "write_through_selective or write_back",
     [](rank_config& x) { x.write_policy = "never"; }},
    {"--hicache-storage-prefetch-policy: timeout is not offered by this version; expected "
     "wait_complete or best_effort",
     [](rank_config& x) { x.prefetch_policy = "timeout"; }},
    {"--radix-eviction-policy: no eviction policy is called \"random\"; there are lru, lfu, fifo, "
     "mru, filo, priority, slru",
     [](rank_config& x) { x.eviction_policy = "random"; }},
    {"--pin-budget: '1.5' is not a share from 0 to 1", [](rank_config& x) { x.pin_budget = 1.5; }},
    {"--pin-budget: 'nan' is not a share from 0 to 1", [](rank_config& x) { x.pin_budget = NAN; }},
    {"--disable-radix-cache: without the radix cache there is nothing to keep in "
     "--hicache-storage-backend; expected one or the other",
     [](rank_config& x) {
       x.disable_radix_cache = true;
       x.storage_backend = "memory";
     }},
    {"--hicache-io-backend: 'mmap' is not a way to copy pages; expected direct or kernel",
     [](rank_config& x) { x.io_backend = "mmap"; }},
    {"--hicache-storage-backend cluster needs --index HOST:PORT",
     [](rank_config& x) { x.storage_backend = "cluster"; }},
    {"--hicache-storage-backend-extra-config: key 'threads' holds 0; expected a positive number",
     [](rank_config& x) { x.extra_config = R"({"threads": 0})"; }},
    {"--hicache-ratio: '0.0001' is not a size that gives 1 to 2147483647 host pages",
     [](rank_config& x) { x.hicache_ratio = 0.0001; }},
    {"--hicache-size: '1e+12' is not a size that gives 1 to 2147483647 host pages",
     [](rank_config& x) { x.hicache_size = 1e12; }},
  };
  for (const auto& [sentence, spoil] : expected)
    EXPECT_EQ(complaint_of(spoil), sentence);
}

TEST(RankConfigTest, OtherBadChoicesNameFlagAndAllowedValues) {
  const auto layout = complaint_of([](rank_config& x) { x.mem_layout = "page_last"; });
  EXPECT_EQ(layout.find("--hicache-mem-layout: "), 0u) << layout;
  EXPECT_NE(layout.find("page_first_direct"), std::string::npos) << layout;
  const auto device = complaint_of([](rank_config& x) { x.device = "tpu"; });
  EXPECT_EQ(device.find("--device: "), 0u) << device;
  const auto backend = complaint_of([](rank_config& x) { x.storage_backend = "redis"; });
  EXPECT_EQ(backend.find("--hicache-storage-backend: 'redis' is not known"), 0u) << backend;
  const auto file = complaint_of([](rank_config& x) { x.storage_backend = "file"; });
  EXPECT_EQ(file.find("--hicache-storage-backend file needs a folder"), 0u) << file;
  const auto page = complaint_of([](rank_config& x) {
    x.model = "llama-3.1-70b";
    x.page_size = 4096;
    x.dtype = "fp32";
  });
  EXPECT_EQ(page.find("--page-size: '4096' is not small enough"), 0u) << page;
}

TEST(RankConfigTest, PoliciesReachTheTree) {
  for (const auto* name : {"lru", "lfu", "fifo", "mru", "filo", "priority", "slru"}) {
    auto config = rank_config{};
    config.eviction_policy = name;
    ASSERT_TRUE(config.finish(1)) << name;
    EXPECT_EQ(config.tree(1).eviction->name(), name);
  }
  const auto writes = std::map<std::string, write_policy>{
    {"write_through", write_policy::write_through},
    {"write_through_selective", write_policy::write_through_selective},
    {"write_back", write_policy::write_back}};
  for (const auto& [name, policy] : writes) {
    auto config = rank_config{};
    config.write_policy = name;
    ASSERT_TRUE(config.finish(1)) << name;
    EXPECT_EQ(config.tree(1).write, policy);
  }
}

TEST(RankConfigTest, PinsMayKeepAShareOfTheLargerTier) {
  const auto budget = [](uint32_t device_pages, double ratio, double share) {
    auto config = rank_config{};
    config.device_pages = device_pages;
    config.hicache_ratio = ratio;
    config.pin_budget = share;
    EXPECT_TRUE(config.finish(1));
    return config.tree(1).pin_budget_pages;
  };
  EXPECT_EQ(rank_config{}.pin_budget, 0.25);
  EXPECT_EQ(budget(100, 2, 0.25), 50u);
  EXPECT_EQ(budget(100, 0.5, 0.25), 25u);
  EXPECT_EQ(budget(100, 2, 0), 0u);
}

TEST(RankConfigTest, WithoutTheRadixCacheThereIsNoHostPool) {
  auto config = rank_config{};
  config.disable_radix_cache = true;
  ASSERT_TRUE(config.finish(1));
  EXPECT_FALSE(config.tree(1).share_prefixes);
  EXPECT_EQ(config.tree(1).host_pages, 0u);
}

TEST(RankConfigTest, FlagsOverridePresets) {
  auto config = rank_config{};
  config.model = "llama-3.1-8b";
  config.layers = 3;
  config.v_head_dim = 64;
  config.dtype = "fp8";
  ASSERT_TRUE(config.finish(4));
  EXPECT_EQ(config.shape(4), (pool_shape{attention_kind::mha, 3, 2, 128, 64, 1, 64}));
}

TEST(RankConfigTest, LatentsHaveNoHeadsAndAreTheSameOnEveryRank) {
  auto config = rank_config{};
  config.model = "deepseek-v3";
  ASSERT_TRUE(config.finish(8));
  EXPECT_EQ(config.shape(8), (pool_shape{attention_kind::mla, 61, 1, 576, 0, 2, 64}));
  EXPECT_EQ(config.shard(0, 8), config.shard(7, 8));
  auto sparse = rank_config{};
  sparse.attention = "nsa";
  ASSERT_TRUE(sparse.finish(3));
  EXPECT_EQ(sparse.shape(3), (pool_shape{attention_kind::nsa, 2, 1, 8, 0, 2, 64, 132}));
  auto heads = rank_config{};
  ASSERT_TRUE(heads.finish(2));
  EXPECT_NE(heads.shard(0, 2), heads.shard(1, 2));
}

TEST(RankConfigTest, CopySettingsReachTheEngine) {
  auto config = rank_config{};
  EXPECT_EQ(config.copies().io, io_backend::direct);
  config.io_backend = "kernel";
  config.io_sms = 7;
  config.io_threads = 3;
  ASSERT_TRUE(config.finish(1));
  EXPECT_EQ(config.copies().io, io_backend::kernel);
  EXPECT_EQ(config.copies().sms, 7u);
  EXPECT_EQ(config.copies().host_threads, 3u);
}

TEST(RankConfigTest, SizeInGigabytesWinsOverTheRatio) {
  auto config = rank_config{};
  config.hicache_size = 0.01;
  ASSERT_TRUE(config.finish(2));
  EXPECT_EQ(config.host_pages(2), 10'000'000u / (64 * 2 * 2 * 2 * 8 * 2));
}

TEST(RankConfigTest, StorageReservesPagesForPrefetching) {
  auto config = rank_config{};
  config.storage_backend = "memory";
  config.prefetch_policy = "best_effort";
  config.extra_config = R"({"prefetch_threshold": 100})";
  ASSERT_TRUE(config.finish(1));
  const auto options = config.tree(1);
  EXPECT_TRUE(options.storage_attached);
  EXPECT_EQ(options.prefetch_reserve_pages, 2048u);
  EXPECT_EQ(options.prefetch_threshold_tokens, 100u);
  EXPECT_EQ(options.prefetch, prefetch_policy::best_effort);
}

TEST(RankConfigTest, FingerprintsSeparateWhatMustNotBeExchanged) {
  const auto fingerprint = [](const change& alter) {
    auto config = rank_config{};
    alter(config);
    EXPECT_TRUE(config.finish(2));
    return config.fingerprint(2);
  };
  const auto usual = fingerprint([](rank_config&) {});
  EXPECT_NE(fingerprint([](rank_config& x) { x.name_space = "other"; }), usual);
  EXPECT_NE(fingerprint([](rank_config& x) { x.dtype = "fp16"; }), usual);
  EXPECT_NE(fingerprint([](rank_config& x) { x.page_size = 32; }), usual);
  EXPECT_NE(fingerprint([](rank_config& x) { x.layers = 3; }), usual);
  EXPECT_NE(fingerprint([](rank_config& x) { x.mem_layout = "page_first_direct"; }), usual);
  EXPECT_EQ(fingerprint([](rank_config& x) { x.device_pages = 77; }), usual);
}

TEST(RankConfigTest, ShardsNameTheHeads) {
  auto config = rank_config{};
  ASSERT_TRUE(config.finish(2));
  EXPECT_EQ(config.shard(0, 2), "heads 0+2");
  EXPECT_EQ(config.shard(1, 2), "heads 2+2");
}

TEST(RankConfigTest, EverySettingIsAmongTheFields) {
  auto config = rank_config{};
  const auto before = config.fields();
  config.page_size = 1;
  config.device_pages = 1;
  config.hicache_ratio = 1;
  config.hicache_size = 1;
  config.segment_bytes = 1;
  config.disable_radix_cache = true;
  config.pin_budget = 1;
  config.layers = config.kv_heads = config.head_dim = config.v_head_dim = 1;
  config.index_key_bytes = 1;
  config.io_sms = config.io_threads = 9;
  for (auto* text :
       {&config.write_policy, &config.io_backend, &config.mem_layout, &config.eviction_policy,
        &config.storage_backend, &config.prefetch_policy, &config.extra_config, &config.index,
        &config.device, &config.attention, &config.model, &config.dtype, &config.name_space})
    *text = "changed";
  const auto after = config.fields();
  ASSERT_EQ(after.size(), before.size());
  EXPECT_EQ(after.size(), 27u);
  for (auto i = size_t{0}; i < after.size(); ++i)
    EXPECT_NE(after[i].second, before[i].second) << after[i].first;
}

} // namespace
} // namespace hicache
