#include "rpc/session.hpp"

#include "hicache/caf_error.hpp"
#include "rpc/rpc_error.hpp"

#include <caf/actor_config.hpp>
#include <caf/actor_system.hpp>
#include <caf/exit_reason.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/make_actor.hpp>
#include <spdlog/spdlog.h>

#include <utility>

namespace hicache {

namespace {

/// Messages that an actor handles before it yields.
constexpr auto throughput = size_t{32};

} // namespace

void inline_unit::run() {
  while (!jobs_.empty()) {
    auto* job = jobs_.front();
    jobs_.pop_front();
    if (job->resume(this, throughput) == caf::resumable::resume_later)
      jobs_.push_back(job);
    else
      caf::intrusive_ptr_release(job);
  }
}

/// The actor that represents a peer. Any thread.
class session::peer_actor final : public caf::monitorable_actor {
public:
  peer_actor(caf::actor_config& config, std::shared_ptr<rpc_loop> loop,
             std::weak_ptr<session> owner)
    : monitorable_actor(config), loop_(std::move(loop)), owner_(std::move(owner)) {}

  const char* name() const override { return "peer"; }

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) override {
    if (!what->mid.is_response())
      return bounce(what); // Accepts only answers.
    const auto number = what->mid.request_id().integer_value();
    auto answer = what->move_content_to_message();
    if (loop_->is_here())
      hand_over(owner_, number, answer);
    else
      loop_->post(
        [owner = owner_, number, answer = std::move(answer)] { hand_over(owner, number, answer); });
  }

private:
  static void hand_over(const std::weak_ptr<session>& owner, uint64_t number,
                        const caf::message& answer) {
    if (const auto to = owner.lock())
      to->take_answer(number, answer);
  }

  std::shared_ptr<rpc_loop> loop_;
  /// Accessed on the loop's thread only.
  std::weak_ptr<session> owner_;
};

session::session(caf::actor_system& system, std::shared_ptr<rpc_loop> loop, peer_identity peer)
  : loop_(std::move(loop)), system_(system), peer_(std::move(peer)) {}

session::~session() {
  if (self_)
    static_cast<peer_actor*>(self_->get())
      ->cleanup(caf::exit_reason::remote_link_unreachable, nullptr);
}

void session::demand(bool peer_rights::*right, const char* what) {
  if (peer_.rights.*right)
    return;
  const auto* wanted = right == &peer_rights::as_member ? "member" : "operator";
  const auto why = peer_.subject + " may not " + what + ": the role in its certificate is "
                   + role_of(peer_.rights) + ", and that takes the role " + wanted;
  if (!std::exchange(was_refused_, true))
    spdlog::info("refused a request: {}", why);
  kj::throwFatalException(to_exception({ec::not_permitted, why}));
}

kj::Promise<caf::message> session::ask(const caf::strong_actor_ptr& to, caf::message what,
                                       inline_unit* here) {
  if (!self_) {
    auto config = caf::actor_config{};
    self_ = caf::make_actor<peer_actor, caf::strong_actor_ptr>(
      system_.next_actor_id(), system_.node(), &system_, config, loop_, weak_from_this());
  }
  const auto number = ++last_request_;
  auto answer = kj::newPromiseAndFulfiller<caf::message>();
  open_.emplace(number, kj::mv(answer.fulfiller));
  to->enqueue(
    caf::make_mailbox_element(self_, caf::message_id{number}.with_normal_priority(), {}, what),
    here);
  if (here != nullptr)
    here->run();
  return answer.promise.attach(kj::defer([me = weak_from_this(), number] {
    if (const auto still = me.lock())
      still->open_.erase(number); // The call was cancelled or answered.
  }));
}

void session::tell(const caf::strong_actor_ptr& to, caf::message what, inline_unit* here) {
  to->enqueue(caf::make_mailbox_element(nullptr, caf::message_id{}, {}, what), here);
  if (here != nullptr)
    here->run();
}

void session::take_answer(uint64_t number, const caf::message& answer) {
  const auto call = open_.extract(number);
  if (!call)
    return;
  if (answer.match_elements<caf::error>())
    call.mapped()->reject(to_exception(from_caf(answer.get_as<caf::error>(0))));
  else
    call.mapped()->fulfill(caf::message{answer});
}

} // namespace hicache
