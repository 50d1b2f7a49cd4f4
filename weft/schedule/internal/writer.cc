#include "weft/schedule/internal/writer.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace weft::schedule::internal {

int log2_ceil(int world) { return std::bit_width(static_cast<unsigned>(world - 1)); }

int pipeline_blocks(const Request& request, std::int64_t count) {
  if (request.chunk > 0)
    return static_cast<int>(std::max<std::int64_t>(1, (count + request.chunk - 1) / request.chunk));
  constexpr std::int64_t kMost = 16;
  return static_cast<int>(std::clamp<std::int64_t>(count / kShortestBlock, 1, kMost));
}

Writer::Writer(const Request& request) {
  schedule_.rank = request.rank;
  schedule_.world = request.world;
  schedule_.collective = request.collective;
  schedule_.input = input_count(request);
  schedule_.output = output_count(request);
  // Blocks are sent and received at the same time. In one array, a received block would overwrite a
  // block that is still to be sent.
  schedule_.in_place = request.collective != Collective::kAllToAll;
}

void Writer::send(int peer, Range from) {
  add_range(Action::kSend, peer, from, {Buffer::kOutput, 0, from.count});
}
void Writer::recv(int peer, Range to) {
  add_range(Action::kRecv, peer, {Buffer::kInput, 0, to.count}, to);
}
void Writer::recv_reduce(int peer, Range to, bool flipped) {
  add_range(Action::kRecvReduce, peer, {Buffer::kInput, 0, to.count}, to);
  if (to.count > 0) schedule_.steps.back().flipped = flipped;
}
void Writer::copy(Range from, Range to) { add_range(Action::kCopy, -1, from, to); }
void Writer::reduce(Range from, Range to, bool flipped) {
  add_range(Action::kReduce, -1, from, to);
  if (from.count > 0) schedule_.steps.back().flipped = flipped;
}
void Writer::read(int peer, Range from, Range to) { add_range(Action::kRead, peer, from, to); }
void Writer::read_reduce(int peer, Range from, Range to) {
  add_range(Action::kReadReduce, peer, from, to);
}

void Writer::embed(const Schedule& phase, const Embedding& place) {
  const auto moved = [&](Buffer& buffer, std::int64_t& offset) {
    offset += buffer == Buffer::kScratch ? place.scratch : place.where.begin;
    if (buffer != Buffer::kScratch) buffer = place.where.buffer;
  };
  for (Step step : phase.steps) {
    moved(step.from, step.src);
    moved(step.to, step.dst);
    if (step.action == Action::kCopy && step.from == step.to && step.src == step.dst) continue;
    if (step.peer >= 0) step.peer = place.ranks[static_cast<std::size_t>(step.peer)];
    at(place.after + step.round);
    add(step);
  }
}

Schedule Writer::done() && {
  std::stable_sort(schedule_.steps.begin(), schedule_.steps.end(),
                   [](const Step& a, const Step& b) { return a.round < b.round; });
  return std::move(schedule_);
}

void Writer::add(Step step) {
  step.round = round_;
  schedule_.steps.push_back(step);
}

void Writer::add_range(Action action, int peer, Range from, Range to) {
  if (from.count == 0) return;
  add({.action = action,
       .peer = peer,
       .from = from.buffer,
       .to = to.buffer,
       .src = from.begin,
       .dst = to.begin,
       .count = from.count});
}

}  // namespace weft::schedule::internal
