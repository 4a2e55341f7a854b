#pragma once

#include "hicache/error.hpp"
#include "messages/storage_change.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace hicache {

/// What an attachment waits for.
enum class attachment_phase : uint8_t {
  /// Rank 0: a request; none is announced.
  idle,
  /// The next request announced by rank 0.
  listening,
  /// Opening of this rank's store, or its preparation for another configuration.
  opening,
  /// The votes of all ranks.
  voting,
  /// The error of the lowest failed rank.
  explaining,
  /// The tree, to begin no more steps.
  freezing,
  /// The largest number of steps begun on any rank.
  fixing,
  /// The tree, to apply the change before the step.
  applying,
  /// The reads of this rank's store, then its writes.
  draining_reads,
  draining_writes,
  /// The ranks, to close their stores or to adopt their configuration.
  closing,
  /// Nothing: there are no more changes.
  over,
};

/// Decides how one rank takes part in changes of L3, which all ranks make or none. Maps events to
/// actions, which the attachment actor carries out in order. Every action is answered by one event,
/// even if it failed, unless documented otherwise. Reads no clock: every event carries the time. A
/// value; single-threaded.
class attachment_machine {
public:
  /// Since any fixed moment of a steady clock.
  using time = std::chrono::nanoseconds;

  /// Announced by rank 0: the end of all changes, or a change of L3.
  struct request {
    storage_attachment wanted{};
    /// Time limit for the engine and the store of each rank.
    time patience{};
    bool is_end = false;
  };

  // -- events -----------------------------------------------------------------

  /// @pre rank 0, in phase idle
  struct asked {
    request what;
  };

  /// The instance terminates. Answered by `end` after the current change.
  struct asked_to_end {};

  /// Of `announce`.
  struct heard {
    result<request> what;
  };

  /// Of `open` and `prepare`.
  struct opened {
    result<void> outcome;
  };

  /// Of `vote`: the lowest rank that failed.
  struct voted {
    result<std::optional<uint32_t>> failed;
  };

  /// Of `explain`: the error to report, or why it could not be received.
  struct explained {
    error why;
    bool is_broken = false;
  };

  /// Of `freeze`: the steps that this rank has begun.
  struct frozen {
    result<uint64_t> begun;
  };

  /// Of `fix`: the largest number of steps begun.
  struct fixed {
    result<uint64_t> begun;
  };

  /// Of `commit`.
  struct applied {
    result<void> outcome;
  };

  /// Of `drain_reads` and `drain_writes`.
  struct drained {
    result<void> outcome;
  };

  using event = std::variant<asked, asked_to_end, heard, opened, voted, explained, frozen, fixed,
                             applied, drained>;

  // -- actions ----------------------------------------------------------------

  /// Broadcast the request from rank 0; other ranks have none and wait without a deadline.
  struct announce {
    std::optional<request> what;
  };

  struct open {
    storage_attachment wanted;
  };

  /// Prepare the store in use for another configuration.
  struct prepare {
    storage_attachment wanted;
    time wait{};
  };

  /// Take the minimum of all ranks' votes.
  struct vote {
    bool is_well = true;
    /// Time limit for the other ranks; nothing: no limit.
    std::optional<time> wait;
  };

  /// Broadcast why this rank failed, or receive it from the failed rank.
  struct explain {
    uint32_t speaker = 0;
    error why;
    time wait{};
  };

  struct freeze {};

  /// Take the maximum of the steps that the ranks have begun.
  struct fix {
    uint64_t begun = 0;
  };

  /// The tree resumes its steps. No event.
  struct abort {};

  /// The tree applies the change before the step of that number. No event for an attachment.
  struct commit {
    storage_change::action what{};
    uint64_t before = 0;
    /// Nothing: no limit.
    std::optional<time> wait;
  };

  struct drain_reads {
    time wait{};
  };

  struct drain_writes {
    time wait{};
  };

  /// Hand the opened store to its readers and writers. No event.
  struct use_store {};

  /// Close the opened, unused store. No event.
  struct discard_store {};

  /// Give the store in use the configuration that it was prepared for. No event.
  struct adopt {};

  /// Leave the store in use as it was. No event.
  struct revert {};

  /// Close the store in use. No event.
  struct close_store {};

  /// Answer the request for the change, if it was made on this rank. No event.
  struct answer {
    result<void> outcome;
  };

  /// Answer the request for the end. No event.
  struct end {};

  using action
    = std::variant<announce, open, prepare, vote, explain, freeze, fix, abort, commit, drain_reads,
                   drain_writes, use_store, discard_store, adopt, revert, close_store, answer, end>;

  // -- functions --------------------------------------------------------------

  /// @param patience How long ranks wait for each other beyond the time of a request.
  /// @param attached The attached backend; empty: none.
  attachment_machine(uint32_t rank, time patience, std::string attached)
    : rank_(rank), patience_(patience), attached_(std::move(attached)) {}

  /// The initial actions.
  std::vector<action> start();

  /// Handles an event. @returns the actions, in order.
  /// @pre the event can happen in this phase
  std::vector<action> handle(time now, const event& what);

  attachment_phase phase() const noexcept { return phase_; }

  bool is_attached() const noexcept { return !attached_.empty(); }

  /// True once the end was requested, or a rank is gone.
  bool is_ending() const noexcept { return is_ending_ || is_broken_; }

private:
  void on(time now, const asked& what);
  void on(time now, const asked_to_end&);
  void on(time now, const heard& what);
  void on(time now, const opened& what);
  void on(time now, const voted& what);
  void on(time now, const explained& what);
  void on(time now, const frozen& what);
  void on(time now, const fixed& what);
  void on(time now, const applied& what);
  void on(time now, const drained& what);

  /// Subject of a vote.
  enum class question : uint8_t { opened, drained, closed };

  /// Waits for the next request, or announces the requested end.
  void listen();

  void send_vote(question about, result<void> mine);

  /// Continues with the outcome of a vote, which all ranks know.
  void decide(const result<void>& all);

  /// Continues with a change that all ranks' trees apply.
  void begin_change(storage_change::action what);

  void conclude(const result<void>& outcome);

  template <class Action>
  void act(attachment_phase next, Action what) {
    phase_ = next;
    actions_.emplace_back(std::move(what));
  }

  template <class Action>
  void act(Action what) {
    actions_.emplace_back(std::move(what));
  }

  uint32_t rank_;
  time patience_;
  std::string attached_;
  /// The end was requested.
  bool is_ending_ = false;
  /// Communication between ranks has failed for good.
  bool is_broken_ = false;
  attachment_phase phase_ = attachment_phase::idle;
  /// The current change, and its deadline.
  request current_;
  time until_{};
  storage_change::action change_{};
  question asked_about_{};
  /// This rank's vote.
  result<void> mine_;
  /// Why the change is rolled back, if it is.
  std::optional<error> failure_;
  std::vector<action> actions_;
};

} // namespace hicache
