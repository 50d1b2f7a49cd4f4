// Sums one flat buffer over a group asynchronously, as it is or, for float32, through a codec. With
// a codec and several hosts of several ranks (Group::split), the ranks of a host first sum
// uncompressed. Each rank then exchanges its encoded part with the other hosts and distributes the
// result on its host. So only slow links carry encoded data.
//
//   start ──> [local reduce] ──> encode, first round under way ──> advance … ──> finish ──> [local
//   broadcast]
//
// All ranks call start for all buffers in one order, then advance for all of them until none
// returns true, then finish for all.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/compress/reducer.h"

namespace weft::engine {

// Adds a tensor like `like`, which begins at element `first`, unless it is empty. Its first
// dimension are the rows; a vector has one column.
void add_matrix(compress::Unit& unit, std::int64_t first, const at::Tensor& like);
// Elements [first, first + count) of a buffer, with the rows of its matrices that are completely
// inside.
compress::Unit part_of(const compress::Unit& whole, std::int64_t first, std::int64_t count);

class CodecExchange {
 public:
  // Without a codec.
  explicit CodecExchange(Group group);
  // `whole` gives the buffers' length, matrices and number; its rank and world are ignored. `spec`
  // is not auto.
  CodecExchange(Group group, const compress::Spec& spec, const compress::Unit& whole);

  // Waits for pending operations, since they write into memory of this object.
  ~CodecExchange();
  CodecExchange(const CodecExchange&) = delete;
  CodecExchange& operator=(const CodecExchange&) = delete;

  // The part of such a buffer that this rank exchanges, and the number of ranks in that exchange. A
  // world of one if it exchanges nothing.
  static compress::Unit unit_for(const Group& group, const compress::Unit& whole);

  // `flat` is contiguous and holds this rank's values. It is in use, and kept alive, until finish()
  // returns.
  void start(const at::Tensor& flat, std::int64_t step);
  // Waits for the current round.
  void await();
  // Waits for the current round and starts the next one. Returns false if there is none.
  bool advance();
  // Returns when the buffer holds the sum.
  void finish();

  // Codec memory of this rank. Empty if it exchanges nothing.
  std::vector<std::span<float>> state();
  // As Reducer::commit(), rollback() and is_in_range(). If this rank exchanges nothing: of no
  // effect, and true. Between a finish() and the next start().
  void commit();
  void rollback();
  bool is_in_range() const;
  // Bytes that this rank sends in a step, and bytes that it would send without a codec.
  std::pair<std::int64_t, std::int64_t> bytes_sent() const;
  // True if there is more than one round, so that advance() is needed.
  bool several_rounds() const { return several_rounds_; }
  bool has_codec() const { return has_codec_; }

 private:
  void launch(const std::optional<compress::Round>& round);

  const Group group_;
  std::optional<Group> across_;  // ranks that exchange encoded data
  // Parts of the current buffer by rank of the host, if hosts have several ranks.
  std::vector<at::Tensor> parts_;
  std::unique_ptr<compress::Reducer> reducer_;  // null if this rank exchanges nothing
  at::Tensor flat_;                             // under way
  Group::Work work_;
  std::int64_t plain_bytes_ = 0;
  bool has_codec_ = false, several_rounds_ = false;
};

}  // namespace weft::engine
