// ZB-V: two stages per rank, placed in a V. The rank that begins a micro-batch also ends it, so no
// rank waits for its first gradient.
//
// Source: Qi, Wan, Huang, Lin: Zero bubble pipeline parallelism, 2023, section 6. Rank r has stage
// r on the way down and stage 2p-1-r on the way up. The order is made for at least 2p-1
// micro-batches. If there are fewer, the missing ones are left out.
#include <algorithm>
#include <array>

#include "weft/schedule/pipeline/internal/algorithms.h"

namespace weft::schedule::pipeline::internal {
namespace {

enum Side { kDown, kUp };

// Collects the actions of one rank. Counts them by stage and kind of work, so that each kind comes
// by rising micro-batch.
class Writer {
 public:
  Writer(const Request& q, int rank) : stage_{rank, 2 * q.ranks - 1 - rank} {}
  void add(Work work, Side side) { actions_.push_back({work, done(work, side)++, stage_[side]}); }
  void backward(Side side) {
    add(Work::kBackwardInput, side);
    add(Work::kBackwardWeight, side);
  }
  int& done(Work work, Side side) { return done_[static_cast<std::size_t>(work)][side]; }
  Actions take() { return std::move(actions_); }

 private:
  std::array<int, 2> stage_;
  std::array<std::array<int, 2>, 4> done_ = {};
  Actions actions_;
};

// Runs forwards until the first micro-batch comes back up. From then on, each forward on the way up
// is followed at once by its backward.
void warm_up(Writer& w, int ranks, int rank) {
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) w.add(Work::kForward, kDown);
  for (int i = 0; i < rank; ++i) {
    w.add(Work::kForward, kUp);
    w.add(Work::kForward, kDown);
  }
  for (int i = 0; i < ranks - rank; ++i) {
    w.add(Work::kForward, kUp);
    w.backward(kUp);
  }
}

// Runs the last backward-inputs first, since other ranks wait for them. Backward-weights fill the
// gaps and the end.
void drain(Writer& w, int ranks, int rank) {
  for (int i = 0; i < rank; ++i) {
    w.add(Work::kBackwardInput, kDown);
    w.add(Work::kBackwardInput, kUp);
  }
  for (int i = 0; i < ranks - rank; ++i) {
    w.add(Work::kBackwardInput, kDown);
    w.add(Work::kBackwardWeight, kDown);
  }
  for (const Side side : {kUp, kDown}) {
    while (w.done(Work::kBackwardWeight, side) < w.done(Work::kBackwardInput, side))
      w.add(Work::kBackwardWeight, side);
  }
}

}  // namespace

Actions zero_bubble_v(const Request& q, int rank) {
  const int made = std::max(q.micro_batches, 2 * q.ranks - 1);
  Writer w(q, rank);
  warm_up(w, q.ranks, rank);
  while (w.done(Work::kForward, kUp) < made) {
    if (w.done(Work::kForward, kDown) < made) w.add(Work::kForward, kDown);
    w.backward(kDown);
    w.add(Work::kForward, kUp);
    w.backward(kUp);
  }
  drain(w, q.ranks, rank);
  Actions actions = w.take();
  std::erase_if(actions,
                [&](const Action& action) { return action.micro_batch >= q.micro_batches; });
  return actions;
}

}  // namespace weft::schedule::pipeline::internal
