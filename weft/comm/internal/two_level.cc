// A call in its order, on each rank (agree() is in two_level_agree.cc, move() in the other files):
//
//   Shared     memory that peers of the host cannot read gets a copy in the heap
//   agree()    meeting 1. The ranks of the host see each other's signature and memory. Each host's
//              answer goes to all other hosts. All ranks now know: error, two levels, or flat
//   Touch      from here on, ranks of the host read and write each other's memory
//   move()     the work, on one or two threads
//   meet()     meeting 2. No peer uses this rank's memory any more, so copies and tensors may go
//
// No rank decides alone. If one rank of one host has no room for a copy, its header tells it to
// all, and all ranks of all hosts run the call flat.
//
// Threads: in_chunks() gives every second chunk to a second thread. Each has a Queue of its own,
// with channels of its own, so messages of the two never match each other. They share only inputs_
// and outputs_, which do not change between the meetings. Both have ended when in_chunks() returns.
//
// Hosts of different sizes: rank i of a host works with rank i mod L of a host with L ranks.
//
//   host A, 4 ranks   0 1 2 3      partner(B) of rank 2 is rank 0 of B
//   host B, 2 ranks   0 1 0 1      served(A) of rank 0 of B: ranks 0 and 2 of A
#include "weft/comm/internal/two_level.h"

#include <cstring>
#include <exception>
#include <system_error>
#include <thread>

#include "weft/base/log.h"
#include "weft/comm/internal/two_level_parts.h"
#include "weft/observe/position/position.h"

namespace weft::comm::internal {

using schedule::Collective;

// Memory of this rank that the ranks of its host can read.
class TwoLevel::Shared {
 public:
  // `written`: receives the call's result; finish() copies it back.
  Shared(net::Host& host, void* memory, std::int64_t bytes, bool written)
      : host_(host),
        memory_(static_cast<std::byte*>(memory)),
        bytes_(static_cast<std::size_t>(bytes)),
        written_(written) {
    if (memory == nullptr || host.token(memory) != net::Host::kNoToken) return;
    try {
      copy_ = host.allocate(bytes_);
    } catch (const Error&) {  // no room: all ranks learn of it together
      lacking_ = true;
    }
  }
  ~Shared() {
    if (copy_ != nullptr) host_.deallocate(copy_);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  bool lacking() const { return lacking_; }
  net::Host::Token token() const {
    return memory_ == nullptr || lacking_ ? net::Host::kNoToken
                                          : host_.token(copy_ != nullptr ? copy_ : memory_);
  }
  void fill() {
    if (copy_ != nullptr) std::memcpy(copy_, memory_, bytes_);
  }
  void finish() {
    if (copy_ != nullptr && written_) std::memcpy(memory_, copy_, bytes_);
  }

 private:
  net::Host& host_;
  std::byte* const memory_;
  const std::size_t bytes_;
  const bool written_;
  std::byte* copy_ = nullptr;
  bool lacking_ = false;
};

TwoLevel::TwoLevel(LinkedTransports& transports, Engine& flat, std::chrono::nanoseconds timeout,
                   const Tuning& tuning)
    : transports_(transports),
      flat_(flat),
      map_(transports.map()),
      endpoint_(*transports.endpoint()),
      chooser_(tuning, plan::Transport::kTcp, map_.num_hosts()),
      out_of_order_(tuning.ordered_sums && !map_.is_balanced()),
      calls_(transports.host(), timeout) {
  queues_[1].number = 1;
  headers_.resize(map_.hosts.size());
  data_.resize(map_.hosts.size());
}

TwoLevel::~TwoLevel() = default;

void TwoLevel::check(const Call& call) const {
  const auto& args = call.args;
  WEFT_REQUIRE(args.count >= 0, std::string(call.name) + ": count is negative");
  WEFT_REQUIRE(args.root >= 0 && args.root < map_.world,
               std::string(call.name) + ": root " + std::to_string(args.root) +
                   " is not in the group of " + std::to_string(map_.world));
}

void TwoLevel::run(Collective collective, const net::DirectArgs& args) {
  Call call{collective, args, static_cast<std::int64_t>(size_of(args.dtype)),
            schedule::to_string(collective)};
  if (collective == Collective::kBarrier) {
    call.args.count = 0;
    call.args.shape = nullptr;
  }
  check(call);
  call.root_host = map_.host_of(call.args.root);
  const std::int64_t all = call.bytes(call.args.count);
  // The same on all ranks of a call, since the map and the tuning are.
  const bool flat = out_of_order_ && is_ordered(collective);
  if (collective == Collective::kAllReduce && !flat &&
      all <= static_cast<std::int64_t>(CallExchange::kInline)) {
    agree(call, {net::signature_of(collective, call.args)}, all);
    return all_reduce_small(call);
  }
  const Extent extent = extent_of(collective, map_.world, call.args.count);
  // A shorter output is the first block of the input, and not its memory as a whole.
  const bool in_place =
      args.input == args.output && args.input != nullptr && extent.input <= extent.output;
  // A received block must not overwrite a block that is still to be sent.
  std::vector<std::byte> aside;
  if (collective == Collective::kAllToAll && in_place) {
    const auto* from = static_cast<const std::byte*>(args.input);
    aside.assign(from, from + call.bytes(extent.input));
    call.args.input = aside.data();
  }
  const bool one_array = in_place && aside.empty();
  Shared out(transports_.host(), call.args.output, call.bytes(extent.output), true);
  Shared in(transports_.host(), one_array ? nullptr : const_cast<void*>(call.args.input),
            call.bytes(extent.input), false);
  if (one_array) out.fill();
  in.fill();
  const CallExchange::Note note{net::signature_of(collective, call.args),
                                one_array ? out.token() : in.token(), out.token(),
                                flat || in.lacking() || out.lacking() ? 1u : 0u};
  if (!agree(call, note, 0)) return flat_.run(collective, args);
  if (call.args.count == 0) return;  // agreeing was a meeting already
  try {
    const net::Host::Touch touch(transports_.host(), call.name);
    move(call);
  } catch (...) {
    // A peer may still be in a Touch of this rank's tensors, which the caller may free after the
    // error.
    transports_.leave();
    throw;
  }
  calls_.meet(call.name, call.args.timeout);
  out.finish();
}

void TwoLevel::move(const Call& call) {
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce: by_segments(call); break;
    case Collective::kAllGather:
    case Collective::kReduceScatter: by_blocks(call); break;
    case Collective::kAllToAll: all_to_all(call); break;
    case Collective::kGather: gather(call); break;
    case Collective::kScatter: scatter(call); break;
    case Collective::kBarrier: break;
  }
}

void TwoLevel::in_chunks(const char* operation, std::int64_t count, std::int64_t per_chunk,
                         const std::function<void(std::int64_t, std::int64_t, Queue&)>& work) {
  const auto every_second = [&](int first) {
    for (std::int64_t at = first * per_chunk; at < count; at += 2 * per_chunk)
      work(at, std::min(per_chunk, count - at), queues_[first]);
  };
  // A thread costs more than it hides if there is one chunk.
  if (count <= per_chunk) return every_second(0);
  std::exception_ptr other;
  std::thread second;
  try {
    second = std::thread([&] {
      const observe::OperationScope here(
          {.name = operation, .group = transports_.host().group_name()});
      try {
        every_second(1);
      } catch (...) {
        other = std::current_exception();
      }
    });
  } catch (const std::system_error& error) {  // the two halves do not wait for each other
    log_warn("collectives over hosts are slower: " + describe(error));
    every_second(0);
    return every_second(1);
  }
  std::exception_ptr own;
  try {
    every_second(0);
  } catch (...) {
    own = std::current_exception();
  }
  // Also after an own error: the thread uses tensors of this call.
  second.join();
  if (own) std::rethrow_exception(own);
  if (other) std::rethrow_exception(other);
}

int TwoLevel::partner(int host) const {
  const auto& ranks = map_.hosts[static_cast<std::size_t>(host)];
  return ranks[static_cast<std::size_t>(map_.local) % ranks.size()];
}

std::vector<int> TwoLevel::served(int host) const {
  const auto& ranks = map_.hosts[static_cast<std::size_t>(host)];
  std::vector<int> mine;
  for (std::size_t i = static_cast<std::size_t>(map_.local); i < ranks.size();
       i += static_cast<std::size_t>(map_.local_world()))
    mine.push_back(ranks[i]);
  return mine;
}

int TwoLevel::place_of(int rank) const {
  const auto found = std::find(map_.members().begin(), map_.members().end(), rank);
  return found == map_.members().end() ? -1 : static_cast<int>(found - map_.members().begin());
}

}  // namespace weft::comm::internal
