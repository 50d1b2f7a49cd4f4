// Runs one rank's part of a collective schedule over an endpoint.
//
// Messages longer than 64 KiB travel in pieces. Where the transport has flows (Endpoint::flow), a
// piece is reduced while the next one comes and sent on before the whole has come, whatever the
// schedule's rounds; elsewhere it goes round by round. Which of the two changes no bit.
//
// All ranks of the endpoint call it with their own schedule of the same request. Results have the
// same bits wherever they are computed twice, on every run: operands are combined in the schedule's
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
  // schedule.input elements, written only where the output lies, and schedule.output elements; may
  // be null where there are none. They may be the same array, or overlap: a block of a gather or
  // scatter in its place costs nothing, else the shorter of the two is set aside.
  const void* input = nullptr;
  void* output = nullptr;
  DType dtype = DType::kF32;
  // For the collectives that reduce. kAvg adds, and divides once at the end by the world.
  ReduceOp op = ReduceOp::kSum;
  Channel channel = 0;
  Deadline deadline;
  // Of every message of the call; optional.
  const Label* label = nullptr;
};

// Keeps its working memory between calls, as much as the largest one needed. One call at a time.
class Executor {
 public:
  Executor();
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Throws what the endpoint throws (kTimeout, kPeerLost, kAborted …): output is undefined then,
  // and the peers' messages may be half delivered, so that the channel cannot be used again. Throws
  // kInvalidArgument before anything moves: for a schedule of another rank or world, or with
  // actions in shared memory (Algorithm::kDirect, which Direct does), a range outside its array, an
  // op that the type does not have.
  void run(const schedule::Schedule& schedule, Endpoint& endpoint, const ExecutorArgs& args);

 private:
  // Grows, never shrinks; what it held is lost when it grows.
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
  // What the round's kRecvReduces have received, where the transport has no flows.
  Memory received_;
  // The input, where it would be overwritten too early, or the output that would do so.
  Memory aside_;
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  struct Pieces;  // for transports that have flows
  std::unique_ptr<Pieces> pieces_;
};

// The same with an executor of the calling thread's own.
void run(const schedule::Schedule& schedule, Endpoint& endpoint, const ExecutorArgs& args);

}  // namespace weft::net
