#include "weft/engine/internal/shard_updates.h"

#include <ATen/ATen.h>

#include <span>
#include <utility>

namespace weft::engine::internal {

ShardUpdates::ShardUpdates(const Context& of) : of_(of), written_(of.memory.units().size()) {}

void ShardUpdates::update(const std::vector<at::Tensor>& gradients, const std::vector<bool>& used) {
  std::vector<WholePiece> pieces;
  const std::vector<Unit>& units = of_.memory.units();
  for (std::size_t i = 0; i < units.size(); ++i) {
    const Unit& unit = units[i];
    if (!unit.trainable || !gradients[i].defined()) continue;
    WrittenCheck check(is_written_once(unit));
    const auto* const first = static_cast<const std::byte*>(gradients[i].const_data_ptr());
    for (const Piece& piece : pieces_of(unit)) {
      const std::byte* const gradient =
          first + static_cast<std::size_t>(piece.at) * gradients[i].element_size();
      if (!used[index(piece.param)]) {
        // No rank used it, so it stays as it is. The checksum of the unit includes it all the same.
        update_piece(piece, nullptr, check);
      } else if (of_.whole != nullptr) {
        pieces.push_back({piece.param, piece.begin, piece.end, gradient});
      } else {
        update_piece(piece, gradient, check);
      }
    }
    end(unit, check, written_[i]);
  }
  if (of_.whole != nullptr) of_.whole->update({std::move(pieces), used});
  of_.updates.stepped(used);
}

// `gradient`: null if the piece stays as it is.
void ShardUpdates::update_piece(const Piece& piece, const std::byte* gradient,
                                WrittenCheck& check) const {
  const auto element = static_cast<std::int64_t>(c10::elementSize(of_.updates.type(piece.param)));
  const auto in_block = [&](std::int64_t begin, std::int64_t end,
                            std::span<const std::byte> weights) {
    if (gradient == nullptr) return check.stays(weights.data(), weights.size(), begin);
    check.before(weights.data(), weights.size(), begin);
    of_.updates.update(piece.param, begin, end, gradient + (begin - piece.begin) * element);
    check.after(weights.data(), weights.size(), begin);
  };
  of_.updates.each_block(piece.param, piece.begin, piece.end, check.on(), in_block);
}

void ShardUpdates::check_written() {
  if (of_.whole != nullptr) of_.whole->check_written();
  const std::vector<Unit>& units = of_.memory.units();
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (!is_written_once(units[i])) continue;
    Written last = written_[i];
    end(units[i], unchanged(units[i]), last);
  }
}

void ShardUpdates::note_written() {
  if (of_.whole != nullptr) of_.whole->note_written();
  const std::vector<Unit>& units = of_.memory.units();
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (!is_written_once(units[i])) continue;
    written_[i] = {};
    end(units[i], unchanged(units[i]), written_[i]);
  }
}

// Weights that exist once for all ranks, and that the optimizer updates in place, if at all.
bool ShardUpdates::is_written_once(const Unit& unit) const {
  return of_.memory.is_shared() && !unit.has_copy() && !(of_.whole != nullptr && unit.trainable);
}

// This rank's part, as it is.
WrittenCheck ShardUpdates::unchanged(const Unit& unit) const {
  WrittenCheck check(true);
  if (!unit.trainable) {
    check.stays(unit.master.const_data_ptr(), unit.master.nbytes(), 0);
  } else {
    for (const Piece& piece : pieces_of(unit)) update_piece(piece, nullptr, check);
  }
  return check;
}

void ShardUpdates::end(const Unit& unit, const WrittenCheck& check, Written& written) const {
  std::uint64_t generation = 0;
  for (const int param : unit.params) generation += of_.watch.generation(param);
  if (!check.end(written, generation))
    of_.watch.refuse_written(unit.params.front(), unit.params.back());
}

std::vector<Piece> ShardUpdates::pieces_of(const Unit& unit) const {
  return internal::pieces_of(unit, of_.params, of_.group.rank());
}

}  // namespace weft::engine::internal
