// Where the ranks of a host meet and see what each of them is about to do.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "weft/net/memory/direct.h"
#include "weft/net/memory/host.h"

namespace weft::comm::internal {

// One thread a rank at a time. `host` outlives it.
class CallExchange {
 public:
  // What a rank shows of a call: where its peers find its data, and as much of it as `data` holds.
  struct Note {
    net::Signature signature;
    net::Host::Token input = net::Host::kNoToken, output = net::Host::kNoToken;
    std::uint32_t flat = 0;  // 1: this rank cannot take part in shared memory
  };
  static constexpr std::size_t kInline = 4096;

  // Collective.
  CallExchange(net::Host& host, std::chrono::nanoseconds timeout);

  // Collective: shows a note and returns when all ranks of the host have shown theirs. They can be
  // read until this rank's next meeting.
  void show(const Note& note, const void* data, std::size_t bytes, const char* operation,
            std::chrono::nanoseconds timeout);
  const Note& note(int peer) const;
  const std::byte* data(int peer) const;

  // Collective: nobody goes on before all have come here.
  void meet(const char* operation, std::chrono::nanoseconds timeout);

 private:
  struct Slot;
  Slot& slot(int rank) const;

  net::Host& host_;
  std::byte* slots_;
  std::uint32_t sequence_ = 0;  // meetings so far
};

}  // namespace weft::comm::internal
