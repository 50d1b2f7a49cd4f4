#include "weft/net/stream/message_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace weft::net::internal {
namespace {

// Most bytes that the claimed length of a message reserves.
constexpr std::size_t kMaxReserved = std::size_t{4} << 20;

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

MessageStream::MessageStream(UniqueFd fd, std::size_t max_message)
    : fd_(std::move(fd)), max_message_(max_message), out_(0, 0), in_(0, 0) {}

void MessageStream::send(std::string head, std::string body) {
  Outgoing& out = outgoing_.emplace_back();
  out.head = std::move(head);
  out.body = std::move(body);
  queue(out, std::as_bytes(std::span(out.body)));
}

void MessageStream::send_in_place(std::string head, std::span<const std::byte> body) {
  Outgoing& out = outgoing_.emplace_back();
  out.head = std::move(head);
  queue(out, body);
}

void MessageStream::queue(Outgoing& out, std::span<const std::byte> body) {
  Header header;
  header.type = FrameType::kData;
  header.message = sent_++;
  header.total = out.head.size() + body.size();
  out.bytes = header.total;
  queued_ += out.bytes;
  for (std::span<const std::byte> part : {std::as_bytes(std::span(out.head)), body}) {
    while (!part.empty() || out.frames == 0) {
      const std::size_t size = std::min(part.size(), kMaxPayload);
      out_.push(header, part.first(size));
      header.offset += size;
      part = part.subspan(size);
      ++out.frames;
    }
  }
}

bool MessageStream::flush() {
  while (!out_.empty()) {
    std::array<std::span<const std::byte>, 32> parts;
    std::array<iovec, parts.size()> vectors;
    const std::size_t count = out_.next(parts);
    for (std::size_t i = 0; i < count; ++i)
      vectors[i] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = count;
    const ssize_t written = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return would_block(errno);
    for (std::size_t done = out_.advance(static_cast<std::size_t>(written)); done > 0;) {
      const std::size_t some = std::min(done, outgoing_.front().frames);
      outgoing_.front().frames -= some;
      done -= some;
      if (outgoing_.front().frames > 0) continue;
      queued_ -= outgoing_.front().bytes;
      give_spare(std::move(outgoing_.front().body));
      outgoing_.pop_front();
    }
  }
  return true;
}

// Checks the header that has arrived, and makes room for its payload.
void MessageStream::begin_frame() {
  const Header& header = in_.header();
  if (header.type != FrameType::kData || header.channel != 0 || header.message != received_ ||
      header.offset != have_ || header.total > max_message_)
    throw Error(Errc::kCorrupt, "a frame does not belong to a message");
  if (have_ == 0 && header.total > kMaxPayload) {
    partial_ = take_spare();
    partial_.reserve(std::min<std::size_t>(header.total, kMaxReserved));
  }
  // Memory that was in use before is not cleared again.
  have_ += header.length;
  if (partial_.size() < have_) partial_.resize(have_);
  in_.place(reinterpret_cast<std::byte*>(partial_.data()) + header.offset);
}

void MessageStream::take_frames(std::vector<std::string>& messages) {
  for (;;) {
    switch (in_.take()) {
      case FrameReader::Input::kNeedBytes: return;
      case FrameReader::Input::kHeader: begin_frame(); break;
      case FrameReader::Input::kFrame:
        if (have_ < in_.header().total) break;
        partial_.resize(have_);
        messages.push_back(std::move(partial_));
        partial_.clear();
        have_ = 0;
        ++received_;
    }
  }
}

void MessageStream::give_spare(std::string memory) {
  if (memory.size() > spare_.size()) spare_ = std::move(memory);
}

bool MessageStream::receive(std::vector<std::string>& messages) {
  take_frames(messages);
  for (;;) {
    const FrameReader::Space space = in_.space();
    std::array<iovec, 2> vectors;
    std::size_t count = 0, room = 0;
    for (const auto& part : space) {
      if (part.empty()) continue;
      vectors[count++] = {part.data(), part.size()};
      room += part.size();
    }
    const ssize_t got = ::readv(fd_.get(), vectors.data(), static_cast<int>(count));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return would_block(errno);
    if (got == 0) return false;
    in_.filled(static_cast<std::size_t>(got));
    take_frames(messages);
    if (static_cast<std::size_t>(got) < room) return true;
  }
}

}  // namespace weft::net::internal
