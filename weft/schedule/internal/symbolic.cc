#include "weft/schedule/internal/symbolic.h"

#include <algorithm>
#include <limits>

#include "weft/base/error.h"

namespace weft::schedule::internal {
namespace {

bool writes(Action action) { return action != Action::kSend && action != Action::kMeet; }
bool reduces(Action action) {
  return action == Action::kRecvReduce || action == Action::kReduce ||
         action == Action::kReadReduce;
}
bool is_receive(Action action) { return action == Action::kRecv || action == Action::kRecvReduce; }
bool is_read(Action action) { return action == Action::kRead || action == Action::kReadReduce; }

// Adds the rank and the round to the message of an Error that body() throws.
template <typename Body>
void located(int rank, int round, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    throw Error(error.code(), "rank " + std::to_string(rank) + ", round " + std::to_string(round) +
                                  ": " + error.message());
  }
}

}  // namespace

Symbolic::Symbolic(std::span<const Schedule> schedules, bool same_array)
    : schedules_(schedules), states_(schedules.size()), to_combine_(schedules.size()) {
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    const Schedule& schedule = schedules[rank];
    State& state = states_[rank];
    state.steps = schedule.steps;
    state.same_array = same_array && schedule.in_place && schedule.input == schedule.output;
    state.buffers[buffer(static_cast<int>(rank), Buffer::kInput)] =
        Cells(input_runs(static_cast<int>(rank), schedule.input));
    state.heard.set(rank);
  }
}

void Symbolic::run() {
  for (;;) {
    int round = std::numeric_limits<int>::max();
    for (const State& state : states_) {
      if (!state.steps.empty()) round = std::min(round, state.steps.front().round);
    }
    if (round == std::numeric_limits<int>::max()) break;
    do_round(round);
  }
  for (std::size_t rank = 0; rank < states_.size(); ++rank) {
    WEFT_CHECK(states_[rank].read_by_others.empty(),
               "rank " + std::to_string(rank) + " may leave while a peer still reads its memory");
    cost_.sent = std::max(cost_.sent, states_[rank].sent);
  }
}

Runs Symbolic::output(int rank) const {
  return states_[rank].buffers[static_cast<int>(Buffer::kOutput)].read(0, schedules_[rank].output);
}

std::span<const Step> Symbolic::steps_of(int rank, int round) const {
  const std::span<const Step> left = states_[rank].steps;
  std::size_t count = 0;
  while (count < left.size() && left[count].round == round) ++count;
  return left.first(count);
}

void Symbolic::do_round(int round) {
  const int world = static_cast<int>(states_.size());
  const auto each = [&](auto&& body) {
    for (int rank = 0; rank < world; ++rank) located(rank, round, [&] { body(rank); });
  };
  each([&](int rank) {
    for (const Step& step : steps_of(rank, round)) check_step(rank, step);
  });
  do_meetings(round);
  each([&](int rank) { start_sends(rank, round); });
  each([&](int rank) { complete_receives(rank, round); });
  for (const auto& [ends, messages] : in_flight_) {
    located(ends.first, round, [&] {
      WEFT_CHECK(messages.empty(),
                 "rank " + std::to_string(ends.second) + " does not receive the message");
    });
  }
  in_flight_.clear();
  each([&](int rank) { do_actions(rank, round); });
  each([&](int rank) {
    std::span<const Step>& left = states_[rank].steps;
    left = left.subspan(steps_of(rank, round).size());
    WEFT_CHECK(left.empty() || left.front().round > round, "steps are not sorted by round");
  });
}

void Symbolic::check_step(int rank, const Step& step) const {
  const Schedule& own = schedules_[rank];
  const bool local = step.action == Action::kCopy || step.action == Action::kReduce ||
                     step.action == Action::kMeet;
  WEFT_CHECK(local ? step.peer == -1 : step.peer >= 0 && step.peer < own.world && step.peer != rank,
             "no such peer");
  WEFT_CHECK(step.count >= 0 && step.src >= 0 && step.dst >= 0, "a negative range");
  if (!is_receive(step.action)) {
    const Schedule& owner = is_read(step.action) ? schedules_[step.peer] : own;
    WEFT_CHECK(step.src + step.count <= owner.length(step.from), "reads past the end of a buffer");
  }
  if (!writes(step.action)) return;
  WEFT_CHECK(step.count == 0 || step.to != Buffer::kInput, "writes to input");
  WEFT_CHECK(step.dst + step.count <= own.length(step.to), "writes past the end of a buffer");
}

void Symbolic::do_meetings(int round) {
  std::size_t there = 0;
  for (std::size_t rank = 0; rank < states_.size(); ++rank) {
    const auto steps = steps_of(static_cast<int>(rank), round);
    const auto meets = std::count_if(steps.begin(), steps.end(),
                                     [](const Step& step) { return step.action == Action::kMeet; });
    if (meets == 0) continue;
    located(static_cast<int>(rank), round, [&] {
      WEFT_CHECK(meets == 1 && steps.front().action == Action::kMeet,
                 "a meeting that does not begin its round");
    });
    ++there;
  }
  if (there == 0) return;
  WEFT_CHECK(there == states_.size(),
             "round " + std::to_string(round) + ": some ranks meet and others do not come");
  finish_phase();
  Ranks everybody;
  for (const State& state : states_) everybody |= state.heard;
  for (State& state : states_) {
    std::copy(std::begin(state.buffers), std::end(state.buffers), std::begin(state.at_meeting));
    state.heard = everybody;
  }
  cost_.rounds = round;
}

void Symbolic::finish_phase() {
  for (State& state : states_) {
    for (const Access& read : state.read_by_others) {
      for (const Access& write : state.written) {
        WEFT_CHECK(!overlap(read, write),
                   "rank " + std::to_string(read.peer) +
                       " reads what its owner writes before the next meeting");
      }
    }
    state.read_by_others.clear();
    state.written.clear();
  }
}

void Symbolic::start_sends(int rank, int round) {
  State& state = states_[rank];
  int leaves = 0;
  for (const Step& step : steps_of(rank, round)) {
    if (step.action != Action::kSend) continue;
    Message message{state.buffers[buffer(rank, step.from)].read(step.src, step.count), step.count,
                    state.heard, leaves++};
    in_flight_[{rank, step.peer}].push_back(std::move(message));
    state.sent += step.count;
    cost_.rounds = round;
  }
}

void Symbolic::complete_receives(int rank, int round) {
  const auto steps = steps_of(rank, round);
  check_receives(rank, steps);
  int reaches = 0;
  for (const Step& step : steps) {
    if (!is_receive(step.action)) continue;
    auto& queue = in_flight_[{step.peer, rank}];
    WEFT_CHECK(!queue.empty(),
               "waits for a message that rank " + std::to_string(step.peer) + " does not send");
    const Message message = std::move(queue.front());
    queue.erase(queue.begin());
    WEFT_CHECK(message.count == step.count, "expects " + std::to_string(step.count) +
                                                " elements from rank " + std::to_string(step.peer) +
                                                ", which sends " + std::to_string(message.count));
    states_[rank].heard |= message.heard;
    if (observer_)
      observer_({round, step.peer, rank, is_combined(rank, steps, step), message.leaves, reaches++,
                 message.runs});
    if (step.action == Action::kRecv) put(rank, step, message.runs);
    if (step.action == Action::kRecvReduce) to_combine_[rank].push_back(message.runs);
  }
}

// True for a kRecvReduce, and if a kReduce of the round uses the received range as either operand.
bool Symbolic::is_combined(int rank, std::span<const Step> steps, const Step& receive) const {
  const Access received{-1, buffer(rank, receive.to), receive.dst, receive.dst + receive.count};
  const auto takes = [&](const Step& step) {
    if (step.action != Action::kReduce) return false;
    return overlap(received, {-1, buffer(rank, step.from), step.src, step.src + step.count}) ||
           overlap(received, {-1, buffer(rank, step.to), step.dst, step.dst + step.count});
  };
  return receive.action == Action::kRecvReduce || std::any_of(steps.begin(), steps.end(), takes);
}

// Messages of a round are in flight together, so a kRecv must not overlap any other message's
// range. A kRecvReduce is combined after the sends have left, so it must not overlap a kRecv, but
// may overlap the rest.
void Symbolic::check_receives(int rank, std::span<const Step> steps) const {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!is_receive(steps[i].action)) continue;
    const Access to{-1, buffer(rank, steps[i].to), steps[i].dst, steps[i].dst + steps[i].count};
    for (std::size_t j = 0; j < steps.size(); ++j) {
      const Step& other = steps[j];
      if (i == j || (!is_receive(other.action) && other.action != Action::kSend)) continue;
      if (steps[i].action == Action::kRecvReduce && other.action != Action::kRecv) continue;
      const bool sends = other.action == Action::kSend;
      const std::int64_t begin = sends ? other.src : other.dst;
      const Access there{-1, buffer(rank, sends ? other.from : other.to), begin,
                         begin + other.count};
      WEFT_CHECK(!overlap(to, there), "receives where another message of the round is");
    }
  }
}

void Symbolic::do_actions(int rank, int round) {
  State& state = states_[rank];
  std::size_t combined = 0;
  int reads = 0;
  for (const Step& step : steps_of(rank, round)) {
    if (step.action == Action::kRecvReduce) put(rank, step, to_combine_[rank][combined++]);
    if (is_read(step.action)) read_peer(rank, step, reads++);
    if (step.action != Action::kCopy && step.action != Action::kReduce) continue;
    const int from = buffer(rank, step.from);
    const int to = buffer(rank, step.to);
    // A copy onto itself, since input and output are one array.
    if (step.action == Action::kCopy && from == to && step.src == step.dst) continue;
    const Access source{-1, from, step.src, step.src + step.count};
    WEFT_CHECK(!overlap(source, {-1, to, step.dst, step.dst + step.count}),
               "an action whose ranges overlap");
    put(rank, step, state.buffers[from].read(step.src, step.count));
  }
  to_combine_[rank].clear();
}

void Symbolic::read_peer(int rank, const Step& step, int reaches) {
  State& peer = states_[step.peer];
  const int from = buffer(step.peer, step.from);
  const Runs runs = peer.at_meeting[from].read(step.src, step.count);
  peer.read_by_others.push_back({rank, from, step.src, step.src + step.count});
  states_[rank].sent += step.count;
  if (observer_) observer_({step.round, step.peer, rank, reduces(step.action), 0, reaches, runs});
  put(rank, step, runs);
}

// Writes the runs, or combines them with the contents of the range.
void Symbolic::put(int rank, const Step& step, const Runs& runs) {
  State& state = states_[rank];
  const int to = buffer(rank, step.to);
  Cells& cells = state.buffers[to];
  const Access access{-1, to, step.dst, step.dst + step.count};
  const bool again = !state.written.empty() && state.written.back().buffer == to &&
                     state.written.back().begin == access.begin &&
                     state.written.back().end == access.end;
  if (!again) state.written.push_back(access);
  if (!reduces(step.action)) return cells.write(step.dst, runs);
  const Runs held = cells.read(step.dst, step.count);
  cells.write(step.dst, step.flipped ? combine(runs, held) : combine(held, runs));
}

int Symbolic::buffer(int rank, Buffer buffer) const {
  return static_cast<int>(states_[rank].same_array && buffer == Buffer::kInput ? Buffer::kOutput
                                                                               : buffer);
}

bool Symbolic::overlap(const Access& a, const Access& b) {
  return a.buffer == b.buffer && std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

}  // namespace weft::schedule::internal
