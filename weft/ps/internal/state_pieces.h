// The state of a shard in pieces: as a server that joins receives it, and as a client saves it. For
// one thread.
#pragma once

#include <cstdint>
#include <string>

#include "weft/ps/internal/chain_message.h"
#include "weft/ps/internal/shard.h"

namespace weft::ps::internal {

// Takes each piece of a transfer once, in order. A new transfer begins again with its first piece.
class StateReceiver {
 public:
  bool has_state() const { return has_state_; }
  // The founder of a shard has the empty state.
  void found() { has_state_ = true; }
  // Another server sends it from now on.
  void restart() { transfer_ = pieces_ = 0; }
  // The transfer, and the number of its pieces so far.
  std::uint64_t transfer() const { return transfer_; }
  std::uint64_t pieces() const { return pieces_; }
  // True if this was the last piece: `shard` has the state now. Throws as Shard::receive_state().
  bool take(const ChainMessage& message, Shard& shard);

 private:
  bool has_state_ = false;
  std::uint64_t transfer_ = 0, pieces_ = 0;
};

// Gives one client the pieces of a save, and the last one again. Only one reader of the rows at a
// time: a later client or a server that joins interrupts it.
class SaveReader {
 public:
  // The answer to a kSave; empty: the save is complete.
  Answer piece(const Request& request, Shard& shard);
  Answer refuse_save(const char* why);
  void interrupt() { client_ = 0; }

 private:
  std::uint64_t client_ = 0;  // 0: none
  std::uint64_t piece_ = 0;
  std::string bytes_;
};

}  // namespace weft::ps::internal
