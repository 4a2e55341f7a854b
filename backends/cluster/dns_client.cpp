#include "backends/cluster/dns_client.hpp"

#include "backends/cluster/index_addresses.hpp"
#include "base/check.hpp"
#include "base/immovable.hpp"

#include <ares.h>
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netinet/in.h>
#include <poll.h>
#include <resolv.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace hicache {

namespace {

using namespace std::chrono_literals;

/// Timeout per server, and attempts per server.
constexpr auto server_time = 500ms;
constexpr auto server_tries = 2;

/// Bytes before the target name in an SRV record: priority, weight and port.
constexpr auto srv_head_bytes = size_t{6};

/// Concurrent DNS queries.
class dns_questions : immovable {
public:
  explicit dns_questions(const dns_options& whom) {
    static const auto prepared = ares_library_init(ARES_LIB_INIT_ALL);
    HICACHE_CHECK(prepared == ARES_SUCCESS);
    auto options = ares_options{};
    options.timeout = static_cast<int>(std::chrono::milliseconds{server_time}.count());
    options.tries = server_tries;
    auto mask = ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES;
    if (!whom.search)
      mask |= ARES_OPT_DOMAINS; // An empty list of domains.
    status_ = ares_init_options(&channel_, &options, mask);
    if (status_ == ARES_SUCCESS && !whom.server.host.empty())
      status_ = ares_set_servers_ports_csv(channel_, to_string(whom.server).c_str());
  }

  ~dns_questions() {
    if (channel_ != nullptr)
      ares_destroy(channel_);
  }

  /// ARES_SUCCESS if queries are possible.
  int status() const noexcept { return status_; }

  ares_channel channel() const noexcept { return channel_; }

  /// Waits until all queries are answered, cancelled or expired.
  void run(size_t& left, interruption& stop) {
    const auto end = std::chrono::steady_clock::now() + source_answer_time;
    while (left > 0) {
      const auto time
        = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      if (stop.is_raised() || time <= 0ms)
        return ares_cancel(channel_); // Ends all of them.
      turn(time, stop);
    }
  }

private:
  void turn(std::chrono::milliseconds time, interruption& stop) {
    auto sockets = std::array<ares_socket_t, ARES_GETSOCK_MAXNUM>{};
    const auto wanted = static_cast<unsigned>(
      ares_getsock(channel_, sockets.data(), static_cast<int>(sockets.size())));
    auto watched = std::vector<pollfd>{{stop.event(), POLLIN, 0}};
    for (auto i = size_t{0}; i < sockets.size(); ++i) {
      const auto reads = ARES_GETSOCK_READABLE(wanted, i) != 0;
      const auto writes = ARES_GETSOCK_WRITABLE(wanted, i) != 0;
      if (reads || writes)
        watched.push_back(
          {sockets[i], static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)), 0});
    }
    auto most = timeval{time.count() / 1000, time.count() % 1000 * 1000};
    auto next = timeval{};
    const auto* wait = ares_timeout(channel_, &most, &next);
    // Rounded up: a wake-up before the timeout would be useless.
    poll(watched.data(), watched.size(),
         static_cast<int>(wait->tv_sec * 1000 + wait->tv_usec / 1000 + 1));
    ares_process_fd(channel_, ARES_SOCKET_BAD, ARES_SOCKET_BAD); // Handles timeouts.
    for (auto i = size_t{1}; i < watched.size(); ++i) {
      const auto& [fd, events, found] = watched[i];
      if (found != 0)
        ares_process_fd(channel_, (events & POLLIN) != 0 ? fd : ARES_SOCKET_BAD,
                        (events & POLLOUT) != 0 ? fd : ARES_SOCKET_BAD);
    }
  }

  int status_ = ARES_SUCCESS;
  ares_channel channel_ = nullptr;
};

bool says_there_is_none(int status) {
  return status == ARES_ENOTFOUND || status == ARES_ENODATA || status == ARES_ENONAME;
}

bool is_silence(int status) {
  return status == ARES_ECANCELLED || status == ARES_ETIMEOUT || status == ARES_ECONNREFUSED;
}

tl::unexpected<error> no_answer(int status) {
  return fail(ec::peer_unreachable, is_silence(status)
                                      ? std::string{"no DNS server answers"}
                                      : std::string{"DNS: "} + ares_strerror(status));
}

struct services_question {
  size_t left = 1;
  result<srv_records> answer = srv_records{};
};

/// A query for one host; `left` is shared by all.
struct host_question {
  size_t* left;
  result<host_numbers> answer = host_numbers{};
};

void on_services(void* arg, int status, int, unsigned char* bytes, int size) {
  auto& question = *static_cast<services_question*>(arg);
  question.left = 0;
  if (status == ARES_SUCCESS)
    question.answer = read_srv_records(std::as_bytes(std::span{bytes, static_cast<size_t>(size)}));
  else if (!says_there_is_none(status))
    question.answer = no_answer(status);
}

void on_host(void* arg, int status, int, ares_addrinfo* found) {
  auto& question = *static_cast<host_question*>(arg);
  --*question.left;
  if (status != ARES_SUCCESS) {
    if (!says_there_is_none(status))
      question.answer = no_answer(status);
    return;
  }
  for (const auto* node = found->nodes; node != nullptr; node = node->ai_next) {
    auto text = std::array<char, INET6_ADDRSTRLEN>{};
    const auto* bytes
      = node->ai_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(node->ai_addr)->sin_addr)
          : &reinterpret_cast<const sockaddr_in6*>(node->ai_addr)->sin6_addr;
    if (inet_ntop(node->ai_family, bytes, text.data(), text.size()) == nullptr)
      continue;
    question.answer->numbers.emplace_back(text.data());
    question.answer->ttl_s
      = std::min(question.answer->ttl_s, static_cast<uint32_t>(std::max(node->ai_ttl, 0)));
  }
  ares_freeaddrinfo(found);
}

} // namespace

result<srv_records> read_srv_records(std::span<const std::byte> message) {
  const auto malformed = fail(ec::malformed_message, "DNS: the answer is malformed");
  const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  auto parsed = ns_msg{};
  if (ns_initparse(bytes, static_cast<int>(message.size()), &parsed) != 0)
    return malformed;
  auto records = srv_records{};
  for (auto i = 0; i < ns_msg_count(parsed, ns_s_an); ++i) {
    auto record = ns_rr{};
    if (ns_parserr(&parsed, ns_s_an, i, &record) != 0)
      return malformed;
    if (ns_rr_type(record) != ns_t_srv)
      continue;
    auto name = std::array<char, NS_MAXDNAME>{};
    const auto* data = ns_rr_rdata(record);
    if (ns_rr_rdlen(record) <= srv_head_bytes
        || ns_name_uncompress(bytes, bytes + message.size(), data + srv_head_bytes, name.data(),
                              name.size())
             < 0)
      return malformed;
    records.ttl_s = std::min<uint32_t>(records.ttl_s, ns_rr_ttl(record));
    const auto port = static_cast<uint16_t>(ns_get16(data + 4));
    // The root domain means "no service".
    const auto host = std::string{name.data()};
    if (port != 0 && !host.empty() && host != "." && records.targets.size() < source_addresses)
      records.targets.push_back({host, port});
  }
  return records;
}

result<srv_records> ask_services(const dns_options& whom, const std::string& name,
                                 interruption& stop) {
  auto questions = dns_questions{whom};
  if (questions.status() != ARES_SUCCESS)
    return no_answer(questions.status());
  auto question = services_question{};
  ares_query(questions.channel(), name.c_str(), ns_c_in, ns_t_srv, on_services, &question);
  questions.run(question.left, stop);
  return question.answer;
}

std::vector<result<host_numbers>>
ask_hosts(const dns_options& whom, const std::vector<std::string>& names, interruption& stop) {
  auto left = names.size();
  auto all = std::vector<host_question>(names.size(), host_question{&left});
  auto questions = dns_questions{whom};
  if (questions.status() == ARES_SUCCESS) {
    auto hints = ares_addrinfo_hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    for (auto i = size_t{0}; i < names.size(); ++i)
      ares_getaddrinfo(questions.channel(), names[i].c_str(), nullptr, &hints, on_host, &all[i]);
    questions.run(left, stop);
  }
  auto answers = std::vector<result<host_numbers>>{};
  for (auto& question : all)
    answers.push_back(questions.status() == ARES_SUCCESS
                        ? std::move(question.answer)
                        : result<host_numbers>{no_answer(questions.status())});
  return answers;
}

} // namespace hicache
