// The constructor finds out whether the kernel lets ranks read each other's memory. A rank may not
// conclude it from the rules of the system, which are many (single_copy.h), so it tries. Each rank
// publishes the address and the value of a word on its stack, reads the words of all peers, and
// publishes whether all were right. Two barriers: the words stay valid until all have read them,
// and all ranks then see the same answers.
//
// A seat is written by its own rank, before a barrier, and read by the others after it. So its
// fields are plain, but for `filled`, which two ranks use without a barrier.
#include "weft/net/memory/internal/staging.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <string>

#include "weft/net/memory/internal/single_copy.h"

namespace weft::net::internal {
namespace {

std::uint64_t random_word() {
  std::random_device source;
  return (std::uint64_t{source()} << 32) | source();
}

}  // namespace

Staging::Staging(Host& host, std::byte* memory, const std::function<void()>& meet)
    : host_(host), memory_(memory) {
  const std::uint64_t nonce = random_word();
  Seat& mine = seat(host.rank());
  mine.nonce = nonce;
  mine.nonce_at = reinterpret_cast<std::uintptr_t>(&nonce);
  mine.pid = ::getpid();
  meet();
  // In another PID namespace, the number may be another process's, so the word is compared.
  mine.reads_peers = true;
  for (int peer = 0; peer < host.world(); ++peer) {
    std::uint64_t word = ~seat(peer).nonce;
    const bool read = read_process(seat(peer).pid, seat(peer).nonce_at, &word, sizeof word) == 0;
    mine.reads_peers = mine.reads_peers && read && word == seat(peer).nonce;
  }
  meet();
  single_copy_ = true;
  for (int peer = 0; peer < host.world(); ++peer)
    single_copy_ = single_copy_ && seat(peer).reads_peers;
}

void Staging::publish(std::uint32_t number, const void* input, const void* output,
                      std::size_t bytes) {
  if (!single_copy_) return;
  // A check costs system calls. Training passes the same arrays again and again.
  const bool known =
      input == checked_input_ && output == checked_output_ && bytes <= checked_bytes_;
  if (!known) {
    if (!kernel_can_read(input, bytes) || (output != input && !kernel_can_read(output, bytes)))
      return;
    checked_input_ = input;
    checked_output_ = output;
    checked_bytes_ = bytes;
  }
  Seat& mine = seat(host_.rank());
  mine.input = reinterpret_cast<std::uintptr_t>(input);
  mine.output = reinterpret_cast<std::uintptr_t>(output);
  // Travels with the arrays: all ranks then know the slowest time and choose the same route.
  mine.took = routes_.time().count();
  mine.published = number;
}

bool Staging::all_published(std::uint32_t number) const {
  if (!single_copy_) return false;
  for (int peer = 0; peer < host_.world(); ++peer)
    if (seat(peer).published != number) return false;
  return true;
}

void Staging::read(int peer, std::uint64_t from, void* to, std::size_t bytes,
                   const char* operation) {
  const int error = read_process(seat(peer).pid, from, to, bytes);
  if (error == 0) return;
  host_.check(operation);  // a rank of a group that has failed may have freed its memory, or ended
  const std::string named =
      "rank " + std::to_string(peer) + " (process " + std::to_string(seat(peer).pid) + ")";
  const Error::Context context{operation, host_.rank(), peer};
  const std::string mine = "rank " + std::to_string(host_.rank());
  if (error == ESRCH) {
    host_.fail_by(
        Error(Errc::kPeerLost, named + " has died while " + mine + " read its memory", context));
  }
  host_.fail_by(Error(Errc::kUnavailable,
                      mine + " cannot read the memory of " + named + ": " + std::strerror(error) +
                          "; copy the tensor to memory of libtorch",
                      context));
}

std::byte* Staging::scratch() {
  if (!scratch_) scratch_ = std::make_unique_for_overwrite<std::byte[]>(kPiece);
  return scratch_.get();
}

Route Staging::next_route(schedule::Collective operation, std::uint64_t bytes) {
  std::int64_t slowest = 0;
  for (int peer = 0; peer < host_.world(); ++peer) slowest = std::max(slowest, seat(peer).took);
  return routes_.next(static_cast<std::size_t>(operation), bytes, slowest);
}

}  // namespace weft::net::internal
