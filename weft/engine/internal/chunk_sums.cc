#include "weft/engine/internal/chunk_sums.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "weft/engine/squares.h"

namespace weft::engine::internal {

void ChunkSums::begin() {
  weighted_ = false;
  scale_ = 1;
}

void ChunkSums::weigh_ranks() {
  if (std::exchange(weighted_, true)) return;
  weighting_ = weigh(context_.options.average, ledger_.weights());
}

void ChunkSums::combine(int chunk, bool keeps) {
  weigh_ranks();
  double squares = 0;
  WrittenCheck check = new_check();
  for (const Stretch& at : claims_.pieces(chunk)) {
    Sources sources(ledger_, at, types_[index(at.param)],
                    weighting_.weights.empty() ? nullptr : weighting_.weights.data());
    if (sources.count == 0) {
      keep(at, check);
      continue;
    }
    sources.args.scale = weighting_.scale;
    ledger_.host().count_moved(sources.peer_bytes());
    if (context_.updates == nullptr) {
      sources.reduce_to_all(ledger_, at);
    } else if (keeps) {
      // The sum overwrites the first gradient; no other rank reads this piece of it.
      void* const sum = const_cast<void*>(sources.data[0]);
      sources.reduce(sum);
      squares += squares_of(sum, sources.args.count, sources.args.dtype);
    } else {
      sources.args.scale *= scale_;
      update(at, sources, check);
    }
  }
  if (keeps) {
    ledger_.chunk_squares()[chunk] = squares;
  } else {
    end_written(check, chunk, ledger_.written(chunk));
  }
}

void ChunkSums::update_by_sum(int chunk) {
  WrittenCheck check = new_check();
  for (const Stretch& at : claims_.pieces(chunk)) {
    Sources sources(ledger_, at, types_[index(at.param)], nullptr);
    if (sources.count == 0) {
      keep(at, check);
      continue;
    }
    sources.count = 1;
    sources.args.scale = scale_;
    update(at, sources, check);
  }
  end_written(check, chunk, ledger_.written(chunk));
}

// Sums and updates block by block, so that the summed gradient stays in the cache.
void ChunkSums::update(const Stretch& at, Sources& sources, WrittenCheck& check) const {
  alignas(64) std::byte block[Updates::kBlockBytes];
  const bool as_it_is =
      sources.count == 1 && sources.args.scale == 1.0 && sources.args.weights == nullptr;
  const auto in_block = [&](std::int64_t begin, std::int64_t end,
                            std::span<const std::byte> weights) {
    sources.args.count = end - begin;
    if (!as_it_is) sources.reduce(block);
    check.before(weights.data(), weights.size(), begin);
    context_.updates->update(at.param, begin, end, as_it_is ? sources.data[0] : block);
    check.after(weights.data(), weights.size(), begin);
    for (int i = 0; i < sources.count; ++i)
      sources.data[i] = static_cast<const std::byte*>(sources.data[i]) + weights.size();
  };
  context_.updates->each_block(at.param, at.begin, at.end, true, in_block);
}

double ChunkSums::norm() const {
  double squares = 0;
  for (int chunk = 0; chunk < claims_.chunks(); ++chunk) squares += ledger_.chunk_squares()[chunk];
  return std::sqrt(squares);
}

void ChunkSums::check_written() const {
  if (!checks_written()) return;
  for (int chunk = 0; chunk < claims_.chunks(); ++chunk) {
    Written last = ledger_.written(chunk);
    end_written(kept(chunk), chunk, last);
  }
}

void ChunkSums::note_written() const {
  if (!checks_written()) return;
  const net::Host& host = ledger_.host();
  for (int chunk = host.rank(); chunk < claims_.chunks(); chunk += host.world()) {
    Written& written = ledger_.written(chunk);
    written = {};
    end_written(kept(chunk), chunk, written);
  }
}

WrittenCheck ChunkSums::new_check() const {
  return WrittenCheck(context_.updates != nullptr && !context_.private_weights &&
                      context_.watch != nullptr && ledger_.host().world() > 1 &&
                      !optim::needs_whole_tensors(context_.updates->spec().rule));
}

void ChunkSums::end_written(const WrittenCheck& check, int chunk, Written& written) const {
  if (!check.on()) return;
  // In the order of backward: parameters that the first step did not use come after all others.
  int first = static_cast<int>(context_.params.size()), last = 0;
  std::uint64_t generation = claims_.is_agreed() ? 1 : 0;
  for (const Stretch& at : claims_.pieces(chunk)) {
    first = std::min(first, at.param);
    last = std::max(last, at.param);
    generation += 2 * context_.watch->generation(at.param);
  }
  if (!check.end(written, generation)) context_.watch->refuse_written(first, last);
}

// Looks at a stretch that stays as it is.
void ChunkSums::keep(const Stretch& at, WrittenCheck& check) const {
  if (!check.on()) return;
  const auto look = [&](std::int64_t begin, std::int64_t, std::span<const std::byte> weights) {
    check.stays(weights.data(), weights.size(), begin);
  };
  context_.updates->each_block(at.param, at.begin, at.end, true, look);
}

WrittenCheck ChunkSums::kept(int chunk) const {
  WrittenCheck check = new_check();
  for (const Stretch& at : claims_.pieces(chunk)) keep(at, check);
  return check;
}

}  // namespace weft::engine::internal
