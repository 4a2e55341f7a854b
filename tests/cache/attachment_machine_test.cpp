// How one rank takes part in changes of L3: a table with every pair of a state and an event.

#include "base/overloaded.hpp"
#include "cache/step/attachment_machine.hpp"
#include "tests/cache/transition_table.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;
using machine = attachment_machine;

std::string text_of(const std::optional<machine::time>& wait) {
  return wait ? " within " + std::to_string(*wait / machine::time{1s}) + " s" : "";
}

std::string text_of(storage_change::action what) {
  return std::vector<std::string>{"attach", "detach", "release"}[static_cast<size_t>(what)];
}

std::string text_of(const machine::action& what) {
  using text = std::string;
  return std::visit(
    overloaded{
      [](const machine::announce& x) {
        return text{"announce "} + (!x.what ? "nothing" : x.what->is_end ? "end" : "change");
      },
      [](const machine::open& x) { return "open " + x.wanted.backend; },
      [](const machine::prepare& x) {
        return "prepare " + x.wanted.backend + text_of(std::optional{x.wait});
      },
      [](const machine::vote& x) {
        return text{x.is_well ? "vote well" : "vote failed"} + text_of(x.wait);
      },
      [](const machine::explain& x) {
        return "explain rank " + std::to_string(x.speaker)
               + (x.why.code == ec::none ? "" : text{": "} + to_string(x.why.code));
      },
      [](const machine::freeze&) { return text{"freeze"}; },
      [](const machine::fix& x) { return "fix " + std::to_string(x.begun); },
      [](const machine::abort&) { return text{"abort"}; },
      [](const machine::commit& x) {
        return text_of(x.what) + " before " + std::to_string(x.before) + text_of(x.wait);
      },
      [](const machine::drain_reads& x) { return "drain reads" + text_of(x.wait); },
      [](const machine::drain_writes& x) { return "drain writes" + text_of(x.wait); },
      [](const machine::use_store&) { return text{"use store"}; },
      [](const machine::discard_store&) { return text{"discard store"}; },
      [](const machine::adopt&) { return text{"adopt"}; },
      [](const machine::revert&) { return text{"revert"}; },
      [](const machine::close_store&) { return text{"close store"}; },
      [](const machine::answer& x) {
        return text{"answer "} + (x.outcome ? "ok" : to_string(x.outcome.error().code));
      },
      [](const machine::end&) { return text{"end"}; },
    },
    what);
}

std::string text_of(const std::vector<machine::action>& list) {
  auto text = std::string{};
  for (const auto& each : list)
    text += (text.empty() ? "" : ", ") + text_of(each);
  return text;
}

std::string state_of(const machine& x) {
  static constexpr const char* names[]
    = {"idle",   "listening", "opening",        "voting",          "explaining", "freezing",
       "fixing", "applying",  "draining reads", "draining writes", "closing",    "over"};
  return names[static_cast<size_t>(x.phase())];
}

/// The ranks wait for 5 s beyond the time of a request, which is 3 s.
const auto attach = machine::request{{"file", {}, {}}, 3s};
const auto attach_other = machine::request{{"disk", {}, {}}, 3s};
const auto detach = machine::request{{}, 3s};
const auto gone = fail(ec::rank_unresponsive);
const auto late = fail(ec::deadline_exceeded);

const std::map<std::string, machine::event>& events() {
  static const auto list = std::map<std::string, machine::event>{
    {"asked", machine::asked{attach}},
    {"asked to end", machine::asked_to_end{}},
    {"heard attach", machine::heard{attach}},
    {"heard attach other", machine::heard{attach_other}},
    {"heard detach", machine::heard{detach}},
    {"heard end", machine::heard{machine::request{.is_end = true}}},
    {"heard nothing", machine::heard{gone}},
    {"opened", machine::opened{}},
    {"not opened", machine::opened{fail(ec::io_failure)}},
    {"all well", machine::voted{std::optional<uint32_t>{}}},
    {"rank 0 failed", machine::voted{std::optional<uint32_t>{0}}},
    {"rank 1 failed", machine::voted{std::optional<uint32_t>{1}}},
    {"no vote", machine::voted{gone}},
    {"explained", machine::explained{{ec::io_failure, {}}}},
    {"not explained", machine::explained{{ec::rank_unresponsive, {}}, true}},
    {"frozen", machine::frozen{7}},
    {"not frozen", machine::frozen{fail(ec::stopping)}},
    {"fixed", machine::fixed{8}},
    {"not fixed", machine::fixed{gone}},
    {"applied", machine::applied{}},
    {"not applied", machine::applied{late}},
    {"drained", machine::drained{}},
    {"not drained", machine::drained{late}},
  };
  return list;
}

using way = std::vector<std::string>;

way operator+(way a, const way& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// How a machine comes to each state. "from a store" is one that has a store attached at first.
const std::map<std::string, way>& ways() {
  static const auto attaching = way{"asked", "heard attach"};
  static const auto opened = attaching + way{"opened", "all well"};
  static const auto detaching = way{"from a store", "asked", "heard detach"};
  static const auto reads = detaching + way{"frozen", "fixed", "applied"};
  static const auto drained = reads + way{"drained", "drained"};
  static const auto back = reads + way{"not drained", "rank 0 failed", "explained"};
  static const auto released = drained + way{"all well"};
  static const auto preparing = way{"from a store", "asked", "heard attach"};
  static const auto list = std::map<std::string, way>{
    {"idle", {}},
    {"idle: with a store", {"from a store"}},
    {"listening", {"asked"}},
    {"listening: with a store", {"from a store", "asked"}},
    {"opening", attaching},
    {"voting: opened", attaching + way{"opened"}},
    {"voting: not opened", attaching + way{"not opened"}},
    {"voting: drained", drained},
    {"opening: another configuration", preparing},
    {"voting: prepared", preparing + way{"opened"}},
    {"voting: not prepared", preparing + way{"not opened"}},
    {"explaining: prepared", preparing + way{"not opened", "rank 0 failed"}},
    {"closing: prepared", preparing + way{"opened", "all well"}},
    {"explaining: opened", attaching + way{"not opened", "rank 0 failed"}},
    {"explaining: drained", drained + way{"rank 1 failed"}},
    {"freezing: attach", opened},
    {"freezing: detach", detaching},
    {"freezing: release", released},
    {"freezing: back", back},
    {"fixing: attach", opened + way{"frozen"}},
    {"fixing: detach", detaching + way{"frozen"}},
    {"fixing: release", released + way{"frozen"}},
    {"fixing: back", back + way{"frozen"}},
    {"applying: detach", detaching + way{"frozen", "fixed"}},
    {"applying: release", released + way{"frozen", "fixed"}},
    {"draining reads", reads},
    {"draining writes", reads + way{"drained"}},
    {"closing", released + way{"frozen", "fixed", "applied"}},
    {"over", {"asked to end", "heard end"}},
  };
  return list;
}

constexpr auto table = R"(
asked         | idle; idle: with a store | listening | announce change
heard attach  | listening               | opening    | open file
heard attach  | listening: with a store | opening    | prepare file within 3 s
heard attach other | listening          | opening    | open disk
heard attach other | listening: with a store | voting | vote failed within 8 s
heard detach  | listening               | idle       | answer ok
heard detach  | listening: with a store | freezing   | freeze
heard end     | listening; listening: with a store | over | end
heard nothing | listening; listening: with a store | over | answer rank_unresponsive, end
opened        | opening; opening: another configuration | voting | vote well within 8 s
not opened    | opening; opening: another configuration | voting | vote failed within 8 s
all well      | voting: opened; voting: not opened | freezing | use store, freeze
all well      | voting: drained         | freezing   | freeze
all well      | voting: prepared; voting: not prepared | closing | adopt, vote well
all well      | closing; closing: prepared | idle    | answer ok
rank 0 failed | voting: not opened; voting: not prepared | explaining | explain rank 0: io_failure
rank 1 failed | voting: opened; voting: not opened; voting: drained | explaining | explain rank 1
rank 1 failed | voting: prepared; voting: not prepared | explaining | explain rank 1
no vote       | voting: opened; voting: not opened | over | discard store, answer rank_unresponsive, end
no vote       | voting: drained         | freezing   | freeze
no vote       | voting: prepared; voting: not prepared | over | revert, answer rank_unresponsive, end
no vote       | closing; closing: prepared | over    | answer rank_unresponsive, end
explained     | explaining: opened      | idle       | discard store, answer io_failure
explained     | explaining: drained     | freezing   | freeze
explained     | explaining: prepared    | idle       | revert, answer io_failure
not explained | explaining: prepared    | over       | revert, answer rank_unresponsive, end
not explained | explaining: opened      | over       | discard store, answer rank_unresponsive, end
not explained | explaining: drained     | freezing   | freeze
frozen        | freezing: attach; freezing: detach; freezing: release; freezing: back | fixing | fix 7
not frozen    | freezing: attach; freezing: detach; freezing: release; freezing: back | idle | answer stopping
fixed         | fixing: attach          | idle       | attach before 9, answer ok
fixed         | fixing: detach          | applying   | detach before 9 within 3 s
fixed         | fixing: release         | applying   | release before 9
fixed         | fixing: back            | idle       | attach before 9, answer io_failure
not fixed     | fixing: attach; fixing: detach; fixing: release; fixing: back | over | abort, answer rank_unresponsive, end
applied       | applying: detach        | draining reads | drain reads within 2 s
not applied   | applying: detach        | voting     | vote failed within 8 s
applied       | applying: release       | closing    | close store, vote well
not applied   | applying: release       | closing    | close store, vote well
drained       | draining reads          | draining writes | drain writes within 2 s
drained       | draining writes         | voting     | vote well within 8 s
not drained   | draining reads; draining writes | voting | vote failed within 8 s
asked to end  | idle; idle: with a store | listening | announce end
asked to end  | over                    | =          | end
asked to end  | listening; listening: with a store; opening; opening: another configuration | = |
asked to end  | voting: prepared; voting: not prepared; explaining: prepared; closing: prepared | = |
asked to end  | voting: opened; voting: not opened; voting: drained; explaining: opened; explaining: drained | = |
asked to end  | freezing: attach; freezing: detach; freezing: release; freezing: back | = |
asked to end  | fixing: attach; fixing: detach; fixing: release; fixing: back | = |
asked to end  | applying: detach; applying: release; draining reads; draining writes; closing | = |
)";

machine machine_in(const std::string& state) {
  const auto& steps = ways().at(state);
  const auto has_store = !steps.empty() && steps.front() == "from a store";
  auto x = machine{0, 5s, has_store ? "file" : ""};
  x.start();
  for (auto i = size_t{has_store ? 1u : 0u}; i < steps.size(); ++i)
    x.handle({}, events().at(steps[i]));
  EXPECT_EQ(state_of(x), visible(state));
  return x;
}

expectations rows() {
  auto names = std::vector<std::string>{};
  for (const auto& [name, event] : events())
    names.push_back(name);
  return read_table(table, names);
}

TEST(AttachmentMachineTest, DoesWhatTheTableSays) {
  auto seen = size_t{0};
  const auto list = rows();
  for (const auto& [pair, expected] : list) {
    const auto& [event, state] = pair;
    SCOPED_TRACE(event + " in " + state);
    ASSERT_TRUE(ways().contains(state));
    auto x = machine_in(state);
    EXPECT_EQ(text_of(x.handle(1s, events().at(event))), expected.actions);
    EXPECT_EQ(state_of(x), expected.next);
    ++seen;
  }
  EXPECT_GT(seen, 70u);
}

TEST(AttachmentMachineDeathTest, RefusesWhatCannotHappen) {
  const auto list = rows();
  for (const auto& [name, event] : events())
    for (const auto& [state, steps] : ways()) {
      // A rank that did not fail is never the lowest one that did.
      if (list.contains({name, state}) || name == "rank 0 failed")
        continue;
      auto x = machine_in(state);
      EXPECT_DEATH(x.handle(1s, event), "attachment_machine.cpp") << name << " in " << state;
    }
}

TEST(AttachmentMachineTest, OtherRanksListenForEver) {
  auto x = machine{1, 5s, ""};
  EXPECT_EQ(text_of(x.start()), "announce nothing");
  EXPECT_EQ(text_of(x.handle({}, events().at("heard detach"))), "answer ok, announce nothing");
  EXPECT_EQ(text_of(x.handle({}, machine::asked_to_end{})), "");
  EXPECT_EQ(text_of(x.handle({}, events().at("heard end"))), "end");
}

TEST(AttachmentMachineTest, TheEndIsAnnouncedAfterTheChangeThatIsUnderWay) {
  auto x = machine_in("fixing: attach");
  x.handle({}, machine::asked_to_end{});
  EXPECT_TRUE(x.is_ending());
  EXPECT_EQ(text_of(x.handle({}, events().at("fixed"))),
            "attach before 9, answer ok, announce end");
  EXPECT_EQ(text_of(x.handle({}, events().at("heard end"))), "end");
}

TEST(AttachmentMachineTest, ALostRankEndsAllChangesButFreezesNoSteps) {
  auto x = machine_in("voting: drained");
  x.handle({}, events().at("no vote"));
  EXPECT_TRUE(x.is_ending());
  x.handle({}, events().at("frozen"));
  EXPECT_EQ(text_of(x.handle({}, events().at("not fixed"))),
            "abort, answer rank_unresponsive, end");
}

} // namespace
} // namespace hicache
