// The extra config of the storage backend.

#include "runtime/rank_config.hpp"
#include "stores/storage_config.hpp"
#include "tests/runtime/support.hpp"

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace hicache {
namespace {

class StorageConfigTest : public test::folder_test {
protected:
  static std::string complaint(const std::string& text) {
    const auto config = parse_storage_config(text);
    if (config)
      return "none";
    EXPECT_EQ(config.error().code, ec::invalid_argument);
    return config.error().detail;
  }

  /// The settings, and what was logged.
  static std::pair<result<storage_config>, std::string>
  parse_and_listen(const std::string& text, const std::string& backend) {
    testing::internal::CaptureStdout();
    auto config = parse_storage_config(text, backend);
    return {std::move(config), testing::internal::GetCapturedStdout()};
  }

  /// More keys of an object.
  static std::string join(const std::vector<std::string>& keys) {
    auto text = std::string{};
    for (const auto& key : keys)
      text += ", " + key;
    return text;
  }

  static void expect_all_keys(const result<storage_config>& config) {
    ASSERT_TRUE(config) << config.error().detail;
    EXPECT_EQ(config->prefetch_threshold, 512u);
    EXPECT_EQ(config->path, "/data/kv");
    EXPECT_EQ(config->max_bytes, uint64_t{64} << 20);
    EXPECT_TRUE(config->force_remote_reads);
    EXPECT_EQ(config->threads, 3u);
    EXPECT_EQ(config->tp_lcm_size, 12u);
    EXPECT_EQ(config->replicas, 2u);
    EXPECT_EQ(config->host, "rack-7");
    EXPECT_EQ(config->segment.eviction->name(), "lfu");
    EXPECT_EQ(config->segment.high_watermark, 0.9);
    EXPECT_EQ(config->segment.low_watermark, 0.8);
    EXPECT_EQ(config->segment.pinned_share, 0.25);
    EXPECT_EQ(config->segment.tenant_share, 0.5);
    EXPECT_TRUE(config->zero_copy);
    EXPECT_EQ(config->breaker.failures, 5u);
    EXPECT_EQ(config->breaker.pause_min, std::chrono::milliseconds{250});
    EXPECT_EQ(config->breaker.pause_max, std::chrono::seconds{90});
    EXPECT_EQ(config->repair.bytes_per_second, uint64_t{1} << 30);
    EXPECT_EQ(config->repair.delay, std::chrono::seconds{60});
    EXPECT_EQ(config->zstd_level, 3u);
    EXPECT_EQ(config->key_file, "/etc/keys");
    EXPECT_EQ(config->key_command, "print keys");
    EXPECT_EQ(config->codec_threads, 4u);
    EXPECT_EQ(config->codec_bytes, uint64_t{1} << 20);
  }

  const std::string json_ = R"({"prefetch_threshold": 512, "path": "/data/kv", "max_bytes": "64MiB",
                                "force_remote_reads": true, "threads": 3, "tp_lcm_size": 12, "replicas": 2, "host": "rack-7", "eviction": "lfu",
                                "high_watermark": 0.9, "low_watermark": 0.8, "pinned_share": 0.25,
                                "tenant_share": 0.5, "zero_copy": true, "breaker_failures": 5,
                                "breaker_pause_min": "250ms", "breaker_pause_max": 90,
                                "repair_bytes_per_second": "1GiB", "repair_delay": "1min",
                                "zstd_level": 3, "key_file": "/etc/keys", "key_command": "print keys",
                                "codec_threads": 4, "codec_bytes": "1MiB"})";
};

TEST_F(StorageConfigTest, NothingMeansDefaults) {
  const auto config = parse_storage_config("");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->prefetch_threshold, 256u);
  EXPECT_EQ(config->threads, 2u);
  EXPECT_FALSE(config->force_remote_reads);
  EXPECT_FALSE(config->zero_copy);
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
                      "force_remote_reads = true\nthreads = 3\ntp_lcm_size = 12\nreplicas = 2\n"
                      "host = \"rack-7\"\neviction = \"lfu\"\nhigh_watermark = 0.9\n"
                      "low_watermark = 0.8\npinned_share = 0.25\ntenant_share = 0.5\n"
                      "zero_copy = true\nbreaker_failures = 5\nbreaker_pause_min = \"250ms\"\n"
                      "breaker_pause_max = 90\nrepair_bytes_per_second = \"1GiB\"\n"
                      "repair_delay = \"1min\"\nzstd_level = 3\nkey_file = \"/etc/keys\"\n"
                      "key_command = \"print keys\"\ncodec_threads = 4\ncodec_bytes = "
                      "\"1MiB\"\n")));
  for (const auto* name : {"x.yaml", "x.yml"})
    expect_all_keys(parse_storage_config(
      "@"
      + write(name, "prefetch_threshold: 512\npath: /data/kv\nmax_bytes: 64MiB\n"
                    "force_remote_reads: true\nthreads: 3\ntp_lcm_size: 12\nreplicas: 2\n"
                    "host: rack-7\neviction: lfu\nhigh_watermark: 0.9\nlow_watermark: 0.8\n"
                    "pinned_share: 0.25\ntenant_share: 0.5\nzero_copy: true\n"
                    "breaker_failures: 5\nbreaker_pause_min: 250ms\nbreaker_pause_max: 90\n"
                    "repair_bytes_per_second: 1GiB\nrepair_delay: 1min\nzstd_level: 3\n"
                    "key_file: /etc/keys\nkey_command: print keys\ncodec_threads: 4\n"
                    "codec_bytes: 1MiB\n")));
}

TEST_F(StorageConfigTest, CodecsAreNamedInTheirOrder) {
  EXPECT_EQ(parse_storage_config("")->codecs, "none");
  EXPECT_EQ(parse_storage_config(R"({"codecs": "fp8+zstd"})")->codecs, "fp8+zstd");
  EXPECT_NE(complaint(R"({"codecs": "zstd+fp8"})").find("key 'codecs': "), std::string::npos);
  EXPECT_EQ(
    complaint(R"({"codecs": 1})"),
    "key 'codecs' holds 1; expected none, or fp8, zstd or lz4, aes-256-gcm joined by '+' in "
    "this order");
  EXPECT_EQ(complaint(R"({"codecs": "fp8", "zero_copy": true})"),
            "key 'zero_copy' offers pages as they lie in L2; expected no 'codecs' and no 'tiers' "
            "with it");
}

TEST_F(StorageConfigTest, TiersAreStoresInAnOrder) {
  const auto expect_tiers = [](const result<storage_config>& config) {
    ASSERT_TRUE(config) << config.error().detail;
    EXPECT_TRUE(config->parallel_lookup);
    EXPECT_EQ(config->copy_bytes, uint64_t{8} << 20);
    ASSERT_EQ(config->tiers.size(), 2u);
    const auto& memory = config->tiers[0];
    EXPECT_EQ(memory.tier.backend, "memory");
    EXPECT_EQ(memory.max_bytes, uint64_t{1} << 30);
    EXPECT_EQ(memory.tier.write, "all");
    EXPECT_TRUE(memory.tier.promote);
    const auto& file = config->tiers[1];
    EXPECT_EQ(file.tier.backend, "file");
    EXPECT_EQ(file.path, "/data/kv");
    EXPECT_EQ(file.codecs, "zstd");
    EXPECT_EQ(file.tier.write, "hits:2");
    EXPECT_FALSE(file.tier.promote);
    EXPECT_EQ(file.tier.write_bytes_per_second, uint64_t{100} << 20);
    EXPECT_EQ(file.tier.write_bytes_per_day, uint64_t{1} << 40);
  };
  expect_tiers(parse_storage_config(R"({"parallel_lookup": true, "copy_bytes": "8MiB", "tiers": [
    {"backend": "memory", "max_bytes": "1GiB"},
    {"backend": "file", "path": "/data/kv", "codecs": "zstd", "write": "hits:2", "promote": false,
     "write_bytes_per_second": "100MiB", "write_bytes_per_day": "1TiB"}]})"));
  expect_tiers(parse_storage_config(
    "@"
    + write("x.toml", "parallel_lookup = true\ncopy_bytes = \"8MiB\"\n[[tiers]]\n"
                      "backend = \"memory\"\nmax_bytes = \"1GiB\"\n[[tiers]]\n"
                      "backend = \"file\"\npath = \"/data/kv\"\ncodecs = \"zstd\"\n"
                      "write = \"hits:2\"\npromote = false\n"
                      "write_bytes_per_second = \"100MiB\"\nwrite_bytes_per_day = \"1TiB\"\n")));
  expect_tiers(parse_storage_config(
    "@"
    + write("x.yaml", "parallel_lookup: true\ncopy_bytes: 8MiB\ntiers:\n- backend: memory\n"
                      "  max_bytes: 1GiB\n- backend: file\n  path: /data/kv\n  codecs: zstd\n"
                      "  write: hits:2\n  promote: false\n  write_bytes_per_second: 100MiB\n"
                      "  write_bytes_per_day: 1TiB\n")));
}

TEST_F(StorageConfigTest, AYamlFileThatContainsItselfIsRefused) {
  EXPECT_EQ(complaint("@" + write("x.yaml", "tiers: &all\n- *all\n")),
            "cannot be read: lists and tables are nested too deeply");
}

TEST_F(StorageConfigTest, WhatIsWrongInATierIsNamedWithIt) {
  const auto of_second = [](const std::string& tier) {
    return complaint(R"({"tiers": [{"backend": "memory"}, )" + tier + "]}");
  };
  EXPECT_EQ(
    of_second("{}"),
    "tier 2: key 'backend' is missing; expected file, disk, hf3fs, memory, cluster, node, redis, "
    "s3, external, dynamic, mooncake, nixl or lmcache");
  EXPECT_EQ(of_second("7"), "tier 2: expected an object such as {\"backend\": \"memory\"}");
  EXPECT_EQ(
    of_second(R"({"backend": "file", "write": "often"})"),
    "tier 2: key 'write' holds \"often\"; expected all, evict, never, or hits:N with N from 1 to "
    "1000");
  EXPECT_THAT(
    of_second(R"({"backend": "file", "prefetch_threshold": 1})"),
    testing::StartsWith("tier 2: key 'prefetch_threshold' is not known; expected path, "));
  EXPECT_THAT(complaint(R"({"write": "all"})"), testing::StartsWith("key 'write' is not known"));
  EXPECT_THAT(complaint(R"({"tiers": {}})"), testing::StartsWith("key 'tiers' holds {}; expected"));
  EXPECT_THAT(complaint(R"({"codecs": "zstd", "tiers": [{"backend": "memory"}]})"),
              testing::StartsWith("key 'codecs' is of use in each of the 'tiers'"));
}

/// Stores of others have keys of their own.
TEST_F(StorageConfigTest, KeysThatOnlyAStoreInAnotherProcessKnowsReachIt) {
  for (const auto* const backend : {"external", "dynamic", "mooncake", "nixl", "lmcache"}) {
    const auto config = parse_storage_config(
      R"({"threads": 3, "window_bytes": "1MiB", "backend_name": "ours", "more": {"x": [1]}})",
      backend);
    ASSERT_TRUE(config) << config.error().detail;
    EXPECT_EQ(config->threads, 3u);
    EXPECT_EQ(config->external.window_bytes, 1u << 20);
    EXPECT_EQ(config->external.options, R"({"backend_name":"ours","more":{"x":[1]}})");
  }
  EXPECT_FALSE(parse_storage_config(R"({"backend_name": "ours"})", "redis"));
  const auto tiers
    = parse_storage_config(R"({"tiers": [{"backend": "memory"}, {"backend": "nixl", "a": 1}]})");
  ASSERT_TRUE(tiers) << tiers.error().detail;
  EXPECT_EQ(tiers->tiers.at(1).external.options, R"({"a":1})");
  EXPECT_FALSE(parse_storage_config(R"({"tiers": [{"backend": "file", "a": 1}]})"));
}

/// A key that means nothing to a store would be a wish that nobody fulfils.
TEST_F(StorageConfigTest, KeysOfAnotherStoreAreRefused) {
  const auto about = [](const std::string& key, const std::string& backend) {
    const auto config = parse_storage_config("{\"" + key + "\": 2}", backend);
    return config ? std::string{} : config.error().detail;
  };
  EXPECT_THAT(about("bucket", "memory"),
              testing::StartsWith(
                "key 'bucket' is for s3, and the store is memory; expected prefetch_threshold, "));
  EXPECT_THAT(about("bucket", "memory"), testing::Not(testing::HasSubstr("servers")));
  EXPECT_THAT(about("replicas", "memory"), testing::HasSubstr("is for cluster, and the store is"));
  EXPECT_THAT(about("max_bytes", "cluster"), testing::HasSubstr("is for all but cluster, node"));
  EXPECT_THAT(about("path", "tiered"), testing::HasSubstr("is for file, disk, hf3fs, nixl, and"));
  EXPECT_EQ(about("replicas", "cluster"), "");
  EXPECT_EQ(about("replicas", ""), "") << "it is not known yet which store it is for";
  EXPECT_THAT(complaint(R"({"tiers": [{"backend": "memory", "ttl": 1}]})"),
              testing::StartsWith("tier 1: key 'ttl' is for redis, and the store is memory"));
  // A store of others may have a key of the same name.
  const auto config = parse_storage_config(R"({"bucket": "b", "threads": 2})", "dynamic");
  ASSERT_TRUE(config) << config.error().detail;
  EXPECT_EQ(config->external.options, R"({"bucket":"b"})");
}

TEST_F(StorageConfigTest, KeysOfSglangThatMeanNothingHereAreNamedInAWarning) {
  const auto any = std::vector<std::string>{R"("hicache_storage_pass_prefix_keys": true)",
                                            R"("interface_v1": 1)", R"("allocator": "shm")"};
  const auto of_store = std::map<std::string, std::vector<std::string>>{
    {"hf3fs",
     {R"("file_path_prefix": "/3fs/kv")", R"("file_size": 1024)", R"("numjobs": 16)",
      R"("entries": 8)", R"("metadata_server_url": "http://m:1")", R"("client_timeout": 5)",
      R"("use_mock_hf3fs_client": true)"}},
    {"file",
     {R"("min_free_space": "10Gi")", R"("eviction_ratio": 0.9)", R"("enable_metadata_cache": true)",
      R"("metadata_ttl": 5.0)"}}};
  for (const auto& [backend, keys] : of_store) {
    auto text = R"({"path": "/kv")" + join(any) + join(keys) + "}";
    const auto [config, logged] = parse_and_listen(text, backend);
    ASSERT_TRUE(config) << config.error().detail;
    EXPECT_EQ(config->path, "/kv");
    for (const auto& each : {any, keys})
      for (const auto& key : each)
        EXPECT_THAT(logged, testing::HasSubstr("key '" + key.substr(1, key.find(':') - 2)
                                               + "' of SGLang means nothing to hicache"));
  }
  EXPECT_THAT(parse_and_listen(R"({"path": "/kv"})", "file").second, testing::IsEmpty());
}

TEST_F(StorageConfigTest, SglangsBoundOfAFolderIsTakenForTheOneOfHicache) {
  const auto [config, logged] = parse_and_listen(R"({"path": "/kv", "max_size": "200G"})", "file");
  ASSERT_TRUE(config) << config.error().detail;
  EXPECT_EQ(config->max_bytes, 200'000'000'000u);
  EXPECT_THAT(logged, testing::HasSubstr("key 'max_size' of SGLang bounds the files of each rank; "
                                         "here it is taken for 'max_bytes'"));
  const auto [both, warned]
    = parse_and_listen(R"({"max_size": "1Gi", "max_bytes": "2Gi"})", "file");
  ASSERT_TRUE(both) << both.error().detail;
  EXPECT_EQ(both->max_bytes, uint64_t{2} << 30);
  EXPECT_THAT(warned, testing::HasSubstr("'max_size' of SGLang is ignored beside 'max_bytes'"));
  const auto tiers = parse_storage_config(
    R"({"tiers": [{"backend": "memory"}, {"backend": "file", "path": "/kv", "max_size": 7}]})");
  ASSERT_TRUE(tiers) << tiers.error().detail;
  EXPECT_EQ(tiers->tiers.at(1).max_bytes, 7u);
  EXPECT_EQ(parse_storage_config(R"({"max_size": "much"})", "file").error().detail,
            "key 'max_size' holds \"much\"; expected a number of bytes, or a size such as 64MiB");
  EXPECT_FALSE(parse_storage_config(R"({"max_size": "1Gi"})", "memory"));
}

TEST_F(StorageConfigTest, UnknownKeysAreNamed) {
  EXPECT_EQ(
    complaint(R"({"pathh": "x"})"),
    "key 'pathh' is not known; expected prefetch_threshold, prefetch_timeout_base, "
    "prefetch_timeout_per_ki_token, prefetch_timeout_max, prefetch_share, path, max_bytes, "
    "threads, breaker_failures, breaker_pause_min, breaker_pause_max, tp_lcm_size, "
    "force_remote_reads, replicas, host, eviction, high_watermark, low_watermark, "
    "pinned_share, tenant_share, repair_bytes_per_second, repair_delay, zero_copy, servers, "
    "redis_cluster, key_prefix, chunk_bytes, ttl, user, password_file, password_variable, tls, "
    "tls_ca, tls_cert, tls_key, tls_name, bucket, endpoint, region, virtual_host, "
    "credentials_file, profile, part_bytes, connections, socket, command, start_time, "
    "window_bytes, module_path, class_name, python, mount_point, library, codecs, "
    "zstd_level, key_file, key_command, codec_threads, codec_bytes, tiers, parallel_lookup or "
    "copy_bytes");
  EXPECT_NE(complaint("@" + write("x.toml", "pathh = 1")).find("key 'pathh' is not known"),
            std::string::npos);
}

TEST_F(StorageConfigTest, WrongTypesAreNamedWithWhatWasExpected) {
  EXPECT_EQ(complaint(R"({"prefetch_threshold": "many"})"),
            "key 'prefetch_threshold' holds \"many\"; expected a number");
  EXPECT_EQ(complaint(R"({"prefetch_threshold": -1})"),
            "key 'prefetch_threshold' holds -1; expected a number");
  EXPECT_EQ(complaint(R"({"threads": 0})"), "key 'threads' holds 0; expected a positive number");
  EXPECT_EQ(complaint(R"({"tp_lcm_size": 0})"),
            "key 'tp_lcm_size' holds 0; expected a positive number");
  EXPECT_EQ(complaint(R"({"path": 7})"), "key 'path' holds 7; expected the name of a folder");
  EXPECT_EQ(
    complaint(R"({"max_bytes": "64MiBs"})"),
    "key 'max_bytes' holds \"64MiBs\"; expected a number of bytes, or a size such as 64MiB");
  EXPECT_EQ(complaint(R"({"max_bytes": true})"),
            "key 'max_bytes' holds true; expected a number of bytes, or a size such as 64MiB");
  EXPECT_EQ(complaint(R"({"force_remote_reads": 1})"),
            "key 'force_remote_reads' holds 1; expected true or false");
  EXPECT_EQ(complaint(R"({"zero_copy": "yes"})"),
            "key 'zero_copy' holds \"yes\"; expected true or false");
  EXPECT_EQ(complaint(R"({"replicas": 9})"),
            "key 'replicas' holds 9; expected a number from 1 to 8");
  EXPECT_EQ(complaint(R"({"replicas": 0})"),
            "key 'replicas' holds 0; expected a number from 1 to 8");
  EXPECT_EQ(complaint(R"({"eviction": "best"})"),
            "key 'eviction' holds \"best\"; expected lru, lfu, "
            "fifo, mru, filo, priority or slru");
  EXPECT_EQ(complaint(R"({"tenant_share": 0})"),
            "key 'tenant_share' holds 0; expected a share of the segment above 0, at most 1");
  EXPECT_EQ(complaint(R"({"breaker_failures": 0})"),
            "key 'breaker_failures' holds 0; expected a positive number");
  for (const auto* pause : {"0", "\"99ms\"", "3601", "\"2h\""})
    EXPECT_EQ(complaint(std::string{R"({"breaker_pause_min": )"} + pause + "}"),
              std::string{"key 'breaker_pause_min' holds "} + pause
                + "; expected seconds, or a time such as 250ms, from 100ms to an hour");
  EXPECT_EQ(complaint(R"({"breaker_pause_min": "2min"})"),
            "key 'breaker_pause_min' is above 'breaker_pause_max'; expected it to be no longer");
  for (const auto* time : {"-1", "3601", "\"2h\""})
    EXPECT_EQ(complaint(std::string{R"({"repair_delay": )"} + time + "}"),
              std::string{"key 'repair_delay' holds "} + time
                + "; expected seconds, or a time such as 250ms, of an hour at most");
  EXPECT_EQ(complaint(R"({"repair_bytes_per_second": -1})"),
            "key 'repair_bytes_per_second' holds -1; expected a number of bytes, or a size such as "
            "64MiB");
  EXPECT_EQ(complaint(R"({"high_watermark": 0.5, "low_watermark": 0.6})"),
            "key 'low_watermark' is above 'high_watermark'; expected it to be no higher");
}

TEST_F(StorageConfigTest, BrokenTextAndMissingFilesAreSaidSo) {
  EXPECT_EQ(complaint("[1, 2]"), "expected keys and values, as in {\"prefetch_threshold\": 256}");
  EXPECT_EQ(complaint("{\"path\":").substr(0, 16), "cannot be read: ");
  EXPECT_EQ(complaint("@" + write("x.toml", "path = ")).substr(0, 16), "cannot be read: ");
  EXPECT_EQ(complaint("@" + write("x.yaml", "path: [1, 2")).substr(0, 16), "cannot be read: ");
  // Not UTF-8.
  EXPECT_EQ(complaint("@" + write("x.yaml", "path: \x9a")).substr(0, 16), "cannot be read: ");
  const auto absent = (folder_ / "absent.json").string();
  EXPECT_EQ(complaint("@" + absent), "cannot read the file " + absent);
}

TEST_F(StorageConfigTest, BecomesJsonForAnotherProcess) {
  EXPECT_EQ(*storage_config_json(""), "");
  EXPECT_EQ(*storage_config_json(R"({"path": "/kv"})"), R"({"path":"/kv"})");
  EXPECT_EQ(*storage_config_json("@" + write("x.yaml", "path: /kv\nthreads: 3\n")),
            R"({"path":"/kv","threads":3})");
  EXPECT_EQ(*storage_config_json("@" + write("x.toml", "of_a_later_version = true")),
            R"({"of_a_later_version":true})");
  EXPECT_EQ(storage_config_json("[]").error().code, ec::invalid_argument);
  EXPECT_EQ(storage_config_json("@/no/such/file").error().detail,
            "cannot read the file /no/such/file");
}

TEST_F(StorageConfigTest, OfRanksIsComparedByContent) {
  const auto value_of = [this](const char* name, const char* text) {
    auto config = rank_config{};
    config.extra_config = "@" + write(name, text);
    EXPECT_TRUE(config.finish(1));
    return config.extra_config;
  };
  const auto first = value_of("a.json", R"({"threads": 3})");
  EXPECT_NE(value_of("a.json", R"({"threads": 4})"), first) << "the same name, another content";
  EXPECT_EQ(value_of("b.toml", "threads = 3"), first) << "another name, the same content";
}

} // namespace
} // namespace hicache
