#include "weft/net/internal/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "weft/base/crc32c.h"

namespace weft::net::internal {

Connection::Connection(Fd fd, std::uint16_t stream, std::uint32_t epoch)
    : fd_(std::move(fd)), stream_(stream), epoch_(epoch), staging_(new std::byte[kStaging]) {}

Connection::Io Connection::closed(int error) {
  cause_ = error == 0 ? "its connection was closed" : "its connection broke: " + errno_text(error);
  return Io::kClosed;
}

void Connection::load(Header header, std::span<const std::byte> payload) {
  header.stream = stream_;
  header.epoch = epoch_;
  header.sequence = send_sequence_++;
  header.length = static_cast<std::uint32_t>(payload.size());
  header.payload_crc = crc32c(payload.data(), payload.size());
  out_ = encode(header);
  payload_ = payload;
  sent_ = 0;
  sending_ = true;
}

Connection::Io Connection::flush() {
  const std::size_t total = kHeaderBytes + payload_.size();
  while (sent_ < total) {
    iovec pieces[2];
    int count = 0;
    if (sent_ < kHeaderBytes) pieces[count++] = {out_.data() + sent_, kHeaderBytes - sent_};
    const std::size_t skip = sent_ > kHeaderBytes ? sent_ - kHeaderBytes : 0;
    if (skip < payload_.size()) pieces[count++] = {const_cast<std::byte*>(payload_.data()) + skip, payload_.size() - skip};
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = static_cast<std::size_t>(count);
    const auto n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (n >= 0) {
      sent_ += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Io::kBlocked;
    } else if (errno != EINTR) {
      return closed(errno);
    }
  }
  sending_ = false;
  return Io::kMoved;
}

void Connection::check_header() const {
  const auto corrupt = [](const std::string& what) { throw Error(Errc::kCorrupt, what); };
  if (in_.epoch != epoch_) corrupt("a frame of epoch " + std::to_string(in_.epoch) + " in a group of epoch " + std::to_string(epoch_));
  if (in_.stream != stream_) corrupt("a frame of stream " + std::to_string(in_.stream) + " on stream " + std::to_string(stream_));
  if (in_.sequence != receive_sequence_) {
    corrupt("frame " + std::to_string(in_.sequence) + " where frame " + std::to_string(receive_sequence_) + " was due");
  }
}

// The next `bytes` of the payload are in place.
void Connection::absorb(std::size_t bytes) {
  crc_ = crc32c(at_ + got_, bytes, crc_);
  got_ += bytes;
}

Connection::Input Connection::take() {
  if (state_ == State::kHead) {
    if (end_ - begin_ < kHeaderBytes) return Input::kNeedBytes;
    in_ = decode(std::span<const std::byte, kHeaderBytes>(staging_.get() + begin_, kHeaderBytes));
    begin_ += kHeaderBytes;
    check_header();
    ++receive_sequence_;
    state_ = State::kHeld;
  }
  if (state_ == State::kHeld) return Input::kHeader;
  if (got_ < in_.length && begin_ < end_) {
    const std::size_t n = std::min<std::size_t>(in_.length - got_, end_ - begin_);
    std::memcpy(at_ + got_, staging_.get() + begin_, n);
    begin_ += n;
    absorb(n);
  }
  if (got_ < in_.length) return Input::kNeedBytes;
  if (crc_ != in_.payload_crc) throw Error(Errc::kCorrupt, "a frame's payload fails its checksum");
  state_ = State::kHead;
  return Input::kFrame;
}

void Connection::place(std::byte* at) {
  at_ = at;
  got_ = 0;
  crc_ = 0;
  state_ = State::kBody;
}

Connection::Io Connection::fill(bool& drained) {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0) {  // a part of a header: to the front, so that the rest fits behind it
    std::memmove(staging_.get(), staging_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const std::size_t direct = state_ == State::kBody ? in_.length - got_ : 0;
  iovec pieces[2];
  int count = 0;
  if (direct > 0) pieces[count++] = {at_ + got_, direct};
  pieces[count++] = {staging_.get() + end_, kStaging - end_};
  const std::size_t wanted = direct + kStaging - end_;
  ssize_t n = 0;
  do {
    n = ::readv(fd_.get(), pieces, count);
  } while (n < 0 && errno == EINTR);
  drained = true;
  if (n == 0) return closed(0);
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Io::kBlocked : closed(errno);
  drained = static_cast<std::size_t>(n) < wanted;
  const std::size_t into_place = std::min(direct, static_cast<std::size_t>(n));
  if (into_place > 0) absorb(into_place);
  end_ += static_cast<std::size_t>(n) - into_place;
  return Io::kMoved;
}

}  // namespace weft::net::internal
