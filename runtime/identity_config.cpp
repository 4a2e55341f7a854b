#include "base/limits.hpp"
#include "base/try.hpp"
#include "runtime/rank_config.hpp"

#include <absl/strings/str_format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

namespace hicache {

namespace {

using json = nlohmann::json;

/// Whether other processes read what this one stores.
bool others_read(const rank_config& config) {
  const auto is_private
    = [](std::string_view backend) { return backend.empty() || backend == "memory"; };
  const auto& tiers = config.storage.tiers;
  if (tiers.empty())
    return !is_private(config.storage_backend);
  return !std::ranges::all_of(tiers,
                              [&](const storage_config& x) { return is_private(x.tier.backend); });
}

/// Checks a text that becomes part of page names.
result<void> check_identity(std::string_view flag, const std::string& text) {
  const auto wrong
    = fail(ec::invalid_argument,
           absl::StrFormat("%s: expected one line of UTF-8 text, of %d bytes at most", flag,
                           limits::identity_text_bytes));
  const auto is_control = [](unsigned char byte) { return byte < 0x20 || byte == 0x7f; };
  if (text.size() > limits::identity_text_bytes || std::ranges::any_of(text, is_control))
    return wrong;
  try {
    static_cast<void>(json(text).dump());
  } catch (const json::type_error&) { // Not UTF-8.
    return wrong;
  }
  return {};
}

/// Normalises the order of keys and white space, so that equal settings have equal text.
result<std::string> canonical_rope(const std::string& text) {
  if (text.empty())
    return text;
  const auto settings = json::parse(text, nullptr, false);
  if (!settings.is_object())
    return fail(ec::invalid_argument, "--rope: '" + text
                                        + "' is no JSON object; expected one such as "
                                          "{\"rope_theta\": 500000.0}");
  return settings.empty() ? std::string{} : settings.dump();
}

} // namespace

result<void> finish_identity(rank_config& config) {
  for (const auto& [flag, text] : {std::pair{"--namespace", &config.name_space},
                                   {"--model-id", &config.model_id},
                                   {"--kv-quantisation", &config.kv_quantisation},
                                   {"--kv-scales", &config.kv_scales},
                                   {"--rope", &config.rope},
                                   {"--numerics", &config.numerics}})
    HICACHE_TRY(check_identity(flag, *text));
  config.rope = HICACHE_TRY(canonical_rope(config.rope));
  if (config.model_id.empty() && others_read(config))
    return fail(ec::invalid_argument,
                "--model-id is missing, and pages in " + config.storage_backend
                  + " are shared by all that name them alike, whatever their weights; expected "
                    "name and revision of the model, or what hicachectl model-id prints for its "
                    "folder");
  return {};
}

std::string rank_config::fingerprint() const {
  const auto model_geometry = pool_geometry{shape(1), mem_layout, 1};
  // Keys are sorted and texts quoted, so no value can be mistaken for another setting. The preset
  // is represented by the shape it stands for.
  return json{{"namespace", name_space},
              {"model_id", model_id},
              {"kv_quantisation", kv_quantisation},
              {"kv_scales", kv_scales},
              {"rope", rope},
              {"first_layer", first_layer},
              {"numerics", numerics},
              {"dtype", to_string(*dtype)},
              {"objects", model_geometry.object_fingerprint(heads_per_object())}}
    .dump();
}

} // namespace hicache
