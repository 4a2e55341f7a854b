// transfer_bench: copies between L1 and L2 compared with their baselines, as rows of the table
// printed by run.sh. Depends only on the project's lower layers, so that it can be built on a GPU
// machine with few libraries.

#include "bench/transfer_startup.hpp"
#include "launch/transfer_measure.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace hicache;

struct options {
  device_kind device = device_kind::automatic;
  /// Per case.
  double seconds = 1;
  /// Empty: standard output.
  std::string json;
};

/// Bound on a row's value or ratio; `text` is shown in the table.
struct bound {
  std::string text;
  bool holds = false;
};

/// A line of the table.
struct row {
  std::string name;
  double value = 0;
  std::string unit;
  std::optional<double> baseline;
  std::optional<double> ratio;
  std::optional<bound> target;
};

/// Cases and bounds of one device.
struct device_plan {
  device_kind device;
  std::vector<uint32_t> threads;
  /// Pages per submission: enough to exceed the CPU caches.
  uint32_t pages;
};

constexpr auto startup_bytes = uint64_t{1} << 30;
constexpr auto most_startup_ratio = 1.2;
/// Minimum speed-up of gathering over one call per page and layer.
constexpr auto least_over_pages = 3.0;
/// Minimum percentage of a load hidden by a computation of equal length.
constexpr auto least_hidden = 90.0;

constexpr std::array layouts = {host_layout::page_first_direct, host_layout::page_first,
                                host_layout::layer_first, host_layout::page_head};

/// Llama 3.1 8B on one rank: 8 MiB per page.
constexpr auto shape = pool_shape{attention_kind::mha, 32, 8, 128, 128, 2, 64, 0};

/// Required share of a single large copy's rate; nothing if no bound applies.
std::optional<double> least_share(device_kind device, host_layout layout) {
  if (device == device_kind::host)
    return 0.8;
  switch (layout) {
    case host_layout::page_first_direct:
      return 0.9;
    case host_layout::page_first:
      return 0.8;
    default:
      return std::nullopt;
  }
}

bound at_least(const char* of, double limit, double found) {
  auto text = std::array<char, 32>{};
  std::snprintf(text.data(), text.size(), "%s>= %g", of, limit);
  return {text.data(), found >= limit};
}

bound at_most(const char* of, double limit, double found) {
  auto text = std::array<char, 32>{};
  std::snprintf(text.data(), text.size(), "%s<= %g", of, limit);
  return {text.data(), found <= limit};
}

// -- measuring ----------------------------------------------------------------

void add_case(const transfer_case& what, const device_plan& plan, const std::string& name,
              const transfer_figures& found, std::vector<row>& rows) {
  const auto kernel = what.copies.io == io_backend::kernel;
  const auto least = least_share(plan.device, what.layout);
  for (const auto& [direction, figures] :
       {std::pair{": store", found.store}, std::pair{": load", found.load}}) {
    auto over_one = row{name + direction,           figures.gib_per_s, "GiB/s",
                        figures.baseline_gib_per_s, figures.ratio,     {}};
    if (least)
      over_one.target = at_least("ratio ", *least, figures.ratio);
    rows.push_back(std::move(over_one));
    if (figures.by_page_gib_per_s == 0)
      continue;
    auto over_pages = row{name + direction + ", over one call per page and layer",
                          figures.gib_per_s,
                          "GiB/s",
                          figures.by_page_gib_per_s,
                          figures.by_page_ratio,
                          {}};
    if (kernel)
      over_pages.target = at_least("ratio ", least_over_pages, figures.by_page_ratio);
    rows.push_back(std::move(over_pages));
  }
  // The computation needs its own core.
  if (plan.device == device_kind::host
      && what.copies.host_threads >= std::thread::hardware_concurrency())
    return;
  const auto hidden = found.overlap_hidden * 100;
  auto overlap = row{name + ": load hidden by computation", hidden, "%", {}, {}, {}};
  // On the host device, copies and computation compete for memory bandwidth, so there is no bound.
  if (plan.device == device_kind::cuda)
    overlap.target = at_least("", least_hidden, hidden);
  rows.push_back(std::move(overlap));
}

/// @returns false if bytes were lost on the way
result<bool> measure_cases(const device_plan& plan, const options& flags, std::vector<row>& rows) {
  auto intact = true;
  for (const auto threads : plan.threads)
    for (const auto io : {io_backend::direct, io_backend::kernel})
      for (const auto layout : layouts) {
        auto what = transfer_case{plan.device, shape, layout, {}, plan.pages, true, flags.seconds};
        what.copies.io = io;
        what.copies.host_threads = threads;
        auto name = std::string{to_string(plan.device)};
        if (plan.device == device_kind::host)
          name += " x" + std::to_string(threads);
        name += std::string{", "} + to_string(io) + ", " + to_string(layout);
        std::cerr << "Measuring: " << name << std::endl;
        const auto found = measure_transfer(what);
        if (!found)
          return tl::unexpected{found.error()};
        if (found->errors > 0)
          std::cerr << name << ": " << found->errors << " copies or pages were wrong\n";
        intact = intact && found->errors == 0;
        add_case(what, plan, name, *found, rows);
      }
  return intact;
}

result<void> measure_start(const device_plan& plan, const options& flags, std::vector<row>& rows) {
  const auto name = std::string{to_string(plan.device)} + ", start-up: 1 GiB of L2";
  std::cerr << "Measuring: " << name << std::endl;
  const auto found = measure_startup(plan.device, startup_bytes, flags.seconds);
  if (!found)
    return tl::unexpected{found.error()};
  const auto* how = plan.device == device_kind::cuda ? ", over pinning in one piece"
                                                     : ", over touching by as many threads";
  rows.push_back({name + how, found->seconds * 1e3, "ms", found->baseline_seconds * 1e3,
                  found->ratio, at_most("ratio ", most_startup_ratio, found->ratio)});
  rows.push_back({name + ", over touching by one thread",
                  found->seconds * 1e3,
                  "ms",
                  found->one_thread_seconds * 1e3,
                  found->one_thread_ratio,
                  {}});
  return {};
}

// -- output -------------------------------------------------------------------

std::string json_text(std::string_view text) {
  auto out = std::string{'"'};
  for (const auto character : text) {
    if (character == '"' || character == '\\')
      out += '\\';
    out += static_cast<unsigned char>(character) < ' ' ? ' ' : character;
  }
  return out + '"';
}

std::string number(std::optional<double> value) {
  if (!value || !std::isfinite(*value))
    return "null";
  auto text = std::array<char, 32>{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), *value).ptr;
  return {text.data(), end};
}

std::string to_json(const std::string& device, const std::string& driver,
                    const std::vector<row>& rows) {
  auto out
    = "{\"device\": " + json_text(device) + ", \"driver\": " + json_text(driver) + ", \"rows\": [";
  for (const auto& line : rows) {
    out += &line == rows.data() ? "\n" : ",\n";
    out += "  {\"name\": " + json_text(line.name) + ", \"value\": " + number(line.value)
           + ", \"unit\": " + json_text(line.unit) + ", \"baseline\": " + number(line.baseline)
           + ", \"ratio\": " + number(line.ratio) + ", \"target\": "
           + (line.target ? json_text(line.target->text) : "null") + ", \"holds\": "
           + (!line.target         ? "null"
              : line.target->holds ? "true"
                                   : "false")
           + "}";
  }
  return out + "\n]}\n";
}

// -- the program --------------------------------------------------------------

constexpr auto usage_text
  = "Usage: transfer_bench [--device auto|cuda|host] [--seconds X] [--json FILE]\n"
    "\n"
    "  --device     auto: the host device, and the GPU if one answers\n"
    "  --seconds X  for each case; 1 if not given\n"
    "  --json FILE  write the rows there instead of to standard output:\n"
    "               {\"device\", \"driver\", \"rows\": [{\"name\", \"value\", \"unit\", "
    "\"baseline\", \"ratio\", \"target\", \"holds\"}]}\n";

/// @returns nothing if only --help was asked for
result<std::optional<options>> parse(const std::vector<std::string>& words) {
  auto flags = options{};
  for (auto i = size_t{0}; i < words.size(); i += 2) {
    const auto& name = words[i];
    if (name == "--help" || name == "-h")
      return std::nullopt;
    if (name != "--device" && name != "--seconds" && name != "--json")
      return fail(ec::invalid_argument,
                  "unknown argument '" + name + "'; expected --device, --seconds or --json");
    if (i + 1 == words.size())
      return fail(ec::invalid_argument, name + " needs a value");
    const auto& value = words[i + 1];
    if (name == "--json") {
      flags.json = value;
    } else if (name == "--device") {
      const auto kind = parse_device_kind(value);
      if (!kind)
        return fail(ec::invalid_argument, "--device: " + kind.error().detail);
      flags.device = *kind;
    } else {
      const auto* const last = value.data() + value.size();
      const auto [end, status] = std::from_chars(value.data(), last, flags.seconds);
      if (status != std::errc{} || end != last || !(flags.seconds > 0 && flags.seconds <= 3600))
        return fail(ec::invalid_argument,
                    "--seconds: '" + value + "' is not a time; expected more than 0, up to 3600");
    }
  }
  return flags;
}

std::vector<device_plan> plans_for(device_kind wanted) {
  auto plans = std::vector<device_plan>{};
  if (wanted != device_kind::cuda)
    plans.push_back({device_kind::host, {1, 2}, 16});
  if (wanted == device_kind::cuda
      || (wanted == device_kind::automatic && make_device(device_kind::cuda)))
    plans.push_back({device_kind::cuda, {1}, 64});
  return plans;
}

result<int> run(const options& flags) {
  auto rows = std::vector<row>{};
  auto intact = true;
  const auto plans = plans_for(flags.device);
  for (const auto& plan : plans) {
    const auto measured = measure_cases(plan, flags, rows);
    if (!measured)
      return tl::unexpected{measured.error()};
    intact = intact && *measured;
    if (auto started = measure_start(plan, flags, rows); !started)
      return tl::unexpected{started.error()};
  }
  const auto where = make_device(plans.back().device);
  if (!where)
    return tl::unexpected{where.error()};
  const auto text = to_json((*where)->name(), driver_version(plans.back().device), rows);
  if (flags.json.empty()) {
    std::cout << text;
  } else if (!(std::ofstream{flags.json} << text).flush()) {
    return fail(ec::io_failure, "cannot write " + flags.json);
  }
  return intact ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
  try {
    const auto flags = parse({argv + 1, argv + argc});
    if (flags && !*flags) {
      std::cout << usage_text;
      return 0;
    }
    const auto code = flags ? run(**flags) : result<int>{tl::unexpected{flags.error()}};
    if (code)
      return *code;
    std::cerr << "transfer_bench: " << code.error().detail << "\n";
  } catch (const std::exception& problem) {
    std::cerr << "transfer_bench: " << problem.what() << "\n";
  }
  return 2;
}
