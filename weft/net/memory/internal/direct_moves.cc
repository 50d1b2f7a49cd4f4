// The operations of Direct that move blocks without a reduction. The first of these ways that the
// slots allow:
//
//   1. Up to kInline bytes: the data is in the sender's slot. One barrier.
//   2. Gather, if peers can write root's output: each rank writes its own block there.
//   3. Broadcast, if peers can read root's input and write all outputs: each rank writes one shard
//      of it into all outputs (spread()). So all ranks copy, and root's input is read once.
//   4. If peers can read the inputs: each rank copies the blocks that it wants from there.
//   5. Through staging memory, or by the kernel: whichever was faster so far (copy_either_way()).
//
// Ways 2 to 4 use arrays of peers and end with a barrier, within touch_and_meet().
#include <algorithm>
#include <vector>

#include "weft/net/memory/internal/direct_slot.h"

namespace weft::net {

using internal::copy_bytes;
using internal::copy_to_staging;
using internal::shard_begin;
using internal::Staging;
using schedule::Collective;

// All-gather, gather, broadcast and scatter move blocks of every rank's (or the root's) input.
// `wanted(peer)` returns the position of the block of `peer` in the own output (-1: none).
template <class Wanted>
void Direct::move(const DirectArgs& args, Collective operation, bool from_root, Wanted wanted) {
  const int rank = host_.rank(), world = host_.world();
  const auto size = static_cast<std::int64_t>(size_of(args.dtype));
  const std::int64_t block = args.count * size;
  const bool scatter = operation == Collective::kScatter;
  const bool sends = !from_root || rank == args.root;
  const std::int64_t held = scatter ? block * world : block;  // bytes of a sender's input
  auto* out = static_cast<std::byte*>(args.output);
  const auto first = [&](int) { return scatter ? rank * block : std::int64_t{0}; };
  const auto take = [&](std::int64_t bytes, auto source) {
    for (int peer = 0; peer < world; ++peer) {
      const std::int64_t to = wanted(peer);
      if (to < 0 || (from_root && peer != args.root)) continue;
      if (peer != rank) moved_.add(static_cast<std::uint64_t>(bytes));
      source(peer, out + to * block);
    }
  };
  if (held <= static_cast<std::int64_t>(kInline)) {
    open(args, operation, sends ? held : 0);
    return take(block, [&](int peer, std::byte* to) {
      copy_bytes(to, slot(peer).data + first(peer), block);
    });
  }
  if (!sends) {
    // The kernel's way needs all ranks to have published, also those that send nothing.
    publish(nullptr, nullptr, 0);
  } else if (host_.token(args.input) == Host::kNoToken) {
    publish(args.input, args.input, held);
  }
  open(args, operation, 0);
  if (operation == Collective::kGather && slot(args.root).output != Host::kNoToken) {
    if (rank != args.root) moved_.add(static_cast<std::uint64_t>(block));
    return touch_and_meet([&] {  // each rank writes its own block
      copy_bytes(host_.at(args.root, slot(args.root).output) + rank * block,
                 static_cast<const std::byte*>(args.input), block);
    });
  }
  if (operation == Collective::kBroadcast && slot(args.root).input != Host::kNoToken &&
      readable(false, true))
    return spread(args);
  if (from_root ? slot(args.root).input != Host::kNoToken : readable(true, false)) {
    const auto places = inputs();
    return touch_and_meet([&] {
      take(block, [&](int peer, std::byte* to) {
        copy_bytes(to, places[static_cast<std::size_t>(peer)] + first(peer), block);
      });
    });
  }
  const auto* in = static_cast<const std::byte*>(args.input);
  const auto staged = [&] {
    const std::int64_t per_piece = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(Staging::kPiece) / (scatter ? world : 1));
    pieces(
        block, per_piece,
        [&](auto at, auto n, std::byte* mine) {
          for (int b = 0; sends && b < (scatter ? world : 1); ++b)
            copy_to_staging(mine + b * per_piece, in + b * block + at, n);
        },
        [&](auto at, auto n, auto piece) {
          take(n, [&](int peer, std::byte* to) {
            copy_bytes(to + at, staging_->piece(peer, piece) + (scatter ? rank * per_piece : 0), n);
          });
        });
  };
  const auto by_kernel = [&] {
    take(block, [&](int peer, std::byte* to) {
      if (peer == rank) return copy_bytes(to, in + first(peer), block);
      staging_->read(peer, staging_->input(peer) + static_cast<std::uint64_t>(first(peer)), to,
                     static_cast<std::size_t>(block), name_);
    });
    meet();
  };
  copy_either_way(operation, block, staged, by_kernel);
}

// Each rank, including root, writes its shard of root's input into every output. No other rank
// touches this shard.
void Direct::spread(const DirectArgs& args) {
  const int rank = host_.rank(), world = host_.world();
  const std::int64_t bytes = args.count * static_cast<std::int64_t>(size_of(args.dtype));
  const std::int64_t begin = shard_begin(bytes, rank, world, 1),
                     end = shard_begin(bytes, rank + 1, world, 1);
  const std::byte* const from = host_.at(args.root, slot(args.root).input);
  std::vector<std::byte*> outputs;
  for (int peer = 0; peer < world; ++peer) outputs.push_back(host_.at(peer, slot(peer).output));
  count_each(end - begin);
  // Works in pieces that stay in the cache, so that the input is read from memory once.
  constexpr auto kPiece = static_cast<std::int64_t>(Staging::kPiece);
  touch_and_meet([&] {
    for (std::int64_t at = begin; at < end; at += kPiece) {
      for (std::byte* to : outputs) copy_bytes(to + at, from + at, std::min(kPiece, end - at));
    }
  });
}

void Direct::all_gather(const DirectArgs& args) {
  move(args, Collective::kAllGather, false, [](int peer) { return peer; });
}

void Direct::gather(const DirectArgs& args) {
  move(args, Collective::kGather, false,
       [&](int peer) { return host_.rank() == args.root ? peer : -1; });
}

void Direct::broadcast(const DirectArgs& args) {
  move(args, Collective::kBroadcast, true, [](int) { return 0; });
}

void Direct::scatter(const DirectArgs& args) {
  move(args, Collective::kScatter, true, [](int) { return 0; });
}

void Direct::all_to_all(const DirectArgs& args) {
  const int rank = host_.rank(), world = host_.world();
  const std::int64_t block = args.count * static_cast<std::int64_t>(size_of(args.dtype));
  const auto* in = static_cast<const std::byte*>(args.input);
  auto* out = static_cast<std::byte*>(args.output);
  // In place, a rank would overwrite data that its peers still read, so staging memory is used.
  // Staging works in place: a step overwrites only the elements that it has staged.
  DirectArgs shown = args;
  if (in == out) {
    shown.output = nullptr;
  } else if (host_.token(in) == Host::kNoToken) {
    publish(in, in, block * world);
  }
  open(shown, Collective::kAllToAll, 0);
  if (block == 0) return;
  count_each(block);
  bool in_place = in == out;
  for (int peer = 0; peer < world; ++peer)
    in_place = in_place || slot(peer).output == Host::kNoToken;
  if (readable(true, false) && !in_place) {
    const auto places = inputs();
    return touch_and_meet([&] {
      for (int peer = 0; peer < world; ++peer)
        copy_bytes(out + peer * block, places[static_cast<std::size_t>(peer)] + rank * block,
                   block);
    });
  }
  const auto staged = [&] {
    const std::int64_t per_piece =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(Staging::kPiece) / world);
    pieces(
        block, per_piece,
        [&](auto at, auto n, std::byte* mine) {
          for (int b = 0; b < world; ++b)
            copy_to_staging(mine + b * per_piece, in + b * block + at, n);
        },
        [&](auto at, auto n, auto piece) {
          for (int peer = 0; peer < world; ++peer)
            copy_bytes(out + peer * block + at, staging_->piece(peer, piece) + rank * per_piece, n);
        });
  };
  const auto by_kernel = [&] {
    for (int peer = 0; peer < world; ++peer) {
      if (peer == rank) {
        copy_bytes(out + peer * block, in + rank * block, block);
      } else {
        staging_->read(peer, staging_->input(peer) + static_cast<std::uint64_t>(rank * block),
                       out + peer * block, static_cast<std::size_t>(block), name_);
      }
    }
    meet();
  };
  copy_either_way(Collective::kAllToAll, block, staged, by_kernel);
}

}  // namespace weft::net
