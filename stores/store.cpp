#include "hicache/store.hpp"

#include "base/try.hpp"
#include "cache/hash/page_hash.hpp"
#include "stores/open_stores.hpp"
#include "stores/storage_config.hpp"

#include <future>
#include <utility>

namespace hicache {

namespace {

const monotonic_clock machine_clock;

/// What to do about a call that does not return.
enum class late_call : uint8_t { leave, wait_for };

/// Submits a batch and waits for its answer.
/// @param submit Called with the deadline and the completion; returns the batch's number.
/// @param late The answer if the store gives none.
template <class Answer, class Submit>
Answer wait(storage_backend& store, duration timeout, late_call rule, const Answer& late,
            Submit submit) {
  const auto deadline = machine_clock.now() + timeout;
  auto promise = std::make_shared<std::promise<Answer>>();
  auto answer = promise->get_future();
  const auto number = submit(deadline, [promise](Answer x) { promise->set_value(std::move(x)); });
  if (answer.wait_until(deadline) == std::future_status::ready)
    return answer.get();
  const auto state = store.expire(number);
  if (state == storage_backend::expiry::withdrawn
      || (state == storage_backend::expiry::running && rule == late_call::leave))
    return late;
  return answer.get();
}

template <class T>
std::vector<result<T>> too_late(size_t size) {
  return std::vector<result<T>>(size, fail(ec::deadline_exceeded));
}

} // namespace

result<std::unique_ptr<store>> store::open(const store_options& options) {
  const auto config = HICACHE_TRY(parse_store(options.backend, options.extra_config));
  if (options.rank >= options.ranks)
    return fail(ec::invalid_argument, "rank " + std::to_string(options.rank) + " of "
                                        + std::to_string(options.ranks)
                                        + "; expected a number below that of all");
  auto owner = store_owner{};
  owner.fingerprint = fingerprint_of(options.identity);
  owner.rank = options.rank;
  owner.ranks = options.ranks;
  auto opened = HICACHE_TRY(open_stores(options.backend, config, owner, machine_clock));
  return std::make_unique<store>(std::move(opened));
}

std::vector<result<store_place>> store::lookup(std::vector<page_key> keys, duration timeout) {
  const auto late = too_late<store_place>(keys.size());
  return wait(*batches_, timeout, late_call::leave, late, [&](time_point deadline, auto done) {
    return batches_->lookup(std::move(keys), deadline, std::move(done));
  });
}

std::vector<result<void>> store::read(std::vector<page_read> pages, duration timeout) {
  const auto late = too_late<void>(pages.size());
  return wait(*batches_, timeout, late_call::wait_for, late, [&](time_point deadline, auto done) {
    return batches_->read(std::move(pages), deadline, std::move(done), {});
  });
}

std::vector<result<void>> store::write(std::vector<page_write> pages, duration timeout) {
  const auto late = too_late<void>(pages.size());
  return wait(*batches_, timeout, late_call::wait_for, late, [&](time_point deadline, auto done) {
    return batches_->write(std::move(pages), deadline, std::move(done));
  });
}

std::vector<result<void>> store::remove(std::vector<page_key> keys, duration timeout) {
  const auto late = too_late<void>(keys.size());
  return wait(*batches_, timeout, late_call::leave, late, [&](time_point deadline, auto done) {
    return batches_->remove(std::move(keys), deadline, std::move(done));
  });
}

result<object_list> store::list(std::string from, duration timeout) {
  const auto late = result<object_list>{fail(ec::deadline_exceeded)};
  return wait(*batches_, timeout, late_call::leave, late, [&](time_point deadline, auto done) {
    return batches_->list(std::move(from), deadline, std::move(done));
  });
}

backend_health store::health() {
  auto promise = std::make_shared<std::promise<backend_health>>();
  batches_->health([promise](backend_health x) { promise->set_value(std::move(x)); });
  return promise->get_future().get();
}

} // namespace hicache
