#include "stores/storage_settings.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <absl/strings/str_format.h>

#include <algorithm>

namespace hicache {

namespace {

constexpr auto no_range = setting_range{};
constexpr auto within_an_hour = setting_range{0, 3600};
constexpr auto within_a_year = setting_range{0, 366 * 24 * 3600};
constexpr auto codec_names = "none, or fp8, zstd or lz4, aes-256-gcm joined by '+' in this order";
constexpr auto tier_objects
  = R"(a list of objects such as [{"backend": "memory"}, {"backend": "file", "path": "DIR"}])";
constexpr auto of_segment = "a share of the segment above 0, at most 1";

/// A list, which stores/storage_config.cpp parses itself.
setting_value tiers_of(storage_config& config) {
  return named_value{&config.tiers, [](const void*) { return std::string{}; }, nullptr};
}

constexpr auto settings = std::to_array<storage_setting>({
  {"prefetch_threshold", "TOKENS", "all", at<&storage_config::prefetch_threshold>,
   "a shorter tail is not looked for in L3", "a number", within(0, no_end), key_place::top},
  {"prefetch_timeout_base", "TIME", "all", at<&storage_config::prefetch_timeout_base>,
   "policy `timeout`: a prefetch takes at most base + per_ki_token * tokens / 1024; seconds, or "
   "times such as `\"250ms\"`",
   "", within_an_hour, key_place::top},
  {"prefetch_timeout_per_ki_token", "TIME", "all",
   at<&storage_config::prefetch_timeout_per_ki_token>, "as above", "", within_an_hour,
   key_place::top},
  {"prefetch_timeout_max", "TIME", "all", at<&storage_config::prefetch_timeout_max>,
   "the most of that, however many tokens there are", "", within_an_hour, key_place::top},
  {"prefetch_share", "X", "all", at<&storage_config::prefetch_share>,
   "share of L2 that is set aside for pages on their way from L3",
   "a share of L2 above 0, at most 0.5", within(0, 0.5), key_place::top},
  {"path", "DIR", "`file`, `disk`, `hf3fs`, `nixl`", at<&storage_config::path>,
   "the folder; created if it does not exist"},
  {"max_bytes", "SIZE", "all but `cluster`, `node`", bytes_at<&storage_config::max_bytes>,
   "`memory`, `disk`, `hf3fs`: most bytes of all ranks of the instance together; `file`: most "
   "bytes of the folder's pages, whoever wrote them; others: most bytes that this instance wrote "
   "and has not removed; a number or a size such as `\"64MiB\"`; 0 is without bound"},
  {"threads", "N", "all", at<&storage_config::threads>, "worker threads of the backend", "",
   within(1, no_end)},
  {"breaker_failures", "N", "all", at<&storage_config::breaker, &breaker_policy::failures>,
   "failed or late calls of one kind in a row after which [no call goes to "
   "L3](operations.md#an-l3-that-fails-or-hangs)",
   "", within(1, no_end), key_place::top},
  {"breaker_pause_min", "TIME", "all", at<&storage_config::breaker, &breaker_policy::pause_min>,
   "how long that lasts before L3 is tried with one page; it doubles with each such try that "
   "fails",
   "seconds, or a time such as 250ms, from 100ms to an hour", within(0.1, 3600), key_place::top},
  {"breaker_pause_max", "TIME", "all", at<&storage_config::breaker, &breaker_policy::pause_max>,
   "the most of that", "seconds, or a time such as 250ms, from 100ms to an hour", within(0.1, 3600),
   key_place::top},
  {"tp_lcm_size", "N", "all", at<&storage_config::tp_lcm_size>,
   "mha: a common multiple of the ranks of all instances that share pages, and a divisor or a "
   "multiple of the KV heads; makes fewer, larger [objects](backends.md#objects). Absent, or a "
   "multiple of the KV heads: an object for each head, which suits every number of ranks",
   "", within(1, no_end), key_place::top},
  {"force_remote_reads", "BOOL", "`cluster`", at<&storage_config::force_remote_reads>,
   "read by the network also from owners on the same machine; for tests and measurements"},
  {"replicas", "N", "`cluster`", at<&storage_config::replicas>,
   "copies of each page that a rank stores, its own among them, [on different "
   "hosts](cluster.md#placement)",
   "", within(1, limits::replicas_per_key)},
  {"host", "NAME", "`cluster`", at<&storage_config::host>,
   "what counts as one host; the machine's name if absent", "the name of a machine"},
  {"eviction", "NAME", "`cluster`", at<&storage_config::segment, &segment_policy::eviction>,
   "which page of the segment goes first: as for `--radix-eviction-policy`",
   "lru, lfu, fifo, mru, filo, priority or slru"},
  {"high_watermark", "X", "`cluster`",
   at<&storage_config::segment, &segment_policy::high_watermark>,
   "share of the segment: a page that would fill it beyond makes room down to `low_watermark`",
   of_segment, within(0, 1)},
  {"low_watermark", "X", "`cluster`", at<&storage_config::segment, &segment_policy::low_watermark>,
   "share of the segment at which that ends", of_segment, within(0, 1)},
  {"pinned_share", "X", "`cluster`", at<&storage_config::segment, &segment_policy::pinned_share>,
   "share of the segment that hard pins may keep", of_segment, within(0, 1)},
  {"tenant_share", "X", "`cluster`", at<&storage_config::segment, &segment_policy::tenant_share>,
   "share of the segment that the pages of one tenant may have", of_segment, within(0, 1)},
  {"repair_bytes_per_second", "SIZE", "`cluster`",
   bytes_at<&storage_config::repair, &repair_policy::bytes_per_second>,
   "most bytes a second that others read from this rank to replace [lost "
   "copies](cluster.md#placement); 0 is without bound"},
  {"repair_delay", "TIME", "`cluster`", at<&storage_config::repair, &repair_policy::delay>,
   "how long a rank waits with that after the index has told it of the loss: a member that "
   "restarts in that time brings its copies back",
   "", within_an_hour},
  {"zero_copy", "BOOL", "`cluster`", at<&storage_config::zero_copy>,
   "offer pages of L2 [where they lie](cluster.md#zero-copy), instead of copying them to the "
   "segment. Needs a `--hicache-mem-layout` in which an object is one piece: `page_head`, or "
   "`page_first` and `page_first_direct` where `tp_lcm_size` makes all heads of a rank one "
   "object, or the attention keeps a latent",
   "", no_range, key_place::top},
  {"servers", "HOST:PORT,...", "`redis`", at<&storage_config::redis, &redis_config::servers>,
   "the server; of a cluster some of its servers, the others are found through them",
   "addresses such as 10.0.0.7:6379, separated by commas"},
  {"redis_cluster", "BOOL", "`redis`", at<&storage_config::redis, &redis_config::is_cluster>,
   "they are a Redis Cluster"},
  {"key_prefix", "TEXT", "`redis`, `s3`", at<&storage_config::key_prefix>,
   "precedes the name of each object; `hicache:` in Redis (`hicache-node:` below a node) and "
   "`hicache/` in S3 if absent",
   "at most 128 characters that the server allows in names"},
  {"chunk_bytes", "SIZE", "`redis`", bytes_at<&storage_config::redis, &redis_config::chunk_bytes>,
   "bytes of an object in one value, from 4 KiB to 256 MiB; longer objects take several",
   "a number of bytes, or a size such as 4MiB"},
  {"ttl", "TIME", "`redis`", at<&storage_config::redis, &redis_config::ttl>,
   "how long the server keeps an object after its write; 0 is for ever",
   "seconds, or a time such as 24h", within_a_year},
  {"user", "NAME", "`redis`", at<&storage_config::redis, &redis_config::user>,
   "user of the server's ACL; its default user if absent", "the name of a user"},
  {"password_file", "FILE", "`redis`", at<&storage_config::redis, &redis_config::password_file>,
   "the file whose first line is the password; read for each connection"},
  {"password_variable", "NAME", "`redis`",
   at<&storage_config::redis, &redis_config::password_variable>,
   "the environment variable that holds the password, instead of a file", "the name of a variable"},
  {"tls", "BOOL", "`redis`", at<&storage_config::redis, &redis_config::uses_tls>,
   "connections use TLS"},
  {"tls_ca", "FILE", "`redis`, `s3`", at<&storage_config::tls_ca>,
   "authorities (PEM) that may have signed the server's certificate; the system's if absent"},
  {"tls_cert", "FILE", "`redis`", at<&storage_config::redis, &redis_config::tls_cert>,
   "this client's certificate (PEM)"},
  {"tls_key", "FILE", "`redis`", at<&storage_config::redis, &redis_config::tls_key>,
   "the certificate's key (PEM), without a passphrase"},
  {"tls_name", "NAME", "`redis`", at<&storage_config::redis, &redis_config::tls_name>,
   "the name in the server's certificate; the host of its address if absent", "the name of a host"},
  {"bucket", "NAME", "`s3`", at<&storage_config::s3, &s3_config::bucket>,
   "the bucket; it must exist", "the name of a bucket"},
  {"endpoint", "URL", "`s3`", at<&storage_config::s3, &s3_config::endpoint>,
   "the server, as `http://HOST:PORT` or `https://HOST`; AWS's in the region if absent",
   "http://HOST[:PORT] or https://HOST[:PORT]"},
  {"region", "NAME", "`s3`", at<&storage_config::s3, &s3_config::region>,
   "the region of the bucket", "a name such as eu-west-1"},
  {"virtual_host", "BOOL", "`s3`", at<&storage_config::s3, &s3_config::is_virtual_host>,
   "the bucket is part of the host's name (`https://BUCKET.HOST/`), not of the path"},
  {"credentials_file", "FILE", "`s3`", at<&storage_config::s3, &s3_config::credentials_file>,
   "the file with the keys, as AWS's tools keep it in `~/.aws/credentials`; read again when the "
   "server refuses them. If absent, the environment variables `AWS_ACCESS_KEY_ID`, "
   "`AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN` hold them"},
  {"profile", "NAME", "`s3`", at<&storage_config::s3, &s3_config::profile>,
   "the section of that file", "the name of a section"},
  {"part_bytes", "SIZE", "`s3`", bytes_at<&storage_config::s3, &s3_config::part_bytes>,
   "longer objects are written and read in parts of this size, side by side; from 5 MiB to 1 GiB",
   "a number of bytes, or a size such as 16MiB"},
  {"connections", "N", "`s3`", at<&storage_config::s3, &s3_config::connections>,
   "requests in progress of one of the `threads`", "", within(1, 1024)},
  {"socket", "PATH", "`external`", at<&storage_config::external, &external_config::socket>,
   "the Unix socket where the store's process listens", "the name of a socket"},
  {"command", "COMMAND", "`external`", at<&storage_config::external, &external_config::command>,
   "the shell command that starts it, instead: it finds the listening socket as its descriptor 3, "
   "and ends with its standard input"},
  {"start_time", "TIME", "`external`, `dynamic`, `mooncake`, `nixl`, `lmcache`",
   at<&storage_config::external, &external_config::start_time>,
   "how long it may take until it answers", "", within_an_hour},
  {"window_bytes", "SIZE", "`external`, `dynamic`, `mooncake`, `nixl`, `lmcache`",
   bytes_at<&storage_config::external, &external_config::window_bytes>,
   "memory that each of the `threads` shares with it, in which the longest object fits"},
  {"module_path", "NAME", "`dynamic`", at<&storage_config::external, &external_config::module_path>,
   "the module of the class, as for SGLang", "the name of a module such as package.module"},
  {"class_name", "NAME", "`dynamic`", at<&storage_config::external, &external_config::class_name>,
   "the class", "the name of a class"},
  {"python", "PROGRAM", "`dynamic`, `mooncake`, `nixl`, `lmcache`",
   at<&storage_config::external, &external_config::python>,
   "the interpreter, which has the [package](python.md) `hicache` and what the store needs",
   "the name of a program"},
  {"mount_point", "DIR", "`hf3fs`", at<&storage_config::hf3fs, &hf3fs_config::mount_point>,
   "where 3FS is mounted; found by the folder if absent"},
  {"library", "FILE", "`hf3fs`", at<&storage_config::hf3fs, &hf3fs_config::library>,
   "3FS's library for transfers that bypass FUSE", "the name of a shared library"},
  {"codecs", "NAMES", "all", at<&storage_config::codecs>,
   "how objects are [converted, compressed and encrypted](backends.md#codecs) on their way to the "
   "store: `fp8`, `zstd` or `lz4`, `aes-256-gcm`, joined by `+` in this order, or `none`; "
   "instances find objects of the same `fp8` and `aes-256-gcm` only",
   codec_names},
  {"zstd_level", "N", "all", at<&storage_config::zstd_level>, "codec `zstd`: the least is fastest",
   "", within(1, 19)},
  {"key_file", "FILE", "all", at<&storage_config::key_file>,
   "codec `aes-256-gcm`: the file with the [keys](backends.md#keys)"},
  {"key_command", "COMMAND", "all", at<&storage_config::key_command>,
   "the shell command that prints them, instead of a file"},
  {"codec_threads", "N", "all", at<&storage_config::codec_threads>,
   "threads that encode and decode", "", within(1, 64)},
  {"codec_bytes", "SIZE", "all", bytes_at<&storage_config::codec_bytes>,
   "memory for encoded objects on their way, [several of the longest for each "
   "thread](backends.md#codecs)"},
  {"tiers", "LIST", "`tiered`", tiers_of,
   "the [tiers](backends.md#tiered), fastest first: objects with the keys below and those of a "
   "store",
   tier_objects, no_range, key_place::top},
  {"parallel_lookup", "BOOL", "`tiered`", at<&storage_config::parallel_lookup>,
   "a look-up asks all tiers at once, not each for what those above it lack", "", no_range,
   key_place::top},
  {"copy_bytes", "SIZE", "`tiered`", bytes_at<&storage_config::copy_bytes>,
   "memory for objects on their way between tiers; what finds none is not copied", "", no_range,
   key_place::top},
  {"backend", "NAME", "a tier", at<&storage_config::tier, &tier_config::backend>,
   "the tier's store", any_store, no_range, key_place::tier},
  {"write", "RULE", "a tier", at<&storage_config::tier, &tier_config::write>,
   "which objects are written to the tier: `all`; `evict`, what the tier above evicts, which is a "
   "`memory`, `disk` or `hf3fs` without `fp8`; `hits:N`, at their N-th use; or `never`",
   "all, evict, never, or hits:N with N from 1 to 1000", no_range, key_place::tier},
  {"promote", "BOOL", "a tier", at<&storage_config::tier, &tier_config::promote>,
   "objects that a lower tier had are written to the tier at their second use", "", no_range,
   key_place::tier},
  {"write_bytes_per_second", "SIZE", "a tier",
   bytes_at<&storage_config::tier, &tier_config::write_bytes_per_second>,
   "most bytes written to the tier in a second; what is more is not written. 0 is without bound",
   "", no_range, key_place::tier},
  {"write_bytes_per_day", "SIZE", "a tier",
   bytes_at<&storage_config::tier, &tier_config::write_bytes_per_day>,
   "the same in a day, for the wear of an SSD", "", no_range, key_place::tier},
});

} // namespace

std::span<const storage_setting> storage_settings() {
  return settings;
}

std::string expected_of(const storage_setting& setting) {
  if (!setting.expected.empty())
    return std::string{setting.expected};
  if (setting.type == "N" && setting.range.most == no_end)
    return "a positive number";
  if (setting.type == "N")
    return absl::StrFormat("a number from %g to %g", setting.range.least, setting.range.most);
  constexpr auto by_type = std::to_array<std::array<std::string_view, 2>>(
    {{"BOOL", "true or false"},
     {"COMMAND", "a shell command"},
     {"DIR", "the name of a folder"},
     {"FILE", "the name of a file"},
     {"SIZE", "a number of bytes, or a size such as 64MiB"},
     {"TIME", "seconds, or a time such as 250ms, of an hour at most"}});
  const auto* const found
    = std::ranges::find(by_type, setting.type, [](const auto& x) { return x[0]; });
  HICACHE_CHECK(found != by_type.end());
  return std::string{(*found)[1]};
}

} // namespace hicache
