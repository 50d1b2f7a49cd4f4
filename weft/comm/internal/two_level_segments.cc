// All-reduce, broadcast and reduce: a segment belongs to one rank of each host.
#include <cstring>

#include "weft/comm/internal/two_level_parts.h"
#include "weft/comm/internal/view_endpoint.h"
#include "weft/kernels/reduce.h"

namespace weft::comm::internal {
namespace {

using schedule::Collective;

// Each queue has its own channels.
constexpr net::Channel kQueues = net::Channel{1} << 41;
constexpr net::Channel kLane = net::Channel{1} << 42;
// Bytes of a rank's part of a chunk: large enough to saturate the network, small enough that the
// last chunk, which overlaps with nothing, is short.
constexpr std::int64_t kMaxBytes = 1 << 20, kMinBytes = 128 << 10;

}  // namespace

// Small arrays: every rank has the sums of all hosts and adds them.
void TwoLevel::all_reduce_small(const Call& call) {
  std::vector<const void*> sources;
  for (const auto& sum : data_) sources.push_back(sum.data());
  void* out = call.args.output;
  if (call.args.count > 0)
    kernels::reduce(&out, 1, sources.data(), map_.num_hosts(),
                    {.dtype = call.args.dtype,
                     .op = call.args.op,
                     .count = call.args.count,
                     .divisor = map_.world});
}

void TwoLevel::by_segments(const Call& call) {
  const std::int64_t per_rank =
      std::clamp(call.bytes(call.args.count) / map_.smallest() / 8, kMinBytes, kMaxBytes) / 64 * 64;
  in_chunks(
      call.name, call.args.count, per_rank * map_.smallest() / call.element,
      [&](std::int64_t at, std::int64_t count, Queue& queue) {
        for (Segment segment : segments_of(map_, count, static_cast<std::size_t>(call.element))) {
          segment.begin += at;
          segment.end += at;
          if (call.collective == Collective::kAllReduce) all_reduce_segment(call, queue, segment);
          if (call.collective == Collective::kBroadcast) broadcast_segment(call, queue, segment);
          if (call.collective == Collective::kReduce) reduce_segment(call, queue, segment);
        }
      });
}

void TwoLevel::across(const Call& call, Queue& queue, const Segment& segment,
                      const std::byte* input, std::byte* output) {
  auto& view = queue.views[segment.ranks];
  if (!view)
    view = make_view(transports_.endpoint(), segment.ranks,
                     kQueues + static_cast<net::Channel>(queue.number) * kLane);
  const std::int64_t count = segment.end - segment.begin;
  const schedule::Request asked{.collective = call.collective,
                                .rank = map_.host,
                                .world = map_.num_hosts(),
                                .root = call.root_host,
                                .count = count};
  queue.executor.run(schedule::make(chooser_.decide(asked, static_cast<std::size_t>(call.element))),
                     *view,
                     {.input = input,
                      .output = output,
                      .dtype = call.args.dtype,
                      .op = within(call.args.op),
                      .deadline = call.deadline()});
}

void TwoLevel::all_reduce_segment(const Call& call, Queue& queue, const Segment& segment) {
  const std::int64_t at = call.bytes(segment.begin), count = segment.end - segment.begin;
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  for (int peer = 0; peer < map_.local_world(); ++peer) {
    sources.push_back(input(peer) + at);
    if (peer != map_.local) destinations.push_back(output(peer) + at);
  }
  std::byte* const mine = output(map_.local) + at;
  count_in_host(2 * call.bytes(count));  // all inputs are read, and all outputs are written
  void* sum = mine;
  kernels::reduce(&sum, 1, sources.data(), map_.local_world(),
                  {call.args.dtype, within(call.args.op), count});
  across(call, queue, segment, mine, mine);
  const bool average = call.args.op == ReduceOp::kAvg;
  if (average) destinations.push_back(mine);
  if (destinations.empty()) return;
  const void* source = mine;
  kernels::reduce(destinations.data(), static_cast<int>(destinations.size()), &source, 1,
                  {.dtype = call.args.dtype,
                   .op = average ? ReduceOp::kAvg : ReduceOp::kSum,
                   .count = count,
                   .divisor = map_.world});
}

void TwoLevel::broadcast_segment(const Call& call, Queue& queue, const Segment& segment) {
  const std::int64_t at = call.bytes(segment.begin),
                     bytes = call.bytes(segment.end - segment.begin);
  const int root = place_of(call.args.root);
  std::byte* const mine = output(map_.local) + at;
  across(call, queue, segment, root >= 0 ? input(root) + at : nullptr, mine);
  for (int peer = 0; peer < map_.local_world(); ++peer) {
    std::byte* const to = output(peer) + at;
    const bool has_it = peer == map_.local || (peer == root && to == input(root) + at);
    if (!has_it) std::memcpy(to, mine, static_cast<std::size_t>(bytes));
  }
  count_in_host(bytes);
}

void TwoLevel::reduce_segment(const Call& call, Queue& queue, const Segment& segment) {
  const std::int64_t at = call.bytes(segment.begin), count = segment.end - segment.begin;
  std::vector<const void*> sources;
  for (int peer = 0; peer < map_.local_world(); ++peer) sources.push_back(input(peer) + at);
  queue.scratch.resize(std::max(queue.scratch.size(), static_cast<std::size_t>(call.bytes(count))));
  void* sum = queue.scratch.data();
  count_in_host(call.bytes(count));
  kernels::reduce(&sum, 1, sources.data(), map_.local_world(),
                  {call.args.dtype, within(call.args.op), count});
  const int root = place_of(call.args.root);
  std::byte* const out = root >= 0 ? output(root) + at : nullptr;
  across(call, queue, segment, queue.scratch.data(), out);
  if (root < 0 || call.args.op != ReduceOp::kAvg) return;
  void* to = out;
  const void* from = out;
  kernels::reduce(
      &to, 1, &from, 1,
      {.dtype = call.args.dtype, .op = ReduceOp::kAvg, .count = count, .divisor = map_.world});
}

}  // namespace weft::comm::internal
