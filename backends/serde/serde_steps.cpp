#include "backends/serde/serde_core.hpp"
#include "base/check.hpp"
#include "base/units.hpp"

#include <algorithm>
#include <optional>

// The steps of a batch: begin, pump, then for each chunk start_read and decode or start_write, then
// finish, which pumps again.
namespace hicache::serde {

namespace {

/// Chunks of one batch in progress: some are decoded while the store reads others. Writes follow
/// each other, since a store must have an object before those that name it as their parent.
constexpr size_t read_chunks = 4;
constexpr size_t write_chunks = 1;

/// A chunk takes at most this share of the memory, unless a single object needs more.
constexpr uint64_t chunk_share = 8;

} // namespace

void serde_core::begin(const transfer_ptr& batch) {
  {
    const auto using_it = use{*this, batch};
    if (!using_it)
      return;
    if (batch->is_read)
      batch->reads = batch->read_batch->list();
    else
      batch->writes = batch->write_batch->list();
    HICACHE_CHECK((batch->is_read ? batch->reads.size() : batch->writes.size()) == batch->size);
    batch->answers.assign(batch->size, fail(ec::deadline_exceeded));
  }
  pump(batch);
}

void serde_core::pump(const transfer_ptr& batch) {
  for (;;) {
    auto lock = std::unique_lock{mutex_};
    if (batch->state == transfer::phase::over || batch->failure)
      return;
    if (batch->open.size() >= (batch->is_read ? read_chunks : write_chunks))
      return;
    auto bytes = uint64_t{0};
    const auto part = cut_chunk(batch, bytes);
    if (part == nullptr) {
      if (batch->open.empty() && batch->uses == 0)
        end(batch, lock);
      return;
    }
    batch->open.push_back(part);
    lock.unlock();
    pool_->request(
      batch->number, bytes, [self = shared_from_this(), part](bounce_pool::piece memory) {
        part->memory = std::move(memory);
        self->enqueue(part->batch, [self, part](codec_scratch& scratch) {
          part->batch->is_read ? self->start_read(part) : self->start_write(part, scratch);
        });
      });
  }
}

serde_core::chunk_ptr serde_core::cut_chunk(const transfer_ptr& batch, uint64_t& bytes) {
  if (batch->next < batch->size && clock_.now() >= batch->deadline) {
    failed_ += batch->size - batch->next;
    batch->next = batch->size;
  }
  const auto share = pool_->capacity() / chunk_share;
  auto part = std::make_shared<chunk>();
  part->batch = batch;
  bytes = 0;
  for (; batch->next < batch->size && part->count < chunk_objects_; ++batch->next) {
    const auto needed = aligned(codec_->encoded_bytes_max(batch->bytes_of(batch->next)));
    if (part->count > 0 && bytes + needed > share)
      break;
    if (needed > pool_->capacity()) {
      if (part->count > 0)
        break;
      ++failed_;
      batch->answers[batch->next]
        = fail(ec::limit_reached, "an object of " + format_bytes(needed)
                                    + " does not fit into the codecs' memory of "
                                    + format_bytes(pool_->capacity()));
      continue;
    }
    part->first = part->count == 0 ? batch->next : part->first;
    ++part->count;
    bytes += needed;
  }
  return part->count == 0 ? nullptr : part;
}

std::vector<page_read> serde_core::encoded_reads(const chunk& part) const {
  auto list = std::vector<page_read>{};
  auto rest = part.memory.bytes();
  for (auto i = part.first; i < part.first + part.count; ++i) {
    const auto& page = part.batch->reads[i];
    const auto length = total_bytes(page.parts);
    const auto longest = codec_->encoded_bytes_max(length);
    const auto room = sized_ != nullptr ? longest : codec_->encoded_bytes(length);
    list.push_back({codec_->object_name(page.key), {rest.first(room)}, page.place});
    rest = rest.subspan(aligned(longest));
  }
  return list;
}

void serde_core::note_call(const chunk_ptr& part, batch_number call) {
  const auto& batch = part->batch;
  {
    const auto lock = std::scoped_lock{mutex_};
    part->call = call;
    const auto is_late = batch->has_expired && clock_.now() >= batch->deadline;
    if (batch->state != transfer::phase::over && !is_late)
      return;
  }
  // It expired while the call was being made.
  if (store_->expire(call) == expiry::withdrawn)
    fail_batch(batch, {ec::deadline_exceeded, {}});
}

void serde_core::start_read(const chunk_ptr& part) {
  const auto using_it = use{*this, part->batch};
  if (!using_it)
    return;
  auto list = encoded_reads(*part);
  const auto decode_later = [self = shared_from_this(), part](auto lengths) {
    part->lengths = std::move(lengths);
    self->enqueue(part->batch,
                  [self, part](codec_scratch& scratch) { self->decode(part, scratch); });
  };
  const auto deadline = part->batch->deadline;
  if (sized_ != nullptr)
    return note_call(part, sized_->read_sized(std::move(list), deadline, decode_later));
  auto lengths = std::vector<uint64_t>{};
  for (const auto& page : list)
    lengths.push_back(total_bytes(page.parts));
  auto done = [lengths = std::move(lengths), decode_later](const auto& answers) {
    auto found = std::vector<result<uint64_t>>{};
    for (auto i = size_t{0}; i < answers.size(); ++i)
      found.push_back(answers[i] ? result<uint64_t>{lengths[i]}
                                 : tl::unexpected{answers[i].error()});
    decode_later(std::move(found));
  };
  note_call(part, store_->read(std::move(list), deadline, std::move(done), {}));
}

void serde_core::decode(const chunk_ptr& part, codec_scratch& scratch) {
  auto corrupt = std::vector<page_key>{};
  {
    const auto using_it = use{*this, part->batch};
    if (!using_it)
      return;
    HICACHE_CHECK(part->lengths.size() == part->count);
    auto rest = part->memory.bytes();
    for (auto i = size_t{0}; i < part->count; ++i) {
      const auto& page = part->batch->reads[part->first + i];
      const auto room = codec_->encoded_bytes_max(total_bytes(page.parts));
      const auto& length = part->lengths[i];
      HICACHE_CHECK(!length || *length <= room);
      part->answers.push_back(length
                                ? codec_->decode(page.key, rest.first(*length), page.parts, scratch)
                                : result<void>{tl::unexpected{length.error()}});
      rest = rest.subspan(aligned(room));
      if (!length || part->answers.back())
        continue;
      if (part->answers.back().error().code == ec::corrupt_page) {
        ++corrupt_;
        corrupt.push_back(codec_->object_name(page.key));
      } else {
        ++undecoded_;
      }
    }
    part->memory = {};
  }
  if (corrupt.empty())
    return finish(part);
  // A corrupt object is gone before anybody hears of it.
  note_call(part, store_->remove(std::move(corrupt), part->batch->deadline,
                                 [self = shared_from_this(), part](const auto&) {
                                   self->enqueue(part->batch, [self, part](codec_scratch&) {
                                     self->finish(part);
                                   });
                                 }));
}

std::vector<page_write> serde_core::encoded_writes(const chunk_ptr& part, codec_scratch& scratch) {
  auto list = std::vector<page_write>{};
  part->answers.assign(part->count, {});
  auto rest = part->memory.bytes();
  for (auto i = size_t{0}; i < part->count; ++i) {
    const auto& page = part->batch->writes[part->first + i];
    const auto room = codec_->encoded_bytes_max(total_bytes(page.parts));
    const auto length
      = codec_->encode(page.key, page.tenant, page.parts, rest.first(room), scratch);
    if (length) {
      list.push_back({codec_->object_name(page.key),
                      codec_->object_name(page.parent),
                      {rest.first(*length)},
                      page.tenant});
      part->written.push_back(i);
    } else {
      ++failed_;
      part->answers[i] = tl::unexpected{length.error()};
    }
    rest = rest.subspan(aligned(room));
  }
  return list;
}

void serde_core::start_write(const chunk_ptr& part, codec_scratch& scratch) {
  // Held until the store has the call, so that a batch that expires meanwhile is not withdrawn.
  auto using_it = std::optional<use>{std::in_place, *this, part->batch};
  if (!*using_it)
    return;
  auto list = encoded_writes(part, scratch);
  if (list.empty()) {
    using_it.reset();
    return finish(part);
  }
  auto done = [self = shared_from_this(), part](auto answers) {
    HICACHE_CHECK(answers.size() == part->written.size());
    for (auto i = size_t{0}; i < answers.size(); ++i)
      part->answers[part->written[i]] = std::move(answers[i]);
    self->enqueue(part->batch, [self, part](codec_scratch&) { self->finish(part); });
  };
  const auto deadline = part->batch->deadline;
  note_call(part, part->batch->is_promotion
                    ? store_->promote(std::move(list), deadline, std::move(done))
                    : store_->write(std::move(list), deadline, std::move(done)));
}

void serde_core::finish(const chunk_ptr& part) {
  const auto& batch = part->batch;
  part->memory = {};
  {
    const auto using_it = use{*this, batch};
    if (!using_it)
      return;
    if (batch->progress) {
      const auto lock = std::scoped_lock{batch->reporting};
      batch->progress(part->first, part->answers);
    }
    const auto lock = std::scoped_lock{mutex_};
    std::ranges::move(part->answers, batch->answers.begin() + static_cast<ptrdiff_t>(part->first));
    std::erase(batch->open, part);
  }
  pump(batch);
}

} // namespace hicache::serde
