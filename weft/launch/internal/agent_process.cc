#include "weft/launch/internal/agent_process.h"

#include <sys/prctl.h>

#include "weft/base/log.h"
#include "weft/launch/internal/stop_signals.h"

namespace weft::launch::internal {

AgentProcess::AgentProcess(AgentOptions options) : options_(std::move(options)) {
  start(Deadline::Clock::now());
}

void AgentProcess::start(Time now) {
  auto ends = rank_link::Link::make();
  ProcessOptions process;
  // A Link moves, and a std::function copies what it holds.
  const auto theirs = std::make_shared<rank_link::Link>(std::move(ends.first));
  process.inherit = {theirs->fd()};
  process.before = ignore_stop_signals;  // the launcher answers them, and then closes the link
  process.call = [options = options_, theirs] {
    ::prctl(PR_SET_NAME, "weft agent");
    return run_agent(options, std::move(*theirs));
  };
  process_.emplace(process);
  link_.emplace(std::move(ends.second));
  restarts_.began(now);
  told_.reset();
}

void AgentProcess::send_report() {
  if (!link_ || !report_ || told_ == report_) return;
  if (rank_link::tell(*link_, NodeState{{*report_}})) told_ = report_;
}

void AgentProcess::tell(const NodeReport& report) {
  report_ = to_text(report);
  send_report();
}

std::optional<AgentProcess::Time> AgentProcess::tend(
    Time now, const std::function<void(const AgentMessage&)>& on_message) {
  while (link_) {
    const auto text = link_->next();
    if (!text) break;
    const auto message = rank_link::decode<AgentMessage>(*text);
    if (!message) continue;
    if (const auto* const joined = std::get_if<NodeJoined>(&*message)) {
      options_.node = joined->node;
      options_.lease = joined->lease;
    }
    if (std::holds_alternative<NewOrders>(*message)) options_.had_orders = true;
    if (std::holds_alternative<Fenced>(*message)) options_.node = -1;
    on_message(*message);
  }
  if (link_ && !link_->ended()) {
    send_report();  // it could not be sent before
    return std::nullopt;
  }
  if (link_) {
    link_.reset();
    const auto ended = process_->wait(Deadline::in(std::chrono::milliseconds(100)));
    restarts_.ended(now);
    log_warn("the agent of this node ended" + (ended ? " with " + ended->describe() : "") +
             " and is started again");
    process_.reset();
  }
  if (const auto until = restarts_.pause(now)) return until;
  return restarts_.try_start(now, [&] { start(now); });
}

}  // namespace weft::launch::internal
