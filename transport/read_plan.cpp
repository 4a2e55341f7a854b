#include "transport/read_plan.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace hicache {

namespace {

constexpr uint64_t bit(size_t place) {
  return uint64_t{1} << place;
}

/// Lets a piece begin where it ended.
void move_on(range_piece& next) {
  next.skip += std::exchange(next.length, 0);
  while (!next.targets.empty() && next.skip >= next.targets.front().size()) {
    next.skip -= next.targets.front().size();
    next.targets = next.targets.subspan(1);
  }
}

void scatter_piece(const range_piece& piece, const std::byte* bytes) {
  auto begin = piece.skip;
  auto left = piece.length;
  for (auto to = piece.targets.begin(); left > 0; ++to, begin = 0) {
    const auto count = std::min(to->size() - begin, left);
    if (count > 0)
      std::memcpy(to->data() + begin, bytes, count);
    bytes += count;
    left -= count;
  }
}

} // namespace

read_plan::read_plan(std::span<const remote_range> ranges, std::vector<server_standing> standing,
                     bool lends)
  : ranges_(ranges), standing_(std::move(standing)), lends_(lends), progress_(ranges.size()),
    lines_(standing_.size()), open_(ranges.size()) {
  for (auto i = size_t{0}; i < ranges.size(); ++i) {
    HICACHE_CHECK(!ranges[i].places.empty() && ranges[i].places.size() <= 64);
    for (const auto& target : ranges[i].targets)
      progress_[i].length += target.size();
    if (progress_[i].length == 0)
      end(progress_[i]);
    else
      begin_next(i);
  }
}

bool read_plan::has_next(size_t server) {
  auto& line = lines_[server];
  // What came from elsewhere meanwhile is not wanted any more.
  while (!line.empty() && progress_[line.front().rest.range].is_over)
    line.pop_front();
  return !line.empty();
}

planned_message read_plan::next(size_t server) {
  auto message = planned_message{};
  auto room = limits::transfer_bytes;
  auto& line = lines_[server];
  while (room > 0 && message.spans.size() < limits::transfer_ranges && has_next(server)) {
    auto& [rest, offset, left] = line.front();
    rest.length = std::min(left, room);
    const auto flags
      = (ranges_[rest.range].insists ? page_span::insists : 0U) | (lends_ ? page_span::lends : 0U);
    message.spans.push_back({offset, static_cast<uint32_t>(rest.length), flags});
    message.pieces.push_back(rest);
    room -= rest.length;
    offset += rest.length;
    left -= rest.length;
    move_on(rest);
    if (left == 0)
      line.pop_front();
  }
  return message;
}

result<void> read_plan::deliver(const planned_message& message, std::span<const std::byte> data) {
  const auto states = decode_span_states(message.spans, data);
  if (!states)
    return tl::unexpected{states.error()};
  const auto* bytes = data.data() + message.spans.size();
  for (auto i = size_t{0}; i < message.pieces.size(); ++i) {
    const auto& piece = message.pieces[i];
    if ((*states)[i] == span_state::refused) {
      fail_place(piece.range, piece.place, {ec::limit_reached, "others will have it in a moment"});
      continue;
    }
    take(piece, bytes, (*states)[i] == span_state::in_demand);
    bytes += piece.length;
  }
  return {};
}

void read_plan::fail(const planned_message& message, const error& why) {
  for (const auto& piece : message.pieces)
    fail_place(piece.range, piece.place, why);
}

void read_plan::fail_server(size_t server, const error& why) {
  standing_[server] = server_standing::avoided;
  lines_[server].clear();
  for (auto i = size_t{0}; i < ranges_.size(); ++i)
    for (auto place = size_t{0}; place < ranges_[i].places.size(); ++place)
      if (ranges_[i].places[place].server == server && (progress_[i].begun & bit(place)) != 0)
        fail_place(i, place, why);
}

bool read_plan::hedge(size_t server) {
  auto found = false;
  standing_[server] = server_standing::late;
  for (auto i = size_t{0}; i < ranges_.size(); ++i) {
    const auto& one = progress_[i];
    const auto& places = ranges_[i].places;
    if (one.is_over || places[one.last].server != server
        || one.begun == bit(places.size() - 1) * 2 - 1)
      continue;
    begin_next(i);
    found = true;
  }
  return found;
}

std::vector<result<range_answer>> read_plan::finish(const error& why) {
  auto answers = std::vector<result<range_answer>>{};
  for (auto& one : progress_) {
    if (!one.is_over) {
      one.failure = why;
      end(one);
    }
    if (one.failure.code == ec::none)
      answers.emplace_back(range_answer{one.source, one.in_demand});
    else
      answers.emplace_back(tl::unexpected{std::move(one.failure)});
  }
  return answers;
}

// -- internal steps -----------------------------------------------------------

void read_plan::begin_next(size_t range) {
  auto& one = progress_[range];
  const auto& places = ranges_[range].places;
  auto best = std::optional<size_t>{};
  for (auto place = size_t{0}; place < places.size(); ++place) {
    if ((one.begun & bit(place)) != 0)
      continue;
    const auto standing = standing_[places[place].server];
    if (standing == server_standing::avoided) {
      one.begun |= bit(place);
      one.failed |= bit(place);
      one.failure = {ec::peer_unreachable, "it delivered nothing a moment ago"};
    } else if (!best || standing < standing_[places[*best].server]) {
      best = place;
    }
  }
  if (best) {
    one.begun |= bit(*best);
    one.last = *best;
    lines_[places[*best].server].push_back(
      {{range, *best, 0, ranges_[range].targets, 0}, places[*best].offset, one.length});
  } else if (one.failed == one.begun) {
    end(one);
  }
}

void read_plan::fail_place(size_t range, size_t place, const error& why) {
  auto& one = progress_[range];
  if (one.is_over || (one.failed & bit(place)) != 0)
    return;
  one.failed |= bit(place);
  one.failure = why;
  if (place == one.source)
    one.arrived = 0;
  begin_next(range);
}

void read_plan::end(progress& which) {
  which.is_over = true;
  --open_;
}

void read_plan::take(const range_piece& piece, const std::byte* bytes, bool in_demand) {
  auto& one = progress_[piece.range];
  if (one.is_over || (one.failed & bit(piece.place)) != 0)
    return;
  if (piece.place != one.source && one.arrived != 0) {
    // The targets hold a part of the range from elsewhere. One of both starts too late to be whole.
    if (piece.place != one.last && piece.length != one.length) {
      one.failed |= bit(piece.place);
      return;
    }
    one.failed |= bit(one.source);
    one.arrived = 0;
  }
  if (one.arrived == 0)
    one.in_demand = false;
  one.source = piece.place;
  scatter_piece(piece, bytes);
  one.arrived += piece.length;
  one.in_demand = one.in_demand || in_demand;
  if (one.arrived != one.length)
    return;
  one.failure = {};
  end(one);
}

} // namespace hicache
