// The parameter servers that run on this node beside the ranks (weft run --servers): processes of
// weft_ps. They are no ranks: decide() only learns when values are lost, so that the job must end.
//
//   launcher ◄── rank_link::Link ── weft_ps     serving       it has its address in the directory
//                                           replicated    each of its shards has two copies
//                                           alone         one has not
//                                           lost SHARD    no server has the shard's values
#pragma once

#include <poll.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/launch/internal/line_relay.h"
#include "weft/launch/internal/restarts.h"
#include "weft/launch/internal/server_policy.h"
#include "weft/launch/process.h"
#include "weft/rank_link/link.h"

namespace weft::launch::internal {

struct ServerProcess {
  Process process;
  rank_link::Link link;
  LineRelay out, err;
};

class Servers {
 public:
  using Time = Deadline::Clock::time_point;

  struct Options {
    bool has_copies = false;  // each shard has a copy on another server
    // Starts the process of a server. May throw Error: the server then counts as ended.
    std::function<ServerProcess(int server)> start;
    std::function<void(const std::string& text)> note;
    std::function<void(pid_t group)> on_end;
  };
  explicit Servers(Options options) : options_(std::move(options)) {}

  // Runs these servers: starts those that are missing, and kills those that are not in the set.
  void run(const std::set<int>& wanted, Time now);
  void watch(std::vector<pollfd>& watched) const;
  // Reads what servers say, and starts lost ones again. Never waits for a server.
  void look(Time now);
  // When look() has to be called next, besides events.
  std::optional<Time> next(Time now) const;
  // Why the job cannot go on. nullopt: it can.
  const std::optional<std::string>& failure() const { return failure_; }
  // Servers whose shards all have two copies.
  std::set<int> replicated() const;
  // Process groups of the servers that run.
  std::vector<pid_t> groups() const;
  // One line for people: "server 0: process 4711, serves, two copies".
  std::string describe() const;
  // Ends all of them: SIGTERM, and SIGKILL to those that still run after 3 s.
  void end();

 private:
  struct Place {
    std::optional<ServerProcess> running;
    Restarts restarts;
    bool serves = false, ever_served = false, replicated = false, was_lost = false;
    bool given_up = false;
  };
  void start(int server, Place& place, Time now);
  void hear(int server, Place& place);
  void note_copies(int server, Place& place);
  void note_lost(int shard);
  void note_end(int server, Place& place, const ExitStatus& status, Time now);
  void lose(int server, Place& place, const ServerEnd& end, const std::string& how);
  void drop(Place& place);

  const Options options_;
  std::map<int, Place> servers_;
  std::optional<std::string> failure_;
};

}  // namespace weft::launch::internal
