// The ranks of this node as processes, and what the launcher knows of the job. The parts of the
// launcher (supervisor.h) read and change it; each has its own state besides.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "weft/launch/internal/console.h"
#include "weft/launch/internal/line_relay.h"
#include "weft/launch/internal/rank_environment.h"
#include "weft/launch/internal/store_process.h"
#include "weft/launch/process.h"
#include "weft/launch/supervision.h"
#include "weft/observe/position/rank_page.h"
#include "weft/rank_link/link.h"
#include "weft/rank_link/messages.h"
#include "weft/rank_link/usable_ranks.h"

namespace weft::launch::internal {

struct RankProcess {
  Process process;
  rank_link::Link link;
  LineRelay out, err;
  bool stops = false;   // it has said that it stops
  bool leaves = false;  // it has said that it leaves the others, since the job shrinks
  bool hangs = false;   // it was killed because it hung
};

struct Node {
  explicit Node(const LaunchOptions& options);

  // Prints a line for people.
  void note(const std::string& text) const;
  // STDOUT_FILENO or STDERR_FILENO.
  Console* console(int stream) const;
  // True if somebody asked the job to end, or its ranks were told to.
  bool is_ending() const;
  // Sends a signal to all ranks that run.
  void send(int signal);
  // The same for a request to stop. ranks_that_stop_later() only go on if a signal has stopped
  // them.
  void ask_to_stop(int signal);
  // Notes which ranks SIGSTOP has stopped, so that they can be named. Call it before send(), which
  // continues them.
  void note_stopped_ranks();
  void tell_ranks(const rank_link::LauncherMessage& message);
  // Tells the ranks how many they will be, and which of these (by rank) wait to be added.
  void announce(int number, const std::set<int>& newcomers);
  // Puts a rank that has started into the place of one that has ended, or into a new last place.
  void place(std::size_t at, RankProcess started);
  // True if the job trains, and no rank joins or ends.
  bool is_calm() const;
  // The least number of ranks that the job may have and the mesh can use.
  int least_ranks() const;
  // Requests this number of ranks, or the largest one below it that the mesh can use. The job may
  // start new processes to reach it.
  void want_ranks(int number, const std::string& why);

  // The kernel has ended processes for lack of memory since note_out_of_memory().
  bool was_out_of_memory() const;
  void note_out_of_memory();

  const LaunchOptions& options;
  const std::unique_ptr<Console> out, err;
  Job job;
  Policy policy;
  observe::RankPage positions;  // shared with the ranks
  Situation situation;
  int size = 0;  // of the ranks' group; 0: unknown
  // The ranks of this attempt have had a state to hand on.
  bool has_state = false;
  std::string run_folder, resume_run;  // of the job's run, and to go on with; empty: none
  Time attempt_began{};
  long out_of_memory_before = 0;
  std::unique_ptr<StoreProcess> store;
  // By local rank. Destroyed before the store process, so that it never guards an ended group.
  std::vector<RankProcess> ranks;
};

// Why a job cannot have this number of ranks.
std::string not_usable(int ranks, const rank_link::UsableRanks& usable);
// Why a job keeps this number of ranks after a request for more.
std::string why_it_keeps(int ranks);

}  // namespace weft::launch::internal
