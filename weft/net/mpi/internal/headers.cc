#include "weft/net/mpi/internal/headers.h"

#include <utility>

namespace weft::net::mpi::internal {

Headers::Headers(Runtime& runtime, Comm comm, int world)
    : runtime_(runtime),
      comm_(comm),
      incoming_(sizeof(Header) + kShort),
      tags_(static_cast<std::size_t>(world)) {}

std::int32_t Headers::next_tag(int peer) {
  constexpr std::int32_t kTags = 1 << 24;  // MPICH has 2^28, Open MPI 2^31
  std::int32_t& last = tags_[static_cast<std::size_t>(peer)];
  last = tag_after(last, kTags);
  return last;
}

void Headers::post(int peer, const Header& header, std::span<const std::byte> data) {
  Outgoing out{std::vector<std::byte>(sizeof header + data.size()), {}};
  std::memcpy(out.bytes.data(), &header, sizeof header);
  if (!data.empty()) std::memcpy(out.bytes.data() + sizeof header, data.data(), data.size());
  std::int32_t done = 0;
  runtime_.check(
      runtime_.table().isend(comm_, out.bytes.data(), out.bytes.size(), peer, kTag, &out.request),
      "MPI_Isend");
  runtime_.check(runtime_.table().test(&out.request, &done, nullptr), "MPI_Test");
  if (done == 0) outgoing_.push_back(std::move(out));
}

void Headers::listen() {
  if (!listening_) post_receive();
}

void Headers::post_receive() {
  runtime_.check(runtime_.table().irecv(comm_, incoming_.data(), incoming_.size(), kAnySource, kTag,
                                        &request_),
                 "MPI_Irecv");
  listening_ = true;
}

void Headers::free_sent() {
  outgoing_.remove_if([&](Outgoing& out) {
    std::int32_t done = 0;
    runtime_.check(runtime_.table().test(&out.request, &done, nullptr), "MPI_Test");
    return done != 0;
  });
}

void Headers::close(std::chrono::milliseconds grace) noexcept {
  if (!listening_) return;
  std::int32_t done = 0;
  runtime_.table().cancel(&request_);
  for (const auto end = Deadline::in(grace); done == 0 && !end.passed();)
    runtime_.table().test(&request_, &done, nullptr);
  listening_ = false;
}

}  // namespace weft::net::mpi::internal
