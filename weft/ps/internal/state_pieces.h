// The state of a shard in pieces: as a server that joins receives it, and as a client saves it. For
// one thread.
//
// Pieces of a transfer: the size of the head (u64) and the head, which is all but the rows; then
// rows; then an empty one. Pieces have about 1 MiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "weft/ps/internal/chain_message.h"
#include "weft/ps/internal/shard.h"

namespace weft::ps::internal {

inline constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // of the head

// Makes the pieces of a transfer.
class StateSender {
 public:
  // The first piece. Fixes the moment of the state, and copies its head.
  std::string begin(Shard& shard);
  // The next one. Throws as Shard::next_rows().
  std::string next(Shard& shard);

 private:
  std::string next_of_head();

  std::string head_;
  std::size_t given_ = 0;  // bytes of the head
};

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
  // Bytes of the head, if this message completes it: take() then reads all of it.
  std::uint64_t work_of(const ChainMessage& message) const;

 private:
  void take_head(const ChainMessage& message, Shard& shard);

  bool has_state_ = false;
  std::uint64_t transfer_ = 0, pieces_ = 0;
  std::string head_;
  std::uint64_t head_bytes_ = 0;  // 0: the shard has the head, or there is none yet
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
