// Updates by rules that need sums over whole tensors: LARS, LAMB, Adafactor and Muon.
//
//   each rank    adds what it needs of its elements of all tensors       (optim/tensor_sums.h)
//   all ranks    all-reduce the sums, over the ranks that share tensors
//   each rank    updates its elements
//
// Ranks share a tensor if they hold parts of it: over the model's group at stages 1 to 3 and with
// weights that a host shares, and over WholeTensors::splits. Other ranks have equal tensors, and
// compute equal sums.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/internal/module_watch.h"
#include "weft/engine/internal/updates.h"
#include "weft/engine/internal/written.h"

namespace weft::engine::internal {

// Elements [begin, end) of a parameter, not empty, and their gradient.
struct WholePiece {
  int param = 0;
  std::int64_t begin = 0, end = 0;
  const void* gradient = nullptr;
};

// A step of a rank.
struct WholeStep {
  std::vector<WholePiece> pieces;  // what this rank updates, in the order of parameters
  const std::vector<bool>& used;   // by parameter: any rank has a gradient
};

class WholeUpdates {
 public:
  struct Context {
    // These outlive it.
    const Group& group;
    const Updates& updates;
    const ModuleWatch& watch;
    std::vector<std::string> names;                 // by parameter, like `shapes`
    std::vector<std::vector<std::int64_t>> shapes;  // of trained parameters
    WholeTensors options;
    bool divided = false;  // ranks of the group have different elements; else each has all
    // All elements of this rank, if the weights exist once for all ranks, so that a program must
    // not change them. Else empty.
    std::vector<WholePiece> shared;
  };

  explicit WholeUpdates(Context context);
  virtual ~WholeUpdates() = default;
  WholeUpdates(const WholeUpdates&) = delete;
  WholeUpdates& operator=(const WholeUpdates&) = delete;

  // Collective over the group and the splits. Throws Error(kInvalidArgument) if the program has
  // changed weights that exist once, since the last update of them.
  void update(const WholeStep& step);
  // Between two steps: throws as update() does.
  void check_written() const;
  // The present weights are right.
  void note_written();
  // optim::tensor_states() of a parameter, in place. Equal on all ranks.
  virtual std::vector<std::pair<std::string, at::Tensor>> state(int param) const;

 protected:
  virtual void apply(const WholeStep& step) = 0;
  // Where apply() reads weights as the last update left them, and where it has written them.
  enum class Look { kNone, kBefore, kAfter, kBoth };
  // Calls fn(step, begin) for blocks of a piece, in which weights that are looked at stay in the
  // cache. `begin`: first element. Each piece needs one look before and one after.
  template <class Fn>
  void in_blocks(const WholePiece& piece, Look look, const Fn& fn);

  const Updates& updates() const { return context_.updates; }
  const std::vector<std::int64_t>& shape(int param) const { return context_.shapes[index(param)]; }
  int params() const { return static_cast<int>(context_.shapes.size()); }
  bool exact() const { return context_.options.exact; }
  const Group& group() const { return context_.group; }
  bool is_divided() const { return context_.divided; }
  bool is_split() const { return !context_.options.splits.empty(); }
  const OptimizerSpec& spec() const { return context_.updates.spec(); }
  const std::string& name(int param) const { return context_.names[index(param)]; }
  // Joins the sums of all ranks. `firsts`: first sum of each parameter, and the total at the end.
  void join(optim::TensorSums& sums, const std::vector<std::size_t>& firsts) const;

 private:
  Written look_at(const WholePiece& piece, Written last) const;
  void refuse(int param) const { context_.watch.refuse_written(param, param); }

  const Context context_;
  std::vector<Written> written_;      // by parameter, like the next
  std::vector<WrittenCheck> checks_;  // of this step
};

template <class Fn>
void WholeUpdates::in_blocks(const WholePiece& piece, Look look, const Fn& fn) {
  WrittenCheck& check = checks_[index(piece.param)];
  const auto* const gradient = static_cast<const std::byte*>(piece.gradient);
  const auto element = static_cast<std::int64_t>(c10::elementSize(updates().type(piece.param)));
  const auto in_block = [&](std::int64_t begin, std::int64_t end,
                            std::span<const std::byte> weights) {
    if (look == Look::kBefore || look == Look::kBoth)
      check.before(weights.data(), weights.size(), begin);
    updates().visit(piece.param, begin, end, gradient + (begin - piece.begin) * element,
                    [&](const auto& step) { fn(step, begin); });
    if (look == Look::kAfter || look == Look::kBoth)
      check.after(weights.data(), weights.size(), begin);
  };
  updates().each_block(piece.param, piece.begin, piece.end, check.on(), in_block);
}

// Null for rules that do not need whole tensors.
std::unique_ptr<WholeUpdates> make_whole_updates(WholeUpdates::Context context);
std::unique_ptr<WholeUpdates> make_adafactor_updates(WholeUpdates::Context context);
std::unique_ptr<WholeUpdates> make_muon_updates(WholeUpdates::Context context);

}  // namespace weft::engine::internal
