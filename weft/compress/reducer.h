// Sums one flat buffer over ranks through a codec, step after step, with its memory. Talks to
// nobody: it says what is to be exchanged next.
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
// Memory (spec.h), with x the gradient and C the codec:
//   feedback  send C(x + e);  e = x + e - C(x + e)        Seide et al. 2014, Stich et al. 2018,
//                                                         Karimireddy et al. 2019.
//             Over any number of steps the sums that came out are the sums that went in less the
//             last e.
//   delta     send C(x - h);  h += C(x - h);              EF21, Richtárik et al. 2021;
//             result = sum of all h                       Mishchenko et al. 2019 (DIANA)
//
// Momentum before the codec (Lin et al. 2018, "momentum correction" and "momentum factor masking";
// of block signs Zheng et al. 2019): the gradient g enters as the velocity u = m u + g, which ends
// (u = 0) where topk or threshold has sent a number. All else being linear, summing velocities is
// what SGD with momentum does with the summed gradients.
//
// With randomk g / (1 - m) enters: in the end SGD gives each gradient that weight, but spreads it
// over 1 / (1 - m) steps. Here gradients wait for their turn, and count at once when it comes: with
// a velocity too they would come late twice, and a loop with delay is stable only up to a rate that
// falls with the delay. Ended velocities would take most of the weight away.
//
// Where a buffer's matrices lie counts for randomk, which sends small tensors more often
// (internal/random_k.cc), and sign, whose blocks end with their tensor and which sends the smallest
// tensors as they are (internal/parts_codec.cc).
//
// Memory of a Reducer: 4 bytes a number for feedback, 8 for delta, 4 for momentum, and the
// encodings. Not for several threads at once.
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

// A collective that all ranks take part in. Memory is the reducer's, until the next call of next().
struct Round {
  enum class How { kSum, kMax, kAllGather, kAllToAll };
  How how = How::kSum;
  DType dtype = DType::kU8;
  // Elements: of `data` for kSum and kMax; of one rank's block for the others.
  std::int64_t count = 0;
  void* data = nullptr;        // kSum, kMax: in place. The others: world blocks, which are received
  const void* send = nullptr;  // kAllGather: one block; kAllToAll: world blocks
};

// Where a tensor lies in the buffer, as a matrix; vectors have one column.
struct Matrix {
  std::int64_t first = 0, rows = 0, columns = 1;
};

// SGD's; 0: it has none, or keeps it.
struct Momentum {
  double factor = 0;
  bool nesterov = false;  // m u + g enters instead
};

// What a reducer works on; the same on all ranks but for `rank`.
struct Unit {
  std::int64_t count = 0;
  // by rising place; for powersgd, which sends what they leave out as it is, for sign and randomk
  std::vector<Matrix> matrices;
  int rank = 0, world = 1;
  std::uint32_t id = 0;  // of this buffer among the others
  Momentum momentum;     // taken here where the spec says before
};

class Reducer {
 public:
  virtual ~Reducer() = default;
  // `step` counts from 0; `values` stay in use until next() says that there is nothing left to do.
  virtual void begin(float* values, std::int64_t step) = 0;
  virtual std::optional<Round> next() = 0;

  // What has to be kept for the next step, in place: written into a checkpoint and overwritten from
  // it. Each rank's is its own.
  virtual std::vector<std::span<float>> state() = 0;
  // Bytes that a rank sends in a compressed step, as counted above; at most, for threshold.
  virtual std::int64_t bytes_sent() const = 0;
  // "plain", "sum", "gather", "sharded", "low rank".
  virtual const char* exchange() const = 0;
};

// `spec` may be everything but auto.
std::unique_ptr<Reducer> make_reducer(const Spec& spec, const Unit& unit);

// Numbers of a rank's shard: the last ranks' may be shorter or empty.
std::int64_t shard_length(std::int64_t count, int world);

}  // namespace weft::compress
