#include "cache/oplog/op_json.hpp"

#include <absl/strings/escaping.h>

#include <memory>

namespace hicache::op_json {

namespace {

/// Writes a list; `write_one` writes an element.
template <class List, class Write>
void write_list(std::string& text, const List& list, Write write_one) {
  auto separator = '[';
  for (const auto& x : list) {
    text += separator;
    write_one(text, x);
    separator = ',';
  }
  text += list.empty() ? "[]" : "]";
}

template <class Integer>
void write_numbers(std::string& text, const std::vector<Integer>& list) {
  write_list(text, list, write<Integer>);
}

/// Decodes the bytes of {"hex": "..."}.
bool read_hex_bytes(const json& from, std::string& to) {
  if (!from.is_object() || from.size() != 1 || !from.contains("hex") || !from["hex"].is_string())
    return false;
  const auto& digits = from["hex"].get_ref<const std::string&>();
  if (digits.size() % 2 != 0 || digits.find_first_not_of("0123456789abcdef") != std::string::npos)
    return false;
  to = absl::HexStringToBytes(digits);
  return true;
}

} // namespace

// -- reading values -------------------------------------------------------------------------------

std::string read(const json& from, bool& to) {
  if (!from.is_boolean())
    return "expected true or false";
  to = from.get<bool>();
  return {};
}

std::string read(const json& from, double& to) {
  if (!from.is_number())
    return "expected a number";
  to = from.get<double>();
  return {};
}

std::string read(const json& from, std::string& to) {
  if (from.is_string())
    to = from.get<std::string>();
  else if (!read_hex_bytes(from, to))
    return "expected text";
  return {};
}

std::string read(const json& from, std::chrono::nanoseconds& to) {
  auto count = int64_t{};
  auto expected = read(from, count);
  to = std::chrono::nanoseconds{count};
  return expected;
}

std::string read(const json& from, eviction_policy_ptr& to) {
  if (!from.is_string())
    return "expected the name of an eviction policy";
  auto found = make_eviction_policy(from.get_ref<const std::string&>());
  if (!found)
    return found.error().detail;
  to = *found;
  return {};
}

std::string read(const json& from, token_buffer& to) {
  if (!from.is_array())
    return "expected a list of numbers";
  auto list = std::make_shared<std::vector<token_id>>();
  list->reserve(from.size());
  for (const auto& element : from) {
    if (!element.is_number())
      return "expected numbers only";
    auto& token = list->emplace_back();
    if (!read(element, token).empty())
      return "token id does not fit in uint32: " + element.dump();
  }
  to = std::move(list);
  return {};
}

std::string read(const json& from, std::vector<int64_t>& to) {
  if (!from.is_array())
    return "expected a list of numbers";
  to.clear();
  for (const auto& element : from)
    if (auto expected = read(element, to.emplace_back()); !expected.empty())
      return expected;
  return {};
}

std::string read(const json& from, std::vector<page_list>& to) {
  if (!from.is_array())
    return "expected a list of lists of pages";
  to.clear();
  for (const auto& element : from) {
    auto& pages = to.emplace_back();
    if (element.is_null())
      continue;
    if (!read(element, pages).empty())
      return "expected lists of page numbers, or null";
  }
  return {};
}

/// Numbers of a fetch in logs before there were estimates; and miss_reason::none in these.
constexpr auto old_fetch_values = size_t{3};
constexpr auto old_no_reason = int64_t{10};

/// Numbers of a fetch without those from the upper tiers.
constexpr auto least_fetch_values = size_t{5};

bool is_fetch_fact(std::span<const int64_t> values) {
  const auto size = values.size();
  const auto most = least_fetch_values + fetch_fact{}.from_above.size();
  if (size != old_fetch_values && (size < least_fetch_values || size > most))
    return false;
  const auto above = values.subspan(std::min(size, least_fetch_values));
  const auto last
    = size == old_fetch_values ? old_no_reason : static_cast<int64_t>(miss_reason::none);
  return values[0] >= -1
         && std::ranges::all_of(values.subspan(1), [](int64_t each) { return each >= 0; })
         && values[2] <= last && std::ranges::is_sorted(above)
         && (above.empty() || above.back() <= values[0]);
}

std::string read(const json& from, std::vector<fetch_fact>& to) {
  if (!from.is_array())
    return "expected a list";
  to.clear();
  for (const auto& element : from) {
    auto values = std::vector<int64_t>{};
    if (!read(element, values).empty() || !is_fetch_fact(values))
      return "expected lists of numbers: pages arrived, pages found, reason, two estimates, pages "
             "from the upper tiers";
    auto& fact
      = to.emplace_back(fetch_fact{values[0], values[1], static_cast<miss_reason>(values[2])});
    if (values.size() == old_fetch_values) {
      if (values[2] == old_no_reason)
        fact.why = miss_reason::none;
      continue;
    }
    fact.load_ns = values[3];
    fact.compute_ns = values[4];
    const auto above = std::span{values}.subspan(least_fetch_values);
    if (!above.empty())
      fact.from_above.fill(above.back());
    std::ranges::copy(above, fact.from_above.begin());
  }
  return {};
}

// -- writing values -------------------------------------------------------------------------------

void write(std::string& text, bool value) {
  text += value ? "true" : "false";
}

void write(std::string& text, const std::string& value) {
  try {
    text += json(value).dump();
  } catch (const json::type_error&) { // Not UTF-8.
    absl::StrAppend(&text, "{\"hex\":\"", absl::BytesToHexString(value), "\"}");
  }
}

void write(std::string& text, std::chrono::nanoseconds value) {
  write(text, value.count());
}

void write(std::string& text, const eviction_policy_ptr& value) {
  write(text, std::string{value->name()});
}

void write(std::string& text, const token_buffer& value) {
  write_numbers(text, *value);
}

void write(std::string& text, const std::vector<int64_t>& value) {
  write_numbers(text, value);
}

void write(std::string& text, const std::vector<page_list>& value) {
  write_list(text, value, [](std::string& to, const page_list& pages) {
    if (pages)
      write_numbers(to, *pages);
    else
      to += "null";
  });
}

void write(std::string& text, const std::vector<fetch_fact>& value) {
  write_list(text, value, [](std::string& to, const fetch_fact& fetch) {
    auto values = std::vector<int64_t>{fetch.arrived, fetch.found, static_cast<int64_t>(fetch.why),
                                       fetch.load_ns, fetch.compute_ns};
    auto above = std::span<const int64_t>{fetch.from_above};
    while (!above.empty() && above.back() == (above.size() > 1 ? above[above.size() - 2] : 0))
      above = above.first(above.size() - 1);
    values.insert(values.end(), above.begin(), above.end());
    write_numbers(to, values);
  });
}

// -- lines, objects ----------------------------------------------------------------------

result<json> parse_object(std::string_view line) {
  auto object = json::parse(line, nullptr, false);
  if (object.is_discarded())
    return fail(ec::malformed_message, "expected a JSON object, found what is no JSON");
  if (!object.is_object())
    return fail(ec::malformed_message, "expected a JSON object, found another JSON value");
  return object;
}

result<void> object_reader::finish() {
  for (const auto& [key, value] : object_.items())
    if (std::find(known_.begin(), known_.end(), key) == known_.end())
      complain("key '" + shorten(key) + "' is not known here");
  if (!why_.empty())
    return fail(ec::invalid_argument, why_);
  return {};
}

std::string object_reader::describe(const json& value) {
  if (value.is_structured())
    return value.is_array() ? "a list" : "an object";
  return shorten(value.dump());
}

std::string object_reader::shorten(std::string text) {
  constexpr auto most = size_t{60};
  if (text.size() > most) {
    auto end = most;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
      --end; // Not inside a UTF-8 sequence.
    text.resize(end);
    text += "...";
  }
  return text;
}

} // namespace hicache::op_json
