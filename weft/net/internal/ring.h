// A byte ring in shared memory: one process writes frames, another reads them. Neither trusts the other's index or header.
//
// A frame starts at a multiple of 64, so that its header and a small payload are one cache line. Indices count bytes since the start and
// are never wrapped; each side keeps its own in private memory and publishes a copy. All orders are sequentially consistent: a side that
// publishes and then finds nobody asleep, and a side that says that it sleeps and then finds nothing published, cannot both happen.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "weft/net/internal/mailbox.h"

namespace weft::net::internal {

struct RingIndices {  // zero is the valid start
  alignas(128) std::atomic<std::uint64_t> head;
  alignas(128) std::atomic<std::uint64_t> tail;
};

struct RingView {
  RingIndices* indices = nullptr;
  std::byte* data = nullptr;
  std::size_t bytes = 0;    // a power of two
  std::uint32_t epoch = 0;  // stands in every frame
  int peer = -1;            // who is at the other end
};

class RingWriter {
 public:
  RingWriter() = default;
  explicit RingWriter(const RingView& ring) : ring_(ring) {}

  // Writes as much as fits of the rest of a message; `piece` says where that starts and how long it is. Gives the bytes written; nullopt
  // when there is no room worth using. Throws Error(kCorrupt) when the reader's index is impossible.
  std::optional<std::size_t> push(const Piece& piece, const std::byte* bytes);

 private:
  std::size_t room();
  RingView ring_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;  // as last seen
  std::uint32_t sequence_ = 0;
};

class RingReader {
 public:
  RingReader() = default;
  explicit RingReader(const RingView& ring) : ring_(ring) {}

  // The frame at the front, nullptr when there is none. Throws Error(kCorrupt) when the writer's index or header is impossible.
  const Piece* front();
  // Copies the front's payload and frees its place. True where a writer may wait for that place.
  bool take(std::byte* place);
  bool empty() { return front() == nullptr; }

 private:
  [[noreturn]] void throw_corrupt(const char* what) const;
  RingView ring_;
  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;  // as last seen
  std::uint32_t sequence_ = 0;
  bool have_front_ = false;
  Piece front_;
};

}  // namespace weft::net::internal
