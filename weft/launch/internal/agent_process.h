// The launcher's side of the node's agent (agent.h): its process, which is started again when it
// ends, and the texts between both. A function in a copy of the launcher, so start it while the
// launcher has one thread.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "weft/launch/internal/agent.h"
#include "weft/launch/internal/agent_messages.h"
#include "weft/launch/internal/restarts.h"
#include "weft/launch/process.h"

namespace weft::launch::internal {

class AgentProcess {
 public:
  using Time = Deadline::Clock::time_point;

  explicit AgentProcess(AgentOptions options);

  // Readable when the agent has told something, or has ended: then call tend().
  int link_fd() const { return link_ ? link_->fd() : -1; }
  pid_t pid() const { return process_ ? process_->pid() : -1; }
  // Sends the report if it has changed.
  void tell(const NodeReport& report);
  // Passes on what the agent has told, and starts it again if it has ended. Returns when to call
  // this again, if not only when link_fd() is readable.
  std::optional<Time> tend(Time now, const std::function<void(const AgentMessage&)>& on_message);

 private:
  void start(Time now);
  void send_report();

  AgentOptions options_;
  std::optional<rank_link::Link> link_;
  std::optional<Process> process_;
  std::optional<std::string> report_, told_;
  Restarts restarts_;
};

}  // namespace weft::launch::internal
