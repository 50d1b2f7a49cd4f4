// Collectives of a group over several hosts: shared memory within a host, messages between hosts.
// Every rank of a host takes part in both.
//
//   all_reduce, H hosts:   1. each rank sums its segment over its host's inputs, in place
//                          2. it all-reduces the segment with the ranks that have it on the other
//                          hosts
//                          3. it writes the sum into all outputs of its host
//
// A host sends 2n(H-1)/H elements in all. Only one rank touches each element of an array. So a call
// needs two meetings and no copies. Two threads process the array in chunks, so that one chunk is
// on the network while another is summed in memory. Each sum is computed once and distributed, so
// all ranks get the same bits, determined by (hosts, count).
//
//   elements that a host of L ranks sends (world W, H hosts; blocks of n)
//   all_reduce 2n(H-1)/H · broadcast, reduce: as the schedule between H ranks · all_gather Ln(H-1)
//   · reduce_scatter n(W-L)
//   all_to_all Ln(W-L) · gather, scatter: the blocks that change hosts · barrier 0
//
// All ranks run the call by messages alone in two cases: the ranks of a host cannot read a rank's
// tensors and the heap has no room for a copy, or the required order of sums does not fit the
// hosts.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "weft/comm/internal/call_exchange.h"
#include "weft/comm/internal/engine.h"
#include "weft/comm/internal/linked_transports.h"
#include "weft/comm/internal/segments.h"
#include "weft/net/execute/executor.h"

namespace weft::comm::internal {

class TwoLevel {
 public:
  // Collective. `flat` runs the calls that cannot use two levels. It outlives this, as do the
  // transports.
  TwoLevel(LinkedTransports& transports, Engine& flat, std::chrono::nanoseconds timeout,
           const Tuning& tuning);
  ~TwoLevel();

  // Within transports.guard(). One call at a time.
  void run(schedule::Collective collective, const net::DirectArgs& args);

 private:
  // State of one of the two threads.
  struct Queue {
    int number = 0;
    net::Executor executor;
    std::map<std::vector<int>, std::unique_ptr<net::Endpoint>> views;
    std::vector<std::byte> scratch;
  };
  // A call under way.
  struct Call {
    schedule::Collective collective;
    net::DirectArgs args;
    std::int64_t element;
    const char* name;
    int root_host = 0;  // the host of args.root
    Deadline deadline() const { return Deadline::in(args.timeout); }
    std::int64_t bytes(std::int64_t count) const { return count * element; }
  };
  // Makes memory readable for the ranks of the host: as it is, or as a copy in the heap.
  class Shared;
  struct Header;

  void check(const Call& call) const;
  // The first meeting: all ranks publish their call, on the host and across hosts. Returns false if
  // a rank needs the flat path.
  bool agree(const Call& call, const CallExchange::Note& note, std::int64_t inline_bytes);
  Header header_of_host() const;
  void exchange_headers(const Call& call, const Header& mine, std::int64_t inline_bytes);
  void mismatch(const Header& header);

  // Runs between the two meetings.
  void move(const Call& call);
  void all_reduce_small(const Call& call);
  // All-reduce, broadcast and reduce: processes the own segments one after the other.
  void by_segments(const Call& call);
  void all_reduce_segment(const Call& call, Queue& queue, const Segment& segment);
  void broadcast_segment(const Call& call, Queue& queue, const Segment& segment);
  void reduce_segment(const Call& call, Queue& queue, const Segment& segment);
  void across(const Call& call, Queue& queue, const Segment& segment, const std::byte* input,
              std::byte* output);
  void all_gather(const Call& call, Queue& queue, std::int64_t at, std::int64_t count);
  void reduce_scatter(const Call& call, Queue& queue, std::int64_t at, std::int64_t count);
  void all_to_all(const Call& call);
  void gather(const Call& call);
  void scatter(const Call& call);

  // Calls work(at, count, queue) for all chunks of [0, count), on two threads if there are several
  // chunks. The position of both shows `operation`.
  void in_chunks(const char* operation, std::int64_t count, std::int64_t per_chunk,
                 const std::function<void(std::int64_t, std::int64_t, Queue&)>& work);
  void by_blocks(const Call& call);

  // The rank on `host` that exchanges blocks with this rank, and the ranks on that host that this
  // rank serves.
  int partner(int host) const;
  std::vector<int> served(int host) const;
  bool root_is_here(const Call& call) const { return call.root_host == map_.host; }
  int place_of(int rank) const;
  // Counts `bytes` for each other rank of this host.
  void count_in_host(std::int64_t bytes) {
    transports_.host().count_moved(static_cast<std::uint64_t>(bytes * (map_.local_world() - 1)));
  }
  const std::byte* input(int local) const { return inputs_[static_cast<std::size_t>(local)]; }
  std::byte* output(int local) const { return outputs_[static_cast<std::size_t>(local)]; }

  LinkedTransports& transports_;
  Engine& flat_;
  const HostMap& map_;
  net::Endpoint& endpoint_;
  const Chooser chooser_;  // of schedules between one rank of each host
  // sums over the host and then across hosts would not have the required order
  const bool out_of_order_;
  CallExchange calls_;
  Queue queues_[2];
  std::vector<Header> headers_;               // by host, of the call under way
  std::vector<std::vector<std::byte>> data_;  // by host: the data that came with the headers
  // Inputs of the host's ranks, as mapped in this process; null if there is none.
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

}  // namespace weft::comm::internal
