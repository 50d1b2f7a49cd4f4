// One run proves all runs. Each rank works through its list strictly in order, and a message
// completes when both ends have come to it. So at any time a rank has at most one next event, and
// no event can make another one impossible. Whatever the speeds of the ranks, the same events
// happen, and the run stops at the same place. So run() may advance the ranks in any order: if it
// reaches the ends of all lists, no run of real ranks waits forever.
//
// The rendezvous is the strictest case. Ranks that send and receive asynchronously wait less, so
// they do not wait forever either.
//
// prove() first checks the actions alone, which needs no messages: which exist, and their order on
// a rank. Then Rendezvous checks that messages bring each input before its action. Then it counts
// what ranks hold.
#include "weft/schedule/pipeline/proof.h"

#include <algorithm>
#include <array>
#include <map>

#include "weft/base/error.h"
#include "weft/schedule/pipeline/internal/needs.h"

namespace weft::schedule::pipeline {
namespace {

using internal::is_backward;
using internal::place_of;

std::string on(int rank) { return "rank " + std::to_string(rank) + ": "; }

// Which actions of a stage and micro-batch have been done, by enum Work.
using Done = std::array<bool, 4>;

void check_order(const Schedule& schedule, int rank, std::vector<Done>& done) {
  const Request& q = schedule.request;
  std::map<std::pair<int, Work>, int> last;  // last micro-batch, by stage and work
  for (const Action& action : schedule.actions[static_cast<std::size_t>(rank)]) {
    const std::string name = on(rank) + describe(action);
    const bool exists = action.stage >= 0 && action.stage < num_stages(q) &&
                        action.micro_batch >= 0 && action.micro_batch < q.micro_batches;
    WEFT_CHECK(exists && rank_of(q, action.stage) == rank, name + " is not its own");
    Done& d = done[place_of(q, action)];
    const auto was = [&](Work work) { return d[static_cast<std::size_t>(work)]; };
    WEFT_CHECK(!was(action.work), name + " twice");
    if (is_backward(action.work))
      // A whole backward and one in two parts exclude each other, in both orders.
      WEFT_CHECK(was(Work::kForward) && !was(Work::kBackward) && !was(Work::kBackwardInput),
                 name + " too early or twice");
    if (action.work == Work::kBackwardWeight)
      WEFT_CHECK(was(Work::kBackwardInput), name + " before its backward_input");
    d[static_cast<std::size_t>(action.work)] = true;
    const auto [at, first] = last.try_emplace({action.stage, action.work}, action.micro_batch);
    WEFT_CHECK(first || action.work == Work::kForward || at->second < action.micro_batch,
               name + " out of the order of micro-batches");
    at->second = action.micro_batch;
  }
}

void check_all_done(const Request& q, const std::vector<Done>& done) {
  const bool trains = q.algorithm != Algorithm::kForwardOnly;
  for (std::size_t i = 0; i < done.size(); ++i) {
    const auto& [forward, backward, input, weight] = done[i];
    const auto m = static_cast<std::size_t>(q.micro_batches);
    const std::string name =
        "micro-batch " + std::to_string(i % m) + " in stage " + std::to_string(i / m);
    WEFT_CHECK(forward, name + " has no forward");
    // Exactly one of the two kinds. check_order() has excluded a mixture.
    WEFT_CHECK(trains ? backward != (input && weight) : !backward && !input && !weight,
               name + " has not exactly the backwards that it needs");
  }
}

// Runs all ranks at once, each strictly in the order of its steps. A message completes when both
// its ranks have reached it.
class Rendezvous {
 public:
  Rendezvous(const Schedule& schedule, const std::vector<std::vector<Step>>& steps)
      : schedule_(schedule),
        steps_(steps),
        at_(steps.size(), 0),
        computed_(steps.size(), 0),
        unused_(steps.size(), 0) {
    made_.resize(2 * internal::num_places(schedule.request));
    received_.resize(made_.size());
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < static_cast<int>(steps_.size()); ++rank) {
        while (advance(rank)) moved = true;
      }
    }
    for (int rank = 0; rank < static_cast<int>(steps_.size()); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      WEFT_CHECK(at_[r] == steps_[r].size(), on(rank) + "waits for ever at the message with " +
                                                 describe(steps_[r][at_[r]].action));
      WEFT_CHECK(unused_[r] == 0, on(rank) + "has received what it does not need");
      WEFT_CHECK(computed_[r] == schedule_.actions[r].size(),
                 on(rank) + "leaves out actions of its schedule");
    }
  }

 private:
  // Index of the activations or the gradient of a stage and micro-batch. Each goes to at most one
  // rank.
  std::size_t content_of(const Action& a) const {
    return 2 * place_of(schedule_.request, a) + (is_backward(a.work) ? 1 : 0);
  }

  bool advance(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (at_[r] == steps_[r].size()) return false;
    const Step& step = steps_[r][at_[r]];
    if (step.kind == Kind::kCompute) {
      compute(rank, step.action);
      ++at_[r];
      return true;
    }
    // Only one end moves a message, so that both lists advance together.
    if (step.kind == Kind::kReceive) return false;  // completed by the sender
    return send(rank, step);
  }

  bool send(int rank, const Step& step) {
    WEFT_CHECK(step.peer >= 0 && step.peer < static_cast<int>(steps_.size()) && step.peer != rank,
               on(rank) + "sends to nobody");
    const auto peer = static_cast<std::size_t>(step.peer);
    if (at_[peer] == steps_[peer].size()) return false;
    const Step& other = steps_[peer][at_[peer]];
    if (other.kind != Kind::kReceive || other.peer != rank) return false;
    WEFT_CHECK(other.action == step.action, on(rank) + "sends " + describe(step.action) +
                                                ", but rank " + std::to_string(step.peer) +
                                                " expects " + describe(other.action));
    WEFT_CHECK(made_[content_of(step.action)],
               on(rank) + "sends before it has done " + describe(step.action));
    received_[content_of(step.action)] = true;
    ++unused_[peer];
    ++at_[peer];
    ++at_[static_cast<std::size_t>(rank)];
    return true;
  }

  void compute(int rank, const Action& action) {
    const auto r = static_cast<std::size_t>(rank);
    const auto& actions = schedule_.actions[r];
    WEFT_CHECK(computed_[r] < actions.size() && actions[computed_[r]] == action,
               on(rank) + describe(action) + " is not next in its schedule");
    ++computed_[r];
    if (const auto stage = internal::needs_stage(schedule_.request, action)) {
      const std::size_t content = content_of({action.work, action.micro_batch, *stage});
      const bool own = rank_of(schedule_.request, *stage) == rank;
      if (!own) --unused_[r];
      WEFT_CHECK(own ? made_[content] : received_[content],
                 on(rank) + describe(action) + " lacks what it needs");
    }
    if (action.work != Work::kBackwardWeight) made_[content_of(action)] = true;
  }

  const Schedule& schedule_;
  const std::vector<std::vector<Step>>& steps_;
  std::vector<std::size_t> at_, computed_;
  std::vector<int> unused_;  // messages received and not yet used, by rank
  std::vector<bool> made_, received_;
};

}  // namespace

int count_held(const Schedule& schedule, int rank) {
  if (schedule.request.algorithm == Algorithm::kForwardOnly) return 0;
  int now = 0, most = 0;
  for (const Action& action : schedule.actions[static_cast<std::size_t>(rank)]) {
    if (action.work == Work::kForward) most = std::max(most, ++now);
    if (action.work == Work::kBackward || action.work == Work::kBackwardWeight) --now;
  }
  WEFT_CHECK(now == 0, on(rank) + "holds " + std::to_string(now) + " micro-batches at the end");
  return most;
}

void prove(const Schedule& schedule, const std::vector<std::vector<Step>>& steps) {
  const Request& q = schedule.request;
  WEFT_CHECK(static_cast<int>(schedule.actions.size()) == q.ranks &&
                 steps.size() == schedule.actions.size(),
             "not a list for each rank");
  std::vector<Done> done(internal::num_places(q));
  for (int rank = 0; rank < q.ranks; ++rank) check_order(schedule, rank, done);
  check_all_done(q, done);
  Rendezvous(schedule, steps).run();
  for (int rank = 0; rank < q.ranks; ++rank) {
    const int held = count_held(schedule, rank), most = most_held(q, rank);
    WEFT_CHECK(held <= most, on(rank) + "holds " + std::to_string(held) +
                                 " micro-batches, more than " + std::to_string(most));
  }
}

void prove(const Request& request) {
  const Schedule schedule = make(request);
  prove(schedule, steps(schedule));
}

}  // namespace weft::schedule::pipeline
