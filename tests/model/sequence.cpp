#include "tests/model/sequence.hpp"

#include "base/check.hpp"
#include "base/overloaded.hpp"
#include "tests/model/loose_model.hpp"
#include "tests/model/model_cache.hpp"

#include <utility>

namespace hicache::test {

namespace {

/// The node or generation in an answer, or 0.
uint64_t answered_by(const tree_answer& answer) {
  if (!answer)
    return 0;
  return std::visit(overloaded{
                      [](const match_result& x) { return x.node; },
                      [](const insert_result& x) { return x.node; },
                      [](const session_result& x) { return x.generation; },
                      [](const auto&) { return uint64_t{0}; },
                    },
                    *answer);
}

} // namespace

cache_player::cache_player(const tree_options& options, std::ostream* log, apply_function apply)
  : cache_(options), apply_(std::move(apply)), log_(log) {
  memory_.device.resize(options.l1_pages + 1);
  memory_.host.resize(options.l2_pages + 1);
  memory_.is_loading.resize(options.l1_pages + 1);
  note(options);
  take_effects();
}

void cache_player::note(op_log_event event) {
  if (log_ != nullptr)
    *log_ << to_line({std::move(event), std::nullopt}) << std::endl;
}

tree_operation cache_player::complete(const action& each) const {
  auto operation = std::get<tree_operation>(each.what);
  const auto entry = answered_.find(each.from);
  const auto known = entry == answered_.end() ? uint64_t{0} : entry->second;
  std::visit(overloaded{
               [&](match_request& x) { x.session.generation = known; },
               [&](close_session_request& x) { x.session.generation = known; },
               [&](lock_request& x) { x.node = known; },
               [&](unlock_request& x) { x.node = known; },
               [&](write_request& x) { x.node = known; },
               [&](load_node_request& x) { x.node = known; },
               [](const auto&) {},
             },
             operation);
  return operation;
}

tree_answer cache_player::perform(const action& each, const tree_operation& operation) {
  note(operation);
  auto answer = apply_(cache_, operation);
  if (const auto number = answered_by(answer); number != 0)
    answered_[each.number] = number;
  take_effects();
  return answer;
}

void cache_player::take_effects() {
  for (const auto& effect : cache_.take_effects()) {
    if (const auto* write = std::get_if<write_command>(&effect)) {
      writes_.push_back({write->l1_pages, write->l2_pages});
    } else if (const auto* load = std::get_if<load_command>(&effect)) {
      loads_.push_back({load->l2_pages, load->l1_pages});
      for (const auto page : *load->l1_pages)
        memory_.is_loading[page] = true;
    } else {
      HICACHE_CHECK(std::holds_alternative<staging_command>(effect));
    }
  }
}

void cache_player::step(const step_action& facts) {
  constexpr auto garbage = uint64_t{0xbad};
  const auto writes_before = done_.writes_done;
  const auto loads_before = done_.loads_done;
  auto last_write = copy{};
  auto last_load = copy{};
  for (auto left = facts.writes; left > 0 && !writes_.empty(); --left, ++done_.writes_done) {
    const auto& [from, to] = writes_.front();
    for (auto i = size_t{0}; i < from->size(); ++i)
      memory_.host[(*to)[i]] = memory_.device[(*from)[i]];
    last_write = writes_.front();
    writes_.pop_front();
  }
  for (auto left = facts.loads; left > 0 && !loads_.empty(); --left, ++done_.loads_done) {
    const auto& [from, to] = loads_.front();
    for (auto i = size_t{0}; i < from->size(); ++i) {
      memory_.device[(*to)[i]] = memory_.host[(*from)[i]];
      memory_.is_loading[(*to)[i]] = false;
    }
    last_load = loads_.front();
    loads_.pop_front();
  }
  done_.write_failed = facts.fail_write && done_.writes_done > writes_before;
  done_.load_failed = facts.fail_load && done_.loads_done > loads_before;
  if (done_.write_failed)
    for (const auto page : *last_write.to)
      memory_.host[page] = garbage;
  if (done_.load_failed)
    for (const auto page : *last_load.to)
      memory_.device[page] = garbage;
  done_.now_ns += facts.passed_ns;
  note(applied_step{done_, {}});
  cache_.step(done_, {});
  take_effects();
}

bool cache_player::settle() {
  if (!cache_.in_flight())
    return false;
  step({UINT64_MAX, UINT64_MAX, 0});
  HICACHE_CHECK(!cache_.in_flight());
  return true;
}

std::optional<disagreement> play(const sequence& played, const apply_function& apply) {
  auto player = cache_player{played.options, nullptr, apply};
  auto model = model_cache{played.options};
  auto loose = loose_model{played.options};
  const auto is_exact = played.copies == copy_time::at_once;
  for (auto i = size_t{0}; i < played.actions.size(); ++i) {
    const auto& each = played.actions[i];
    auto wrong = std::string{};
    auto is_step = std::holds_alternative<step_action>(each.what);
    if (const auto* facts = std::get_if<step_action>(&each.what)) {
      player.step(*facts);
      loose.lose(player.cache().failed(), facts->fail_load);
    } else {
      const auto operation = player.complete(each);
      loose.prepare(operation, player.memory());
      const auto answer = player.perform(each, operation);
      wrong = loose.follow(operation, answer, player.memory());
      if (is_exact && wrong.empty())
        wrong = model.follow(operation, answer);
      is_step = is_exact && player.settle();
    }
    if (is_step) {
      model.advance(player.now_ns());
      loose.advance(player.now_ns());
    }
    player.cache().check_invariants();
    if (wrong.empty())
      wrong = loose.compare(player.cache().stats());
    if (wrong.empty() && is_exact)
      wrong = model.compare(player.cache());
    if (!wrong.empty())
      return disagreement{i, std::move(wrong)};
  }
  return {};
}

uint64_t play_alone(const sequence& played, std::ostream* log, const apply_function& apply) {
  auto player = cache_player{played.options, log, apply};
  for (const auto& each : played.actions) {
    if (const auto* facts = std::get_if<step_action>(&each.what)) {
      player.step(*facts);
      continue;
    }
    static_cast<void>(player.perform(each, player.complete(each)));
    if (played.copies == copy_time::at_once)
      player.settle();
  }
  return player.cache().digest();
}

std::string describe(const sequence& played) {
  auto options = to_line({played.options, std::nullopt});
  options += played.copies == copy_time::late ? ", copies finish late" : ", copies finish at once";
  return options + ", " + std::to_string(played.actions.size()) + " actions";
}

} // namespace hicache::test
