// Runs the operations that a rank calls on a group. Gives them their thread and their order, counts
// them, shows their positions and traces, and reports their errors.
//
// Collectives run one at a time, in the order of the calls. Messages of one direction, peer and tag
// do, too. A synchronous call runs on its caller's thread if nothing is pending.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <span>
#include <string>

#include "weft/comm/internal/causes.h"
#include "weft/comm/internal/engine.h"
#include "weft/comm/internal/task_queues.h"
#include "weft/comm/internal/work.h"
#include "weft/net/channels.h"
#include "weft/observe/position/position.h"

namespace weft::comm::internal {

// Of messages with this tag.
inline net::Channel channel_of(int tag) { return net::kTags + static_cast<std::uint32_t>(tag); }

class Calls {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  // The group of the operations. All of it outlives the calls.
  struct Context {
    Engine& engine;
    Causes& causes;
    int rank, size;
    std::function<std::string()> torch_name;  // c10d's name of the group
    std::function<void(const Error&)> abort;  // ends the calls of all ranks
  };

  explicit Calls(Context of);
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // The name of the group in the positions of its ranks. Call it before the first operation.
  void name_group(const std::string& name) { group_name_ = observe::ShortName(name); }
  // False in a child that was forked from this process: it cannot use the group.
  bool is_in_its_process() const;
  // Number of operations so far, messages included, as in Gloo.
  std::uint64_t number() const { return collectives_ + others_; }
  // Counts an operation that does not run here.
  void count_other() { ++others_; }
  // Waits for the posted collectives. Throws Error(kUnavailable) if there is no thread to wait
  // with.
  void finish();
  bool has_messages() const { return messages_ > 0; }

  // Another error of the body than weft's, such as missing memory, aborts the group: the other
  // ranks would wait for this one.
  WorkPtr collective(const Shown& shown, bool async, std::function<void()> body);
  // A message has no deadline of its own, since a program may post it long before its peer does.
  // `patience` counts in wait(). `peer`: -1 is any.
  WorkPtr message(const Shown& shown, int peer, int tag, std::chrono::milliseconds patience,
                  std::function<int(Deadline never)> body);

  // Synchronous calls on flat memory, on the caller's thread, without a Work. They return false
  // without doing anything while a trace or a profiler records, and for messages between threads,
  // which learn of an abort by Group::wait() only.
  bool run_now(schedule::Collective collective, const net::DirectArgs& args);
  bool send_now(std::span<std::byte> bytes, int peer, int tag, std::chrono::milliseconds limit);
  bool recv_now(std::span<std::byte> bytes, int peer, int tag, std::chrono::milliseconds limit);

 private:
  // Runs `body` (on the calling thread if it is synchronous and nothing is pending) and returns its
  // Work. `waiting`: of a body without a deadline.
  WorkPtr submit(std::uint64_t queue, const Shown& shown, bool async, std::function<int()> body,
                 WeftWork::Waiting waiting = {});
  // True if nothing records this thread and this process is a rank of the group.
  bool is_quiet() const;
  // Runs `body` on the caller's thread, after all tasks posted to the queue before. Throws what
  // `body` throws.
  template <class Body>
  void run_here(std::uint64_t queue, std::string_view operation, const Body& body);
  template <class Transfer>
  bool message_now(std::uint64_t direction, int peer, int tag, const Transfer& transfer);
  template <class Body>
  void run_for_all(const Body& body);
  // The position of a rank in this operation.
  observe::Operation shown_as(const Shown& shown, std::uint64_t number) const;
  // The wait for a message of this rank was too long. Ends the group on all ranks.
  void expire(c10d::OpType type, const std::string& name, int peer, int tag);

  const Context of_;
  const int process_;
  const bool between_threads_;
  observe::ShortName group_name_;
  std::atomic<std::uint64_t> collectives_{0};  // so far
  std::atomic<std::uint64_t> others_{0};       // messages and monitored barriers so far
  std::atomic<int> messages_{0};               // sends and receives under way
  TaskQueues queues_;                          // last: ends before what its tasks use
};

}  // namespace weft::comm::internal
