// The commands that a shard has applied, and their answers, so that a repeated one is not applied
// again. An answer stays until its client says that it has it. For one thread.
#pragma once

#include <cstdint>
#include <map>

#include "weft/ps/internal/request.h"
#include "weft/ps/internal/state_bytes.h"

namespace weft::ps::internal {

class Applied {
 public:
  bool has(std::uint64_t client, std::uint64_t sequence) const;
  // The answer of a command that was applied. Empty if its client has said that it has it: it does
  // not wait for it.
  Answer answer(const Request& command) const;
  void add(const Request& command, Answer answer);

  void put(ByteWriter& out) const;
  static Applied taken(ByteReader& in);

 private:
  struct Client {
    std::uint64_t last = 0;
    std::map<std::uint64_t, Answer> answers;  // by sequence
  };
  std::map<std::uint64_t, Client> clients_;
};

}  // namespace weft::ps::internal
