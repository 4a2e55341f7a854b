#include "runtime/metrics_server.hpp"

#include "base/about.hpp"
#include "base/try.hpp"
#include "runtime/http_listener.hpp"

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

namespace hicache {

namespace {

/// Prometheus text format.
constexpr auto content_type = "text/plain; version=0.0.4; charset=utf-8";

class server_impl final : public metrics_server {
public:
  result<void> listen(const metrics_options& where) {
    http_.Get("/metrics", [this](const httplib::Request&, httplib::Response& answer) {
      answer.set_content(prometheus::TextSerializer{}.Serialize(collect()), content_type);
    });
    const auto chosen
      = HICACHE_TRY(about("--metrics-port, --metrics-host", http_.start({where.host, where.port})));
    address_ = to_string(chosen);
    return {};
  }

  void add(std::shared_ptr<const prometheus::Collectable> source) override {
    const auto guard = std::lock_guard{mutex_};
    sources_.push_back(std::move(source));
  }

  const std::string& address() const override { return address_; }

private:
  std::vector<prometheus::MetricFamily> collect() {
    auto sources = decltype(sources_){};
    {
      const auto guard = std::lock_guard{mutex_};
      sources = sources_;
    }
    auto families = std::vector<prometheus::MetricFamily>{};
    for (const auto& source : sources)
      std::ranges::move(source->Collect(), std::back_inserter(families));
    return families;
  }

  std::string address_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const prometheus::Collectable>> sources_;
  // Last member, so that its threads end before what they use is destroyed.
  http_listener http_;
};

} // namespace

result<std::unique_ptr<metrics_server>> metrics_server::start(const metrics_options& where) {
  if (where.host.empty())
    return fail(ec::invalid_argument,
                "--metrics-host is empty; expected an address of this machine such as 127.0.0.1");
  auto server = std::make_unique<server_impl>();
  HICACHE_TRY(server->listen(where));
  return server;
}

} // namespace hicache
