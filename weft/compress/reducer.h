// Sums one flat buffer over ranks through a codec with memory, step after step. Does not
// communicate itself: it returns the next collective to run.
//
//   reducer->begin(values, step);
//   while (auto round = reducer->next()) { run the collective that round describes, on all ranks }
//   // values: the sum, the same bits on every rank
//
// The exchange with the fewest bytes is chosen (n numbers, W ranks, B(n) bytes encoded):
//
//   exchange                               used by              bytes that a rank sends
//   plain     all-reduce of float32        warm-up, and if      2 (W-1)/W 4n
//                                          nothing is gained
//   sum       all-reduce of encodings      linear codecs        2 (W-1)/W B(n)
//   gather    all-gather of encodings      the others, W = 2    (W-1) B(n)
//   sharded   all-to-all of encoded        the others, W > 2    2 (W-1) B(n/W)
//             shards, all-gather of the
//             encoded sums, which have a
//             memory of their own
//   low rank  two all-reduces              powersgd             2 (W-1)/W 4 (rows + columns) rank
//
// With delta, bf16 and f16 are among the others: an all-reduce rounds their sum again, and this
// error would stay in the result.
//
// Memory (spec.h), with x the gradient and C the codec:
//   feedback  send C(x + e);  e = x + e - C(x + e)        Seide et al. 2014, Stich et al. 2018,
//                                                         Karimireddy et al. 2019.
//             Over any number of steps, the sum of the outputs is the sum of the inputs minus the
//             last e. With bf16 and f16, the rounding of the sums is lost in addition.
//   delta     send C(x - h);  h += C(x - h);              EF21, Richtárik et al. 2021;
//             result = sum of all h                       Mishchenko et al. 2019 (DIANA)
//
// Momentum before the codec (Lin et al. 2018, "momentum correction" and "momentum factor masking";
// of block signs Zheng et al. 2019): the gradient g enters as the velocity u = m u + g. The
// velocity ends (u = 0) for a number that topk or threshold sends. Since all else is linear, the
// sum of velocities equals SGD with momentum on the summed gradients.
//
// With randomk, g / (1 - m) enters. SGD gives each gradient this total weight, spread over 1 / (1 -
// m) steps. With randomk, gradients wait until their number is sent, and then count at once. With a
// velocity in addition, they would be delayed twice, and training with delayed gradients is stable
// only up to a learning rate that falls with the delay. Ending velocities would remove most of the
// weight.
//
// The positions of matrices in a buffer matter for randomk, which sends small tensors more often
// (internal/random_k.cc), and for sign, whose blocks end with their tensor and which does not
// compress the smallest tensors (internal/parts_codec.cc).
//
// Memory of a Reducer: 4 bytes per number for feedback, 8 for delta, 4 for momentum, and the
// encodings. With commit(), the first three twice. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/compress/codec.h"
#include "weft/compress/spec.h"

namespace weft::compress {

// A collective of all ranks. The reducer owns the memory until the next call of next().
struct Round {
  enum class How { kSum, kMax, kAllGather, kAllToAll };
  How how = How::kSum;
  DType dtype = DType::kU8;
  // Number of elements: of `data` for kSum and kMax, of one rank's block for the others.
  std::int64_t count = 0;
  void* data = nullptr;        // kSum, kMax: in place. Others: `world` blocks that are received
  const void* send = nullptr;  // kAllGather: one block; kAllToAll: `world` blocks
};

// Position of a tensor in the buffer, as a matrix. Vectors have one column.
struct Matrix {
  std::int64_t first = 0, rows = 0, columns = 1;
};

// Momentum factor of SGD. 0: none, or SGD applies it itself.
struct Momentum {
  double factor = 0;
  bool nesterov = false;  // Nesterov momentum: m u + g enters instead of u
};

// The buffer of a reducer; the same on all ranks except for `rank`.
struct Unit {
  std::int64_t count = 0;
  // by ascending position; for powersgd (which sends other values uncompressed), sign and randomk
  std::vector<Matrix> matrices;
  int rank = 0, world = 1;
  std::uint32_t id = 0;  // number of this buffer
  Momentum momentum;     // applied here if the spec has momentum=before
};

class Reducer {
 public:
  virtual ~Reducer() = default;
  // `step` counts from 0. `values` are in use until next() returns nothing.
  virtual void begin(float* values, std::int64_t step) = 0;
  virtual std::optional<Round> next() = 0;

  // State for the next step, in place: saved to a checkpoint and overwritten on loading. Each rank
  // has its own. Valid until the next begin(), commit() or rollback().
  virtual std::vector<std::span<float>> state() = 0;
  // The parts of state() that are equal on all ranks, bit for bit: sums with delta, and factors of
  // powersgd. If they differ, the sums differ between the ranks from then on. As valid as state().
  virtual std::vector<std::span<const float>> common_state() = 0;
  // All sums so far count: rollback() goes back to the state of now. Call it between two sums.
  virtual void commit() = 0;
  // The sums since the last commit() do not count, since their step was skipped: the state is that
  // of then. Call it on all ranks, between two sums. Without commit(), it changes nothing.
  virtual void rollback() = 0;
  // False if the last sum has numbers that are not finite, in a codec whose type has a narrow range
  // (f16: 65504). The same on every rank. Always true with other codecs.
  virtual bool is_in_range() const = 0;
  // Bytes that a rank sends in a compressed step, as in the table above; an upper bound for
  // threshold.
  virtual std::int64_t bytes_sent() const = 0;
  // "plain", "sum", "gather", "sharded", "low rank".
  virtual const char* exchange() const = 0;
};

// `spec` may be any codec except auto.
std::unique_ptr<Reducer> make_reducer(const Spec& spec, const Unit& unit);

// Size of a rank's shard. The last ranks may have shorter or empty shards.
std::int64_t shard_length(std::int64_t count, int world);

}  // namespace weft::compress
