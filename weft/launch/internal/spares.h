// The warm spares of a node: processes of the program that have loaded all they need, and wait for
// a rank (weft/rank_link/spare.h). They are no ranks: decide() does not know them, and their end
// changes nothing for the job.
#pragma once

#include <poll.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weft/launch/internal/line_relay.h"
#include "weft/launch/internal/spare_policy.h"
#include "weft/launch/process.h"
#include "weft/rank_link/link.h"

namespace weft::launch::internal {

struct Spare {
  Process process;
  rank_link::Link link;
  LineRelay out, err;
  int secret_fd = -1;  // In the spare. -1: none.
  int live_fd = -1, link_fd = -1;
  bool ready = false;
  Time started{};
};

class Spares {
 public:
  // Starts a process. May throw Error: the spare then counts as ended.
  using Start = std::function<Spare()>;
  using Note = std::function<void(const std::string& text)>;
  // Called after the end of a spare that was not taken: the number of its group may be used again.
  using OnEnd = std::function<void(pid_t group)>;
  // `wanted`: how many shall wait.
  Spares(int wanted, Start start, Note note, OnEnd on_end);

  void watch(std::vector<pollfd>& watched) const;
  // Reads what spares say, removes those that have ended, and starts new ones. `calm`: the job
  // trains, and no rank joins or ends. Never waits for a spare.
  void look(Time now, bool calm);
  // When look() has to be called next, besides events. nullopt: whenever.
  std::optional<Time> next() const { return next_spare(situation_); }
  // Takes a spare that is ready. nullopt: none is.
  std::optional<Spare> take();
  bool has_ready() const;
  std::vector<pid_t> groups() const;
  // Ends one that was taken and does not become a rank.
  void end(Spare spare);
  // Ends all of them at once.
  void clear();

 private:
  void remove_ended(Time now);
  void start(Time now);

  const Start start_;
  const Note note_;
  const OnEnd on_end_;
  SpareSituation situation_;
  std::vector<Spare> spares_;
};

}  // namespace weft::launch::internal
