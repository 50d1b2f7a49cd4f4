#include "weft/ps/internal/state_pieces.h"

namespace weft::ps::internal {

std::string StateSender::begin(Shard& shard) {
  head_ = shard.begin_state();
  given_ = 0;
  ByteWriter out;
  out.put(static_cast<std::uint64_t>(head_.size()));
  return out.take() + next_of_head();
}

std::string StateSender::next(Shard& shard) {
  if (given_ < head_.size()) return next_of_head();
  *this = StateSender();
  return shard.next_rows().value_or("");
}

std::string StateSender::next_of_head() {
  std::string piece = head_.substr(given_, kPieceBytes);
  given_ += piece.size();
  return piece;
}

bool StateReceiver::take(const ChainMessage& message, Shard& shard) {
  if (has_state_) return false;
  if (message.transfer > transfer_ && message.piece == 0) {
    transfer_ = message.transfer;
    pieces_ = 0;
  }
  if (message.transfer != transfer_ || message.piece != pieces_) return false;
  if (message.piece == 0 || head_bytes_ > 0) {
    take_head(message, shard);
  } else if (!message.payload.empty()) {
    shard.receive_rows(message.payload);
  } else {
    shard.finish_state();
    has_state_ = true;
  }
  ++pieces_;
  return has_state_;
}

std::uint64_t StateReceiver::work_of(const ChainMessage& message) const {
  const bool is_next = message.kind == ChainMessage::Kind::kState &&
                       message.transfer == transfer_ && message.piece == pieces_;
  return is_next && head_.size() + message.payload.size() >= head_bytes_ ? head_bytes_ : 0;
}

void StateReceiver::take_head(const ChainMessage& message, Shard& shard) {
  ByteReader in(message.payload);
  if (message.piece == 0) {
    head_.clear();
    head_bytes_ = in.take<std::uint64_t>();
  }
  head_ += in.take_view(in.left(), 1);
  if (head_.size() < head_bytes_) return;
  shard.receive_state(head_);
  head_ = std::string();
  head_bytes_ = 0;
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
