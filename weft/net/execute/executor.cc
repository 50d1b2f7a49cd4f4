#include "weft/net/execute/executor.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "weft/base/error.h"
#include "weft/kernels/reduce.h"
#include "weft/net/execute/internal/pipeline.h"
#include "weft/net/internal/overlap.h"

namespace weft::net {
namespace {

using schedule::Action;
using schedule::Buffer;
using schedule::Collective;
using schedule::Schedule;
using schedule::Step;

void check_step(const Schedule& schedule, const Step& step) {
  const Action action = step.action;
  const bool shared =
      action == Action::kRead || action == Action::kReadReduce || action == Action::kMeet;
  WEFT_REQUIRE(!shared, std::string(to_string(schedule.collective)) +
                            ": the schedule reads its peers' memory, which needs shared memory; "
                            "use net::Direct, or another algorithm");
  const bool local = action == Action::kCopy || action == Action::kReduce;
  const bool has_from = local || action == Action::kSend;
  const bool has_to = action != Action::kSend;
  const auto inside = [&](std::int64_t begin, Buffer buffer) {
    return begin >= 0 && begin + step.count <= schedule.length(buffer);
  };
  WEFT_REQUIRE(step.count >= 0 && (!has_from || inside(step.src, step.from)) &&
                   (!has_to || inside(step.dst, step.to)),
               "a step of round " + std::to_string(step.round) + " is outside its array");
  WEFT_REQUIRE(!has_to || step.count == 0 || step.to != Buffer::kInput,
               "a step of round " + std::to_string(step.round) + " writes to the input");
}

void check(const Schedule& schedule, const Endpoint& endpoint, const ExecutorArgs& args) {
  WEFT_REQUIRE(schedule.rank == endpoint.rank() && schedule.world == endpoint.world(),
               "the schedule is for rank " + std::to_string(schedule.rank) + " of " +
                   std::to_string(schedule.world) + ", but the endpoint is rank " +
                   std::to_string(endpoint.rank()) + " of " + std::to_string(endpoint.world()));
  WEFT_REQUIRE((args.input != nullptr || schedule.input == 0) &&
                   (args.output != nullptr || schedule.output == 0),
               std::string(to_string(schedule.collective)) + ": input or output is null");
  WEFT_REQUIRE(!reduces(schedule.collective) || kernels::has_operation(args.dtype, args.op),
               std::string(to_string(schedule.collective)) + ": " +
                   kernels::no_operation(args.dtype, args.op));
  for (const Step& step : schedule.steps) check_step(schedule, step);
}

// True if a message is longer than a piece. Otherwise a flow is not worth its cost.
bool in_pieces(const Schedule& schedule, std::size_t element) {
  return std::any_of(schedule.steps.begin(), schedule.steps.end(), [&](const Step& step) {
    const std::size_t bytes = static_cast<std::size_t>(step.count) * element;
    return step.peer >= 0 && bytes > internal::piece_bytes(bytes);
  });
}

// Largest number of elements that kRecvReduce receives in one round.
std::int64_t most_received(const Schedule& schedule) {
  std::int64_t most = 0;
  std::int64_t in_round = 0;
  int round = 0;
  for (const Step& step : schedule.steps) {
    if (step.round != round) in_round = 0;
    round = step.round;
    if (step.action == Action::kRecvReduce) in_round += step.count;
    most = std::max(most, in_round);
  }
  return most;
}

}  // namespace

// Data to which the steps of a call refer.
struct Executor::Pieces {
  std::vector<internal::BoundStep> bound;
  internal::Pipeline pipeline;
};

Executor::Executor() : pieces_(std::make_unique<Pieces>()) {}
Executor::~Executor() = default;

struct Executor::Run {
  const Schedule& schedule;
  Endpoint& endpoint;
  const ExecutorArgs& args;
  std::size_t element;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* scratch = nullptr;
  std::byte* received = nullptr;

  const std::byte* source(Buffer buffer, std::int64_t at) const {
    const std::byte* base = buffer == Buffer::kInput    ? input
                            : buffer == Buffer::kOutput ? output
                                                        : scratch;
    return base + at * element;
  }
  std::byte* target(Buffer buffer, std::int64_t at) const {
    return (buffer == Buffer::kOutput ? output : scratch) + at * element;
  }
  std::size_t bytes(const Step& step) const { return step.count * element; }

  // into = op(into, from); with `flipped`, into = op(from, into).
  void combine(std::byte* into, const std::byte* from, std::int64_t count, bool flipped) const {
    void* to = into;
    const void* operands[] = {flipped ? from : into, flipped ? into : from};
    const ReduceOp op = args.op == ReduceOp::kAvg ? ReduceOp::kSum : args.op;
    kernels::reduce(&to, 1, operands, 2, {.dtype = args.dtype, .op = op, .count = count});
  }
  void combine(const Step& step, const std::byte* from) const {
    combine(target(step.to, step.dst), from, step.count, step.flipped);
  }
  bool arrays_overlap() const {
    return internal::overlap({input, static_cast<std::size_t>(schedule.input) * element},
                             {output, static_cast<std::size_t>(schedule.output) * element});
  }
  // True if input or output is this rank's block within the other array. It is copied onto itself
  // and not changed otherwise.
  bool is_own_block() const {
    const std::size_t rank = static_cast<std::size_t>(schedule.rank) * element;
    if (schedule.collective == Collective::kAllGather || schedule.collective == Collective::kGather)
      return input == output + rank * static_cast<std::size_t>(schedule.input);
    return schedule.collective == Collective::kScatter &&
           output == input + rank * static_cast<std::size_t>(schedule.output);
  }
  void average() const {
    void* to = output;
    const void* from = output;
    kernels::reduce(&to, 1, &from, 1,
                    {.dtype = args.dtype,
                     .op = ReduceOp::kAvg,
                     .count = schedule.output,
                     .divisor = schedule.world});
  }
};

std::byte* Executor::Memory::at_least(std::size_t bytes) {
  if (bytes > size_) {
    bytes_.reset();  // freed first, so that the old and the new memory never exist at once
    size_ = 0;
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    size_ = bytes;
  }
  return bytes_.get();
}

void Executor::run(const Schedule& schedule, Endpoint& endpoint, const ExecutorArgs& args) {
  check(schedule, endpoint, args);
  Run run{schedule, endpoint, args, size_of(args.dtype)};
  prepare(run);
  const auto flow = in_pieces(schedule, run.element) ? endpoint.flow(args.channel) : nullptr;
  if (flow) {
    bind(run);
    const auto combine = [](void* context, std::byte* to, const std::byte* from, std::size_t bytes,
                            bool flipped) {
      const Run& of = *static_cast<const Run*>(context);
      of.combine(to, from, static_cast<std::int64_t>(bytes / of.element), flipped);
    };
    pieces_->pipeline.run(pieces_->bound, *flow,
                          {.label = args.label, .combine = combine, .context = &run},
                          args.deadline);
  } else {
    run_rounds(run);
  }
  if (args.op == ReduceOp::kAvg && reduces(schedule.collective) && schedule.output > 0 &&
      schedule.world > 1)
    run.average();
  if (run.output != args.output)
    std::memcpy(args.output, run.output, static_cast<std::size_t>(schedule.output) * run.element);
}

void Executor::run_rounds(Run& run) {
  run.received = received_.at_least(most_received(run.schedule) * run.element);
  const std::span<const Step> steps = run.schedule.steps;
  for (std::size_t begin = 0, end = 0; begin < steps.size(); begin = end) {
    while (end < steps.size() && steps[end].round == steps[begin].round) ++end;
    exchange(run, steps.subspan(begin, end - begin));
    act(run, steps.subspan(begin, end - begin));
  }
}

// Orders the steps of a round by their effect: sends, receives, then combinations and copies.
void Executor::bind(const Run& run) {
  const std::span<const Step> steps = run.schedule.steps;
  pieces_->bound.clear();
  for (std::size_t begin = 0, end = 0; begin < steps.size(); begin = end) {
    while (end < steps.size() && steps[end].round == steps[begin].round) ++end;
    const auto phase = [](Action action) {
      return action == Action::kSend ? 0 : action == Action::kRecv ? 1 : 2;
    };
    for (const int wanted : {0, 1, 2}) {
      for (std::size_t i = begin; i < end; ++i) {
        const Step& step = steps[i];
        if (phase(step.action) != wanted) continue;
        const bool has_from = step.action == Action::kSend || step.action == Action::kCopy ||
                              step.action == Action::kReduce;
        pieces_->bound.push_back(
            {step.action, step.peer, has_from ? run.source(step.from, step.src) : nullptr,
             step.action == Action::kSend ? nullptr : run.target(step.to, step.dst),
             run.bytes(step), step.flipped, static_cast<int>(i)});
      }
    }
  }
}

void Executor::prepare(Run& run) {
  const Schedule& schedule = run.schedule;
  run.input = static_cast<const std::byte*>(run.args.input);
  run.output = static_cast<std::byte*>(run.args.output);
  run.scratch = scratch_.at_least(schedule.scratch * run.element);
  if (!run.arrays_overlap()) return;
  if (run.input == run.output && schedule.input == schedule.output ? schedule.in_place
                                                                   : run.is_own_block())
    return;
  const bool less = schedule.output < schedule.input;
  const auto bytes =
      static_cast<std::size_t>(less ? schedule.output : schedule.input) * run.element;
  std::byte* const aside = aside_.at_least(bytes);
  if (less) {
    run.output = aside;  // copied to the output at the end
  } else {
    std::memcpy(aside, run.input, bytes);
    run.input = aside;
  }
}

void Executor::exchange(const Run& run, std::span<const Step> round) {
  sends_.clear();
  recvs_.clear();
  std::byte* received = run.received;
  for (const Step& step : round) {
    const std::size_t bytes = run.bytes(step);
    const std::size_t piece = internal::piece_bytes(bytes);
    for (std::size_t at = 0; at < std::max<std::size_t>(bytes, 1); at += piece) {
      const std::size_t length = std::min(piece, bytes - at);
      if (step.action == Action::kSend)
        sends_.push_back(
            {step.peer, {run.source(step.from, step.src) + at, length}, run.args.label});
      if (step.action == Action::kRecv)
        recvs_.push_back({step.peer, {run.target(step.to, step.dst) + at, length}, run.args.label});
      if (step.action == Action::kRecvReduce)
        recvs_.push_back({step.peer, {received + at, length}, run.args.label});
    }
    if (step.action == Action::kRecvReduce) received += bytes;
  }
  if (!sends_.empty() || !recvs_.empty())
    run.endpoint.exchange(run.args.channel, sends_, recvs_, run.args.deadline);
}

void Executor::act(const Run& run, std::span<const Step> round) {
  const std::byte* received = run.received;
  for (const Step& step : round) {
    if (step.action == Action::kReduce) run.combine(step, run.source(step.from, step.src));
    if (step.action == Action::kRecvReduce) {
      run.combine(step, received);
      received += run.bytes(step);
    }
    if (step.action != Action::kCopy) continue;
    const std::byte* from = run.source(step.from, step.src);
    std::byte* to = run.target(step.to, step.dst);
    // They can be equal if input and output are one array.
    if (from != to) std::memcpy(to, from, run.bytes(step));
  }
}

void run(const Schedule& schedule, Endpoint& endpoint, const ExecutorArgs& args) {
  thread_local Executor executor;
  executor.run(schedule, endpoint, args);
}

}  // namespace weft::net
