// Rows of tokens, and batches of them in the order of a Sampler: sharded by rank, resumable, the same global batches whatever the world.
//
//   TokenFile ── Windows or PackedRows (row i of an epoch, a pure function) ──┐
//   Sampler (seed, epoch, position, rank, world) ── which rows ───────────────┴──> TokenBatch [rows, length]
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "weft/data/sampler.h"

namespace weft::data::text {

// The target of a position that has none: libtorch's cross_entropy leaves it out by default.
inline constexpr std::int64_t kNoTarget = -100;

// Where one row goes: each span has length() elements.
struct RowSpans {
  std::span<std::int64_t> inputs;     // token ids; padding is 0
  std::span<std::int64_t> targets;    // the token that follows, or kNoTarget
  std::span<std::int64_t> positions;  // within its document or window, from 0; padding 0
  std::span<std::int64_t> documents;  // 0, 1, … within the row, -1 for padding: attention stays within equal numbers
};

class Rows {
 public:
  virtual ~Rows() = default;
  virtual std::int64_t size() const = 0;    // rows of an epoch
  virtual std::int64_t length() const = 0;  // positions of a row
  // Fills all of the spans; for any thread. Throws as TokenFile::read(), and Error(kInvalidArgument) for a row outside size().
  virtual void read(std::int64_t row, std::int64_t epoch, const RowSpans& out) const = 0;
};

// Row-major [rows, length]; what at::from_blob(batch.inputs.data(), {rows, length}, at::kLong) takes.
struct TokenBatch {
  std::int64_t rows = 0;  // may be 0 (see Share)
  std::int64_t length = 0;
  std::vector<std::int64_t> inputs, targets, positions, documents;
  Share share;
};

// One thread at a time. Makes each batch when it is asked for: a row is a copy out of a mapped file, some microseconds.
class Batches {
 public:
  // options.size is taken from the rows. Throws as Sampler does.
  Batches(std::shared_ptr<const Rows> rows, SamplerOptions options);

  // This rank's part of the next batch; nullopt at the end of the epoch. Throws as Rows::read(); the batch is then lost to set_state().
  std::optional<TokenBatch> next();

  SamplerState state() const { return sampler_.state(); }
  void set_state(SamplerState state) { sampler_.set_state(state); }
  std::int64_t batches() const { return sampler_.batches(); }

 private:
  std::shared_ptr<const Rows> rows_;
  Sampler sampler_;
};

}  // namespace weft::data::text
