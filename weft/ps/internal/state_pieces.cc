#include "weft/ps/internal/state_pieces.h"

namespace weft::ps::internal {

bool StateReceiver::take(const ChainMessage& message, Shard& shard) {
  if (has_state_) return false;
  if (message.transfer > transfer_ && message.piece == 0) {
    transfer_ = message.transfer;
    pieces_ = 0;
  }
  if (message.transfer != transfer_ || message.piece != pieces_) return false;
  if (message.piece == 0) {
    shard.receive_state(message.payload);
  } else if (!message.payload.empty()) {
    shard.receive_rows(message.payload);
  } else {
    shard.finish_state();
    has_state_ = true;
  }
  ++pieces_;
  return has_state_;
}

Answer SaveReader::refuse_save(const char* why) {
  client_ = 0;
  bytes_.clear();
  return refuse(Errc::kAborted, std::string("the save begins again: ") + why);
}

Answer SaveReader::piece(const Request& request, Shard& shard) {
  if (request.version == 0) {
    client_ = request.client;
    piece_ = 0;
    bytes_ = shard.begin_save();
  } else if (client_ != request.client) {
    return refuse_save("another client or server has read the state meanwhile");
  } else if (request.version == piece_ + 1) {
    try {
      bytes_ = shard.next_rows().value_or("");
    } catch (const Error& error) {
      if (error.code() == Errc::kUnavailable) return refuse(error.code(), error.message());
      return refuse_save(error.message().c_str());
    }
    ++piece_;
  } else if (request.version != piece_) {
    return refuse_save("its pieces are out of order");
  }
  Answer answer;
  answer.payload = bytes_;
  return answer;
}

}  // namespace weft::ps::internal
