#pragma once

#include "base/immovable.hpp"
#include "cache/store/store_breaker.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "launch/router/prefix_index.hpp"
#include "launch/router/route_choice.hpp"

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hicache {

/// An instance as the operator names it.
struct instance_options {
  /// HOST:PORT of its API.
  std::string address;
  /// Where it publishes events, and where missed ones are asked for; empty: nowhere.
  std::string events;
  std::string replay;
  /// Empty: the one that its GET /v1/models says, or both.
  std::optional<instance_role> role;
};

/// Parses HOST:PORT[,events=ENDPOINT][,replay=ENDPOINT][,role=NAME].
/// @returns invalid_argument with a sentence that names the part
/// @relates instance_options
result<instance_options> parse_instance(const std::string& text);

/// What an instance says of itself.
struct probe_answer {
  std::optional<instance_role> role;
  /// Body of its GET /v1/models.
  std::string models;
};

enum class request_outcome : uint8_t {
  /// The instance answered, be it that the request is wrong.
  answered,
  /// The instance did not answer, or not to the end.
  failed,
  /// It answered that it takes no requests now.
  refused,
  /// Its time was over.
  late,
  /// The client went away.
  abandoned,
};

inline constexpr auto request_outcomes
  = std::to_array<std::string_view>({"answered", "failed", "refused", "late", "abandoned"});

/// What is known of an instance, and what was sent to it.
struct instance_figures {
  instance_role role = instance_role::both;
  /// It has answered a probe.
  bool is_probed = false;
  bool is_draining = false;
  uint32_t running = 0;
  uint64_t waiting_tokens = 0;
  uint64_t events_lost = 0;
  std::array<uint64_t, request_outcomes.size()> outcomes{};
  uint64_t prompt_tokens = 0;
  uint64_t expected_tokens = 0;
};

/// An instance as operators and Prometheus see it.
struct instance_status : instance_figures {
  std::string address;
  std::string events;
  breaker_state breaker = breaker_state::closed;
  uint64_t pages = 0;
};

class instance_table;

/// A completion under way at an instance. Ends as abandoned unless it is told otherwise before.
/// Must not outlive the table.
class instance_lease : immovable {
public:
  ~instance_lease();

  instance_slot slot() const noexcept { return choice_.target; }
  const std::string& address() const noexcept { return address_; }

  /// Addresses of instances that the target shall ask to compute the prompt; empty: none.
  const std::vector<std::string>& prefill() const noexcept { return prefill_; }

  /// The first part of the answer is here: the prompt is computed.
  void started();

  /// Once.
  void ended(request_outcome outcome, time_point now);

private:
  friend class instance_table;

  instance_lease() = default;

  instance_table* table_ = nullptr;
  route_choice choice_;
  std::string address_;
  std::vector<std::string> prefill_;
  store_breaker::pass pass_;
  /// Where the prompt is computed, until it is.
  std::optional<instance_slot> computing_;
  uint64_t computed_tokens_ = 0;
  /// Numbers of the instances in these slots.
  uint64_t target_number_ = 0;
  uint64_t computing_number_ = 0;
  bool has_ended_ = false;
};

/// The instances behind the router: what they have cached, what they do, whether they answer. Time
/// is an argument. Any thread.
class instance_table {
public:
  struct options {
    route_weights weights;
    breaker_policy breaker;
    bool shares_l3 = false;
  };

  explicit instance_table(const options& chosen)
    : weights_(chosen.weights), breaker_(chosen.breaker), index_(chosen.shares_l3) {}

  /// @returns its slot; invalid_argument if it is there, limit_reached if there are
  /// router_instances
  result<instance_slot> add(const instance_options& wanted);

  /// Its requests under way go on.
  /// @returns its slot, or unknown_id
  result<instance_slot> remove(const std::string& address);

  /// A draining instance gets no new requests.
  /// @returns unknown_id with a sentence
  result<void> set_draining(const std::string& address, bool is_draining);

  /// The result of a probe that was admitted; nothing: it failed.
  void probed(instance_slot slot, store_breaker::pass pass, std::optional<probe_answer> answer,
              time_point now);

  /// @returns nothing if the instance must not be probed now
  std::optional<store_breaker::pass> admit_probe(instance_slot slot, time_point now);

  // -- events -----------------------------------------------------------------

  result<void> apply_events(instance_slot slot, std::string_view message);

  /// Events of the instance are lost: forgets its pages.
  void lose_events(instance_slot slot);

  // -- requests ---------------------------------------------------------------

  /// Names the prompt's pages as the instances do.
  routed_prompt name(std::vector<token_id> tokens, std::string_view salt) const;

  /// Chooses an instance for a prompt.
  /// @param tried Slots that failed before, one bit each.
  /// @returns null if there is none
  std::shared_ptr<instance_lease> choose(const routed_prompt& prompt, uint64_t tried,
                                         time_point now);

  /// Completions under way.
  uint64_t running() const;

  /// Waits until none is. @returns false if `time` passes first
  bool wait_until_idle(duration time);

  /// Whether an instance takes requests.
  bool is_ready() const;

  /// What an instance that takes requests says of its models; empty if there is none.
  std::string models() const;

  std::vector<instance_status> status() const;

private:
  friend class instance_lease;

  struct instance : instance_figures {
    instance(uint64_t given, const instance_options& options, const breaker_policy& policy)
      : number(given), wanted(options), breaker(policy) {
      role = options.role.value_or(instance_role::both);
    }

    /// Never used again.
    uint64_t number;
    instance_options wanted;
    std::string models;
    store_breaker breaker;
    uint64_t last_chosen = 0;

    bool takes_requests() const noexcept {
      return is_probed && !is_draining && breaker.state() == breaker_state::closed;
    }
  };

  std::optional<instance_slot> find(const std::string& address) const;
  void started(instance_lease& lease);
  void ended(instance_lease& lease, request_outcome outcome, time_point now);
  instance* at(instance_slot slot, uint64_t number);

  const route_weights weights_;
  const breaker_policy breaker_;
  mutable std::mutex mutex_; // Guards all that follows.
  std::condition_variable idle_;
  prefix_index index_;
  std::array<std::optional<instance>, router_instances> instances_;
  uint64_t last_number_ = 0;
  uint64_t choices_ = 0;
  uint64_t running_ = 0;
};

} // namespace hicache
