// Executes the decisions of decide() for the ranks of one node.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "weft/agent/link.h"
#include "weft/launch/control.h"
#include "weft/launch/hang_watch.h"
#include "weft/launch/internal/agent_process.h"
#include "weft/launch/internal/autoscale.h"
#include "weft/launch/internal/departure.h"
#include "weft/launch/internal/job_store_process.h"
#include "weft/launch/internal/line_relay.h"
#include "weft/launch/internal/orders.h"
#include "weft/launch/internal/polled_command.h"
#include "weft/launch/internal/rank_environment.h"
#include "weft/launch/internal/servers.h"
#include "weft/launch/internal/spares.h"
#include "weft/launch/internal/stop_signals.h"
#include "weft/launch/internal/store_process.h"
#include "weft/launch/live_page.h"
#include "weft/launch/supervision.h"
#include "weft/observe/position/rank_page.h"

namespace weft::launch::internal {

// A descriptor of the same file with its own position; none of none.
Fd reopen(const Fd& fd);
// Throws Error(kUnavailable), which names the file.
Fd open_log(const std::filesystem::path& file, bool append);

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
  struct Rank {
    Process process;
    agent::Link link;
    LineRelay out, err;
    bool stops = false;  // it has said that it stops
  };

  void make_folder();
  int end_of_store();
  void begin_again(Act how);
  void start_attempt();
  ProcessOptions program_of(int rank);
  Rank start_rank(int local, bool replaces = false);
  Spare start_spare();
  std::optional<Rank> become_rank(int local);
  std::vector<int> handled_signals() const;
  bool passes_on(int signal) const;
  void note_departure(const std::string& why, bool requeues,
                      std::optional<std::chrono::milliseconds> grace);
  void ask_to_go(const std::string& why, bool requeues,
                 std::optional<std::chrono::milliseconds> grace);
  void ask_to_leave(const std::string& why);
  void note_stop_of(int local, const std::string& cause);
  // True if the whole job was asked to go.
  bool job_goes() const { return departure_ && !leaving_; }
  int stop_code() const;
  void heed_stop();
  void report_requests();
  int end_of_leaving();
  std::optional<std::string> answer_stop(const std::string& request);
  void look_at_notices();
  int least_ranks() const;
  void want_ranks(int ranks, const std::string& why);
  static std::string not_usable(int ranks, const agent::UsableRanks& usable);
  void look_at_discovery();
  void autoscale();
  void say_how_it_went();
  void answer_stops(int code);
  void requeue();
  int run_attempts();
  bool start_again();
  void make_servers_folder();
  Servers::Options serving();
  ServerProcess start_server(int server);
  LineRelay relay_of_server(int server, int stream, Fd pipe);
  void run_servers();
  void look_after_servers();
  int end_of_servers() const;
  bool is_calm() const;
  void look_after_spares();
  std::string count_of_replacements() const;
  std::optional<Rank> try_to_start(int local, bool replaces = true);
  void replace(int local);
  void grow(int local);
  void announce(int ranks);
  void let_go(int local);
  void dismiss(int local);
  void end_needless();
  void note_lost(int local, const std::string& consequence) const;
  void tell_gone();
  LineRelay relay(int local, int stream, Fd pipe, bool append);
  bool goes_past(int local) const;  // true if the rank writes to the launcher's own descriptors
  std::filesystem::path folder_of(int local) const;
  std::filesystem::path error_file_of(int local) const;
  bool logs_errors(int local) const;

  // Several nodes with a plan (following.cc).
  struct Slot {
    int incarnation = 0;
    RankPhase phase = RankPhase::kStarting;
    bool dropped = false, counted = false;
  };
  struct Following {
    std::optional<JobStoreProcess> store;
    std::optional<AgentProcess> agent;
    NodeOrders orders;
    NodeReport report;
    std::vector<Slot> slots;     // by local rank
    std::map<int, Time> due;     // by incarnation: when to start it
    std::vector<Time> failures;  // of ranks of this node
    int last_note = 0, announced = 0;
    bool left_alone = false;  // the agent has given up
  };
  int run_by_plan();
  void begin_following();
  std::optional<Time> follow();
  void on_agent(const agent::Message& message);
  void take(NodeOrders orders);
  void note_run(const JobPlan& plan);
  bool is_placed(std::size_t at) const;
  void drop_ranks();
  std::optional<Time> start_placed(Time at);
  std::optional<std::size_t> free_slot() const;
  bool start_in(std::size_t slot, int rank, const Placement& place);
  StoreProcess::Options guarding() const;
  void renew_guard();
  void note_phase(int local, const agent::Message& message);
  RankReport state_of(std::size_t at, Time when, std::optional<Time>& next);
  std::optional<Time> make_report(Time at);
  std::optional<std::string> answer_by_plan(int ranks);

  Act watch();
  void wait_for_events(std::optional<Time> until);
  void on_signal();
  void hear(int local);
  void note_end_of_newcomer(int local);
  std::optional<std::string> answer(const std::string& request);
  void collect_ends();
  void send(int signal);
  void note(const std::string& text) const;
  void note_stopped_ranks();
  void watch_for_hangs();
  void replace_slow_rank();
  void report_hangs(std::vector<Hang> hangs, std::vector<observe::RankView>& views, Nanos clock);
  Situation situation_of_job() const;  // of all nodes; see exchange_reports()
  std::string report(const Situation& whole) const;

  const LaunchOptions& options_;
  const std::function<int(int)> run_;
  Job job_;
  Policy policy_;
  Fd listener_, secret_;
  std::optional<StopSignals> signals_;
  observe::RankPage positions_;  // shared with the ranks
  std::filesystem::path folder_;
  bool keep_folder_ = false;
  Situation situation_;
  int stop_signal_ = 0;
  long out_of_memory_before_ = 0;
  std::set<int> gone_;  // local ranks of which tell_gone() was called
  int size_ = 0;        // of the ranks' group; 0: unknown
  std::optional<ControlSocket> control_;
  bool has_state_ = false;               // the ranks of this attempt have had a state to hand on
  std::string run_folder_, resume_run_;  // of the job's run, and to go on with; empty: none
  HangWatch watch_;
  Time looked_{};                       // when it looked last
  std::set<pid_t> killed_;              // ranks that it has killed because they hung
  std::optional<Process> hang_writer_;  // writes the files of the last hang
  std::unique_ptr<LivePage> page_;
  std::unique_ptr<StoreProcess> store_process_;
  std::unique_ptr<Following> following_;  // null: this launcher decides itself
  std::optional<Time> follow_at_;         // when to follow again
  Time renew_guard_at_{};                 // not before
  // by local rank; destroyed before the store process, so that it never guards an ended group
  std::vector<Rank> ranks_;
  std::optional<Departure> departure_;  // the first request that the job goes
  bool leaving_ = false;  // it is this node that goes; the job goes on without it, if it can
  std::optional<std::string> stopped_;  // the answer to weft stop, once the job has ended
  PolledCommand notices_;
  bool notices_broken_ = false;
  PolledCommand discovery_;
  bool discovery_broken_ = false;
  std::optional<int> offered_;  // ranks that this host has slots for, within the job's limits
  int applied_ = 0;             // the last of them that the job was told
  Throughputs throughputs_;
  std::string newest_checkpoint_;
  Time saved_{};  // when it was complete
  Time attempt_began_{};
  Spares spares_;
  std::string server_program_;
  Servers servers_;
};

}  // namespace weft::launch::internal
