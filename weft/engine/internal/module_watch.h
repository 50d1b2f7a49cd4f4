// Notices what a program does to a module between two steps, behind the engine's back: memory
// replaced by torch::load(), set_data() or to(); parameters that came or went; requires_grad;
// values written in place; gradients changed before step().
//
// A change either counts as in one process, or is an error that names the parameter. Ranks exchange
// a digest of their changes beside the samples of each step. If digests differ, or a change is
// unusual, the ranks compare the values themselves (compare()).
//
//   start of forward, backward, step    check()
//   backward() has made a gradient      gradients().note()
//   gradients leave this rank           digest()
//   step, before the update             moved(), bring_home()
//   step, at the end                    compare() if needed, rebase()
//
// Looking reads no memory of tensors, but for 16 cache lines of each gradient and weight. Each step
// looks at other lines of the weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/block.h"
#include "weft/engine/internal/change_marks.h"
#include "weft/engine/internal/gradient_watch.h"
#include "weft/engine/internal/index.h"
#include "weft/engine/internal/param_list.h"
#include "weft/engine/internal/rank_settings.h"
#include "weft/engine/internal/registered_params.h"

namespace weft::engine::internal {

class ModuleWatch {
 public:
  // Digests are below this number. Sums of the digests of 4096 ranks and of their squares are exact
  // in float64, and the square of the sum in 64 bits.
  static constexpr std::uint32_t kDigests = 1U << 20;

  // `params` of the blocks; outlives it. `buffers`: those that came or went are noticed too.
  ModuleWatch(const std::vector<Block>& blocks, const ParamList& params, bool buffers = true);

  // Values written in place from now on are errors: "'fc.weight' was changed in place, " + `why`.
  // With `sampled`, also those written through data(): some values of each parameter are compared.
  // With `frozen`, also those of parameters that are not trained.
  void forbid_writing(std::string why, bool sampled, bool frozen = false);
  // From now on the digest also tells, or no longer, which ranks have written through data(), as
  // optimizers of torch do: some values of each parameter have changed. No update may run when
  // digest() looks.
  void note_samples(bool on = true);
  // Throws Error(kInvalidArgument) for a change that cannot count. With `values`, also looks at
  // sampled values: not while other ranks may update shared weights.
  void check(bool values) const;
  // Throws Error(kInvalidArgument) if the program has written to parameters that are not trained,
  // and may not.
  void check_frozen() const;

  GradientWatch& gradients() { return gradients_; }
  // The ranks have ended a batch whose gradients the program has dropped. Counts them until
  // rebase().
  void note_dropped_batch() { ++dropped_batches_; }
  int dropped_batches() const { return dropped_batches_; }

  // No version of a tensor tells that a program has written through data(), and samples do not see
  // all values. So private weights are compared whole in some steps: one pass over them.
  static bool is_due(std::int64_t step) {
    constexpr std::int64_t kOften = 1024;
    return step == 16 || step == 128 || step % kOften == 0;
  }

  // True if trained parameters have changed since rebase(), as far as memory, versions and samples
  // tell.
  bool has_changed_trained() const;
  // True if these samples would tell a step by the gradients of now: some of theirs are not zero.
  bool sees_steps() const;

  // True if the parameter has other memory than at the last rebase().
  bool is_moved(std::size_t param) const;
  // Parameters among the first `count` that have other memory than at the last rebase().
  std::vector<int> moved(std::size_t count) const;
  // True if a parameter got other memory after digest().
  bool moved_late() const;
  // Gives the parameter its former memory again. The values are the caller's matter.
  void bring_home(int param);
  // The former memory, without gradient history.
  at::Tensor home(int param) const { return seen_[index(param)].home; }

  RankSettings& settings() { return settings_; }
  // The changes since rebase() and the settings, as a number that is equal on ranks where both are
  // equal. Throws Error(kInvalidArgument) for a buffer that came or went.
  std::uint32_t digest(GradientFacts gradients = {});
  // The last digest() has changes since rebase().
  bool has_changed() const { return has_changed_; }
  // The last digest() has changes whose values the ranks should compare.
  bool is_odd() const { return odd_; }
  // Compares the parameters of the ranks by sums of their values: all parameters with `whole`, else
  // only changed ones. Without `with_apart`, skips values of parameters that the ranks have apart
  // (Param::apart). Throws Error(kInvalidArgument) on all ranks, with the name of the first
  // that differs, and first of a setting. Costs some passes over their memory, and 56 bytes a
  // parameter and rank. Collective.
  void compare(const Group& group, bool whole, double tolerance, bool with_apart = true);

  // From now on changes count from the last digest(); with `now`, from now.
  void rebase(bool now = false);
  // A larger number after each call that has made new values of this parameter known. From 1.
  std::uint64_t generation(int param) const {
    return generation_ + seen_[index(param)].homecomings;
  }
  const std::string& name(int param) const { return params_[index(param)].name; }
  // The error for a weight, one of several parameters, that an update has found changed.
  [[noreturn]] void refuse_written(int first, int last) const;

 private:
  struct Seen {
    at::Tensor home;                         // keeps the memory
    std::int64_t version = 0, reported = 0;  // of the values: at rebase(), and at digest()
    std::int64_t usual = 0;                  // changes in place that need no comparison
    std::uint64_t homecomings = 0;
    bool moved = false, moved_reported = false;
    LineSums sampled{};
  };
  bool is_resampled(std::size_t param) const;
  // The values have changed since rebase(), in the same memory. With `values`, samples tell, too.
  bool is_written(std::size_t param, bool values) const;
  void check_kind(std::size_t param) const;
  void check_written(std::size_t param, bool values) const;

  const ParamList& params_;
  std::size_t guarded_;  // written values of so many parameters are looked at
  RegisteredParams registered_;
  RankSettings settings_;
  GradientWatch gradients_;
  std::vector<Seen> seen_;
  std::string no_writing_;  // empty: writing is allowed
  std::uint64_t generation_ = 0, turn_ = 0;
  int dropped_batches_ = 0;
  bool sampled_ = false, odd_ = false, has_changed_ = false;
};

}  // namespace weft::engine::internal
