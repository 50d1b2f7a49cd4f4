// Rows of tokens, which a model is trained on. A row is a pure function of its number and the
// epoch. data/sampler.h says which rank reads which row.
//
//   TokenFile ── Windows or PackedRows ──> row: inputs, targets, positions, documents
#pragma once

#include <cstdint>
#include <span>

namespace weft::data::text {

// The target of a position that has none: libtorch's cross_entropy leaves it out by default.
inline constexpr std::int64_t kNoTarget = -100;

// Where one row goes: each span has length() elements.
struct RowSpans {
  std::span<std::int64_t> inputs;     // token ids; padding is 0
  std::span<std::int64_t> targets;    // the token that follows, or kNoTarget
  std::span<std::int64_t> positions;  // within its document or window, from 0; padding 0
  // 0, 1, … within the row, -1 for padding: attention stays within equal numbers.
  std::span<std::int64_t> documents;
};

class Rows {
 public:
  virtual ~Rows() = default;
  virtual std::int64_t size() const = 0;    // rows of an epoch
  virtual std::int64_t length() const = 0;  // positions of a row
  // Fills all of the spans; for any thread. Throws as TokenFile::read(), and
  // Error(kInvalidArgument) for a row outside size().
  virtual void read(std::int64_t row, std::int64_t epoch, const RowSpans& out) const = 0;
};

}  // namespace weft::data::text
