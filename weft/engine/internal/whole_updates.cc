#include "weft/engine/internal/whole_updates.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "weft/base/fault/failpoint.h"

namespace weft::engine::internal {
namespace {

// The sums of some parameters, in place.
std::vector<at::Tensor> views_of(optim::TensorSums& sums, const std::vector<std::size_t>& firsts,
                                 const std::vector<int>& params) {
  std::vector<at::Tensor> views;
  for (const int param : params) {
    const std::size_t first = firsts[index(param)], count = firsts[index(param) + 1] - first;
    if (count == 0) continue;
    void* const memory = sums.exact() ? static_cast<void*>(sums.integers(first))
                                      : static_cast<void*>(sums.doubles(first));
    views.push_back(at::from_blob(memory, {static_cast<std::int64_t>(count * sums.width())},
                                  sums.exact() ? at::kLong : at::kDouble));
  }
  return views;
}

void add_over(const Group& group, optim::TensorSums& sums, const std::vector<std::size_t>& firsts,
              const std::vector<int>& params) {
  const std::vector<at::Tensor> views = views_of(sums, firsts, params);
  if (views.empty() || group.size() == 1) return;
  at::Tensor packed = at::cat(views);
  group.all_reduce(packed);
  std::int64_t first = 0;
  for (const at::Tensor& view : views) {
    view.copy_(packed.narrow(0, first, view.numel()));
    first += view.numel();
  }
}

// LARS and LAMB: two norms of each tensor.
class LayerwiseUpdates final : public WholeUpdates {
 public:
  using WholeUpdates::WholeUpdates;

 protected:
  void apply(const WholeStep& now) override {
    std::vector<std::size_t> firsts;
    for (int param = 0; param <= params(); ++param) firsts.push_back(2 * index(param));
    optim::TensorSums sums(firsts.back(), exact());
    each(now.pieces, Look::kBefore, [&](const auto& rule, const auto& step, int param) {
      optim::begin_step(rule, step, sums, firsts[index(param)]);
    });
    join(sums, firsts);
    each(now.pieces, Look::kAfter, [&](const auto& rule, const auto& step, int param) {
      const std::size_t first = firsts[index(param)];
      optim::end_step(rule, step,
                      {.weight = std::sqrt(sums.value(first)),
                       .update = std::sqrt(sums.value(first + 1)),
                       .is_vector = shape(param).size() <= 1});
      failpoint("update.middle");
    });
  }

 private:
  template <class Fn>
  void each(const std::vector<WholePiece>& pieces, Look look, const Fn& fn) {
    for (const WholePiece& piece : pieces) {
      const UpdateRule rule = updates().rule(piece.param);
      in_blocks(piece, look, [&](const auto& step, std::int64_t) {
        if (const auto* const lars = std::get_if<optim::Lars>(&rule)) fn(*lars, step, piece.param);
        if (const auto* const lamb = std::get_if<optim::Lamb>(&rule)) fn(*lamb, step, piece.param);
      });
    }
  }
};

}  // namespace

WholeUpdates::WholeUpdates(Context context)
    : context_(std::move(context)), written_(context_.shapes.size()) {}

void WholeUpdates::update(const WholeStep& step) {
  const WrittenCheck check(!context_.shared.empty());
  checks_ = std::vector<WrittenCheck>(context_.shapes.size(), check);
  apply(step);
  int changed = -1;
  for (const WholePiece& piece : step.pieces) {
    const WrittenCheck& of = checks_[index(piece.param)];
    if (!of.end(written_[index(piece.param)], context_.watch.generation(piece.param)) &&
        changed < 0)
      changed = piece.param;
  }
  if (changed >= 0) refuse(changed);
}

void WholeUpdates::check_written() const {
  for (const WholePiece& piece : context_.shared) look_at(piece, written_[index(piece.param)]);
}

void WholeUpdates::note_written() {
  for (const WholePiece& piece : context_.shared)
    written_[index(piece.param)] = look_at(piece, Written{});
}

// The weights as they are now, if they are as the `last` update left them.
Written WholeUpdates::look_at(const WholePiece& piece, Written last) const {
  WrittenCheck check(true);
  updates().each_block(piece.param, piece.begin, piece.end, true,
                       [&](std::int64_t begin, std::int64_t, std::span<const std::byte> weights) {
                         check.stays(weights.data(), weights.size(), begin);
                       });
  if (!check.end(last, context_.watch.generation(piece.param))) refuse(piece.param);
  return last;
}

std::vector<std::pair<std::string, at::Tensor>> WholeUpdates::state(int) const { return {}; }

void WholeUpdates::join(optim::TensorSums& sums, const std::vector<std::size_t>& firsts) const {
  std::vector<int> all;
  for (int param = 0; param < params(); ++param) all.push_back(param);
  if (is_divided()) add_over(group(), sums, firsts, all);
  for (const WholeTensors::Split& split : context_.options.splits) {
    std::vector<int> some;
    std::copy_if(all.begin(), all.end(), std::back_inserter(some),
                 [&](int param) { return split.which(name(param)); });
    add_over(split.group, sums, firsts, some);
  }
}

std::unique_ptr<WholeUpdates> make_whole_updates(WholeUpdates::Context context) {
  const UpdateRule& rule = context.updates.spec().rule;
  if (!optim::needs_whole_tensors(rule)) return nullptr;
  if (std::holds_alternative<optim::Adafactor>(rule))
    return make_adafactor_updates(std::move(context));
  if (std::holds_alternative<optim::Muon>(rule)) return make_muon_updates(std::move(context));
  return std::make_unique<LayerwiseUpdates>(std::move(context));
}

}  // namespace weft::engine::internal
