// An operation is open(), the work, and a closing barrier if peers use each other's arrays.
//
//   open()   Each rank writes its slot (signature, places of its arrays or small data) and
//            arrives. When all have arrived, each rank compares the signatures.
//   work     Each rank decides from the slots how to move the data. All see the same slots, so all
//            take the same way, with the same number of barriers. They need no vote.
//   meet()   No peer uses this rank's arrays any more: the caller may change them.
//
// A barrier is a number: `sequence_` counts, and each rank stores it in its slot (release) and
// waits until all slots have it (acquire). So the plain fields of a slot are visible with its
// number. The difference is signed, so that the count may wrap.
//
//     barrier      n             n + 1          n + 2
//     slot         even          odd            even, written again
//                  └ read until the rank arrives at n + 1
//
// A rank gets past barrier n + 1 only when all have arrived there, and so have read the even slots.
// The all-reduce of small data therefore needs one barrier and no closing one.
//
// One thread of a rank at a time (the caller serializes). Shared state needs no lock: a rank writes
// its own slot only, and its own shard only.
#include "weft/net/memory/direct.h"

#include <algorithm>
#include <vector>

#include "weft/kernels/reduce.h"
#include "weft/net/memory/internal/direct_slot.h"
#include "weft/schedule/schedule.h"

namespace weft::net {

using internal::copy_bytes;
using internal::copy_to_staging;
using internal::shard_begin;
using internal::Staging;
using schedule::Collective;

Direct::Direct(Host& host, std::chrono::nanoseconds timeout) : host_(host) {
  slots_ = host.share(sizeof(Slot) * 2 * static_cast<std::size_t>(host.world()), timeout);
}

Direct::~Direct() = default;

Direct::Slot& Direct::slot(int rank) const {
  return reinterpret_cast<Slot*>(slots_)[2 * static_cast<std::size_t>(rank) + (sequence_ & 1)];
}

// Collective within an operation whose signatures agree. Another thread may be in Host::share() or
// Host::meet(), so this uses the barriers of the operations.
internal::Staging& Direct::staging() {
  if (staging_) return *staging_;
  const auto tell = [&](Host::Token mine) {
    ++sequence_;
    if (host_.rank() == 0) slot(0).input = mine;
    arrive();
    return slot(0).input;
  };
  std::byte* const memory = host_.share_by(tell, Staging::bytes_of(host_.world()));
  staging_ = std::make_unique<Staging>(host_, memory, [this] { meet(); });
  return *staging_;
}

void Direct::arrive() {
  slot(host_.rank()).sequence.store(sequence_, std::memory_order_release);
  host_.notify();
  int peer = 0;
  const int world = host_.world();
  host_.wait(
      [&] {
        while (peer < world &&
               static_cast<std::int32_t>(slot(peer).sequence.load(std::memory_order_acquire) -
                                         sequence_) >= 0)
          ++peer;
        return peer == world;
      },
      [&] { return peer; }, name_, timeout_);
}

void Direct::meet() {
  ++sequence_;
  arrive();
}

// First barrier of an operation: publishes the signature of the call and the location of the data.
// Small data is copied into the slot.
void Direct::open(const DirectArgs& args, Collective operation, std::int64_t inline_bytes) {
  name_ = schedule::to_string(operation);
  timeout_ = args.timeout;
  host_.check(name_);
  WEFT_REQUIRE(args.count >= 0, std::string(name_) + ": count is negative");
  WEFT_REQUIRE(args.root >= 0 && args.root < host_.world(),
               std::string(name_) + ": root " + std::to_string(args.root) + " is not in the group");
  ++sequence_;
  // The signature and the places are plain memory: arrive() publishes them.
  Slot& mine = slot(host_.rank());
  const Signature s = signature_of(operation, args);
  mine.signature = s;
  if (inline_bytes > 0) {
    copy_bytes(mine.data, static_cast<const std::byte*>(args.input), inline_bytes);
  } else {
    mine.input = args.input == nullptr ? Host::kNoToken : host_.token(args.input);
    mine.output = args.output == nullptr ? Host::kNoToken : host_.token(args.output);
  }
  arrive();
  for (int peer = 0; peer < host_.world(); ++peer) {
    if (!(slot(peer).signature == s)) mismatch(peer);
  }
}

void Direct::mismatch(int peer) {
  host_.fail_by(
      mismatch_error(host_.rank(), slot(host_.rank()).signature, peer, slot(peer).signature));
}

bool Direct::readable(bool inputs, bool outputs) const {
  for (int peer = 0; peer < host_.world(); ++peer) {
    if (inputs && slot(peer).input == Host::kNoToken) return false;
    if (outputs && slot(peer).output == Host::kNoToken) return false;
  }
  return true;
}

// Locations of the inputs. Read from the slots once, since the closing barrier switches to the
// other slot.
std::vector<const std::byte*> Direct::inputs() const {
  std::vector<const std::byte*> places;
  for (int peer = 0; peer < host_.world(); ++peer)
    places.push_back(host_.at(peer, slot(peer).input));
  return places;
}

void Direct::all_reduce(const DirectArgs& args) {
  const auto size = static_cast<std::int64_t>(size_of(args.dtype));
  const std::int64_t bytes = args.count * size;
  if (bytes <= static_cast<std::int64_t>(kInline)) {
    open(args, Collective::kAllReduce, bytes);
    reduce_inline(args, 0);
    return;
  }
  // Before the barrier, for peers that will let the kernel copy. Whether they do is decided after
  // it.
  if (host_.token(args.input) == Host::kNoToken) publish(args.input, args.output, bytes);
  open(args, Collective::kAllReduce, 0);
  if (readable(true, true)) {
    reduce_shards(args, true);
  } else {
    reduce_ordinary(args);
  }
}

// Every rank reduces the data in all slots, from element `first` on.
void Direct::reduce_inline(const DirectArgs& args, std::int64_t first) {
  const void* sources[256];
  for (int peer = 0; peer < host_.world(); ++peer)
    sources[peer] = slot(peer).data + first * static_cast<std::int64_t>(size_of(args.dtype));
  void* out = args.output;
  count_each(args.count * static_cast<std::int64_t>(size_of(args.dtype)));
  if (args.count > 0)
    kernels::reduce(&out, 1, sources, host_.world(), {args.dtype, args.op, args.count});
}

// Each rank reduces its shard of all inputs and writes it to every output (or to the root's only).
// No other rank touches this shard.
void Direct::reduce_shards(const DirectArgs& args, bool to_all) {
  const int rank = host_.rank(), world = host_.world();
  const std::size_t size = size_of(args.dtype);
  const std::int64_t begin = shard_begin(args.count, rank, world, size),
                     end = shard_begin(args.count, rank + 1, world, size);
  const auto offset = begin * static_cast<std::int64_t>(size);
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  for (int peer = 0; peer < world; ++peer) {
    sources.push_back(host_.at(peer, slot(peer).input) + offset);
    if (to_all || peer == args.root)
      destinations.push_back(host_.at(peer, slot(peer).output) + offset);
  }
  const std::int64_t bytes = (end - begin) * static_cast<std::int64_t>(size);
  count_each(to_all ? 2 * bytes : bytes);
  if (!to_all && rank != args.root) moved_.add(static_cast<std::uint64_t>(bytes));
  touch_and_meet([&] {
    if (end > begin)
      kernels::reduce(destinations.data(), static_cast<int>(destinations.size()), sources.data(),
                      world, {args.dtype, args.op, end - begin});
  });
}

void Direct::reduce(const DirectArgs& args) {
  const auto size = static_cast<std::int64_t>(size_of(args.dtype));
  const bool root = host_.rank() == args.root;
  if (args.count * size <= static_cast<std::int64_t>(kInline)) {
    open(args, Collective::kReduce, args.count * size);
    if (root) reduce_inline(args, 0);
    return;
  }
  open(args, Collective::kReduce, 0);
  if (readable(true, false) && slot(args.root).output != Host::kNoToken)
    return reduce_shards(args, false);
  const auto* in = static_cast<const std::byte*>(args.input);
  std::vector<const void*> sources(static_cast<std::size_t>(host_.world()));
  pieces(
      args.count, static_cast<std::int64_t>(Staging::kPiece) / size,
      [&](auto at, auto n, std::byte* mine) { copy_to_staging(mine, in + at * size, n * size); },
      [&](auto at, auto n, auto piece) {
        if (!root) return;
        count_each(n * size);
        for (int peer = 0; peer < host_.world(); ++peer)
          sources[static_cast<std::size_t>(peer)] = staging_->piece(peer, piece);
        void* out = static_cast<std::byte*>(args.output) + at * size;
        kernels::reduce(&out, 1, sources.data(), host_.world(), {args.dtype, args.op, n});
      });
}

void Direct::reduce_scatter(const DirectArgs& args) {
  const int rank = host_.rank(), world = host_.world();
  const auto size = static_cast<std::int64_t>(size_of(args.dtype));
  const std::int64_t count = args.count;
  if (world * count * size <= static_cast<std::int64_t>(kInline)) {
    open(args, Collective::kReduceScatter, world * count * size);
    reduce_inline(args, rank * count);
    return;
  }
  open(args, Collective::kReduceScatter, 0);
  count_each(count * size);
  std::vector<const void*> sources(static_cast<std::size_t>(world));
  void* out = args.output;
  if (readable(true, false)) {
    const auto places = inputs();
    for (int peer = 0; peer < world; ++peer)
      sources[static_cast<std::size_t>(peer)] =
          places[static_cast<std::size_t>(peer)] + rank * count * size;
    return touch_and_meet([&] {
      kernels::reduce(&out, 1, sources.data(), world, {args.dtype, args.op, count});
    });
  }
  const auto* in = static_cast<const std::byte*>(args.input);
  const std::int64_t per_piece =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(Staging::kPiece) / size / world);
  pieces(
      count, per_piece,
      [&](auto at, auto n, std::byte* mine) {
        for (int block = 0; block < world; ++block)
          copy_to_staging(mine + block * per_piece * size, in + (block * count + at) * size,
                          n * size);
      },
      [&](auto at, auto n, auto piece) {
        for (int peer = 0; peer < world; ++peer)
          sources[static_cast<std::size_t>(peer)] =
              staging_->piece(peer, piece) + rank * per_piece * size;
        void* to = static_cast<std::byte*>(args.output) + at * size;
        kernels::reduce(&to, 1, sources.data(), world, {args.dtype, args.op, n});
      });
}

void Direct::barrier(const DirectArgs& args) {
  DirectArgs none = args;
  none.count = 0;
  none.shape = nullptr;
  open(none, Collective::kBarrier, 0);
}

}  // namespace weft::net
