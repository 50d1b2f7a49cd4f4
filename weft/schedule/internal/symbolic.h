// Runs the schedules of all ranks at once, round by round, on Cells. Checks what proof.h promises
// about the steps; the caller checks the results. The pictures are drawn from the same run.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/schedule/internal/cells.h"
#include "weft/schedule/schedule.h"

namespace weft::schedule::internal {

// A message, or a read from a peer's memory.
struct Transfer {
  int round = 0;
  int source = 0;
  int target = 0;
  bool reduces = false;  // True if the data is combined with other data in its round.
  // Index among the round's messages that leave `source`, and among those that reach `target`.
  int leaves = 0;
  int reaches = 0;
  Runs runs;  // Data that moves; empty for a message without elements.
};

class Symbolic {
 public:
  // `schedules` must outlive this object.
  Symbolic(std::span<const Schedule> schedules, bool same_array);

  // Sets a function that is called for every transfer, in the order of rounds.
  void observe(std::function<void(const Transfer&)> observer) { observer_ = std::move(observer); }
  // Throws Error(kInternal) for the first violation, naming its rank and round.
  void run();

  // Valid after run(): a rank's output, the ranks that it has heard of (itself included), and the
  // measured cost.
  Runs output(int rank) const;
  const Ranks& heard(int rank) const { return states_[rank].heard; }
  Cost cost() const { return cost_; }

 private:
  struct Access {
    int peer = -1;  // Rank that reads, for a read by another rank; else -1.
    int buffer = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  struct State {
    std::span<const Step> steps;         // Steps that are left.
    Cells buffers[3];                    // By Buffer.
    Cells at_meeting[3];                 // Contents at the last meeting, which peers read.
    std::vector<Access> written;         // Writes since the last meeting.
    std::vector<Access> read_by_others;  // Reads by peers since the last meeting.
    Ranks heard;
    bool same_array = false;
    std::int64_t sent = 0;
  };
  struct Message {
    Runs runs;
    std::int64_t count = 0;
    Ranks heard;
    int leaves = 0;
  };

  std::span<const Step> steps_of(int rank, int round) const;
  void check_step(int rank, const Step& step) const;
  bool is_combined(int rank, std::span<const Step> steps, const Step& receive) const;
  void check_receives(int rank, std::span<const Step> steps) const;
  void do_round(int round);
  void do_meetings(int round);
  void start_sends(int rank, int round);
  void complete_receives(int rank, int round);
  void do_actions(int rank, int round);
  void read_peer(int rank, const Step& step, int reaches);
  void finish_phase();
  void put(int rank, const Step& step, const Runs& runs);
  int buffer(int rank, Buffer buffer) const;
  static bool overlap(const Access& a, const Access& b);

  std::span<const Schedule> schedules_;
  std::vector<State> states_;
  // Messages of this round, by source and target.
  std::map<std::pair<int, int>, std::vector<Message>> in_flight_;
  // Data that the kRecvReduce steps of this round received, by rank.
  std::vector<std::vector<Runs>> to_combine_;
  std::function<void(const Transfer&)> observer_;
  Cost cost_;
};

}  // namespace weft::schedule::internal
