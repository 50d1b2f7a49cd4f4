// Sums one flat buffer over a group without waiting: as it is or, float32, through a codec. With a
// codec, over several hosts of several ranks (Group::split) the ranks of a host first add up theirs
// as they are, each carries its part across encoded, and hands it round: only slow links see codes.
//
//   start ──> [local reduce] ──> encode, first round under way ──> advance … ──> finish ──> [local
//   broadcast]
//
// All ranks call start of all buffers in one order, then advance of all as often as any says true,
// then finish of all.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/compress/reducer.h"

namespace weft::parallel {

// Where a tensor like `like` lies from element `first` on: its first dimension are the rows, a
// vector has one column.
compress::Matrix matrix_at(std::int64_t first, const at::Tensor& like);
// Elements [first, first + count) of a buffer, with the rows of its matrices that lie there as a
// whole.
compress::Unit part_of(const compress::Unit& whole, std::int64_t first, std::int64_t count);

class CodecExchange {
 public:
  // Without a codec.
  explicit CodecExchange(Group group);
  // `whole` names the buffers' length, matrices and number; its rank and world are not looked at.
  // `spec` is not auto.
  CodecExchange(Group group, const compress::Spec& spec, const compress::Unit& whole);

  // What is under way writes into memory that may end with it: waits for it.
  ~CodecExchange();
  CodecExchange(const CodecExchange&) = delete;
  CodecExchange& operator=(const CodecExchange&) = delete;

  // What a rank carries of such a buffer, and among how many; nothing, in a world of one, where it
  // carries nothing.
  static compress::Unit unit_for(const Group& group, const compress::Unit& whole);

  // `flat`, contiguous, holds this rank's values; it is in use, and held, until finish() returns.
  void start(const at::Tensor& flat, std::int64_t step);
  // Waits for the round under way.
  void await();
  // The same, and starts the next; false when there is none.
  bool advance();
  // The buffer holds the sum.
  void finish();

  // Of this rank; empty where it carries nothing.
  std::vector<std::span<float>> state();
  // That this rank sends in a step, and that it would send without a codec.
  std::pair<std::int64_t, std::int64_t> bytes_sent() const;
  // advance() starts rounds after the first.
  bool several_rounds() const { return several_rounds_; }
  bool has_codec() const { return has_codec_; }

 private:
  void launch(const std::optional<compress::Round>& round);

  const Group group_;
  std::optional<Group> across_;  // whom the codes go to
  // Of the buffer under way, by carrier, where hosts have several ranks.
  std::vector<at::Tensor> parts_;
  std::unique_ptr<compress::Reducer> reducer_;  // null where this rank carries nothing
  at::Tensor flat_;                             // under way
  Group::Work work_;
  std::int64_t plain_bytes_ = 0;
  bool has_codec_ = false, several_rounds_ = false;
};

}  // namespace weft::parallel
