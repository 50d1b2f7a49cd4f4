// The state of a shard in pieces: to a server that joins, and for checkpoints.
#include <algorithm>

#include "weft/ps/internal/replica.h"

namespace weft::ps::internal {

// The next piece for a checkpoint, or the last one again; empty: the save is complete. Only one
// reader of the rows at a time: a server that joins comes first.
Answer Replica::save_piece(const Request& request) {
  const auto refuse_save = [&](const char* why) {
    save_client_ = 0;
    save_bytes_.clear();
    return refuse(Errc::kAborted, std::string("the save begins again: ") + why);
  };
  if (next_needs_state_) return refuse_save("the state goes to another server now");
  if (request.version == 0) {
    save_client_ = request.client;
    save_piece_ = 0;
    save_bytes_ = shard_.begin_save();
  } else if (save_client_ != request.client) {
    return refuse_save("another client or server has read the state meanwhile");
  } else if (request.version == save_piece_ + 1) {
    try {
      save_bytes_ = shard_.next_rows().value_or("");
    } catch (const Error& error) {
      if (error.code() == Errc::kUnavailable) return refuse(error.code(), error.message());
      return refuse_save(error.message().c_str());
    }
    ++save_piece_;
  } else if (request.version != save_piece_) {
    return refuse_save("its pieces are out of order");
  }
  Answer answer;
  answer.payload = save_bytes_;
  return answer;
}

void Replica::begin_state() {
  save_client_ = 0;
  state_position_ = applied_;
  ++state_transfer_;
  state_piece_ = 0;
  state_bytes_ = shard_.begin_state();
  send_state();
}

void Replica::send_state() {
  silent_ticks_ = 0;
  ChainMessage message = message_to(ChainMessage::Kind::kState, *next_, state_position_);
  message.transfer = state_transfer_;
  message.piece = state_piece_;
  message.payload = state_bytes_;
  messages_.push_back({next_->server, encode(message)});
}

void Replica::send_next_piece() {
  try {
    state_bytes_ = shard_.next_rows().value_or("");
    ++state_piece_;
    send_state();
  } catch (const Error& error) {
    if (error.code() != Errc::kAborted && error.code() != Errc::kUnavailable) throw;
    begin_state();
  }
}

void Replica::take_state(const ChainMessage& message) {
  if (has_state_) return send_ack();
  if (message.transfer > receives_ && message.piece == 0) {
    receives_ = message.transfer;
    received_ = 0;
  }
  if (message.transfer != receives_ || message.piece != received_) return send_ack();
  if (message.piece == 0) {
    shard_.receive_state(message.payload);
  } else if (!message.payload.empty()) {
    shard_.receive_rows(message.payload);
  } else {
    shard_.finish_state();
    has_state_ = true;
    applied_ = message.position;
    committed_ = std::max(committed_, std::min(message.committed, message.position));
    if (!next_) commit(applied_);
  }
  ++received_;
  send_ack();
}

}  // namespace weft::ps::internal
