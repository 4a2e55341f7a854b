#include "c_tree/cache_config.hpp"

#include "base/about.hpp"
#include "base/json_fields.hpp"
#include "base/try.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace hicache {

namespace {

/// Maximum bytes of a configuration. A few thousand are usual.
constexpr auto most_bytes = size_t{256} << 10;

/// Maximum JSON nesting: one object, with settings that are JSON themselves.
constexpr auto most_levels = 8;

/// Appends an entry as command-line words, in reverse order.
result<void> add_words(const CLI::App& app, const std::string& key, const nlohmann::json& value,
                       std::vector<std::string>& words) {
  const auto flag = "--" + key;
  if (key == "help" || key.starts_with('-') || app.get_option_no_throw(flag) == nullptr)
    return fail(ec::invalid_argument, "configuration: \"" + key
                                        + "\" is not known; expected a setting of a rank such as "
                                          "device-pages, as hicache-rank --help lists them");
  if (value.is_array() || value.is_null())
    return fail(ec::invalid_argument, "configuration: \"" + key
                                        + "\": expected a text, a number, true, false or an "
                                          "object");
  const auto text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text.find('\0') != std::string::npos)
    return fail(ec::invalid_argument, "configuration: \"" + key + "\": a zero byte in a text");
  if (text.empty()) {
    words.push_back(text);
    words.push_back(flag);
  } else {
    words.push_back(flag + "=" + text);
  }
  return {};
}

} // namespace

result<cache_setup> read_cache_settings(std::string_view json) {
  const auto parsed = parse_object(json, most_bytes, most_levels);
  if (!parsed)
    return fail(
      ec::invalid_argument,
      R"(configuration: expected a JSON object such as {"model-id": "m@1", "device-pages": 4096})");
  auto settings = cache_setup{};
  auto app = CLI::App{"", "configuration"};
  add_rank_flags(app, settings.config);
  add_place_flags(app, settings.place);
  auto words = std::vector<std::string>{};
  for (const auto& [key, value] : parsed->items())
    HICACHE_TRY(add_words(app, key, value, words));
  try {
    app.parse(words);
  } catch (const CLI::Error& ex) {
    return fail(ec::invalid_argument, std::string{"configuration: "} + ex.what());
  }
  auto ranks = uint32_t{1};
  if (!settings.place.rendezvous.empty()) {
    const auto place = HICACHE_TRY(about("configuration", settings.place.options(settings.config)));
    ranks = place.size;
  }
  HICACHE_TRY(about("configuration", settings.config.finish(ranks)));
  return settings;
}

} // namespace hicache
