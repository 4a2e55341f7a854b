// Settings of a rank.

#include "runtime/rank_config.hpp"
#include "tests/runtime/support.hpp"

#include <cmath>
#include <functional>
#include <map>

namespace hicache {
namespace {

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
  EXPECT_EQ(config.dtype, element_type::bf16);
  EXPECT_EQ(config.shape(2), (pool_shape{attention_kind::mha, 2, 2, 8, 8, 2, 64}));
  EXPECT_EQ(config.l2_pages(2), 8192u);
  EXPECT_FALSE(tree_options_of(config, 2).storage_attached);
  EXPECT_TRUE(tree_options_of(config, 2).share_prefixes);
  EXPECT_EQ(tree_options_of(config, 2).prefetch_reserve_pages, 0u);
}

TEST(RankConfigTest, EachBadValueIsNamedInOneSentence) {
  const auto expected = std::map<std::string, change>{
    {"--model: 'gpt' is not a preset; expected tiny, llama-3.1-8b, llama-3.1-70b, qwen3-32b, "
     "deepseek-v3, deepseek-v3.2",
     [](rank_config& x) { x.model = "gpt"; }},
    {"--page-size: '48' is not a power of two from 1 to 4096",
     [](rank_config& x) { x.page_size = 48; }},
    {"--page-size: '8192' is not a power of two from 1 to 4096",
     [](rank_config& x) { x.page_size = 8192; }},
    {"--page-size: '0' is not a power of two from 1 to 4096",
     [](rank_config& x) { x.page_size = 0; }},
    {"--kv-heads: '3' is not divisible by the number of ranks, 2, nor a divisor of it",
     [](rank_config& x) { x.kv_heads = 3; }},
    {"--metrics-port: '65535' is not low enough for 2 ranks; expected at most 65534",
     [](rank_config& x) { x.metrics.port = 65535; }},
    {"--evict-below, --evict-until: '0.3 and 0.2' is not a pair of shares from 0 to 0.5, the first "
     "not above the second",
     [](rank_config& x) {
       x.evict_below = 0.3;
       x.evict_until = 0.2;
     }},
    {"--hicache-storage-backend-extra-config: key 'prefetch_timeout_base' holds \"soon\"; expected "
     "seconds, or a time such as 250ms, of an hour at most",
     [](rank_config& x) { x.extra_config = R"({"prefetch_timeout_base": "soon"})"; }},
    {"--hicache-storage-backend-extra-config: key 'prefetch_share' holds 0.75; expected a share of "
     "L2 above 0, at most 0.5",
     [](rank_config& x) { x.extra_config = R"({"prefetch_share": 0.75})"; }},
    {"--kv-heads and --v-head-dim: attention mla keeps one latent for all heads; expected "
     "--head-dim alone",
     [](rank_config& x) {
       x.attention = attention_kind::mla;
       x.kv_heads = 4;
     }},
    {"--index-key-bytes: attention mla has no index keys; expected it with nsa alone",
     [](rank_config& x) {
       x.attention = attention_kind::mla;
       x.index_key_bytes = 132;
     }},
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
    {"--hicache-storage-backend cluster needs --index HOST:PORT",
     [](rank_config& x) { x.storage_backend = "cluster"; }},
    {"--hicache-storage-batch-pages: 0 is out of range; expected 1 to 1024",
     [](rank_config& x) { x.traffic.batch_pages = 0; }},
    {"--hicache-storage-backup-pause: 61s is out of range; expected 0s to 60s",
     [](rank_config& x) { x.traffic.backup_pause = std::chrono::seconds{61}; }},
    {"--hicache-io-sms: 0 is out of range; expected 1 to 1024",
     [](rank_config& x) { x.io_sms = 0; }},
    {"--kv-events-replay is of use with --kv-events alone",
     [](rank_config& x) { x.kv_events_replay = "ipc:///tmp/replay"; }},
    {"--hicache-storage-backend node needs --node PATH|HOST:PORT, where hicache-node --socket or "
     "--listen serves",
     [](rank_config& x) { x.storage_backend = "node"; }},
    {"--hicache-storage-backend-extra-config: tp_lcm_size: '3' is not a multiple of the ranks, 2, "
     "that divides the 4 KV heads or is a multiple of them",
     [](rank_config& x) { x.extra_config = R"({"tp_lcm_size": 3})"; }},
    {"--hicache-storage-backend-extra-config: tp_lcm_size: '6' is not a multiple of the ranks, 2, "
     "that divides the 4 KV heads or is a multiple of them",
     [](rank_config& x) { x.extra_config = R"({"tp_lcm_size": 6})"; }},
    {"--hicache-storage-backend-extra-config: tp_lcm_size: '1' is not a multiple of the ranks, 2, "
     "that divides the 4 KV heads or is a multiple of them",
     [](rank_config& x) { x.extra_config = R"({"tp_lcm_size": 1})"; }},
    {"--hicache-storage-backend-extra-config: key 'threads' holds 0; expected a positive number",
     [](rank_config& x) { x.extra_config = R"({"threads": 0})"; }},
    {"--hicache-storage-backend-extra-config: zero_copy needs objects that are one piece of "
     "memory, and --hicache-mem-layout page_first scatters them; expected page_head, or page_first "
     "or "
     "page_first_direct with all heads of a rank in one object (tp_lcm_size)",
     [](rank_config& x) {
       x.mem_layout = host_layout::page_first;
       x.extra_config = R"({"zero_copy": true})";
     }},
    {"--hicache-storage-backend-extra-config: zero_copy needs objects that are one piece of "
     "memory, and --hicache-mem-layout layer_first scatters them; expected page_head, or "
     "page_first or "
     "page_first_direct with all heads of a rank in one object (tp_lcm_size)",
     [](rank_config& x) {
       x.mem_layout = host_layout::layer_first;
       x.extra_config = R"({"zero_copy": true, "tp_lcm_size": 2})";
     }},
    {"--hicache-storage-backend-extra-config: codec fp8 has nothing to convert, because --dtype is "
     "fp8; expected codecs without fp8",
     [](rank_config& x) {
       x.dtype = element_type::fp8;
       x.extra_config = R"({"codecs": "fp8+zstd"})";
     }},
    {"--hicache-storage-backend: 'tape' is not a store; expected file, disk, hf3fs, memory, "
     "cluster, node, redis, s3, external, dynamic, mooncake, nixl or lmcache, or tiered",
     [](rank_config& x) { x.storage_backend = "tape"; }},
    {"--hicache-storage-backend external needs a process; expected "
     "--hicache-storage-backend-extra-config '{\"socket\": \"PATH\"}' or "
     "'{\"command\": \"COMMAND\"}'",
     [](rank_config& x) {
       x.storage_backend = "external";
       x.extra_config = R"({"socket": "/s", "command": "c"})";
     }},
    {"--hicache-storage-backend dynamic needs a class; expected "
     "--hicache-storage-backend-extra-config '{\"module_path\": \"MODULE\", "
     "\"class_name\": \"CLASS\"}'",
     [](rank_config& x) {
       x.storage_backend = "dynamic";
       x.extra_config = R"({"module_path": "a;b", "class_name": "C"})";
     }},
    {"--hicache-storage-backend s3 needs a bucket; expected "
     "--hicache-storage-backend-extra-config '{\"bucket\": \"NAME\"}'",
     [](rank_config& x) { x.storage_backend = "s3"; }},
    {"--hicache-storage-backend disk needs a folder and a size; expected "
     "--hicache-storage-backend-extra-config '{\"path\": \"DIR\", \"max_bytes\": \"SIZE\"}'",
     [](rank_config& x) {
       x.storage_backend = "disk";
       x.extra_config = R"({"path": "/kv"})";
     }},
    {"--hicache-storage-backend redis needs a server; expected "
     "--hicache-storage-backend-extra-config '{\"servers\": \"HOST:PORT\"}'",
     [](rank_config& x) {
       x.model_id = "m";
       x.storage_backend = "redis";
     }},
    {"--hicache-storage-backend tiered and key 'tiers' of --hicache-storage-backend-extra-config "
     "belong together; expected both or neither",
     [](rank_config& x) { x.storage_backend = "tiered"; }},
    {"--hicache-storage-backend-extra-config: tier 2: 'tape' is not a store; expected file, "
     "disk, hf3fs, memory, cluster, node, redis, s3, external, dynamic, mooncake, nixl or lmcache",
     [](rank_config& x) {
       x.storage_backend = "tiered";
       x.extra_config = R"({"tiers": [{"backend": "memory"}, {"backend": "tape"}]})";
     }},
    {"--hicache-storage-backend-extra-config: tier 1: --hicache-storage-backend file needs a "
     "folder; expected --hicache-storage-backend-extra-config '{\"path\": \"DIR\"}'",
     [](rank_config& x) {
       x.storage_backend = "tiered";
       x.extra_config = R"({"tiers": [{"backend": "file"}]})";
     }},
    {"--hicache-storage-backend-extra-config: several tiers are cluster; expected one at most",
     [](rank_config& x) {
       x.storage_backend = "tiered";
       x.index = "127.0.0.1:1";
       x.segment_bytes = 1 << 20;
       x.extra_config = R"({"tiers": [{"backend": "cluster"}, {"backend": "cluster"}]})";
     }},
    {"--model-id is missing, and pages in tiered are shared by all that name them alike, whatever "
     "their weights; expected name and revision of the model, or what hicachectl model-id prints "
     "for its folder",
     [](rank_config& x) {
       x.model_id.clear();
       x.storage_backend = "tiered";
       x.extra_config = R"({"tiers": [{"backend": "memory"}, {"backend": "file", "path": "x"}]})";
     }},
    {"--admin-listen: 'here' is not an address such as 127.0.0.1:7000 or unix:/run/hicache",
     [](rank_config& x) { x.admin_listen = "here"; }},
    {"--admin-listen: every user of this machine reaches 127.0.0.1:0; expected --admin-token-file "
     "as "
     "well, or a Unix socket, unix:PATH",
     [](rank_config& x) { x.admin_listen = "127.0.0.1:0"; }},
    {"--admin-token-file is of use with --admin-listen alone",
     [](rank_config& x) { x.admin_token_file = "token"; }},
    {"--hicache-ratio: '0.0001' is not a size that gives 1 to 2147483647 host pages",
     [](rank_config& x) { x.hicache_ratio = 0.0001; }},
    {"--hicache-size: '1e+12' is not a size that gives 1 to 2147483647 host pages",
     [](rank_config& x) { x.hicache_size = 1e12; }},
  };
  for (const auto& [sentence, spoil] : expected)
    EXPECT_EQ(complaint_of(spoil), sentence);
}

TEST(RankConfigTest, OtherBadChoicesNameFlagAndAllowedValues) {
  const auto backend = complaint_of([](rank_config& x) { x.storage_backend = "tape"; });
  EXPECT_EQ(backend.find("--hicache-storage-backend: 'tape' is not a store"), 0u) << backend;
  const auto file = complaint_of([](rank_config& x) { x.storage_backend = "file"; });
  EXPECT_EQ(file.find("--hicache-storage-backend file needs a folder"), 0u) << file;
  const auto page = complaint_of([](rank_config& x) {
    x.model = "llama-3.1-70b";
    x.page_size = 4096;
    x.dtype = element_type::fp32;
  });
  EXPECT_EQ(page.find("--page-size: '4096' is not small enough"), 0u) << page;
}

TEST(RankConfigTest, PoliciesReachTheTree) {
  for (const auto* name : {"lru", "lfu", "fifo", "mru", "filo", "priority", "slru"}) {
    auto config = rank_config{};
    config.eviction_policy = name;
    ASSERT_TRUE(config.finish(1)) << name;
    EXPECT_EQ(tree_options_of(config, 1).eviction->name(), name);
  }
  for (const auto policy : {write_policy::write_through, write_policy::write_through_selective,
                            write_policy::write_back}) {
    auto config = rank_config{};
    config.write_policy = policy;
    ASSERT_TRUE(config.finish(1));
    EXPECT_EQ(tree_options_of(config, 1).write, policy);
  }
}

TEST(RankConfigTest, PinsMayKeepAShareOfTheLargerTier) {
  const auto budget = [](uint32_t l1_pages, double ratio, double share) {
    auto config = rank_config{};
    config.l1_pages = l1_pages;
    config.hicache_ratio = ratio;
    config.pin_budget = share;
    EXPECT_TRUE(config.finish(1));
    return tree_options_of(config, 1).pin_budget_pages;
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
  EXPECT_FALSE(tree_options_of(config, 1).share_prefixes);
  EXPECT_EQ(tree_options_of(config, 1).l2_pages, 0u);
}

TEST(RankConfigTest, FlagsOverridePresets) {
  auto config = rank_config{};
  config.model = "llama-3.1-8b";
  config.layers = 3;
  config.v_head_dim = 64;
  config.dtype = element_type::fp8;
  ASSERT_TRUE(config.finish(4));
  EXPECT_EQ(config.shape(4), (pool_shape{attention_kind::mha, 3, 2, 128, 64, 1, 64}));
}

TEST(RankConfigTest, LatentsHaveNoHeadsAndAreTheSameOnEveryRank) {
  auto config = rank_config{};
  config.model = "deepseek-v3";
  ASSERT_TRUE(config.finish(8));
  EXPECT_EQ(config.shape(8), (pool_shape{attention_kind::mla, 61, 1, 576, 0, 2, 64}));
  EXPECT_EQ(config.head_groups(0, 8), config.head_groups(7, 8));
  EXPECT_EQ(config.head_groups(0, 8), (std::vector<head_group>{{{0, 1}, "latent"}}));
  auto sparse = rank_config{};
  sparse.attention = attention_kind::nsa;
  ASSERT_TRUE(sparse.finish(3));
  EXPECT_EQ(sparse.shape(3), (pool_shape{attention_kind::nsa, 2, 1, 8, 0, 2, 64, 132}));
  auto heads = rank_config{};
  ASSERT_TRUE(heads.finish(2));
  EXPECT_NE(heads.head_groups(0, 2), heads.head_groups(1, 2));
}

TEST(RankConfigTest, NamesAChoiceThatScattersObjects) {
  auto config = rank_config{};
  ASSERT_TRUE(config.finish(1));
  EXPECT_FALSE(scattered_objects(config, 1)) << "the default is fast";
  config.mem_layout = host_layout::page_first;
  const auto slow = scattered_objects(config, 1);
  ASSERT_TRUE(slow);
  EXPECT_NE(slow->find("--hicache-mem-layout page_first keeps"), std::string::npos) << *slow;
  config.storage.tp_lcm_size = 1;
  EXPECT_FALSE(scattered_objects(config, 1)) << "all heads in one object";
  config.mem_layout = host_layout::layer_first;
  config.kv_heads = 1;
  config.head_dim = 4096;
  EXPECT_FALSE(scattered_objects(config, 1)) << "in large pieces";
}

TEST(RankConfigTest, CopySettingsReachTheEngine) {
  auto config = rank_config{};
  EXPECT_EQ(copy_options_of(config).io, io_backend::kernel);
  config.io_backend = io_backend::direct;
  config.io_sms = 7;
  config.io_threads = 3;
  ASSERT_TRUE(config.finish(1));
  EXPECT_EQ(copy_options_of(config).io, io_backend::direct);
  EXPECT_EQ(copy_options_of(config).sms, 7u);
  EXPECT_EQ(copy_options_of(config).host_threads, 3u);
}

TEST(RankConfigTest, SizeInGigabytesWinsOverTheRatio) {
  auto config = rank_config{};
  config.hicache_size = 0.01;
  ASSERT_TRUE(config.finish(2));
  EXPECT_EQ(config.l2_pages(2), 10'000'000u / (64 * 2 * 2 * 2 * 8 * 2));
}

TEST(RankConfigTest, StorageReservesPagesForPrefetching) {
  auto config = rank_config{};
  config.storage_backend = "memory";
  config.prefetch_policy = prefetch_policy::best_effort;
  config.extra_config = R"({"prefetch_threshold": 100})";
  ASSERT_TRUE(config.finish(1));
  const auto options = tree_options_of(config, 1);
  EXPECT_TRUE(options.storage_attached);
  EXPECT_EQ(options.prefetch_reserve_pages, 2048u);
  EXPECT_EQ(options.storage_backend, "memory");
  EXPECT_EQ(options.prefetch.threshold_tokens, 100u);
  EXPECT_EQ(options.prefetch.policy, prefetch_policy::best_effort);
  EXPECT_EQ(options.backup_limit_pages, 4096u);
}

TEST(RankConfigTest, PrefetchTimeoutsAreSecondsOrTimes) {
  auto config = rank_config{};
  config.storage_backend = "memory";
  config.prefetch_policy = prefetch_policy::timeout;
  config.extra_config = R"({"prefetch_timeout_base": 0.5, "prefetch_timeout_per_ki_token": "20ms",
                            "prefetch_timeout_max": 2, "prefetch_share": 0.125})";
  ASSERT_TRUE(config.finish(1));
  const auto options = tree_options_of(config, 1);
  EXPECT_EQ(options.prefetch.policy, prefetch_policy::timeout);
  EXPECT_EQ(options.prefetch.timeout_base, std::chrono::milliseconds{500});
  EXPECT_EQ(options.prefetch.timeout_per_ki_token, std::chrono::milliseconds{20});
  EXPECT_EQ(options.prefetch.timeout_max, std::chrono::seconds{2});
  EXPECT_EQ(options.prefetch_reserve_pages, 1024u);
}

TEST(RankConfigTest, WatermarksAreSharesOfL1) {
  auto config = rank_config{};
  config.evict_below = 0.25;
  config.evict_until = 0.5;
  ASSERT_TRUE(config.finish(1));
  EXPECT_EQ(tree_options_of(config, 1).l1_room, (watermarks{1024, 2048}));
}

TEST(RankConfigTest, SettingsOfTheTreeReachIt) {
  auto config = rank_config{};
  EXPECT_EQ(config.load_back_threshold, tree_options{}.load_back_threshold_tokens);
  auto app = CLI::App{};
  add_rank_flags(app, config);
  app.parse("--bigram --pin-refresh --page-order ascending --load-back-threshold 300");
  ASSERT_TRUE(config.finish(1));
  EXPECT_TRUE(tree_options_of(config, 1).bigram);
  EXPECT_TRUE(tree_options_of(config, 1).pin_refresh);
  EXPECT_EQ(tree_options_of(config, 1).load_back_threshold_tokens, 300u);
  EXPECT_EQ(tree_options_of(config, 1).order, page_order::ascending);
}

TEST(RankConfigTest, EventsAreSentInClearOnlyWhereThatIsWanted) {
  const auto refusal = [](const char* endpoint, bool insecure) {
    auto config = rank_config{};
    config.kv_events = endpoint;
    config.insecure = insecure;
    const auto finished = config.finish(1);
    config.kv_events = "ipc:///tmp/events";
    config.kv_events_replay = endpoint;
    EXPECT_EQ(config.finish(1).has_value(), finished.has_value()) << endpoint;
    return finished ? std::string{} : finished.error().detail;
  };
  for (const auto* endpoint : {"", "tcp://127.0.0.1:*", "tcp://[::1]:*", "ipc:///tmp/events"})
    EXPECT_EQ(refusal(endpoint, false), "");
  for (const auto* endpoint : {"tcp://*:5557", "tcp://[::]:5557", "tcp://router:5557"}) {
    EXPECT_NE(refusal(endpoint, false).find("--insecure"), std::string::npos);
    EXPECT_EQ(refusal(endpoint, true), "");
  }
}

TEST(RankConfigTest, TheTokenFileIsRankZerosAndNotReadHere) {
  auto config = rank_config{};
  config.admin_listen = "0.0.0.0:0";
  config.admin_token_file = "/no/such/file";
  EXPECT_TRUE(config.finish(2));
  auto other = config;
  other.admin_token_file = "/another/file";
  EXPECT_EQ(shared_settings(config), shared_settings(other));
  EXPECT_EQ(config.fingerprint(), [] {
    auto usual = rank_config{};
    EXPECT_TRUE(usual.finish(2));
    return usual.fingerprint();
  }());
}

TEST(RankConfigTest, FingerprintsSeparateWhatMustNotBeExchanged) {
  const auto fingerprint = [](const change& alter) {
    auto config = rank_config{};
    alter(config);
    EXPECT_TRUE(config.finish(2));
    return config.fingerprint();
  };
  const auto usual = fingerprint([](rank_config&) {});
  EXPECT_NE(fingerprint([](rank_config& x) { x.name_space = "other"; }), usual);
  EXPECT_NE(fingerprint([](rank_config& x) { x.dtype = element_type::fp16; }), usual);
  EXPECT_NE(fingerprint([](rank_config& x) { x.page_size = 32; }), usual);
  EXPECT_NE(fingerprint([](rank_config& x) { x.layers = 3; }), usual);
  EXPECT_NE(fingerprint([](rank_config& x) { x.mem_layout = host_layout::page_first; }), usual);
  EXPECT_EQ(fingerprint([](rank_config& x) { x.l1_pages = 77; }), usual);
}

TEST(RankConfigTest, FingerprintsAreThoseOfTheModelWhateverTheRanks) {
  const auto fingerprint = [](uint32_t ranks, const char* extra, uint32_t kv_heads = 8) {
    auto config = rank_config{};
    config.kv_heads = kv_heads;
    config.extra_config = extra;
    EXPECT_TRUE(config.finish(ranks));
    return config.fingerprint();
  };
  const auto usual = fingerprint(1, "");
  for (const auto ranks : {2u, 4u, 8u})
    EXPECT_EQ(fingerprint(ranks, ""), usual);
  EXPECT_EQ(fingerprint(2, R"({"tp_lcm_size": 8})"), usual);
  const auto larger = fingerprint(1, R"({"tp_lcm_size": 4})");
  EXPECT_NE(larger, usual);
  EXPECT_EQ(fingerprint(4, R"({"tp_lcm_size": 4})"), larger);
  EXPECT_NE(fingerprint(4, "", 4), usual);
}

TEST(RankConfigTest, GroupsNameTheHeadsOfTheModel) {
  auto config = rank_config{};
  ASSERT_TRUE(config.finish(2));
  EXPECT_EQ(config.heads_per_object(), 1u);
  EXPECT_EQ(config.head_groups(1, 2),
            (std::vector<head_group>{{{0, 1}, "heads 2+1"}, {{1, 1}, "heads 3+1"}}));
  config.extra_config = R"({"tp_lcm_size": 2})";
  ASSERT_TRUE(config.finish(2));
  EXPECT_EQ(config.heads_per_object(), 2u);
  EXPECT_EQ(config.head_groups(0, 2), (std::vector<head_group>{{{0, 2}, "heads 0+2"}}));
  EXPECT_EQ(config.head_groups(1, 2), (std::vector<head_group>{{{0, 2}, "heads 2+2"}}));
}

TEST(RankConfigTest, RanksThatOutnumberTheHeadsHoldReplicasOfThem) {
  const auto finished = [](uint32_t ranks, const char* extra = "") {
    auto config = rank_config{};
    config.kv_heads = 2;
    config.extra_config = extra;
    const auto done = config.finish(ranks);
    EXPECT_TRUE(done) << done.error().detail;
    return config;
  };
  const auto config = finished(4);
  EXPECT_EQ(config.shape(4).kv_heads, 1u);
  EXPECT_EQ(config.split(4), (head_split{1, 2}));
  for (const auto rank : {0u, 1u, 2u, 3u})
    EXPECT_EQ(config.head_groups(rank, 4),
              (std::vector<head_group>{{{0, 1}, rank < 2 ? "heads 0+1" : "heads 1+1"}}));
  // Instances of all sizes find each other's pages, also with the common multiple of their ranks.
  for (const auto ranks : {1u, 2u, 4u, 8u})
    for (const auto* extra : {"", R"({"tp_lcm_size": 2})", R"({"tp_lcm_size": 8})"}) {
      EXPECT_EQ(finished(ranks, extra).fingerprint(), config.fingerprint()) << ranks << extra;
      EXPECT_EQ(finished(ranks, extra).heads_per_object(), 1u);
    }
}

TEST(RankConfigTest, ZeroCopyTakesLayoutsWithWholeObjects) {
  for (const auto& [layout, more] : {std::pair{host_layout::page_head, ""},
                                     {host_layout::page_first, R"(, "tp_lcm_size": 2)"},
                                     {host_layout::page_first_direct, R"(, "tp_lcm_size": 2)"}}) {
    auto config = rank_config{};
    config.mem_layout = layout;
    config.extra_config = std::string{R"({"zero_copy": true)"} + more + "}";
    const auto finished = config.finish(2);
    EXPECT_TRUE(finished) << finished.error().detail;
  }
}

TEST(RankConfigTest, LatentsTakeAnyTpLcmSize) {
  auto config = rank_config{};
  config.attention = attention_kind::mla;
  config.extra_config = R"({"tp_lcm_size": 6})";
  ASSERT_TRUE(config.finish(4));
  EXPECT_EQ(config.heads_per_object(), 1u);
}

TEST(RankConfigTest, EverySettingIsAmongTheFields) {
  auto config = rank_config{};
  const auto before = shared_settings(config);
  config.page_size = 1;
  config.l1_pages = 1;
  config.hicache_ratio = 1;
  config.hicache_size = 1;
  config.segment_bytes = 1;
  config.disable_radix_cache = config.bigram = config.pin_refresh = true;
  config.load_back_threshold = 1;
  config.pin_budget = 1;
  config.evict_below = config.evict_until = 0.5;
  config.layers = config.kv_heads = config.head_dim = config.v_head_dim = 1;
  config.first_layer = 1;
  config.index_key_bytes = 1;
  config.io_sms = config.io_threads = 9;
  config.metrics.port = 9;
  config.write_policy = write_policy::write_back;
  config.io_backend = io_backend::direct;
  config.mem_layout = host_layout::page_first;
  config.page_order = page_order::ascending;
  config.prefetch_policy = prefetch_policy::timeout;
  config.prefetch_when = prefetch_rule::faster;
  config.device = device_kind::host;
  config.attention = attention_kind::nsa;
  config.dtype = element_type::fp32;
  config.kv_events_format = event_format::vllm;
  for (auto* text :
       {&config.eviction_policy, &config.storage_backend, &config.extra_config, &config.index,
        &config.model, &config.name_space, &config.admin_listen, &config.model_id,
        &config.kv_quantisation, &config.kv_scales, &config.rope, &config.numerics,
        &config.kv_events, &config.kv_events_topic, &config.kv_events_replay})
    *text = "changed";
  const auto after = shared_settings(config);
  ASSERT_EQ(after.size(), before.size());
  EXPECT_EQ(after.size(), 46u);
  for (auto i = size_t{0}; i < after.size(); ++i)
    EXPECT_NE(after[i].second, before[i].second) << after[i].first;
}

} // namespace
} // namespace hicache
