#include "transport/read_plan.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

constexpr uint64_t bit(size_t place) {
  return uint64_t{1} << place;
}

/// Pieces of this size or more go alone: their bytes leave the owner's memory without a copy.
constexpr auto alone_bytes = size_t{256} << 10;

/// The piece's target if it is contiguous; else empty.
std::span<std::byte> one_target(const range_piece& piece) {
  const auto room = piece.targets.front().subspan(piece.skip);
  return room.size() < piece.length ? std::span<std::byte>{} : room.first(piece.length);
}

/// Advances a piece to begin where it ended.
void move_on(range_piece& next) {
  next.begin += next.length;
  next.skip += std::exchange(next.length, 0);
  while (!next.targets.empty() && next.skip >= next.targets.front().size()) {
    next.skip -= next.targets.front().size();
    next.targets = next.targets.subspan(1);
  }
}

} // namespace

read_plan::read_plan(std::span<const remote_range> ranges, std::vector<server_standing> standing,
                     bool exports)
  : ranges_(ranges), standing_(std::move(standing)), exports_(exports), progress_(ranges.size()),
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
  // Skip ranges that arrived from elsewhere.
  while (!line.empty() && progress_[line.front().rest.range].is_over)
    line.pop_front();
  return !line.empty();
}

planned_message read_plan::next(size_t server) {
  auto message = planned_message{};
  auto room = limits::transfer_bytes;
  auto& line = lines_[server];
  while (room > 0 && message.spans.size() < limits::transfer_ranges && has_next(server)) {
    auto& [rest, left] = line.front();
    const auto is_large = left >= alone_bytes;
    if (is_large && !message.spans.empty())
      break;
    rest.length = std::min(left, room);
    const auto& [places, targets, insists] = ranges_[rest.range];
    const auto& from = places[rest.place];
    message.spans.push_back(
      {from.head, from.offset + rest.begin, static_cast<uint32_t>(rest.length),
       (insists ? page_span::insists : 0U) | (exports_ ? page_span::exports : 0U), from.claim.key,
       from.claim.generation});
    message.pieces.push_back(rest);
    room -= rest.length;
    left -= rest.length;
    move_on(rest);
    if (left == 0)
      line.pop_front();
    if (is_large)
      break;
  }
  return message;
}

std::span<std::byte> read_plan::target_of(const planned_message& message) const {
  const auto& piece = message.pieces.front();
  const auto is_alone = message.pieces.size() == 1 && ranges_[piece.range].places.size() == 1;
  return is_alone && !progress_[piece.range].is_over ? one_target(piece) : std::span<std::byte>{};
}

result<void> read_plan::deliver(const planned_message& message, std::span<const std::byte> header,
                                std::span<const std::byte> data) {
  const auto answers = HICACHE_TRY(decode_span_answers(message.spans, header, data));
  auto rest = answers.bytes;
  for (auto i = size_t{0}; i < message.pieces.size(); ++i) {
    const auto& piece = message.pieces[i];
    const auto& answer = answers.list[i];
    if (answer.state == span_state::refused) {
      fail_place(piece.range, piece.place, {ec::limit_reached, "others will have it in a moment"});
    } else if (answer.state == span_state::gone) {
      end_gone(piece);
    } else {
      take(piece, answer, rest.first(piece.length));
      rest = rest.subspan(piece.length);
    }
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
  for (auto i = size_t{0}; i < progress_.size(); ++i) {
    auto& one = progress_[i];
    if (!one.is_over) {
      one.failure = why;
      end(one);
    }
    if (one.failure.code == ec::none)
      answers.emplace_back(range_answer{one.source, one.in_demand, one.is_gone, one.head,
                                        one.is_gone ? 0 : checksum_of(i)});
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
      {{range, *best, 0, 0, ranges_[range].targets, 0}, one.length});
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

void read_plan::end_gone(const range_piece& piece) {
  auto& one = progress_[piece.range];
  if (one.is_over || (one.failed & bit(piece.place)) != 0)
    return;
  one.is_gone = true;
  one.source = piece.place;
  one.head = {};
  one.failure = {};
  end(one);
}

void read_plan::take(const range_piece& piece, const span_answer& answer,
                     std::span<const std::byte> bytes) {
  auto& one = progress_[piece.range];
  if (one.is_over || (one.failed & bit(piece.place)) != 0)
    return;
  if (piece.place != one.source && one.arrived != 0) {
    // The targets hold a part of the range from another place. Only one of the two can be complete.
    if (piece.place != one.last && piece.length != one.length) {
      one.failed |= bit(piece.place);
      return;
    }
    one.failed |= bit(one.source);
    one.arrived = 0;
  }
  if (one.arrived == 0) {
    one.in_demand = false;
    one.sum.emplace();
    one.summed = 0;
  }
  one.source = piece.place;
  one.head = answer.head;
  const auto is_there = bytes.data() == one_target(piece).data();
  if (piece.begin == one.summed) {
    if (is_there)
      one.sum->add(bytes);
    else
      one.sum->copy(bytes, piece.targets, piece.skip);
    one.summed += bytes.size();
  } else if (!is_there) { // Out of order: hashed when complete.
    running_checksum{}.copy(bytes, piece.targets, piece.skip);
  }
  one.arrived += piece.length;
  one.in_demand = one.in_demand || answer.state == span_state::in_demand;
  if (one.arrived != one.length)
    return;
  one.failure = {};
  end(one);
}

uint64_t read_plan::checksum_of(size_t range) {
  const auto& one = progress_[range];
  return one.sum && one.summed == one.length ? one.sum->value()
                                             : page_checksum(ranges_[range].targets);
}

} // namespace hicache
