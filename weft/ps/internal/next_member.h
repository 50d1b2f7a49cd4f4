// The next member of a chain: what it has, and how it gets what it lacks.
//
// It gets commands in their order, or first the state in pieces, each after the acknowledgment of
// the one before. A command is kept until it is committed and the next member has it: if that is
// lost, the one after it may lack it. For one thread, without a clock: it counts ticks.
//
// Messages are returned without addresses. They refer to this until the next call.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "weft/ps/internal/chain_message.h"
#include "weft/ps/internal/shard.h"
#include "weft/ps/internal/state_pieces.h"

namespace weft::ps::internal {

class NextMember {
 public:
  using Messages = std::vector<ChainMessage>;

  const std::optional<Member>& member() const { return member_; }
  // Another member, or none, is next. It has not told what it has.
  void replace(const std::optional<Member>& member);
  // Position that it has acknowledged. None: it has told nothing, or that it needs the state.
  const std::optional<std::uint64_t>& has() const { return has_; }
  bool needs_state() const { return needs_state_; }

  // A new command for it.
  Messages add(std::uint64_t position, std::string command);
  // `applied`: the commands that `shard` has.
  Messages take_ack(const ChainMessage& ack, Shard& shard, std::uint64_t applied);
  void commit(std::uint64_t committed);
  // A sign of life, and what got lost.
  Messages tick(std::uint64_t applied);

  // For the reports of tests.
  std::string describe() const;

 private:
  struct Entry {
    std::uint64_t position;
    std::string bytes;
  };

  Messages missing();
  std::uint64_t ticks_until_again() const;
  Messages begin_state(Shard& shard, std::uint64_t applied);
  Messages next_piece(Shard& shard, std::uint64_t applied);
  void end_state();

  std::optional<Member> member_;
  std::deque<Entry> log_;
  std::optional<std::uint64_t> has_;
  bool needs_state_ = false;
  std::uint64_t silent_ticks_ = 0;  // since it has made progress
  // The state that goes to it: position, number, piece.
  std::uint64_t state_position_ = 0, transfer_ = 0, piece_ = 0;
  StateSender state_;
  std::string piece_bytes_;
};

}  // namespace weft::ps::internal
