// Lets the ranks of a host see which call each of them is about to make.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "weft/net/memory/direct.h"
#include "weft/net/memory/host.h"

namespace weft::comm::internal {

// One thread per rank at a time. `host` outlives it.
class CallExchange {
 public:
  // What a rank publishes about a call: the location of its data, and the first bytes of the data
  // in `data`.
  struct Note {
    net::Signature signature;
    net::Host::Token input = net::Host::kNoToken, output = net::Host::kNoToken;
    std::uint32_t flat = 0;  // 1: this rank cannot use shared memory for the call
  };
  static constexpr std::size_t kInline = 4096;

  // Collective.
  CallExchange(net::Host& host, std::chrono::nanoseconds timeout);

  // Collective: publishes a note and returns when all ranks of the host have published theirs. The
  // notes stay readable until this rank's next meeting.
  void show(const Note& note, const void* data, std::size_t bytes, const char* operation,
            std::chrono::nanoseconds timeout);
  const Note& note(int peer) const;
  const std::byte* data(int peer) const;

  // Collective barrier of the host's ranks.
  void meet(const char* operation, std::chrono::nanoseconds timeout);

 private:
  struct Slot;
  Slot& slot(int rank) const;

  net::Host& host_;
  std::byte* slots_;
  std::uint32_t sequence_ = 0;  // meetings so far
};

}  // namespace weft::comm::internal
