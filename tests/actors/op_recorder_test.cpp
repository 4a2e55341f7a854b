// Recording: what the tree notes, what the recorder writes, and what happens when it cannot.

#include "actors/op_recorder.hpp"
#include "actors/rank_reduction.hpp"
#include "actors/tree.hpp"
#include "base/limits.hpp"
#include "hicache/events.hpp"
#include "hicache/rank_reducer.hpp"
#include "tests/actors/fakes.hpp"
#include "tests/support/damage.hpp"
#include "tests/support/op_logs.hpp"

#include <deque>
#include <sstream>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

tree_options small_options() {
  auto options = tree_options{};
  options.page_size = 4;
  options.l1_pages = 16;
  options.l2_pages = 16;
  options.events = true;
  return options;
}

/// A disk with room for so many bytes.
class small_disk : public std::stringbuf {
public:
  explicit small_disk(size_t room) : room_(room) {}

  size_t refusals = 0;

protected:
  std::streamsize xsputn(const char* from, std::streamsize count) override {
    if (static_cast<size_t>(count) > room_) {
      ++refusals;
      return 0;
    }
    room_ -= static_cast<size_t>(count);
    return std::stringbuf::xsputn(from, count);
  }

private:
  size_t room_;
};

class OpRecorderTest : public actor_test {
protected:
  ~OpRecorderTest() override { stop_all(); }

  struct rank {
    small_disk disk{SIZE_MAX};
    rank_reduction_core_actor rank_reduction;
    tree_core_actor tree;
    op_recorder_actor recorder;
    std::shared_ptr<recording> log = std::make_shared<recording>();
    std::shared_ptr<std::vector<cache_event>> events = std::make_shared<std::vector<cache_event>>();
  };

  op_recorder_actor record_to(std::streambuf& disk) {
    return spawn(op_recorder, "ops.jsonl", std::make_unique<std::ostream>(&disk), small_options());
  }

  /// Ranks whose copies end when the test says so.
  void start(uint32_t ranks, bool records = true) {
    for (auto& peer : make_local_reducers(ranks)) {
      auto& x = ranks_.emplace_back();
      x.rank_reduction = spawn(rank_reduction, std::move(peer));
      if (records)
        x.recorder = record_to(x.disk);
      start_tree(x);
    }
  }

  void start_tree(rank& x) {
    const auto listener = spawn(test::recorder, x.log);
    auto engine = spawn([events = x.events](caf::event_based_actor*) {
      return caf::behavior{
        [](atom::notice, const caf::error&) {},
        [](atom::notify) {},
        [events](atom::events, const cache_events_ptr& more) {
          const auto list = more->list();
          events->insert(events->end(), list.begin(), list.end());
        },
      };
    });
    x.tree = spawn(tree, small_options(),
                   tree_helpers{caf::actor_cast<controller_actor>(listener),
                                x.rank_reduction,
                                {},
                                {},
                                caf::actor_cast<engine_actor>(engine),
                                x.recorder},
                   &clock, caf::timespan{5s});
  }

  static std::vector<tree_operation> whole_request(request_id id) {
    const auto prompt = std::make_shared<const std::vector<token_id>>(8, static_cast<token_id>(id));
    return {match_request{id, {}, prompt, 8, {}}, allocate_request{id, 8},
            insert_request{id, prompt}, release_request{id}};
  }

  void apply(const std::vector<tree_operation>& list) {
    for (auto& each : ranks_)
      send_request<tree_answers>(each.tree, atom::apply_v, tree_operations{list});
    run();
  }

  result<step_result> step() {
    auto answers = std::vector<reply<step_result>>{};
    for (auto& each : ranks_)
      answers.push_back(send_request<step_result>(each.tree, atom::step_v, caf::timespan{0}));
    run();
    return answers.front().get();
  }

  void finish_write(operation_id id) {
    for (auto& each : ranks_)
      tell(each.tree, atom::done_v, operation_done{operation_kind::write, id, true});
  }

  static const tree_state& state(const rank& x) { return state_of<tree_state>(x.tree); }

  static std::vector<op_log_entry> log_of(const rank& x) {
    auto entries = parse_op_log(x.disk.str());
    EXPECT_TRUE(entries) << entries.error().detail;
    return entries.value_or(std::vector<op_log_entry>{});
  }

  std::deque<rank> ranks_;
};

// -- the recorder -------------------------------------------------------------

TEST_F(OpRecorderTest, WritesTheOptionsAndThenEachEntry) {
  auto disk = small_disk{SIZE_MAX};
  const auto recorder = record_to(disk);
  const auto entry = op_log_entry{tree_operation{release_request{7}}, 1};
  const auto answer = send_request<atom::ok>(
    recorder, atom::record_v,
    op_log_batch_ptr{std::make_shared<const op_log_batch>(op_log_batch{{entry, entry}})});
  run();
  EXPECT_TRUE(answer.get());
  EXPECT_EQ(disk.str(),
            to_line({small_options(), {}}) + "\n" + to_line(entry) + "\n" + to_line(entry) + "\n");
}

TEST_F(OpRecorderTest, WritesWhatWasSentBeforeItsEnd) {
  auto disk = small_disk{SIZE_MAX};
  const auto recorder = record_to(disk);
  const auto entry = op_log_entry{tree_operation{release_request{7}}, 1};
  const auto batch = op_log_batch_ptr{std::make_shared<const op_log_batch>(op_log_batch{{entry}})};
  for (auto i = 0; i < 3; ++i)
    caf::anon_send(recorder, atom::record_v, batch);
  caf::anon_send_exit(recorder, caf::exit_reason::user_shutdown);
  run();
  EXPECT_EQ(parse_op_log(disk.str())->size(), 4u);
}

TEST_F(OpRecorderTest, StopsAtAFullDiskForGood) {
  const auto first = to_line({small_options(), {}}) + "\n";
  auto disk = small_disk{first.size() + 10};
  const auto recorder = record_to(disk);
  const auto batch = op_log_batch_ptr{
    std::make_shared<const op_log_batch>(op_log_batch{{{tree_operation{clear_request{}}, 1}}})};
  for (auto i = 0; i < 2; ++i) {
    const auto answer = send_request<atom::ok>(recorder, atom::record_v, batch);
    run();
    EXPECT_EQ(answer.code(), ec::io_failure);
  }
  EXPECT_EQ(disk.str(), first);
  EXPECT_EQ(disk.refusals, 1u);
}

// -- what the tree records ----------------------------------------------------

TEST_F(OpRecorderTest, ALogReplaysToTheDigestOfItsTree) {
  start(2);
  apply(whole_request(1));
  apply(whole_request(2));
  finish_write(1);
  ASSERT_TRUE(step());
  apply({evict_request{cache_tier::l1, 8}});
  finish_write(2);
  ASSERT_TRUE(step());
  ASSERT_TRUE(step()); // Nothing to agree on.
  for (const auto& each : ranks_) {
    const auto log = log_of(each);
    EXPECT_EQ(log.size(), 1 + 4 + 4 + 1 + 1 + 1 + 1u);
    const auto digests = replay(log);
    ASSERT_TRUE(digests) << digests.error().detail;
    EXPECT_EQ(digests->back(), state(each).core->digest());
  }
  EXPECT_EQ(ranks_[0].disk.str(), ranks_[1].disk.str());
}

TEST_F(OpRecorderTest, LogicalTimeIsTheClockOfTheSteps) {
  start(1);
  apply(whole_request(1));
  finish_write(1);
  ASSERT_TRUE(step());
  const auto log = log_of(ranks_[0]);
  EXPECT_EQ(std::get<applied_step>(log.back().event).facts.now_ns,
            clock.now().time_since_epoch().count());
}

TEST_F(OpRecorderTest, LogsOfDivergedRanksShowWhere) {
  start(2);
  apply(whole_request(1));
  const auto equal = log_of(ranks_[0]).size();
  damage(*state(ranks_[1]).core);
  finish_write(1);
  EXPECT_EQ(step().error().code, ec::ranks_diverged);
  apply(whole_request(2));
  const auto a = log_of(ranks_[0]);
  const auto b = log_of(ranks_[1]);
  ASSERT_EQ(a.size(), b.size());
  ASSERT_GT(a.size(), equal);
  for (auto i = size_t{0}; i < equal; ++i)
    EXPECT_TRUE(agree(a[i], b[i]));
  EXPECT_FALSE(agree(a[equal], b[equal]));
  EXPECT_TRUE(std::holds_alternative<serving_stopped>(a[equal].event));
  EXPECT_TRUE(replay(a));
  EXPECT_EQ(replay(b).error().code, ec::ranks_diverged);
}

// -- serving goes on ----------------------------------------------------------

TEST_F(OpRecorderTest, ATreeThatRecordsNothingNotesNothing) {
  start(1, false);
  apply(whole_request(1));
  EXPECT_EQ(state(ranks_[0]).outbox->notes().capacity(), 0u);
}

TEST_F(OpRecorderTest, AFullDiskEndsTheRecordingOnly) {
  auto& x = ranks_.emplace_back();
  x.rank_reduction = spawn(rank_reduction, std::move(make_local_reducers(1).front()));
  auto disk = small_disk{to_line({small_options(), {}}).size() + 1};
  x.recorder = record_to(disk);
  start_tree(x);
  apply(whole_request(1));
  apply(whole_request(2));
  EXPECT_EQ(disk.refusals, 1u);
  EXPECT_FALSE(state(x).outbox->helpers().recorder);
  EXPECT_EQ(state(x).core->stats().l1_free, 12u);
  stop_all();
}

TEST_F(OpRecorderTest, ADiskThatFallsBehindEndsTheRecordingOnly) {
  auto& x = ranks_.emplace_back();
  x.rank_reduction = spawn(rank_reduction, std::move(make_local_reducers(1).front()));
  auto held = std::make_shared<std::vector<caf::response_promise>>();
  const auto slow = spawn([held](caf::event_based_actor* self) {
    return caf::behavior{[self, held](atom::record, const op_log_batch_ptr&) {
      return held->emplace_back(self->make_response_promise());
    }};
  });
  x.recorder = caf::actor_cast<op_recorder_actor>(slow);
  start_tree(x);
  for (auto i = size_t{0}; i < limits::unrecorded_batches; ++i)
    apply({release_request{1}});
  EXPECT_TRUE(state(x).outbox->helpers().recorder);
  apply({release_request{1}});
  EXPECT_FALSE(state(x).outbox->helpers().recorder);
  EXPECT_EQ(held->size(), limits::unrecorded_batches);
  apply(whole_request(1));
  EXPECT_EQ(state(x).core->stats().l1_free, 14u);
  held->clear();
}

// -- cache events -------------------------------------------------------------

TEST_F(OpRecorderTest, TheEngineHearsOfCacheEvents) {
  start(1, false);
  ASSERT_EQ(ranks_[0].events->size(), 1u);
  EXPECT_TRUE(std::holds_alternative<cache_cleared>(ranks_[0].events->front()));
  apply(whole_request(1));
  finish_write(1);
  ASSERT_TRUE(step());
  ASSERT_EQ(ranks_[0].events->size(), 3u);
  for (const auto i : {size_t{1}, size_t{2}}) {
    const auto& stored = std::get<pages_stored>((*ranks_[0].events)[i]);
    EXPECT_EQ(stored.medium, i == 1 ? cache_medium::l1 : cache_medium::l2);
    EXPECT_EQ(stored.keys.size(), 2u);
  }
}

} // namespace
} // namespace hicache
