// Collectives of a group over several hosts: memory within a host, messages between them, every
// rank of a host at work in both.
//
//   all_reduce, H hosts:   1. each rank sums its segment over its host's inputs, in place
//                          2. it all-reduces the segment with the ranks that have it on the other
//                          hosts
//                          3. it writes the sum into all outputs of its host
//
// A host sends 2n(H-1)/H elements in all, and no more than one rank touches an element of any
// array: two meetings a call, no copies. Arrays go in chunks, by two threads in turns, so that one
// is on the wire while the other is in memory. Sums are made once and handed on: the same bits on
// every rank, fixed by (hosts, count).
//
//   elements that a host of L ranks sends (world W, H hosts; blocks of n)
//   all_reduce 2n(H-1)/H · broadcast, reduce: as the schedule between H ranks · all_gather Ln(H-1)
//   · reduce_scatter n(W-L)
//   all_to_all Ln(W-L) · gather, scatter: the blocks that change hosts · barrier 0
//
// Where a rank's tensors cannot be read by its host's ranks and the heap has no room for a copy, or
// where sums are to have an order that hosts do not have, all ranks run the call by messages alone.
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
  // Collective. `flat` runs the calls that cannot be run otherwise; it outlives this, as do the
  // transports.
  TwoLevel(LinkedTransports& transports, Engine& flat, std::chrono::nanoseconds timeout,
           const Plans& plans);
  ~TwoLevel();

  // Within transports.guard(). One call at a time.
  void run(schedule::Collective collective, const net::DirectArgs& args);

 private:
  // What one of the two threads works with.
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
  // Makes memory readable to the host's ranks: as it is, or as a copy in the heap.
  class Shared;
  struct Header;

  void check(const Call& call) const;
  // The first meeting: everybody shows what it calls, on the host and across. False: some rank
  // wants the call to be run flat.
  bool agree(const Call& call, const CallExchange::Note& note, std::int64_t inline_bytes);
  Header header_of_host() const;
  void exchange_headers(const Call& call, const Header& mine, std::int64_t inline_bytes);
  void mismatch(const Header& header);

  // Between the two meetings.
  void move(const Call& call);
  void all_reduce_small(const Call& call);
  // All-reduce, broadcast and reduce: each of the own segments, one after the other.
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

  // work(at, count, queue) for all chunks of [0, count), by two threads where there are several.
  void in_chunks(std::int64_t count, std::int64_t per_chunk,
                 const std::function<void(std::int64_t, std::int64_t, Queue&)>& work);
  void by_blocks(const Call& call);

  // The rank on `host` that exchanges blocks with this one; and the ranks there that this one
  // serves.
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
  const bool
      // sums over the host and then across would not have the order that was asked for
      out_of_order_;
  CallExchange calls_;
  Queue queues_[2];
  std::vector<Header> headers_;               // by host, of the call under way
  std::vector<std::vector<std::byte>> data_;  // the same: what came with them
  std::vector<const std::byte*>
      inputs_;  // of the host's ranks, as seen from here; null where there is none
  std::vector<std::byte*> outputs_;
};

}  // namespace weft::comm::internal
