#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

namespace llama {

/// Reads fields of a JSON object that others wrote, and keeps the first complaint. What is null
/// counts as absent.
class json_fields {
public:
  /// @param object, complaint Must outlive the reader.
  json_fields(const nlohmann::json& object, std::string& complaint)
    : object_(object), complaint_(complaint) {}

  /// Null if there is none.
  nlohmann::json field(const char* name) const { return object_.value(name, nlohmann::json{}); }

  bool has(const char* name) const { return !field(name).is_null(); }

  template <class T>
  std::optional<T> number(const char* name, T least, T most) {
    using wide = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
    const auto value = field(name);
    const auto fits = std::is_integral_v<T> ? value.is_number_integer() : value.is_number();
    if (fits && value.get<wide>() >= static_cast<wide>(least)
        && value.get<wide>() <= static_cast<wide>(most))
      return static_cast<T>(value.get<wide>());
    if (!value.is_null())
      complain(name, "expected a number from " + nlohmann::json(least).dump() + " to "
                       + nlohmann::json(most).dump());
    return std::nullopt;
  }

  /// A number that has to be there.
  template <class T>
  T required(const char* name, T least, T most) {
    const auto value = number(name, least, most);
    if (!value)
      complain(name, "is missing");
    return value.value_or(least);
  }

  bool flag(const char* name) {
    const auto value = field(name);
    if (!value.is_null() && !value.is_boolean())
      complain(name, "expected true or false");
    return value == true;
  }

  std::string text(const char* name, const std::string& otherwise = {}) {
    const auto value = field(name);
    if (!value.is_null() && !value.is_string())
      complain(name, "expected a text");
    return value.is_string() ? value.get<std::string>() : otherwise;
  }

  void complain(const char* name, const std::string& what) {
    if (complaint_.empty())
      complaint_ = std::string{name} + ": " + what;
  }

private:
  const nlohmann::json& object_;
  std::string& complaint_;
};

} // namespace llama
