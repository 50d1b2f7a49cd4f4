// Runs a schedule as a flow of pieces: a piece is reduced while the next one is in transfer, and
// sent on before the whole message has arrived.
//
//   steps ── cut into pieces ──► tasks ──┐
//                                        ▼
//   Flow ◄── sends and receives whose turn it is
//     └────► complete: combine, release the tasks that wait
//
// - A task waits for the earlier tasks that write bytes that it reads or writes, or that read bytes
//   that it writes. Only overlapping pieces matter; rounds do not.
// - Messages to and from each peer begin in the schedule's order.
// - Pieces that are combined into one place are combined in the schedule's order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/net/endpoint.h"
#include "weft/schedule/schedule.h"

namespace weft::net::internal {

// A step of a schedule with addresses for its buffers. Reducing steps: combine into `to`.
struct BoundStep {
  schedule::Action action = schedule::Action::kSend;
  int peer = -1;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
  bool flipped = false;
  int order = 0;  // index of its message among those with its peer
};

// Length of the pieces of a message with this many bytes, the same on both ends. All pieces but the
// last have it. A multiple of 4096.
std::size_t piece_bytes(std::size_t message);

struct PipelineOptions {
  const Label* label = nullptr;
  // to = op(to, from) over this many bytes; with `flipped`, op(from, to).
  void (*combine)(void* context, std::byte* to, const std::byte* from, std::size_t bytes,
                  bool flipped) = nullptr;
  void* context = nullptr;
};

// Keeps its memory between runs. One run at a time.
class Pipeline {
 public:
  // Steps in the order of their effect; messages are sent in `order`. Throws as the flow does.
  void run(std::span<const BoundStep> steps, Flow& flow, const PipelineOptions& options,
           Deadline deadline);

 private:
  struct Task {
    const BoundStep* step;
    std::size_t at;  // offset in the step's bytes
    std::size_t bytes;
    int waits = 0;  // number of tasks that it waits for, plus 1 if it waits for its message
    int first_edge = -1;
  };
  struct Edge {
    int to;
    int next;
  };
  struct PeerQueue {  // messages from or to a peer, in order
    int peer = -1;
    std::vector<int> sends, recvs;
    std::size_t next_send = 0, next_recv = 0;
    std::vector<std::byte*> slots;  // free slots; the last used one is taken first, for the cache
  };

  void cut(std::span<const BoundStep> steps);
  void connect(std::span<const BoundStep> steps);
  void connect_pieces(int earlier, int later, std::size_t begin, std::size_t end,
                      std::size_t shift);
  void add_edge(int from, int to);
  void make_queues();
  void make_slots(std::size_t piece);
  PeerQueue& queue_of(int peer);
  void begin_transfers(Flow& flow, const PipelineOptions& options);
  void completed(std::span<const std::uint32_t> ids);
  void work(int task, const PipelineOptions& options);
  void release(int task);

  std::vector<Task> tasks_;
  std::vector<int> first_;  // first task of each step
  std::vector<Edge> edges_;
  std::vector<PeerQueue> queues_;
  std::vector<int> queue_index_;  // by peer
  std::vector<int> ready_;        // local tasks that are ready, in order from next_ready_
  std::size_t next_ready_ = 0;
  std::size_t unfinished_ = 0;
  std::vector<std::byte*> slot_of_;  // by task: slot for the received data that it combines
  std::unique_ptr<std::byte[]> staging_;
  std::size_t staging_bytes_ = 0;
  std::vector<std::uint32_t> done_;
};

}  // namespace weft::net::internal
