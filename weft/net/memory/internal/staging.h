// Staging memory of a group: through it the ranks exchange data that peers cannot read in place.
// Beside it stands what a rank tells its peers about its own memory, for reads by the kernel
// (single_copy.h).
//
// A piece belongs to one rank; its peers read it. The pieces are used in turn, also from one
// operation to the next, and so are the chunks in their memory. If one piece were used again and
// again, its cache lines would stay in the first-level caches of both cores, where the lines of a
// peer take twice as long to reach.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "weft/net/memory/host.h"
#include "weft/net/memory/internal/route_choice.h"
#include "weft/schedule/schedule.h"

namespace weft::net::internal {

class Staging {
 public:
  static constexpr std::size_t kPiece = 256 << 10;  // bytes; each rank has two
  static constexpr std::size_t kChunk = 16 << 10;   // bytes; each rank has kChunks in its pieces
  static constexpr std::uint32_t kChunks = 2 * kPiece / kChunk;

  // Collective: tries whether every rank can read its peers' memory. `memory` has
  // bytes_of(host.world()), is zeroed, and the same for all ranks. meet() is a barrier.
  Staging(Host& host, std::byte* memory, const std::function<void()>& meet);
  static std::size_t bytes_of(int world) {
    return (sizeof(Seat) + 2 * kPiece) * static_cast<std::size_t>(world);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::byte* piece(int rank, std::uint32_t index) const {
    return data(rank) + (index & 1) * kPiece;
  }
  std::byte* chunk(int rank, std::uint32_t index) const {
    return data(rank) + (index % kChunks) * kChunk;
  }
  // Number of the next piece, and of the first of the next `count` chunks. The same on all ranks.
  // Pieces do not count as chunks: filled() must stay near the number of the next chunk, since a
  // rank compares them by their signed difference.
  std::uint32_t take_piece() { return next_piece_++; }
  std::uint32_t take_chunks(std::uint32_t count) {
    return std::exchange(next_chunk_, next_chunk_ + count);
  }
  // Number of chunks that the rank has filled.
  std::atomic<std::uint32_t>& filled(int rank) const { return seat(rank).filled; }

  // True if the kernel lets every rank read the memory of its peers.
  bool single_copy() const { return single_copy_; }
  // Publishes the arrays of this rank for the operation that begins with barrier `number`. Call it
  // before that barrier. Does nothing if the kernel cannot read them for the peers.
  void publish(std::uint32_t number, const void* input, const void* output, std::size_t bytes);
  // True if every rank has published its arrays for this operation. Call it after that barrier.
  bool all_published(std::uint32_t number) const;
  std::uint64_t input(int rank) const { return seat(rank).input; }
  std::uint64_t output(int rank) const { return seat(rank).output; }
  // Copies from an array of `peer` to `to`. Throws kPeerLost if it has ended, else kUnavailable,
  // after it has ended the group.
  void read(int peer, std::uint64_t from, void* to, std::size_t bytes, const char* operation);
  // kPiece bytes of this rank's own memory.
  std::byte* scratch();

  // The way of the next operation of this collective with `bytes` of data. Call it after its first
  // barrier, if all_published().
  Route next_route(schedule::Collective operation, std::uint64_t bytes);
  // Keeps the time of the operation; next_route() of the next one reports it for all ranks.
  void took(std::chrono::nanoseconds time) { routes_.took(time); }

 private:
  // Written by its rank only.
  struct alignas(128) Seat {
    std::uint64_t nonce, nonce_at;
    std::int32_t pid;
    bool reads_peers;
    alignas(64) std::uint32_t published;  // number of the operation
    std::uint64_t input, output;          // addresses in that process
    std::int64_t took;                    // nanoseconds of its last operation that used a route
    alignas(128) std::atomic<std::uint32_t> filled;
  };

  Seat& seat(int rank) const { return reinterpret_cast<Seat*>(memory_)[rank]; }
  std::byte* data(int rank) const {
    return memory_ + sizeof(Seat) * static_cast<std::size_t>(host_.world()) +
           2 * kPiece * static_cast<std::size_t>(rank);
  }

  Host& host_;
  std::byte* memory_;
  std::uint32_t next_piece_ = 0, next_chunk_ = 0;
  bool single_copy_ = false;
  // The arrays that kernel_can_read() saw last.
  const void *checked_input_ = nullptr, *checked_output_ = nullptr;
  std::size_t checked_bytes_ = 0;
  std::unique_ptr<std::byte[]> scratch_;
  Routes routes_;
};

}  // namespace weft::net::internal
