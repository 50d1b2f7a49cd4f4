// All-reduce of arrays that peers cannot read in place, such as malloc's. There are three ways:
//
// - By chunks, for two ranks: each rank copies its whole array through staging memory, and adds the
//   peer's copy to its array. One flag for each chunk, no barrier.
// - By pieces, for more ranks: each rank stages the shards that others reduce, and the result of
//   its own shard. Two barriers for each piece of 256 KiB.
// - By the kernel: each rank reads its shard of the peers' arrays, and then the results of the
//   others. Two barriers, and a system call for each block.
//
// What counts is the cache lines that cross from core to core. For two ranks and n lines in an
// array, each rank reads n lines of the peer in every way. Both ways to stage also take n lines of
// staging memory back from the peer, for writing. The kernel takes none, but needs about 0.1 us for
// each page. So staging is faster on cores that share a cache, and the kernel on others.
#include <algorithm>
#include <vector>

#include "weft/kernels/reduce.h"
#include "weft/net/memory/internal/direct_slot.h"

namespace weft::net {

using internal::copy_bytes;
using internal::copy_to_staging;
using internal::shard_begin;
using internal::Staging;

namespace {

constexpr std::uint32_t kAhead = 4;  // chunks that a rank stages before it reads the peer's
constexpr std::int64_t kMinChunk = 4096;

}  // namespace

void Direct::reduce_ordinary(const DirectArgs& args) {
  copy_either_way(
      schedule::Collective::kAllReduce, args.count * static_cast<std::int64_t>(size_of(args.dtype)),
      [&] { host_.world() == 2 ? reduce_chunks(args) : reduce_pieces(args); },
      [&] { reduce_by_kernel(args); });
}

void Direct::reduce_chunks(const DirectArgs& args) {
  const int rank = host_.rank(), peer = 1 - rank;
  const auto size = static_cast<std::int64_t>(size_of(args.dtype));
  const std::int64_t length = args.count * size;
  const std::int64_t chunk =
      std::clamp(length / 4 / 64 * 64, kMinChunk, static_cast<std::int64_t>(Staging::kChunk));
  const auto chunks = static_cast<std::uint32_t>((length + chunk - 1) / chunk);
  const auto* in = static_cast<const std::byte*>(args.input);
  auto* out = static_cast<std::byte*>(args.output);
  Staging& memory = staging();
  const std::uint32_t first = memory.take_chunks(chunks);
  const auto length_of = [&](std::uint32_t i) { return std::min(chunk, length - i * chunk); };
  // A chunk is used again after kChunks others. This rank stages chunk i after it has read the
  // peer's chunk i - kAhead, so the peer has then read this rank's chunk i - 2 * kAhead.
  static_assert(Staging::kChunks > 2 * kAhead);
  const auto stage = [&](std::uint32_t i) {
    copy_to_staging(memory.chunk(rank, first + i), in + i * chunk, length_of(i));
    memory.filled(rank).store(first + i + 1, std::memory_order_release);
  };
  const auto filled = [&](std::uint32_t i) {
    const std::uint32_t there = memory.filled(peer).load(std::memory_order_acquire);
    return static_cast<std::int32_t>(there - (first + i + 1)) >= 0;
  };
  std::uint32_t staged = 0;
  for (std::uint32_t i = 0; i < chunks; ++i) {
    // Stages ahead, so that the peer seldom waits for this rank.
    for (; staged < std::min(chunks, i + kAhead); ++staged) stage(staged);
    if (!filled(i)) {
      host_.notify();
      host_.wait([&] { return filled(i); }, [&] { return peer; }, name_, timeout_);
    }
    const void* sources[2];
    sources[rank] = in + i * chunk;
    sources[peer] = memory.chunk(peer, first + i);
    void* to = out + i * chunk;
    kernels::reduce(&to, 1, sources, 2, {args.dtype, args.op, length_of(i) / size});
  }
  moved_.add(static_cast<std::uint64_t>(length));
  host_.notify();
}

// Each rank stages the shards that others reduce, reduces its own shard of the piece into its
// output and its staging memory, and copies the other shards.
void Direct::reduce_pieces(const DirectArgs& args) {
  const int rank = host_.rank(), world = host_.world();
  const std::size_t size = size_of(args.dtype);
  const auto* in = static_cast<const std::byte*>(args.input);
  auto* out = static_cast<std::byte*>(args.output);
  const auto bytes = [&](std::int64_t n) { return n * static_cast<std::int64_t>(size); };
  const auto each_other_shard = [&](std::int64_t n, auto use) {
    for (int peer = 0; peer < world; ++peer) {
      const std::int64_t from = shard_begin(n, peer, world, size),
                         until = shard_begin(n, peer + 1, world, size);
      if (peer != rank) use(peer, bytes(from), bytes(until - from));
    }
  };
  std::vector<const void*> sources(static_cast<std::size_t>(world));
  pieces(
      args.count, static_cast<std::int64_t>(Staging::kPiece / size),
      [&](auto at, auto n, std::byte* mine) {
        each_other_shard(n, [&](int, auto from, auto length) {
          copy_to_staging(mine + from, in + bytes(at) + from, length);
        });
      },
      [&](auto at, auto n, auto piece) {
        const std::int64_t begin = shard_begin(n, rank, world, size),
                           end = shard_begin(n, rank + 1, world, size);
        for (int peer = 0; peer < world; ++peer) {
          sources[static_cast<std::size_t>(peer)] =
              (peer == rank ? in + bytes(at) : staging_->piece(peer, piece)) + bytes(begin);
        }
        // The result goes where no peer reads in this step: a rank's piece has no staged input in
        // its own shard. So peers may still be reading the rest of the piece.
        void* to[] = {out + bytes(at + begin), staging_->piece(rank, piece) + bytes(begin)};
        count_each(bytes(end - begin));
        if (end > begin)
          kernels::reduce(to, 2, sources.data(), world, {args.dtype, args.op, end - begin});
        meet();
        each_other_shard(n, [&](int peer, auto from, auto length) {
          moved_.add(static_cast<std::uint64_t>(length));
          copy_bytes(out + bytes(at) + from, staging_->piece(peer, piece) + from, length);
        });
      });
}

void Direct::reduce_by_kernel(const DirectArgs& args) {
  const int rank = host_.rank(), world = host_.world();
  const std::size_t element = size_of(args.dtype);
  const auto size = static_cast<std::int64_t>(element);
  const auto* in = static_cast<const std::byte*>(args.input);
  auto* out = static_cast<std::byte*>(args.output);
  Staging& memory = *staging_;
  const auto begin_of = [&](int shard) {
    return shard_begin(args.count, shard, world, element) * size;
  };
  const std::int64_t end = begin_of(rank + 1);
  const std::int64_t block =
      std::max<std::int64_t>(64, static_cast<std::int64_t>(Staging::kPiece) / world / 64 * 64);
  std::vector<const void*> sources(static_cast<std::size_t>(world));
  // No rank writes to a peer's memory here, and a read of freed memory returns an error number
  // instead of a fault. So this way needs no Touch.
  for (std::int64_t at = begin_of(rank); at < end; at += block) {
    const std::int64_t n = std::min(block, end - at);
    for (int peer = 0; peer < world; ++peer) {
      std::byte* const copy = memory.scratch() + peer * block;
      sources[static_cast<std::size_t>(peer)] = peer == rank ? in + at : copy;
      if (peer == rank) continue;
      memory.read(peer, memory.input(peer) + static_cast<std::uint64_t>(at), copy,
                  static_cast<std::size_t>(n), name_);
    }
    void* to = out + at;
    kernels::reduce(&to, 1, sources.data(), world, {args.dtype, args.op, n / size});
  }
  // After the next barrier all results are in place and all inputs are read. Only then the other
  // shards of this rank's array, which may be its input too, are overwritten.
  count_each(end - begin_of(rank));
  meet();
  for (int peer = 0; peer < world; ++peer) {
    const std::int64_t from = begin_of(peer), bytes = begin_of(peer + 1) - from;
    if (peer == rank || bytes == 0) continue;
    memory.read(peer, memory.output(peer) + static_cast<std::uint64_t>(from), out + from,
                static_cast<std::size_t>(bytes), name_);
    moved_.add(static_cast<std::uint64_t>(bytes));
  }
  meet();
}

}  // namespace weft::net
