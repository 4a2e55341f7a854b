#include "hicache/handoff.hpp"
#include "rpc/endpoint.hpp"
#include "runtime/handoff_messages.hpp"

#include <httplib.h>

namespace hicache {

namespace {

using steady = std::chrono::steady_clock;

/// An instance that does not even send empty lines for so long hangs or is cut off.
constexpr auto silence = std::chrono::seconds{3};

/// An offer of a thousand ranks.
constexpr auto line_bytes_max = size_t{256} << 10;

} // namespace

void ask_for_handoff(const handoff_question& question, const std::function<void(std::string)>& take,
                     const std::function<bool(std::chrono::milliseconds)>& is_over) {
  const auto where = rpc::parse_endpoint(question.address);
  if (!where)
    return take(handoff_failure(where.error().detail));
  auto client = httplib::Client{where->host, where->port};
  client.set_connection_timeout(silence);
  client.set_read_timeout(silence);
  auto request = httplib::Request{};
  request.method = "POST";
  request.path = question.path;
  request.body = question.body;
  request.set_header("Content-Type", "application/json");
  auto status = 0;
  auto text = std::string{};
  auto heard = steady::now();
  auto is_patient = true;
  request.response_handler = [&](const httplib::Response& answer) {
    status = answer.status;
    return true;
  };
  request.content_receiver = [&](const char* bytes, size_t count, uint64_t, uint64_t) {
    auto time = std::chrono::milliseconds{0};
    text.append(bytes, count);
    for (auto end = text.find('\n'); status == 200 && end != std::string::npos;
         end = text.find('\n')) {
      if (end > 0) {
        heard = steady::now();
        // After the last message its last pages are on their way.
        if (is_last(std::string_view{text}.substr(0, end)))
          time = handoff_beat;
        take(text.substr(0, end));
      }
      text.erase(0, end + 1);
    }
    is_patient = steady::now() - heard < handoff_patience;
    return text.size() < line_bytes_max && is_patient && !is_over(time);
  };
  const auto answer = client.send(request);
  if (is_over({}))
    return;
  if (!is_patient)
    take(handoff_failure(question.address + " makes no progress"));
  else if (status != 0 && status != 200)
    take(handoff_failure(question.address + " refuses: " + text));
  else
    take(handoff_failure("the connection to " + question.address
                         + " ended: " + httplib::to_string(answer.error())));
}

} // namespace hicache
