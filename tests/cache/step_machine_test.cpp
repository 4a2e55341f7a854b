// When steps begin, reduce and end: a table with every pair of a state and an event.

#include "base/limits.hpp"
#include "base/overloaded.hpp"
#include "cache/step/step_machine.hpp"
#include "tests/cache/transition_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;
using machine = step_machine;
using std::chrono::nanoseconds;

constexpr auto patience = nanoseconds{5s};

// -- text ---------------------------------------------------------------------

std::string text_of(const machine::action& what) {
  const auto seconds
    = [](nanoseconds time) { return std::to_string(time / nanoseconds{1s}) + " s"; };
  return std::visit(
    overloaded{
      [](const machine::begin& x) { return "begin after " + std::to_string(x.changes); },
      [](const machine::step_locally&) { return std::string{"step locally"}; },
      [](const machine::step_alone&) { return std::string{"step alone"}; },
      [&](const machine::set_wait_timer& x) { return "wait timer " + seconds(x.after); },
      [&](const machine::set_ranks_timer& x) { return "ranks timer " + seconds(x.after); },
      [](const machine::offer&) { return std::string{"offer"}; },
      [](const machine::settle&) { return std::string{"settle"}; },
      [](const machine::answer&) { return std::string{"answer"}; },
      [](const machine::fail_step& x) { return std::string{"fail "} + to_string(x.why.code); },
      [](const machine::report_missing&) { return std::string{"report missing"}; },
      [](const machine::tell_engine&) { return std::string{"tell engine"}; },
      [](const machine::replay&) { return std::string{"replay"}; },
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
    = {"idle", "held", "beginning", "collecting", "offered", "expired", "late", "settling"};
  return std::string{names[static_cast<size_t>(x.phase())]} + (x.is_frozen() ? " frozen" : "")
         + (x.is_alone() ? " alone" : "");
}

// -- the table ----------------------------------------------------------------

const auto asks = machine::asked{10s};
const auto busy = machine::begun{.in_flight = true};
const auto minimum = machine::reduced{std::vector<int64_t>{1}};
const auto unresponsive = machine::reduced{fail(ec::rank_unresponsive)};
const auto diverged = machine::settled{fail(ec::ranks_diverged)};

struct moment {
  machine::event what;
  nanoseconds when{};
};

using moments = std::vector<moment>;

moments operator+(moments a, const moments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// How a machine comes to each state.
const std::map<std::string, moments>& ways() {
  static const auto frozen = moments{{machine::frozen{}}};
  static const auto alone = moments{{asks}, {busy}, {machine::news{}}, {minimum}, {diverged}};
  static const auto collecting = moments{{asks}, {busy}};
  static const auto offered = collecting + moments{{machine::news{}}};
  static const auto expired = offered + moments{{machine::ranks_timer{}, patience}};
  static const auto list = std::map<std::string, moments>{
    {"idle", {}},
    {"idle frozen", frozen},
    {"idle alone", alone},
    {"idle frozen alone", alone + frozen},
    {"held frozen", frozen + moments{{asks}}},
    {"held frozen alone", alone + frozen + moments{{asks}}},
    {"beginning", {{asks}}},
    {"beginning alone", alone + moments{{asks}}},
    {"collecting", collecting},
    {"collecting frozen", collecting + frozen},
    {"offered", offered},
    {"offered frozen", offered + frozen},
    {"expired", expired},
    {"expired frozen", expired + frozen},
    {"late", expired + moments{{minimum}}},
    {"late frozen", expired + moments{{minimum}} + frozen},
    {"late: broken", expired + moments{{unresponsive}}},
    {"settling", offered + moments{{minimum}}},
    {"settling frozen", offered + frozen + moments{{minimum}}},
  };
  return list;
}

/// A machine in this state, with one batch deferred if its step is open.
machine machine_in(const std::string& state) {
  auto x = machine{patience};
  auto has_deferred = false;
  for (const auto& each : ways().at(state)) {
    x.handle(each.when, each.what);
    const auto defers = x.phase() == step_phase::held || x.phase() == step_phase::collecting;
    if (defers && !std::exchange(has_deferred, true)) {
      EXPECT_EQ(*x.admit(false), machine::turn::after_step);
    }
  }
  EXPECT_EQ(state_of(x), visible(state));
  return x;
}

/// Feeds an event. @returns the actions.
std::string feed(machine& x, const std::string& event) {
  if (event == "operations") {
    const auto turn = x.admit(false);
    return !turn ? to_string(turn.error().code) : *turn == machine::turn::now ? "now" : "defer";
  }
  const auto list = std::map<std::string, moment>{
    {"asks", {asks}},
    {"begun, nothing open", {machine::begun{}}},
    {"begun, in flight", {busy}},
    {"begun, with news", {machine::begun{.in_flight = true, .has_news = true}}},
    {"news", {machine::news{}}},
    {"wait over", {machine::wait_over{x.steps_asked()}}},
    {"earlier wait over", {machine::wait_over{x.steps_asked() - 1}}},
    {"earlier ranks timer", {machine::ranks_timer{}, patience - 1s}},
    {"ranks timer", {machine::ranks_timer{}, patience}},
    {"outcome", {minimum}},
    {"outcome unresponsive", {unresponsive}},
    {"outcome mismatch", {machine::reduced{fail(ec::configuration_mismatch)}}},
    {"settled", {machine::settled{}}},
    {"settled, more", {machine::settled{.outcome = {}, .has_more = true}}},
    {"settled, diverged", {diverged}},
    {"freeze", {machine::frozen{}}},
    {"commit next", {machine::committed{x.steps_begun() + 1}}},
    {"commit later", {machine::committed{x.steps_begun() + 2}}},
    {"abort", {machine::aborted{}}},
  };
  const auto& next = list.at(event);
  return text_of(x.handle(next.when, next.what));
}

const auto events = std::vector<std::string>{"asks",
                                             "begun, nothing open",
                                             "begun, in flight",
                                             "begun, with news",
                                             "news",
                                             "wait over",
                                             "earlier wait over",
                                             "earlier ranks timer",
                                             "ranks timer",
                                             "outcome",
                                             "outcome unresponsive",
                                             "outcome mismatch",
                                             "settled",
                                             "settled, more",
                                             "settled, diverged",
                                             "freeze",
                                             "commit next",
                                             "commit later",
                                             "abort",
                                             "operations"};

/// As of transition_table.hpp. A pair that is not here cannot happen.
constexpr auto table = R"(
asks                 | idle alone?            | beginning alone?   | begin after 0
asks                 | idle frozen alone?     | held frozen alone? |
asks                 | expired frozen?        | offered frozen?    | ranks timer 5 s
asks                 | late frozen?           | settling frozen?   | settle
asks                 | late: broken            | late               | fail rank_unresponsive
begun, nothing open  | beginning              | idle               | step locally
begun, in flight     | beginning              | collecting         | wait timer 10 s
begun, with news     | beginning              | offered            | ranks timer 5 s, offer
begun, nothing open  | beginning alone        | idle alone         | step alone
begun, in flight     | beginning alone        | idle alone         | step alone
begun, with news     | beginning alone        | idle alone         | step alone
news                 | idle frozen? alone?    | =                  | tell engine
news                 | collecting frozen?     | offered frozen?    | ranks timer 5 s, offer
news                 | held frozen alone?; offered frozen?; expired frozen?; late frozen?; late: broken | = |
wait over            | collecting frozen?     | offered frozen?    | ranks timer 5 s, offer
wait over            | idle frozen? alone?; held frozen alone?; offered frozen? | = |
wait over            | expired frozen?; late frozen?; late: broken | = |
earlier wait over    | idle frozen? alone?; held frozen alone?; collecting frozen? | = |
earlier wait over    | offered frozen?; expired frozen?; late frozen?; late: broken | = |
ranks timer          | offered frozen?        | expired frozen?    | report missing, replay
ranks timer          | idle frozen? alone?; held frozen alone?; collecting frozen? | = |
ranks timer          | expired frozen?; late frozen?; late: broken | = |
earlier ranks timer  | offered frozen?        | =                  | ranks timer 1 s
earlier ranks timer  | idle frozen? alone?; held frozen alone?; collecting frozen? | = |
earlier ranks timer  | expired frozen?; late frozen?; late: broken | = |
outcome              | offered frozen?        | settling frozen?   | settle
outcome unresponsive | offered frozen?        | late frozen?       | fail rank_unresponsive, replay
outcome mismatch     | offered frozen?        | idle frozen?       | fail configuration_mismatch, replay
outcome              | expired frozen?        | late frozen?       |
outcome unresponsive | expired frozen?        | late frozen?       |
outcome mismatch     | expired frozen?        | late frozen?       |
settled              | settling frozen?       | idle frozen?       | answer, replay
settled, more        | settling frozen?       | idle frozen?       | answer, tell engine, replay
settled, diverged    | settling frozen?       | idle frozen? alone | fail ranks_diverged, replay
freeze               | idle frozen? alone?    | idle frozen alone? |
freeze               | held frozen alone?     | =                  |
freeze               | collecting frozen?     | collecting frozen  |
freeze               | offered frozen?        | offered frozen     |
freeze               | expired frozen?        | expired frozen     |
freeze               | late frozen?           | late frozen        |
freeze               | late: broken            | late frozen        |
commit next          | idle frozen alone?     | idle alone?        | tell engine
commit next          | held frozen alone?     | beginning alone?   | begin after 1
commit next          | collecting frozen      | offered            | ranks timer 5 s, offer
commit next          | offered frozen         | offered            |
commit next          | expired frozen         | expired            |
commit next          | late frozen            | late               |
commit later         | idle frozen alone?     | idle alone?        | tell engine
commit later         | held frozen alone?     | beginning alone?   | begin after 0
commit later         | collecting frozen      | offered            | ranks timer 5 s, offer
commit later         | offered frozen         | offered            |
commit later         | expired frozen         | expired            |
commit later         | late frozen            | late               |
abort                | idle frozen? alone?    | idle alone?        |
abort                | held frozen alone?     | beginning alone?   | begin after 0
abort                | collecting frozen?     | collecting         |
abort                | offered frozen?        | offered            |
abort                | expired frozen?        | expired            |
abort                | late frozen?           | late               |
abort                | late: broken            | =                  |
operations           | idle frozen? alone?    | =                  | now
operations           | held frozen alone?; collecting frozen?; offered frozen? | = | defer
operations           | expired frozen?; late frozen?; late: broken | = | rank_unresponsive
)";

TEST(StepMachineTest, DoesWhatTheTableSays) {
  auto seen = size_t{0};
  const auto rows = read_table(table, events);
  for (const auto& event : events)
    for (const auto& [state, way] : ways()) {
      const auto row = rows.find({event, state});
      if (row == rows.end())
        continue;
      SCOPED_TRACE(event + " in " + state);
      auto x = machine_in(state);
      EXPECT_EQ(feed(x, event), row->second.actions);
      EXPECT_EQ(state_of(x), row->second.next);
      ++seen;
    }
  EXPECT_EQ(seen, rows.size()) << "a row has an unknown state";
}

TEST(StepMachineDeathTest, RefusesWhatCannotHappen) {
  const auto rows = read_table(table, events);
  for (const auto& event : events)
    for (const auto& [state, way] : ways()) {
      if (rows.contains({event, state}))
        continue;
      auto x = machine_in(state);
      EXPECT_DEATH(feed(x, event), "step_machine.cpp") << event << " in " << state;
    }
}

// -- what the table does not show ---------------------------------------------

/// Begins a step with a busy cache.
void begin_busy(machine& x, nanoseconds wait) {
  x.handle({}, machine::asked{wait});
  x.handle({}, busy);
}

TEST(StepMachineTest, WaitsUntilThePrefetchThatIsOverFirstIsOver) {
  for (const auto& [next_deadline, after] : std::map<nanoseconds, std::string>{
         {-1s, "wait timer 0 s"}, {3s, "wait timer 3 s"}, {20s, "wait timer 10 s"}}) {
    auto x = machine{patience};
    x.handle({}, asks);
    EXPECT_EQ(
      text_of(x.handle({}, machine::begun{.in_flight = true, .next_deadline = next_deadline})),
      after);
  }
}

TEST(StepMachineTest, DoesNotWaitIfTheEngineDoesNot) {
  auto x = machine{patience};
  x.handle({}, machine::asked{});
  EXPECT_EQ(text_of(x.handle({}, busy)), "ranks timer 5 s, offer");
}

TEST(StepMachineTest, OneTimerServesAllSteps) {
  auto x = machine{patience};
  begin_busy(x, 0s);
  x.handle({}, minimum);
  x.handle({}, machine::settled{});
  x.handle(1s, machine::asked{});
  EXPECT_EQ(text_of(x.handle(1s, busy)), "offer");
  EXPECT_EQ(text_of(x.handle(5s, machine::ranks_timer{})), "ranks timer 1 s");
  EXPECT_EQ(text_of(x.handle(6s, machine::ranks_timer{})), "report missing");
  EXPECT_EQ(text_of(x.handle(7s, machine::asked{})), "ranks timer 5 s");
}

TEST(StepMachineTest, AgreesAlthoughNothingIsInFlight) {
  auto agreed = nanoseconds{};
  const auto offers = [&agreed](machine& x, const machine::begun& found) {
    x.handle({}, machine::asked{});
    const auto does = text_of(x.handle({}, found)).ends_with("offer");
    if (does) {
      x.handle({}, minimum);
      agreed += limits::comparison_time; // So long that each step may agree.
      x.handle({}, machine::settled{.outcome = {}, .now_ns = agreed.count()});
    }
    return does;
  };
  auto x = machine{patience};
  EXPECT_FALSE(offers(x, {}));
  EXPECT_TRUE(offers(x, {.has_pins = true}));
  EXPECT_FALSE(offers(x, {}));
  EXPECT_EQ(*x.admit(true), machine::turn::now);
  EXPECT_FALSE(offers(x, {})) << "an empty batch changes nothing";
  EXPECT_EQ(*x.admit(false), machine::turn::now);
  EXPECT_TRUE(offers(x, {}));
  x.handle({}, machine::frozen{});
  x.handle({}, machine::committed{x.steps_begun() + 1});
  EXPECT_TRUE(offers(x, {})) << "a change of L3 changes the cache";
  auto looks = 0;
  for (auto i = uint64_t{0}; i < limits::quarantine_steps; ++i)
    looks += offers(x, {.has_quarantine = true}) ? 1 : 0;
  EXPECT_EQ(looks, 1);
}

TEST(StepMachineTest, DefersOnlySoManyBatches) {
  auto x = machine_in("offered");
  for (auto i = size_t{1}; i < limits::deferred_batches; ++i)
    EXPECT_EQ(*x.admit(false), machine::turn::after_step);
  EXPECT_EQ(x.admit(false).error().code, ec::limit_reached);
  x.handle({}, minimum);
  x.handle({}, machine::settled{});
  begin_busy(x, 0s);
  EXPECT_TRUE(x.admit(false));
}

TEST(StepMachineTest, TellsTheEngineOnceUntilItsNextStep) {
  auto x = machine{patience};
  EXPECT_EQ(text_of(x.handle({}, machine::news{})), "tell engine");
  EXPECT_EQ(text_of(x.handle({}, machine::news{})), "");
  begin_busy(x, 0s);
  x.handle({}, minimum);
  x.handle({}, machine::settled{});
  EXPECT_EQ(text_of(x.handle({}, machine::news{})), "tell engine");
}

TEST(StepMachineTest, ChangesApplyBeforeTheirSteps) {
  auto x = machine{patience};
  x.handle({}, machine::frozen{});
  EXPECT_EQ(text_of(x.handle({}, machine::committed{2})), "tell engine");
  EXPECT_EQ(text_of(x.handle({}, asks)), "begin after 0");
  EXPECT_EQ(text_of(x.handle({}, machine::begun{})), "step locally, tell engine")
    << "an engine that sleeps must step once more";
  x.handle({}, machine::frozen{});
  x.handle({}, machine::committed{2});
  EXPECT_EQ(text_of(x.handle({}, asks)), "begin after 2");
  EXPECT_EQ(text_of(x.handle({}, busy)), "wait timer 10 s");
}

TEST(StepMachineTest, ARepeatedStepTakesTheLateOutcomeAndBeginsNothing) {
  auto x = machine_in("late");
  const auto begun = x.steps_begun();
  const auto actions = x.handle({}, asks);
  ASSERT_EQ(text_of(actions), "settle");
  EXPECT_EQ(std::get<machine::settle>(actions[0]).minimum, *minimum.minimum);
  EXPECT_EQ(x.steps_begun(), begun);
}

} // namespace
} // namespace hicache
