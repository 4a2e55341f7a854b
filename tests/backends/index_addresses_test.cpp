// Where addresses of the index come from: what --index says, what sources answer, and what holds
// between two answers.

#include "backends/cluster/dns_client.hpp"
#include "backends/cluster/etcd_protocol.hpp"
#include "backends/cluster/index_addresses.hpp"
#include "backends/cluster/index_place.hpp"

#include <absl/strings/escaping.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <future>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using strings = std::vector<std::string>;

// -- what the flag says -------------------------------------------------------

template <class Place>
Place parsed(const std::string& text) {
  auto place = parse_index_place(text);
  EXPECT_TRUE(place && std::holds_alternative<Place>(*place)) << text;
  return place && std::holds_alternative<Place>(*place) ? std::get<Place>(*place) : Place{};
}

TEST(IndexPlace, IsAListOfAddresses) {
  const auto place = parsed<listed_place>("10.0.0.1:7766,node2:1,unix:/run/index");
  ASSERT_EQ(place.addresses.size(), 3u);
  EXPECT_EQ(to_string(place.addresses[1]), "node2:1");
}

TEST(IndexPlace, IsAnSrvRecord) {
  auto place = parsed<srv_place>("srv://_hicache._tcp.example.org");
  EXPECT_EQ(place.name, "_hicache._tcp.example.org");
  EXPECT_TRUE(place.server.host.empty());
  place = parsed<srv_place>("srv://index.local?server=[::1]:5353");
  EXPECT_EQ(place.name, "index.local");
  EXPECT_EQ(to_string(place.server), "[::1]:5353");
}

TEST(IndexPlace, IsAPrefixInEtcd) {
  auto place = parsed<etcd_place>("etcd://10.0.0.1:2379,node2:2379/hicache/prod/");
  ASSERT_EQ(place.servers.size(), 2u);
  EXPECT_EQ(to_string(place.servers[1]), "node2:2379");
  EXPECT_EQ(place.prefix, "hicache/prod");
  EXPECT_FALSE(place.tls);
  EXPECT_TRUE(parsed<etcd_place>("etcds://10.0.0.1:2379/hicache").tls);
}

TEST(IndexPlace, IsRefusedWithASentenceThatNamesWhatIsWrong) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
         {"", "''"},
         {"10.0.0.1", "'10.0.0.1'"},
         {"a:1,,b:2", "''"},
         {"srv://", "'srv://'"},
         {"srv://two words", "'srv://two words'"},
         {"srv://" + std::string(300, 'a'), "names no SRV record"},
         {"srv://a.b?server=dns.example.org:53", "'server=dns.example.org:53'"},
         {"srv://a.b?server=127.0.0.1", "'server=127.0.0.1'"},
         {"srv://a.b?port=5", "'port=5'"},
         {"etcd://10.0.0.1:2379", "'etcd://10.0.0.1:2379'"},
         {"etcd://10.0.0.1:2379/", "names no keys"},
         {"etcd://10.0.0.1:2379//x", "names no keys"},
         {"etcd://unix:a:1/x", "unix:a:1"},
         {"etcd:///hicache", "''"},
         {"etcd://10.0.0.1:2379/" + std::string(5000, 'a'), "names no keys"},
       }) {
    const auto place = parse_index_place(text);
    ASSERT_FALSE(place) << text;
    EXPECT_EQ(place.error().code, ec::invalid_argument);
    EXPECT_THAT(place.error().detail, HasSubstr(part)) << text;
  }
}

TEST(IndexAddresses, NeedCertificatesForEtcdByTls) {
  const auto refused = index_addresses::open("etcds://127.0.0.1:1/hicache", {});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().detail, HasSubstr("--tls-cert"));
}

// -- answers of the DNS -------------------------------------------------------

/// An answer of the DNS to a question for SRV records, byte by byte.
class dns_answer {
public:
  dns_answer() {
    number(0x1234);
    number(0x8180);
    for (const auto count : {1, 0, 0, 0})
      number(static_cast<uint16_t>(count));
    name({"_hicache", "_tcp", "test"});
    number(33);
    number(1);
  }

  /// @param host Its labels; its name ends with the question's last label.
  dns_answer& srv(uint32_t ttl_s, const strings& host, uint16_t port) {
    record(33, ttl_s);
    auto data = dns_answer{std::string{}};
    for (const auto value : {uint16_t{1}, uint16_t{2}, port})
      data.number(value);
    for (const auto& label : host)
      data.label(label);
    if (host.empty())
      data.bytes_ += '\0';
    else
      data.number(0xc000 + 26); // "test" of the question.
    number(static_cast<uint16_t>(data.bytes_.size()));
    bytes_ += data.bytes_;
    return *this;
  }

  dns_answer& text(const std::string& what) {
    record(16, 1);
    number(static_cast<uint16_t>(what.size() + 1));
    label(what);
    return *this;
  }

  std::span<const std::byte> bytes(size_t size = SIZE_MAX) const {
    return std::as_bytes(std::span{bytes_}).first(std::min(size, bytes_.size()));
  }

  size_t size() const { return bytes_.size(); }

  void damage(size_t at, char value) { bytes_[at] = value; }

private:
  explicit dns_answer(std::string bytes) : bytes_(std::move(bytes)) {}

  void record(uint16_t type, uint32_t ttl_s) {
    number(0xc000 + 12); // The question's name.
    number(type);
    number(1);
    number(static_cast<uint16_t>(ttl_s >> 16));
    number(static_cast<uint16_t>(ttl_s));
    ++bytes_[7];
  }

  void number(uint16_t value) {
    bytes_ += static_cast<char>(value >> 8);
    bytes_ += static_cast<char>(value);
  }

  void label(const std::string& text) {
    bytes_ += static_cast<char>(text.size());
    bytes_ += text;
  }

  void name(const strings& labels) {
    for (const auto& each : labels)
      label(each);
    bytes_ += '\0';
  }

  std::string bytes_;
};

strings targets_of(const dns_answer& answer) {
  const auto records = read_srv_records(answer.bytes());
  EXPECT_TRUE(records);
  auto texts = strings{};
  if (records)
    for (const auto& target : records->targets)
      texts.push_back(to_string(target));
  return texts;
}

TEST(SrvRecords, AreTargetsAndTheLeastTimeToLive) {
  const auto answer
    = dns_answer{}.srv(300, {"a"}, 7766).text("of another kind").srv(20, {"b", "c"}, 65535);
  EXPECT_THAT(targets_of(answer), ElementsAre("a.test:7766", "b.c.test:65535"));
  EXPECT_EQ(read_srv_records(answer.bytes())->ttl_s, 20u);
}

TEST(SrvRecords, MayLeadNowhere) {
  EXPECT_THAT(targets_of(dns_answer{}), IsEmpty());
  EXPECT_THAT(targets_of(dns_answer{}.srv(5, {}, 7766).srv(5, {"a"}, 0)), IsEmpty());
}

TEST(SrvRecords, AreBounded) {
  auto answer = dns_answer{};
  for (auto i = uint16_t{0}; i < 255; ++i)
    answer.srv(5, {"a"}, static_cast<uint16_t>(i + 1));
  EXPECT_EQ(targets_of(answer).size(), 255u);
  EXPECT_LE(targets_of(answer).size(), source_addresses);
}

TEST(SrvRecords, AreRefusedWhenCutOffAnywhereOrDamaged) {
  const auto whole = dns_answer{}.srv(300, {"a"}, 7766).srv(20, {"b"}, 7766);
  for (auto size = size_t{0}; size < whole.size(); ++size)
    EXPECT_FALSE(read_srv_records(whole.bytes(size))) << size << " bytes";
  for (auto at = size_t{0}; at < whole.size(); ++at)
    for (auto value = 0; value < 256; ++value) {
      auto damaged = whole;
      damaged.damage(at, static_cast<char>(value));
      const auto records = read_srv_records(damaged.bytes());
      EXPECT_LE(records ? records->targets.size() : 0, 2u); // Nothing beyond the message is read.
    }
}

// -- what is said to etcd -----------------------------------------------------

nlohmann::json body_of(const etcd::request& what) {
  return nlohmann::json::parse(what.body);
}

TEST(EtcdProtocol, AsksForTheKeysBelowAPrefixAndNoOthers) {
  const auto request = etcd::list_request("a/b");
  EXPECT_EQ(request.path, "/v3/kv/range");
  EXPECT_EQ(body_of(request)["key"], absl::Base64Escape("a/b/"));
  EXPECT_EQ(body_of(request)["range_end"], absl::Base64Escape("a/b0"));
  EXPECT_EQ(body_of(request)["limit"], std::to_string(source_addresses));
}

TEST(EtcdProtocol, PutsAnAddressUnderALease) {
  const auto body = body_of(etcd::put_request("a", "10.0.0.1:7766", "42"));
  EXPECT_EQ(body["key"], absl::Base64Escape("a/10.0.0.1:7766"));
  EXPECT_EQ(body["value"], absl::Base64Escape("10.0.0.1:7766"));
  EXPECT_EQ(body["lease"], "42");
  EXPECT_EQ(body_of(etcd::lease_request(8s))["TTL"], "8");
}

TEST(EtcdProtocol, ReadsAddressesAndPassesOverWhatOthersPutThere) {
  const auto pair = [](const std::string& value) {
    return nlohmann::json{{"key", "eA=="}, {"value", value}, {"lease", "7"}};
  };
  const auto answer
    = nlohmann::json{{"kvs",
                      {pair(absl::Base64Escape("b:2")), pair("not base 64"),
                       pair(absl::Base64Escape("no address")), pair(absl::Base64Escape("a:1"))}},
                     {"count", "4"}};
  EXPECT_EQ(etcd::read_list(answer.dump()), (strings{"a:1", "b:2"}));
  EXPECT_EQ(etcd::read_list(R"({"header":{}})"), strings{}) << "there are no keys";
}

TEST(EtcdProtocol, TellsALeaseThatLivesFromOneThatIsGone) {
  EXPECT_EQ(etcd::read_lease(R"({"ID":"7587862094480112404","TTL":"8"})"), "7587862094480112404");
  EXPECT_EQ(etcd::read_lease(R"({"ID":7,"TTL":8})"), "7");
  EXPECT_EQ(etcd::read_refresh(R"({"result":{"ID":"7","TTL":"8"}})"), true);
  EXPECT_EQ(etcd::read_refresh(R"({"result":{"ID":"7"}})"), false);
}

TEST(EtcdProtocol, RefusesWhatItDoesNotUnderstand) {
  for (const auto* text : {"", "no json", "[]", "7", R"({"kvs":7})", R"({"kvs":[7]})",
                           R"({"kvs":[{"value":7}]})", R"({"result":[]})"}) {
    EXPECT_FALSE(etcd::read_lease(text)) << text;
    EXPECT_FALSE(etcd::read_refresh(text)) << text;
  }
  for (const auto* text :
       {"", "no json", "[]", "7", R"({"kvs":7})", R"({"kvs":[7]})", R"({"kvs":[{"value":7}]})"})
    EXPECT_FALSE(etcd::read_list(text)) << text;
  EXPECT_EQ(etcd::read_refusal(R"({"error":"requested lease not found","code":5})"),
            "requested lease not found");
  EXPECT_EQ(etcd::read_refusal("404 page not found"), "404 page not found");
}

// -- when it is asked, and what holds meanwhile -------------------------------

TEST(PauseAfter, IsWhatTheSourceSaysWithinBounds) {
  const auto valid = [](std::chrono::seconds time) {
    return pause_after(address_answer{{}, time, {}});
  };
  EXPECT_EQ(valid(0s), source_pause_min);
  EXPECT_EQ(valid(20s), 20s);
  EXPECT_EQ(valid(24h), source_pause_max);
  EXPECT_EQ(pause_after(fail(ec::peer_unreachable, "away")), source_pause_min);
}

/// What a source of the test was asked, and what it answers.
struct source_script {
  std::mutex mutex;
  result<address_answer> answer = fail(ec::peer_unreachable, "nobody there");
  /// Own addresses in the questions.
  strings asked;
  bool hangs = false;
  bool has_left = false;
};

class scripted_source final : public address_source {
public:
  explicit scripted_source(std::shared_ptr<source_script> script) : script_(std::move(script)) {}

  result<address_answer> ask(const std::string& own, interruption& stop) override {
    if (script_->hangs) {
      auto watched = pollfd{stop.event(), POLLIN, 0};
      poll(&watched, 1, -1);
    }
    const auto lock = std::lock_guard{script_->mutex};
    script_->asked.push_back(own);
    return script_->answer;
  }

  void leave() override { script_->has_left = true; }

private:
  std::shared_ptr<source_script> script_;
};

class IndexAddressesTest : public testing::Test {
protected:
  void open() { addresses_.emplace("the source", std::make_unique<scripted_source>(script_)); }

  /// Has the source asked for what it says from now on. Announcing asks at once, so that no pause
  /// has to pass.
  void hear(const result<address_answer>& answer, const std::string& own) {
    const auto count = [&] {
      const auto lock = std::lock_guard{script_->mutex};
      return std::ranges::count(script_->asked, own);
    };
    {
      const auto lock = std::lock_guard{script_->mutex};
      script_->answer = answer;
    }
    addresses_->announce(own);
    const auto trouble = answer ? answer->trouble : answer.error().detail;
    const auto end = std::chrono::steady_clock::now() + 60s;
    while (count() == 0 || addresses_->trouble() != trouble
           || (answer && addresses_->now() != answer->addresses)) {
      ASSERT_LT(std::chrono::steady_clock::now(), end);
      std::this_thread::yield();
    }
  }

  std::shared_ptr<source_script> script_ = std::make_shared<source_script>();
  std::optional<index_addresses> addresses_;
};

TEST_F(IndexAddressesTest, AreThoseOfAListForEver) {
  auto fixed = index_addresses{strings{"a:1", "b:2"}};
  fixed.wait_for(60s);
  fixed.announce("c:3");
  EXPECT_THAT(fixed.now(), ElementsAre("a:1", "b:2"));
  EXPECT_EQ(fixed.name(), "a:1, b:2");
}

TEST_F(IndexAddressesTest, AreNoneWithAReasonUntilTheSourceHasAnswered) {
  open();
  addresses_->wait_for(60s);
  EXPECT_THAT(addresses_->now(), IsEmpty());
  EXPECT_EQ(addresses_->trouble(), "nobody there");
}

TEST_F(IndexAddressesTest, ChangeWithTheAnswersAndOutliveASourceThatIsAway) {
  script_->answer = address_answer{{"a:1"}, 60s, {}};
  open();
  addresses_->wait_for(60s);
  EXPECT_THAT(addresses_->now(), ElementsAre("a:1"));
  hear(address_answer{{"a:1", "b:2"}, 60s, {}}, "c:3");
  EXPECT_THAT(addresses_->now(), ElementsAre("a:1", "b:2"));
  hear(fail(ec::peer_unreachable, "away"), "c:4");
  EXPECT_THAT(addresses_->now(), ElementsAre("a:1", "b:2")) << "what it said before holds";
  hear(address_answer{{"b:2"}, 60s, {}}, "c:5");
  EXPECT_THAT(addresses_->now(), ElementsAre("b:2"));
}

TEST_F(IndexAddressesTest, DoNotWaitForAHangingSourceAndTakeBackWhatWasAnnounced) {
  script_->hangs = true;
  open();
  addresses_->close();
  EXPECT_TRUE(script_->has_left);
}

TEST(DnsClient, GivesUpWhenItIsInterrupted) {
  // Nobody answers at this port, which is bound and never read.
  const auto socket = unique_fd{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  auto where = sockaddr_in{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto size = socklen_t{sizeof(where)};
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&where), sizeof(where)), 0);
  ASSERT_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&where), &size), 0);
  const auto whom = dns_options{{"127.0.0.1", ntohs(where.sin_port)}, false};
  auto stop = interruption{};
  auto asked = std::async(std::launch::async,
                          [&] { return ask_services(whom, "_hicache._tcp.test", stop); });
  auto question = pollfd{socket.get(), POLLIN, 0};
  ASSERT_EQ(poll(&question, 1, 60'000), 1);
  stop.raise();
  EXPECT_EQ(asked.get().error().code, ec::peer_unreachable);
}

TEST(DnsClient, KnowsHostsByNumberWithoutAsking) {
  auto stop = interruption{};
  const auto hosts = ask_hosts({}, {"127.0.0.1", "::1"}, stop);
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0]->numbers, strings{"127.0.0.1"});
  EXPECT_EQ(hosts[1]->numbers, strings{"::1"});
}

} // namespace
} // namespace hicache::test
