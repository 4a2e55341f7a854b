#include "launch/bench_transfer.hpp"

#include "base/about.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "gpu/device.hpp"
#include "launch/program.hpp"
#include "launch/transfer_measure.hpp"

#include <absl/strings/str_format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <map>

namespace hicache {

namespace {

/// Element sizes in bytes by --dtype name.
const auto element_sizes
  = std::map<std::string, uint32_t>{{"bf16", 2}, {"fp16", 2}, {"fp32", 4}, {"fp8", 1}};

uint32_t or_else(uint32_t given, uint32_t usual) {
  return given != 0 ? given : usual;
}

/// Flags that do not apply to the attention kind must be 0.
result<pool_shape> shape_of(const transfer_flags& flags) {
  const auto kind = HICACHE_TRY(about_input("--attention", parse_attention_kind(flags.attention)));
  auto shape = pool_shape{};
  shape.attention = kind;
  shape.layers = flags.layers;
  shape.element_bytes = element_sizes.at(flags.dtype);
  shape.page_size = flags.page_size;
  if (kind == attention_kind::mha) {
    shape.kv_heads = or_else(flags.kv_heads, 8);
    shape.head_dim = or_else(flags.head_dim, 128);
    shape.v_head_dim = or_else(flags.v_head_dim, shape.head_dim);
  } else {
    if (flags.kv_heads > 1 || flags.v_head_dim > 0)
      return fail(ec::invalid_argument, "--attention " + flags.attention
                                          + " keeps one latent for all heads, K and V; expected "
                                            "neither --kv-heads nor --v-head-dim");
    shape.kv_heads = 1;
    // DeepSeek-V3.
    shape.head_dim = or_else(flags.head_dim, 512 + 64);
  }
  if (kind == attention_kind::nsa)
    shape.index_key_bytes = or_else(flags.index_key_bytes, 128 + 4);
  else if (flags.index_key_bytes > 0)
    return fail(ec::invalid_argument, "--index-key-bytes: only --attention nsa has index keys");
  return shape;
}

result<transfer_case> case_of(const transfer_flags& flags) {
  auto what = transfer_case{};
  what.shape = HICACHE_TRY(shape_of(flags));
  what.layout = HICACHE_TRY(about_input("--layout", parse_host_layout(flags.layout)));
  what.copies.io = HICACHE_TRY(about_input("--io-backend", parse_io_backend(flags.io_backend)));
  what.device = HICACHE_TRY(about_input("--device", parse_device_kind(flags.device)));
  what.copies.sms = flags.io_sms;
  what.copies.host_threads = flags.threads;
  what.pages = flags.pages;
  what.fragmented = flags.fragmented;
  what.seconds = flags.seconds;
  return what;
}

nlohmann::json report(const transfer_flags& flags, const transfer_figures& found) {
  const auto direction = [](const direction_figures& figures) {
    return nlohmann::json{{"gib_per_s", figures.gib_per_s}, {"ratio", figures.ratio}};
  };
  return {{"op", "transfer"},
          {"layout", flags.layout},
          {"io_backend", flags.io_backend},
          {"device", found.device},
          {"pages", flags.pages},
          {"page_size", flags.page_size},
          {"page_bytes", found.page_bytes},
          {"threads", flags.threads},
          {"seconds", found.seconds},
          {"store", direction(found.store)},
          {"load", direction(found.load)},
          {"overlap_hidden", found.overlap_hidden},
          {"errors", found.errors}};
}

std::string to_text(const transfer_flags& flags, const transfer_figures& found) {
  const auto direction = [](const char* name, const direction_figures& figures) {
    auto text = absl::StrFormat("%s: %.2f GiB/s, %.2f of one large copy", name, figures.gib_per_s,
                                figures.ratio);
    if (figures.by_page_gib_per_s > 0)
      text += absl::StrFormat(", %.2f times one call per page and layer", figures.by_page_ratio);
    return text + "\n";
  };
  return absl::StrFormat("%s, %s, %s, %d pages of %s at a time:\n", found.device, flags.io_backend,
                         flags.layout, flags.pages, format_bytes(found.page_bytes))
         + direction("store", found.store) + direction("load", found.load)
         + absl::StrFormat("a computation of equal length hides %.0f %% of a load\n%d errors\n",
                           100 * found.overlap_hidden, found.errors);
}

} // namespace

void add_transfer_flags(CLI::App& app, transfer_flags& flags) {
  app.option_defaults()->always_capture_default();
  const auto choice = [&app](const char* name, std::string& value, const char* help) {
    return app.add_option(name, value, help)->type_name("NAME");
  };
  const auto count
    = [&app](const char* name, uint32_t& value, uint32_t least, uint32_t most, const char* help) {
        app.add_option(name, value, help)->type_name("N")->check(CLI::Range(least, most));
      };
  choice("--layout", flags.layout, "layout of L2");
  choice("--io-backend", flags.io_backend, "how pages are copied: direct or kernel");
  count("--pages", flags.pages, 1, limits::pool_pages - 1, "pages that are copied at a time");
  count("--page-size", flags.page_size, 1, 4096, "tokens per page");
  choice("--attention", flags.attention, "mha, mla or nsa");
  count("--layers", flags.layers, 1, 1024, "layers");
  count("--kv-heads", flags.kv_heads, 0, 1024, "mha: heads; 0 takes 8");
  count("--head-dim", flags.head_dim, 0, 65536,
        "elements of a K head, or of the latent; 0 takes 128, or 576");
  count("--v-head-dim", flags.v_head_dim, 0, 65536, "elements of a V head; 0 takes those of K");
  count("--index-key-bytes", flags.index_key_bytes, 0, 65536,
        "nsa: bytes of an index key; 0 takes 132");
  choice("--dtype", flags.dtype, "element type")->check(CLI::IsMember(element_sizes));
  choice("--device", flags.device, "where L1 lives: auto, cuda or host");
  count("--io-sms", flags.io_sms, 1, 1024, "kernel: SMs that copies may occupy");
  count("--threads", flags.threads, 1, 256, "host: threads that copy");
  app.add_flag("--fragmented", flags.fragmented, "name the pages in a random order");
  app.add_option("--seconds", flags.seconds, "how long to measure")
    ->check(CLI::Range(0.001, 3600.0));
  app.add_flag("--json", flags.json, "print one JSON object and nothing else");
}

result<int> bench_transfer(const transfer_flags& flags) {
  const auto what = HICACHE_TRY(case_of(flags));
  const auto page_bytes = pool_geometry{what.shape, what.layout, 2}.page_bytes();
  if (page_bytes > limits::page_bytes)
    return fail(ec::invalid_argument,
                absl::StrFormat("--page-size: a page would take %s, at most %s are allowed",
                                format_bytes(page_bytes), format_bytes(limits::page_bytes)));
  const auto found = HICACHE_TRY(measure_transfer(what));
  const auto text = flags.json ? report(flags, found).dump() + "\n" : to_text(flags, found);
  std::fputs(text.c_str(), stdout);
  return found.errors == 0 ? exit_ok : exit_failed;
}

} // namespace hicache
