// Processes of neighbouring versions. The other version's schemas are made of this version's, when
// the test runs: the next one adds fields to each struct and a method to each interface, the
// previous one lacks what was added last.

#include "base/limits.hpp"
#include "messages/index_protocol.hpp"
#include "rpc/rpc_error.hpp"
#include "tests/rpc/serving_test.hpp"

#include <capnp/dynamic.h>
#include <capnp/ez-rpc.h>
#include <capnp/schema-parser.h>
#include <gtest/gtest.h>
#include <kj/async.h>
#include <kj/filesystem.h>

#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <thread>
#include <utility>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using namespace hicache::test;

/// What version 4 knew: fields and methods below these numbers. It knew all of the other blocks.
const auto of_previous = std::map<std::string, int>{
  {"MemberInfo", 12},   {"Membership", 3},  {"Heartbeat", 3},   {"PublishedPages", 3},
  {"Placements", 3},    {"MemberQuery", 1}, {"MemberList", 1},  {"StatusQuery", 0},
  {"IndexStatus", 9},   {"PageTotals", 2},  {"CopiedPage", 6},  {"DrainRequest", 0},
  {"DrainProgress", 0}, {"KeyBatch", 1},    {"MemberState", 5}, {"PageRecall", 0},
  {"Index", 7},         {"Member", 6},      {"Welcome", 3}};

/// A version of the protocol: its schemas, and what its processes say of themselves.
class version {
public:
  enum class kind { previous, next };

  explicit version(kind which) : kind_(which) {
    auto files = kj::newInMemoryDirectory(kj::nullClock());
    for (const auto* name :
         {"rpc/services.capnp", "messages/index_protocol.capnp", "messages/node_protocol.capnp"})
      put(*files, name, edited(std::string{HICACHE_SCHEMAS} + "/" + name));
    put(*files, "capnp/c++.capnp", content_of(HICACHE_CAPNP_INCLUDE "/capnp/c++.capnp"));
    const auto* roots = static_cast<const kj::ReadableDirectory*>(files.get());
    services_ = parser_.parseFromDirectory(*files, kj::Path{"rpc", "services.capnp"},
                                           kj::arrayPtr(&roots, 1));
  }

  bool is_next() const noexcept { return kind_ == kind::next; }

  uint32_t number() const noexcept {
    return is_next() ? index_protocol_version + 1 : index_protocol_minimum;
  }

  uint32_t minimum() const noexcept { return is_next() ? index_protocol_version : number(); }

  capnp::InterfaceSchema interface(const char* name) const {
    return services_.getNested(name).asInterface();
  }

private:
  static std::string content_of(const std::string& path) {
    auto file = std::ifstream{path};
    EXPECT_TRUE(file) << path;
    return {std::istreambuf_iterator<char>{file}, {}};
  }

  static void put(const kj::Directory& into, const char* name, const std::string& content) {
    into.openFile(kj::Path::parse(name), kj::WriteMode::CREATE | kj::WriteMode::CREATE_PARENT)
      ->writeAll(kj::StringPtr{content.c_str()});
  }

  std::string edited(const std::string& path) const {
    static const auto begins = std::regex{"^(struct|interface) (\\w+) \\{"};
    static const auto entry = std::regex{"^  \\w+ @(\\d+)"};
    auto lines = std::ifstream{path};
    EXPECT_TRUE(lines) << path;
    auto text = std::string{};
    auto is_interface = false;
    auto known = 0;
    auto next = 0;
    for (auto line = std::string{}; std::getline(lines, line); text += line + "\n") {
      auto found = std::smatch{};
      if (std::regex_search(line, found, begins)) {
        is_interface = found[1] == "interface";
        const auto at = of_previous.find(found[2]);
        known = is_next() || at == of_previous.end() ? 1000 : at->second;
        next = 0;
      } else if (std::regex_search(line, found, entry)) {
        if (const auto number = std::stoi(found[1]); number < known)
          next = std::max(next, number + 1);
        else
          line.clear();
      } else if (line == "}" && is_next()) {
        const auto first = std::to_string(next);
        const auto second = std::to_string(next + 1);
        text += is_interface
                  ? "  added @" + first + " (number :UInt64) -> (number :UInt64);\n"
                  : "  addedNumber @" + first + " :UInt64;\n  addedText @" + second + " :Text;\n";
      }
    }
    return text;
  }

  kind kind_;
  capnp::SchemaParser parser_;
  capnp::ParsedSchema services_;
};

/// Enters something in all fields: 1, true, "x" and lists of one element.
void fill(capnp::DynamicStruct::Builder to) {
  for (const auto field : to.getSchema().getFields()) {
    const auto name = field.getProto().getName();
    const auto type = field.getType();
    if (type.isStruct()) {
      if (name != "parent") // No page is its own.
        fill(to.init(field).as<capnp::DynamicStruct>());
    } else if (type.isText()) {
      to.set(field, "x");
    } else if (type.isBool()) {
      to.set(field, true);
    } else if (type.isList()) {
      auto list = to.init(field, 1).as<capnp::DynamicList>();
      if (type.asList().getElementType().isStruct())
        fill(list[0].as<capnp::DynamicStruct>());
      else
        list.set(0, 1);
    } else if (!type.isInterface()) {
      to.set(field, 1);
    }
  }
}

/// What a process of another version serves: answers everything, with all fields filled.
class other_service final : public capnp::DynamicCapability::Server {
public:
  other_service(const version& of, const char* name, uint32_t speaks, uint32_t wants)
    : Server(of.interface(name)), of_(of), speaks_(speaks), wants_(wants) {}

  kj::Promise<void>
  call(capnp::InterfaceSchema::Method method,
       capnp::CallContext<capnp::DynamicStruct, capnp::DynamicStruct> context) override {
    auto results = context.getResults();
    fill(results);
    const auto name = std::string{method.getProto().getName().cStr()};
    if (name == "hello") {
      auto hello = results.get("hello").as<capnp::DynamicStruct>();
      hello.set("version", speaks_);
      hello.set("minimum", wants_);
      results.set("directory", serve("Directory"));
      results.set("member", serve("Member"));
    } else if (name == "shard") {
      results.set("shard", serve("Index"));
    }
    return kj::READY_NOW;
  }

private:
  capnp::DynamicCapability::Client serve(const char* name) const {
    return kj::heap<other_service>(of_, name, speaks_, wants_);
  }

  const version& of_;
  uint32_t speaks_;
  uint32_t wants_;
};

/// A process of another version, on a thread of its own.
class other_process {
public:
  other_process(const version& of, uint32_t speaks, uint32_t wants)
    : thread_([this, &of, speaks, wants] {
        auto main
          = capnp::DynamicCapability::Client{kj::heap<other_service>(of, "Process", speaks, wants)};
        auto server = capnp::EzRpcServer{kj::mv(main), "127.0.0.1"};
        auto ending = kj::newPromiseAndCrossThreadFulfiller<void>();
        end_ = kj::mv(ending.fulfiller);
        port_.set_value(server.getPort().wait(server.getWaitScope()));
        ending.promise.wait(server.getWaitScope());
      }) {
    address_ = "127.0.0.1:" + std::to_string(port_.get_future().get());
  }

  ~other_process() {
    end_->fulfill();
    thread_.join();
  }

  other_process(const other_process&) = delete;

  other_process& operator=(const other_process&) = delete;

  const std::string& address() const noexcept { return address_; }

private:
  std::promise<unsigned> port_;
  kj::Own<kj::CrossThreadPromiseFulfiller<void>> end_;
  std::string address_;
  std::thread thread_;
};

class VersionTest : public ServingTest, public ::testing::WithParamInterface<version::kind> {
protected:
  const std::unique_ptr<version> made_ = std::make_unique<version>(GetParam());
  const version& other_ = *made_;
};

INSTANTIATE_TEST_SUITE_P(Neighbours, VersionTest,
                         ::testing::Values(version::kind::previous, version::kind::next),
                         [](const auto& x) {
                           return x.param == version::kind::next ? "Next" : "Previous";
                         });

/// Asks a process of this version on behalf of one of another.
class other_client {
public:
  using answer = capnp::Response<capnp::DynamicStruct>;
  using fields = std::function<void(capnp::DynamicStruct::Builder)>;

  other_client(const version& of, const std::string& address)
    : of_(of), client_(address.c_str()),
      process_(client_.getMain().castAs<capnp::DynamicCapability>(of.interface("Process"))) {
    const auto greeted = ask(process_, "hello", [&](capnp::DynamicStruct::Builder hello) {
      hello.set("version", of_.number());
      hello.set("minimum", of_.minimum());
    });
    if (greeted.has("directory"))
      directory_ = greeted.get("directory").as<capnp::DynamicCapability>();
    if (greeted.has("member"))
      member_ = greeted.get("member").as<capnp::DynamicCapability>();
  }

  answer ask(
    capnp::DynamicCapability::Client& at, const char* method, const fields& change = [](auto) {}) {
    auto request = at.newRequest(method);
    fill(request);
    change(request);
    return request.send().wait(client_.getWaitScope());
  }

  answer directory(const char* method) { return ask(KJ_ASSERT_NONNULL(directory_), method); }

  answer member(const char* method) { return ask(KJ_ASSERT_NONNULL(member_), method); }

  capnp::DynamicCapability::Client shard() {
    const auto found = ask(KJ_ASSERT_NONNULL(directory_), "shard",
                           [](capnp::DynamicStruct::Builder to) { to.set("number", 0); });
    return found.get("shard").as<capnp::DynamicCapability>();
  }

  capnp::DynamicCapability::Client& process() { return process_; }

private:
  const version& of_;
  capnp::EzRpcClient client_;
  capnp::DynamicCapability::Client process_;
  kj::Maybe<capnp::DynamicCapability::Client> directory_;
  kj::Maybe<capnp::DynamicCapability::Client> member_;
};

template <class T = uint64_t>
auto value(const capnp::DynamicStruct::Reader& of, const char* name) {
  return of.get(name).as<T>();
}

capnp::DynamicStruct::Reader first(const capnp::DynamicStruct::Reader& of, const char* name) {
  return of.get(name).as<capnp::DynamicList>()[0].as<capnp::DynamicStruct>();
}

TEST_P(VersionTest, IsServedByThisOne) {
  serve();
  auto index = other_client{other_, address_};
  const auto map = index.directory("exchange");
  EXPECT_EQ(value<capnp::Text>(first(map, "shards"), "address"), "x");
  EXPECT_EQ(value(first(map, "shards"), "epoch"), 1u);
  if (other_.is_next()) {
    EXPECT_EQ(value(map, "addedNumber"), 0u) << "was ignored, and is not known here";
    EXPECT_FALSE(first(map, "shards").has("addedText"));
  }
  auto shard = index.shard();
  EXPECT_EQ(value(index.ask(shard, "mount"), "memberTtlMs"), 1000u);
  EXPECT_EQ(value(index.ask(shard, "publish"), "memberTtlMs"), 1u);
  EXPECT_EQ(value(first(index.ask(shard, "locate"), "replicas"), "member"), 1u);
  for (const auto* method : {"heartbeat", "withdraw", "members", "status"})
    index.ask(shard, method);
  auto at = other_client{other_, member_address_};
  EXPECT_EQ(value(at.member("copy"), "pages"), 1u);
  at.member("touch");
  at.member("corrupt");
  EXPECT_EQ(value(at.member("pin"), "pages"), 1u) << "what was touched";
  EXPECT_EQ(value(at.member("drain"), "withdrawn"), other_.is_next() ? 5u : 4u)
    << "the previous version knows no force";
}

TEST_P(VersionTest, MayAskAsMuchAtOnceAsThisOne) {
  serve();
  auto index = other_client{other_, address_};
  auto shard = index.shard();
  const auto count = static_cast<unsigned>(limits::index_batch_keys);
  const auto fill_list = [&](const char* name) {
    return [name, count](capnp::DynamicStruct::Builder to) {
      auto list = to.init(name, count).as<capnp::DynamicList>();
      for (auto i = 0U; i < count; ++i)
        fill(list[i].as<capnp::DynamicStruct>());
    };
  };
  EXPECT_EQ(value(index.ask(shard, "publish", fill_list("pages")), "memberTtlMs"), count);
  EXPECT_EQ(
    index.ask(shard, "locate", fill_list("keys")).get("replicas").as<capnp::DynamicList>().size(),
    count);
}

TEST_P(VersionTest, ServesThisOne) {
  const auto there = other_process{other_, other_.number(), other_.minimum()};
  address_ = there.address();
  const auto one = page_key{[] {
    auto key = page_key{};
    for (auto i = size_t{0}; i < key.bytes.size(); i += 8)
      key.bytes[i] = 1;
    return key;
  }()};
  const auto is_next = other_.is_next();
  const auto keys = is_next ? std::vector{one} : std::vector<page_key>{};
  const auto directory = connect();
  ASSERT_TRUE(directory) << to_string(directory.error());
  EXPECT_EQ(ask<shard_map>(*directory, atom::shards_v, shard_map{}), (shard_map{{{1, "x", 1}}}));
  const auto at = shard();
  const auto all = membership{true, 1, 1, keys, keys, is_next, is_next};
  EXPECT_EQ(ask<membership>(at, atom::mount_v, member_info{}), all);
  EXPECT_EQ(ask<membership>(at, atom::tick_v, heartbeat{}), all);
  EXPECT_EQ(ask<membership>(at, atom::publish_v, published_pages{}), all);
  EXPECT_EQ(ask<membership>(at, atom::withdraw_v, withdrawn_pages{}), all);
  const auto found = ask<placements>(at, atom::locate_v, key_batch{{one}});
  ASSERT_TRUE(found) << to_string(found.error());
  EXPECT_EQ(found->replicas[0], (replica_list{{1, 1, 1, 1}}));
  EXPECT_EQ(found->is_partial, is_next);
  const auto members = ask<member_list>(at, atom::members_v, member_query{});
  ASSERT_TRUE(members) << to_string(members.error());
  EXPECT_EQ(members->members[0].host, "x");
  EXPECT_EQ(members->members[0].address, is_next ? "x" : "");
  EXPECT_EQ(members->has_more, is_next);
  const auto status = ask<index_status>(at, atom::status_v, status_query{});
  ASSERT_TRUE(status) << to_string(status.error());
  EXPECT_EQ(status->uptime_ms, 1u);
  EXPECT_EQ(status->second_keys, is_next ? 1u : 0u);
  EXPECT_EQ(status->disk_replicas, is_next ? 1u : 0u);
  const auto member = client_->network.member_at(there.address());
  EXPECT_EQ(ask<page_totals>(member, atom::copy_v, page_copies{}), (page_totals{1, 1, keys}));
  EXPECT_EQ(ask<drain_report>(member, atom::drain_v, drain_request{true}), (drain_report{1, 1}));
}

/// What somebody is told who asks for more than the other knows.
const auto not_known = error{ec::unsupported, "the peer's version does not know this request"};

TEST_P(VersionTest, IsToldWhatTheOlderOneDoesNotKnow) {
  if (other_.is_next()) {
    serve();
    auto index = other_client{other_, address_};
    auto at = other_client{other_, member_address_};
    auto shard = index.shard();
    const auto answer_to = [](const auto& question) {
      try {
        question();
        return error{ec::not_found, "an answer"};
      } catch (const kj::Exception& ex) {
        return from_exception(ex);
      }
    };
    EXPECT_EQ(answer_to([&] { index.ask(shard, "added"); }), not_known);
    EXPECT_EQ(answer_to([&] { index.directory("added"); }), not_known);
    EXPECT_EQ(answer_to([&] { index.ask(index.process(), "added"); }), not_known);
    EXPECT_EQ(answer_to([&] { at.member("added"); }), not_known);
    EXPECT_EQ(value(index.ask(shard, "publish"), "memberTtlMs"), 1u) << "and is served as before";
  } else {
    const auto there = other_process{other_, other_.number(), other_.minimum()};
    const auto member = client_->network.member_at(there.address());
    const auto progress = ask<drain_progress>(member, atom::status_v, status_query{});
    ASSERT_FALSE(progress);
    EXPECT_EQ(progress.error(), not_known);
    EXPECT_EQ(ask<placements>(member, atom::recall_v, page_recall{}).error(), not_known);
    EXPECT_TRUE(ask<page_totals>(member, atom::copy_v, page_copies{})) << "and is asked as before";
    address_ = there.address();
    const auto at = shard();
    EXPECT_EQ(ask<atom::ok>(at, atom::await_v, awaited_pages{}).error(), not_known);
    EXPECT_TRUE(ask<membership>(at, atom::publish_v, published_pages{})) << "and is told as before";
  }
}

TEST_P(VersionTest, IsRefusedWithASentenceIfOneOfBothWantsMore) {
  const auto is_next = other_.is_next();
  const auto speaks = is_next ? index_protocol_version + 2 : index_protocol_minimum - 1;
  const auto wants = is_next ? index_protocol_version + 1 : uint32_t{1};
  const auto there = other_process{other_, speaks, wants};
  address_ = there.address();
  const auto why = "the peer speaks version " + std::to_string(speaks)
                   + " of the protocol and wants at least " + std::to_string(wants)
                   + "; this process speaks " + std::to_string(index_protocol_version)
                   + " and wants at least " + std::to_string(index_protocol_minimum);
  const auto directory = connect();
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error(), (error{ec::unsupported, address_ + ": " + why}));
  const auto member = client_->network.member_at(address_);
  const auto copied = ask<page_totals>(member, atom::copy_v, page_copies{});
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error(), (error{ec::unsupported, address_ + ": " + why}));
}

} // namespace
} // namespace hicache
