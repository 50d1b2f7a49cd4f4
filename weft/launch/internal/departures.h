// How the launcher answers requests that the job goes (departure.h): signals, `weft stop`, notices
// that the machine will be taken away, ranks that stop by themselves.
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "weft/launch/internal/departure.h"
#include "weft/launch/internal/node.h"
#include "weft/launch/internal/polled_command.h"
#include "weft/launch/membership.h"

namespace weft::launch::internal {

class Departures {
 public:
  explicit Departures(Node& node);

  // Signals that the launcher handles: those to pass on, and SIGUSR1.
  std::vector<int> signals() const;
  // A stop signal at most kOneRequest after the one that counted last does not count.
  void on_signal(int number, bool others_can_go_on, Time when);
  // The first signal that asked the job to stop; 0: none.
  int stop_signal() const { return stop_signal_; }
  // A rank stops, and all others with it. `cause`: "signal", or "should_stop".
  void on_stop_of(int local, bool by_signal);
  // A rank has ended. If only it knew that the job was asked to go, the others are told.
  void on_end_of(int local);
  // Answers "stop", or "stop SECONDS". nullopt: the answer comes when the job has ended.
  std::optional<std::string> answer(const std::string& request);
  void watch(std::vector<pollfd>& watched) const { notices_.watch(watched); }
  // When look() has to be called next, besides events.
  std::optional<Time> next() const { return notices_.next(); }
  // Whether the notice command says that this machine goes.
  void look(bool others_can_go_on);

  // A checkpoint was complete.
  void on_checkpoint(const std::string& folder);
  const std::string& newest_checkpoint() const { return newest_checkpoint_; }

  // Why the job was asked to go; empty: it was not.
  std::string why() const { return departure_ ? departure_->why : ""; }
  // True if this node alone was asked to go. The job continues without it, if it can.
  bool is_leaving() const { return leaving_; }
  // Of jobs on nodes that meet: what this launcher was asked goes into the node's report; the
  // membership says that the job ends because a launcher was asked to.
  void report_to(NodeReport& report, int node) const;
  void heed(const StopRequest& stop);

  // Exit code of a job that was told to stop, by a signal or otherwise.
  int stop_code() const;
  // After the last rank has ended, before the report.
  void say_how_it_went();
  // The job continues without this node. Returns the exit code of this launcher.
  int end_of_leaving();
  // The answer to requests to stop, once the job has ended with this code.
  std::string final_answer(int code) const;
  // Tells the batch system to start the job again, where the options say so. `node`: the node that
  // does it.
  void requeue(int node) const;

 private:
  using Grace = std::optional<std::chrono::milliseconds>;  // nullopt: that of the options

  bool passes_on(int signal) const;
  // True if the whole job was asked to go.
  bool job_goes() const { return departure_ && !leaving_; }
  void note_departure(const std::string& why, bool requeues, Grace grace);
  void ask_to_go(const std::string& why, bool requeues, Grace grace);
  void ask_to_leave(const std::string& why, bool others_can_go_on);

  Node& node_;
  std::optional<Departure> departure_;  // the first request that the job goes
  bool leaving_ = false;
  int stop_signal_ = 0;
  Time counted_{};                     // when the last stop signal came that counts
  std::optional<std::string> answer_;  // to weft stop, once the job has ended
  PolledCommand notices_;
  bool is_broken_ = false;  // the notice command
  std::string newest_checkpoint_;
  Time saved_{};  // when it was complete
};

}  // namespace weft::launch::internal
