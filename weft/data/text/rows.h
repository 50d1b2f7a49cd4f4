// Rows: the rows of tokens that a model is trained on. A row is a pure function of its number and
// the epoch. The Sampler (data/sampler.h) assigns rows to ranks.
//
//   TokenFile ── Windows or PackedRows ──> row: inputs, targets, positions, documents
#pragma once

#include <cstdint>
#include <span>

namespace weft::data::text {

// Value of a target that does not count. It is the default ignore_index of libtorch's
// cross_entropy.
inline constexpr std::int64_t kNoTarget = -100;

// Destination of one row. Each span has length() elements.
struct RowSpans {
  std::span<std::int64_t> inputs;     // Token ids. Padding is 0.
  std::span<std::int64_t> targets;    // The token after the input, or kNoTarget.
  std::span<std::int64_t> positions;  // Position in its document or window, from 0. Padding is 0.
  // Number of the document in the row: 0, 1, …. Padding is -1. Attention does not cross documents.
  std::span<std::int64_t> documents;
};

class Rows {
 public:
  virtual ~Rows() = default;
  virtual std::int64_t size() const = 0;    // Rows of an epoch.
  virtual std::int64_t length() const = 0;  // Positions of a row.
  // Fills all of the spans. Thread-safe. Throws as TokenFile::read(), and Error(kInvalidArgument)
  // for a row outside size().
  virtual void read(std::int64_t row, std::int64_t epoch, const RowSpans& out) const = 0;
};

}  // namespace weft::data::text
