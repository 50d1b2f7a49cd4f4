// Runs the ranks of one node: waits for events, and executes the decisions of decide().
//
// Its parts work on a Node, which has the ranks as processes and the state of the job:
//
//   Starter     starts ranks, spares and servers
//   Departures  requests that the job goes
//   HangGuard   ranks that hang or are slow
//   Autoscaler  the number of ranks by itself
//   Servers     parameter servers
//   Follower    on nodes that meet: what the job's membership says for this node
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "weft/launch/control.h"
#include "weft/launch/internal/autoscaler.h"
#include "weft/launch/internal/departures.h"
#include "weft/launch/internal/follower.h"
#include "weft/launch/internal/hang_guard.h"
#include "weft/launch/internal/node.h"
#include "weft/launch/internal/servers.h"
#include "weft/launch/internal/starter.h"
#include "weft/launch/internal/stop_signals.h"

namespace weft::launch::internal {

class Supervisor {
 public:
  // `run` empty: ranks execute options.program.
  Supervisor(const LaunchOptions& options, std::function<int(int rank)> run);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // The launcher's exit code.
  int run();

 private:
  // The attempts of a job that this launcher decides about, or what the membership says.
  int run_attempts();
  // The exit code of the launcher after this end of a rank.
  int code_after(const RankEnd& end) const;
  int run_by_membership();
  void start_attempt();
  bool start_again();
  void finish_output();
  void begin_again(Act how);
  int end_of_store();
  // Events.
  Act watch();
  void wait_for_events(std::optional<Time> until);
  Time next_look();
  void on_signals();
  void collect_ends();
  void collect_end(int local, const ExitStatus& status, Time seen);
  void hear(int local);
  void take(int local, const rank_link::RankMessage& message);
  void note_joined(int local);
  std::optional<std::string> answer(const std::string& request);
  std::optional<std::string> answer_scale(int ranks);
  bool is_calm() const;
  bool others_can_go_on() const { return follower_ && follower_->others_can_go_on(); }
  void look_after_spares();
  void run_servers();
  void look_after_servers();
  int end_of_servers() const;
  Situation situation_of_job() const;  // of all nodes; see exchange_reports()
  std::string report(const Situation& whole) const;
  // Changes of the ranks of a running job (changing.cc).
  void replace(const Decision& decision);
  void grow(const Decision& decision);
  void go_on_without(int local, const std::string& consequence);
  void dismiss(int local);
  void abandon(int local);
  void end_needless();
  void tell_gone();
  void note_end_of_newcomer(int local);
  void note_lost(int local, const std::string& consequence) const;
  std::string count_of_replacements() const;

  Node node_;
  Fd listener_;
  Starter starter_;
  Departures departures_;
  HangGuard hangs_;
  Autoscaler autoscaler_;
  Servers servers_;
  std::optional<ControlSocket> control_;
  std::optional<StopSignals> signals_;
  std::unique_ptr<Follower> follower_;  // null: this launcher decides itself
  std::set<int> gone_;                  // local ranks of which tell_gone() was called
};

}  // namespace weft::launch::internal
