// Collectives with one block for each rank. A block that changes hosts is sent once, directly to
// the rank that needs it. All other blocks are read in shared memory.
#include <cstring>

#include "weft/comm/internal/two_level_parts.h"
#include "weft/kernels/reduce.h"

namespace weft::comm::internal {
namespace {

using schedule::Collective;

constexpr net::Channel kBlocks = net::Channel{1} << 56;
// Of all ranks' blocks together.
constexpr std::int64_t kChunkBytes = 4 << 20;

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

std::span<const std::byte> bytes_at(const std::byte* place, std::int64_t bytes) {
  return {place, static_cast<std::size_t>(bytes)};
}
std::span<std::byte> bytes_at(std::byte* place, std::int64_t bytes) {
  return {place, static_cast<std::size_t>(bytes)};
}

}  // namespace

void TwoLevel::by_blocks(const Call& call) {
  const std::int64_t per_chunk = std::max<std::int64_t>(1, kChunkBytes / call.element / map_.world);
  in_chunks(call.name, call.args.count, per_chunk,
            [&](std::int64_t at, std::int64_t count, Queue& queue) {
              if (call.collective == Collective::kAllGather) {
                all_gather(call, queue, at, count);
              } else {
                reduce_scatter(call, queue, at, count);
              }
            });
}

// A rank's block is sent to one rank of each other host, which distributes it in shared memory.
void TwoLevel::all_gather(const Call& call, Queue& queue, std::int64_t at, std::int64_t count) {
  const std::int64_t bytes = call.bytes(count);
  const auto place = [&](int rank) { return call.bytes(rank * call.args.count + at); };
  const std::byte* const own = input(map_.local) + call.bytes(at);
  std::vector<net::Send> sends;
  std::vector<net::Recv> recvs;
  for (int host = 0; host < map_.num_hosts(); ++host) {
    if (host == map_.host) continue;
    sends.push_back({partner(host), bytes_at(own, bytes)});
    for (const int rank : served(host))
      recvs.push_back({rank, bytes_at(output(map_.local) + place(rank), bytes)});
  }
  for (int peer = 0; peer < map_.local_world(); ++peer)
    copy_bytes(output(peer) + place(map_.rank), own, bytes);
  endpoint_.exchange(kBlocks + static_cast<net::Channel>(queue.number), sends, recvs,
                     call.deadline());
  for (const net::Recv& recv : recvs) {
    for (int peer = 0; peer < map_.local_world(); ++peer)
      copy_bytes(output(peer) + place(recv.peer), recv.bytes.data(), bytes);
  }
  count_in_host(bytes * static_cast<std::int64_t>(1 + recvs.size()));
}

// On each host, one rank sums the block of the rank that it serves. The sums of the hosts are added
// in the order of the hosts.
void TwoLevel::reduce_scatter(const Call& call, Queue& queue, std::int64_t at, std::int64_t count) {
  const std::int64_t bytes = call.bytes(count);
  const int hosts = map_.num_hosts();
  std::vector<net::Send> sends;
  std::vector<net::Recv> recvs;
  std::vector<int> targets{map_.rank};
  for (int host = 0; host < hosts; ++host) {
    const auto mine = served(host);
    if (host != map_.host) targets.insert(targets.end(), mine.begin(), mine.end());
  }
  const auto needed =
      static_cast<std::size_t>(bytes) * (targets.size() + static_cast<std::size_t>(hosts));
  queue.scratch.resize(std::max(queue.scratch.size(), needed));
  count_in_host(bytes * static_cast<std::int64_t>(targets.size()));
  std::byte* next = queue.scratch.data();
  std::vector<const void*> sources(static_cast<std::size_t>(map_.local_world())),
      sums(static_cast<std::size_t>(hosts));
  for (const int target : targets) {
    for (int peer = 0; peer < map_.local_world(); ++peer)
      sources[static_cast<std::size_t>(peer)] =
          input(peer) + call.bytes(target * call.args.count + at);
    void* sum = next;
    kernels::reduce(&sum, 1, sources.data(), map_.local_world(),
                    {call.args.dtype, within(call.args.op), count});
    if (target != map_.rank)
      sends.push_back({target, bytes_at(static_cast<const std::byte*>(next), bytes)});
    next += bytes;
  }
  for (int host = 0; host < hosts; ++host) {
    if (host == map_.host) {
      sums[static_cast<std::size_t>(host)] = queue.scratch.data();
      continue;
    }
    recvs.push_back({partner(host), bytes_at(next, bytes)});
    sums[static_cast<std::size_t>(host)] = next;
    next += bytes;
  }
  endpoint_.exchange(kBlocks + static_cast<net::Channel>(queue.number), sends, recvs,
                     call.deadline());
  void* out = output(map_.local) + call.bytes(at);
  kernels::reduce(
      &out, 1, sums.data(), hosts,
      {.dtype = call.args.dtype, .op = call.args.op, .count = count, .divisor = map_.world});
}

void TwoLevel::all_to_all(const Call& call) {
  const std::int64_t bytes = call.bytes(call.args.count);
  const std::byte* const own = input(map_.local);
  std::byte* const out = output(map_.local);
  std::vector<net::Send> sends;
  std::vector<net::Recv> recvs;
  for (int host = 0; host < map_.num_hosts(); ++host) {
    for (const int rank : map_.hosts[static_cast<std::size_t>(host)]) {
      if (host == map_.host) {
        copy_bytes(out + rank * bytes, input(place_of(rank)) + map_.rank * bytes, bytes);
      } else {
        sends.push_back({rank, bytes_at(own + rank * bytes, bytes)});
        recvs.push_back({rank, bytes_at(out + rank * bytes, bytes)});
      }
    }
  }
  count_in_host(bytes);
  endpoint_.exchange(kBlocks, sends, recvs, call.deadline());
}

void TwoLevel::gather(const Call& call) {
  const std::int64_t bytes = call.bytes(call.args.count);
  if (map_.rank != call.args.root) {
    if (!root_is_here(call))
      endpoint_.send(call.args.root, kBlocks, bytes_at(input(map_.local), bytes), call.deadline());
    return;
  }
  count_in_host(bytes);
  std::vector<net::Recv> recvs;
  for (int rank = 0; rank < map_.world; ++rank) {
    std::byte* const to = output(map_.local) + rank * bytes;
    if (place_of(rank) >= 0) {
      copy_bytes(to, input(place_of(rank)), bytes);
    } else {
      recvs.push_back({rank, bytes_at(to, bytes)});
    }
  }
  endpoint_.exchange(kBlocks, {}, recvs, call.deadline());
}

void TwoLevel::scatter(const Call& call) {
  const std::int64_t bytes = call.bytes(call.args.count);
  std::byte* const out = output(map_.local);
  if (!root_is_here(call))
    return endpoint_.recv(call.args.root, kBlocks, bytes_at(out, bytes), call.deadline());
  copy_bytes(out, input(place_of(call.args.root)) + map_.rank * bytes, bytes);
  if (map_.rank != call.args.root)
    return transports_.host().count_moved(static_cast<std::uint64_t>(bytes));
  std::vector<net::Send> sends;
  for (int rank = 0; rank < map_.world; ++rank) {
    if (place_of(rank) < 0)
      sends.push_back({rank, bytes_at(input(map_.local) + rank * bytes, bytes)});
  }
  endpoint_.exchange(kBlocks, sends, {}, call.deadline());
}

}  // namespace weft::comm::internal
