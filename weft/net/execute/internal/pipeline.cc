#include "weft/net/execute/internal/pipeline.h"

#include <algorithm>
#include <cstring>

namespace weft::net::internal {
namespace {

using schedule::Action;

constexpr std::size_t kLeast = std::size_t{64} << 10, kMost = std::size_t{256} << 10;
// Target number of pieces of a message, within the bounds of their length. A message has at most
// kMaxPieces.
constexpr std::size_t kPieces = 16, kMaxPieces = 256;
// Staging memory of all queues together, but at least two pieces per queue.
constexpr std::size_t kStaging = std::size_t{2} << 20;

bool is_local(Action action) { return action == Action::kCopy || action == Action::kReduce; }
bool reads(const BoundStep& step) { return step.action == Action::kSend || is_local(step.action); }
bool writes(const BoundStep& step) { return step.action != Action::kSend; }

struct Range {
  const std::byte* begin;
  const std::byte* end;
};

Range read_by(const BoundStep& step) {
  return {step.from, step.from + (reads(step) ? step.bytes : 0)};
}
Range written_by(const BoundStep& step) {
  return {step.to, step.to + (writes(step) ? step.bytes : 0)};
}

}  // namespace

std::size_t piece_bytes(std::size_t message) {
  const std::size_t wanted = std::clamp(message / kPieces, kLeast, kMost);
  return (std::max(wanted, message / kMaxPieces) + 4095) / 4096 * 4096;
}

void Pipeline::run(std::span<const BoundStep> steps, Flow& flow, const PipelineOptions& options,
                   Deadline deadline) {
  cut(steps);
  connect(steps);
  make_queues();
  for (int task = 0; task < static_cast<int>(tasks_.size()); ++task) {
    if (tasks_[task].waits == 0 && is_local(tasks_[task].step->action)) ready_.push_back(task);
  }
  begin_transfers(flow, options);
  while (unfinished_ > 0) {
    done_.clear();
    if (next_ready_ < ready_.size()) {
      work(ready_[next_ready_++], options);
      begin_transfers(flow, options);
      flow.poll(done_);
    } else {
      flow.wait(done_, deadline);
    }
    completed(done_);
    begin_transfers(flow, options);
  }
}

void Pipeline::cut(std::span<const BoundStep> steps) {
  tasks_.clear();
  first_.clear();
  edges_.clear();
  ready_.clear();
  next_ready_ = 0;
  for (const BoundStep& step : steps) {
    first_.push_back(static_cast<int>(tasks_.size()));
    const std::size_t piece = piece_bytes(step.bytes);
    for (std::size_t at = 0; at < std::max<std::size_t>(step.bytes, 1); at += piece) {
      tasks_.push_back({&step, at, std::min(piece, step.bytes - at)});
      if (step.action == Action::kRecvReduce) tasks_.back().waits = 1;  // waits for its message
    }
  }
  first_.push_back(static_cast<int>(tasks_.size()));
  unfinished_ = tasks_.size();
}

// A step waits for pieces of earlier steps that write bytes that it reads or writes, or that read
// bytes that it writes.
void Pipeline::connect(std::span<const BoundStep> steps) {
  const auto link = [&](int earlier, Range before, int later, Range after) {
    const std::byte* begin = std::max(before.begin, after.begin);
    const std::byte* end = std::min(before.end, after.end);
    if (begin >= end) return;
    const auto shift = after.begin - before.begin;
    connect_pieces(earlier, later, static_cast<std::size_t>(begin - after.begin),
                   static_cast<std::size_t>(end - after.begin), static_cast<std::size_t>(shift));
  };
  for (int later = 1; later < static_cast<int>(steps.size()); ++later) {
    for (int earlier = 0; earlier < later; ++earlier) {
      link(earlier, written_by(steps[earlier]), later, read_by(steps[later]));
      link(earlier, written_by(steps[earlier]), later, written_by(steps[later]));
      link(earlier, read_by(steps[earlier]), later, written_by(steps[later]));
    }
  }
}

// Bytes [begin, end) of the later step are bytes [begin + shift, end + shift) of the earlier one; a
// negative shift wraps around.
void Pipeline::connect_pieces(int earlier, int later, std::size_t begin, std::size_t end,
                              std::size_t shift) {
  const std::size_t earlier_piece = piece_bytes(tasks_[first_[earlier]].step->bytes);
  for (int task = first_[later]; task < first_[later + 1]; ++task) {
    const std::size_t from = std::max(begin, tasks_[task].at),
                      to = std::min(end, tasks_[task].at + tasks_[task].bytes);
    if (from >= to) continue;
    for (std::size_t piece = (from + shift) / earlier_piece;
         piece <= (to - 1 + shift) / earlier_piece; ++piece) {
      add_edge(first_[earlier] + static_cast<int>(piece), task);
    }
  }
}

void Pipeline::add_edge(int from, int to) {
  edges_.push_back({to, tasks_[from].first_edge});
  tasks_[from].first_edge = static_cast<int>(edges_.size()) - 1;
  ++tasks_[to].waits;
}

Pipeline::PeerQueue& Pipeline::queue_of(int peer) {
  if (static_cast<std::size_t>(peer) >= queue_index_.size())
    queue_index_.resize(static_cast<std::size_t>(peer) + 1, -1);
  int& index = queue_index_[static_cast<std::size_t>(peer)];
  if (index < 0) {
    index = static_cast<int>(queues_.size());
    queues_.push_back({.peer = peer});
  }
  return queues_[static_cast<std::size_t>(index)];
}

void Pipeline::make_queues() {
  queues_.clear();
  queue_index_.clear();
  std::size_t piece = 0;
  for (int task = 0; task < static_cast<int>(tasks_.size()); ++task) {
    const BoundStep& step = *tasks_[task].step;
    if (is_local(step.action)) continue;
    PeerQueue& queue = queue_of(step.peer);
    (step.action == Action::kSend ? queue.sends : queue.recvs).push_back(task);
    if (step.action == Action::kRecvReduce) piece = std::max(piece, tasks_[task].bytes);
  }
  for (PeerQueue& queue : queues_) {
    const auto by_order = [&](int a, int b) {
      return tasks_[a].step->order < tasks_[b].step->order;
    };
    std::stable_sort(queue.sends.begin(), queue.sends.end(), by_order);
    std::stable_sort(queue.recvs.begin(), queue.recvs.end(), by_order);
  }
  make_slots(piece);
}

void Pipeline::make_slots(std::size_t piece) {
  slot_of_.assign(tasks_.size(), nullptr);
  if (piece == 0) return;
  const std::size_t slots = std::max<std::size_t>(2, kStaging / (piece * queues_.size()));
  const std::size_t needed = slots * queues_.size() * piece;
  if (needed > staging_bytes_) {
    staging_.reset();
    staging_ = std::make_unique_for_overwrite<std::byte[]>(needed);
    staging_bytes_ = needed;
  }
  std::byte* at = staging_.get();
  for (PeerQueue& queue : queues_) {
    for (std::size_t slot = 0; slot < slots; ++slot, at += piece) queue.slots.push_back(at);
  }
}

void Pipeline::begin_transfers(Flow& flow, const PipelineOptions& options) {
  for (PeerQueue& queue : queues_) {
    for (; queue.next_recv < queue.recvs.size(); ++queue.next_recv) {
      const int index = queue.recvs[queue.next_recv];
      const Task& task = tasks_[index];
      const bool staged = task.step->action == Action::kRecvReduce;
      if (staged ? queue.slots.empty() : task.waits > 0) break;
      std::byte* place = staged ? queue.slots.back() : task.step->to + task.at;
      if (staged) {
        queue.slots.pop_back();
        slot_of_[index] = place;
      }
      flow.recv({queue.peer, {place, task.bytes}, options.label},
                static_cast<std::uint32_t>(index));
    }
    for (; queue.next_send < queue.sends.size() && tasks_[queue.sends[queue.next_send]].waits == 0;
         ++queue.next_send) {
      const int index = queue.sends[queue.next_send];
      const Task& task = tasks_[index];
      flow.send({queue.peer, {task.step->from + task.at, task.bytes}, options.label},
                static_cast<std::uint32_t>(index));
    }
  }
}

void Pipeline::completed(std::span<const std::uint32_t> ids) {
  for (const std::uint32_t id : ids) {
    const int index = static_cast<int>(id);
    if (tasks_[index].step->action != Action::kRecvReduce) {
      release(index);
    } else if (--tasks_[index].waits == 0) {
      ready_.push_back(index);
    }
  }
}

void Pipeline::work(int index, const PipelineOptions& options) {
  const Task& task = tasks_[index];
  const BoundStep& step = *task.step;
  std::byte* to = step.to + task.at;
  const bool staged = step.action == Action::kRecvReduce;
  const std::byte* from = staged ? slot_of_[index] : step.from + task.at;
  if (step.action == Action::kCopy) {
    if (from != to && task.bytes > 0) std::memcpy(to, from, task.bytes);
  } else {
    options.combine(options.context, to, from, task.bytes, step.flipped);
  }
  if (staged) queue_of(step.peer).slots.push_back(slot_of_[index]);
  release(index);
}

void Pipeline::release(int index) {
  --unfinished_;
  for (int edge = tasks_[index].first_edge; edge >= 0; edge = edges_[edge].next) {
    const int to = edges_[edge].to;
    const Action action = tasks_[to].step->action;
    if (--tasks_[to].waits == 0 && (is_local(action) || action == Action::kRecvReduce))
      ready_.push_back(to);
  }
}

}  // namespace weft::net::internal
