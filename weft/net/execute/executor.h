// Runs one rank's part of a collective schedule over an endpoint.
//
// Messages longer than 64 KiB are sent in pieces. If the transport has flows (Endpoint::flow), a
// piece is reduced while the next one arrives, and sent on before the whole message has arrived,
// independent of the schedule's rounds. Otherwise the schedule runs round by round. Both give the
// same bits.
//
// All ranks of the endpoint call run() with their own schedule of the same request. Results have
// the same bits on all ranks and in every run, because operands are combined in the schedule's
// order, two at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/dtype.h"
#include "weft/net/endpoint.h"
#include "weft/schedule/schedule.h"

namespace weft::net {

struct ExecutorArgs {
  // Arrays of schedule.input and schedule.output elements. Null is allowed for zero elements. The
  // arrays may be the same or overlap; the input is written only where it overlaps the output. An
  // overlap costs a copy of the shorter array, unless the schedule supports it in place or one
  // array is this rank's block of the other (all-gather, gather, scatter).
  const void* input = nullptr;
  void* output = nullptr;
  DType dtype = DType::kF32;
  // For collectives that reduce. kAvg sums, and divides once at the end by the number of ranks.
  // The sum must be in the type's range.
  ReduceOp op = ReduceOp::kSum;
  Channel channel = 0;
  Deadline deadline;
  // Label of every message of the call; optional.
  const Label* label = nullptr;
};

// Keeps its working memory between calls, as much as the largest call needed. One call at a time.
class Executor {
 public:
  Executor();
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Throws as the endpoint does (kTimeout, kPeerLost, kAborted …). The output is then undefined,
  // and messages may be partly delivered, so the channel cannot be used again. Throws
  // kInvalidArgument before any transfer for a schedule of another rank or world, actions in shared
  // memory (Algorithm::kDirect, for net::Direct), a range outside its array, or an operation that
  // the type does not support.
  void run(const schedule::Schedule& schedule, Endpoint& endpoint, const ExecutorArgs& args);

 private:
  // Grows and never shrinks. Its contents are lost when it grows.
  class Memory {
   public:
    std::byte* at_least(std::size_t bytes);

   private:
    std::unique_ptr<std::byte[]> bytes_;
    std::size_t size_ = 0;
  };
  struct Run;

  void prepare(Run& run);
  void run_rounds(Run& run);
  void bind(const Run& run);
  void exchange(const Run& run, std::span<const schedule::Step> round);
  void act(const Run& run, std::span<const schedule::Step> round);

  Memory scratch_;
  // Data received by kRecvReduce in the current round, if the transport has no flows.
  Memory received_;
  // A copy of the input if it would be overwritten too early, or the output that would overwrite
  // it.
  Memory aside_;
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  struct Pieces;  // used with transports that have flows
  std::unique_ptr<Pieces> pieces_;
};

// Calls Executor::run() of an executor that belongs to the calling thread.
void run(const schedule::Schedule& schedule, Endpoint& endpoint, const ExecutorArgs& args);

}  // namespace weft::net
