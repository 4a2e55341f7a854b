#include "actors/fetcher.hpp"

#include "base/check.hpp"
#include "base/keys_of.hpp"
#include "base/limits.hpp"

#include <caf/actor_cast.hpp>

#include <algorithm>
#include <map>
#include <utility>

namespace hicache {

caf::result<atom::ok> fetcher_state::fetch(const page_fetch& wanted) {
  // Requests queue here, so the deadline may have passed.
  if (options.clock->now() >= wanted.deadline)
    return atom::ok_v;
  const auto keys = keys_of(wanted.pages.list);
  auto where = options.locate(keys, wanted.deadline);
  HICACHE_CHECK(where.replicas.size() == keys.size());
  auto job = std::make_shared<fetch_job>();
  job->deadline = wanted.deadline;
  for (auto i = size_t{0}; i < keys.size(); ++i) {
    auto& replicas = where.replicas[i];
    // The index may still list a page that left this member.
    const auto is_own = [this](const replica& x) { return x.member == options.member; };
    replicas.erase(std::remove_if(replicas.begin(), replicas.end(), is_own), replicas.end());
    std::stable_partition(replicas.begin(), replicas.end(),
                          [](const replica& x) { return !is_on_disk(x.offset); });
    if (!replicas.empty())
      job->pages.push_back({wanted.pages.list[i], std::move(replicas), 0});
  }
  job->promise = self->make_response_promise<atom::ok>();
  auto answer = job->promise;
  try_next(job);
  return answer;
}

void fetcher_state::try_next(const job_ptr& job) {
  auto by_member = std::map<uint64_t, std::vector<open_page>>{};
  if (options.clock->now() < job->deadline)
    for (auto& page : job->pages)
      by_member[page.replicas[page.next].member].push_back(std::move(page));
  job->pages.clear();
  if (by_member.empty()) {
    job->promise.deliver(atom::ok_v);
    return;
  }
  const auto into = caf::actor_cast<caf::strong_actor_ptr>(options.segment);
  for (auto& [member, pages] : by_member)
    for (auto first = size_t{0}; first < pages.size(); first += limits::storage_batch_pages) {
      const auto count = std::min(limits::storage_batch_pages, pages.size() - first);
      const auto begin = pages.begin() + static_cast<ptrdiff_t>(first);
      auto part = std::vector<open_page>(begin, begin + static_cast<ptrdiff_t>(count));
      auto copies = page_copies{member, {}};
      for (const auto& [page, replicas, next] : part) {
        const auto& from = replicas[next];
        copies.pages.push_back({{page.key, from.offset, from.generation, from.length},
                                page.parent,
                                page.fingerprint,
                                page.tenant});
      }
      ++job->waiting;
      auto on_copied = [this, job, part](const page_totals& done) mutable {
        std::erase_if(part, [&done](const open_page& x) {
          return std::ranges::find(done.left_out, x.page.key) == done.left_out.end();
        });
        note(job, std::move(part));
      };
      auto on_error = [this, job, part](const caf::error&) { note(job, part); };
      self->request(options.replicator, caf::infinite, atom::copy_v, std::move(copies), into)
        .then(std::move(on_copied), std::move(on_error));
    }
}

void fetcher_state::note(const job_ptr& job, std::vector<open_page> failed) {
  for (auto& page : failed)
    if (++page.next < page.replicas.size())
      job->pages.push_back(std::move(page));
  if (--job->waiting == 0)
    try_next(job);
}

// -- actor --------------------------------------------------------------------

fetcher_actor::behavior_type fetcher(fetcher_actor::stateful_pointer<fetcher_state> self,
                                     fetcher_options options) {
  HICACHE_CHECK(options.locate && options.replicator && options.segment
                && options.clock != nullptr);
  self->state.options = std::move(options);
  return {[self](atom::fetch, const page_fetch& wanted) { return self->state.fetch(wanted); }};
}

} // namespace hicache
