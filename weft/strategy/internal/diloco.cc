// DiLoCo: workers do many steps, usually of AdamW. An outer optimizer, SGD with Nesterov momentum,
// then takes the mean of their changes as its gradient.
//
//   g = mean of (anchor - x_j),   m = momentum * m + g
//   anchor = anchor - lr * (g + momentum * m),   x_i = anchor
//
// Douillard and others: DiLoCo: distributed low-communication training of language models, 2023
// (arXiv:2311.08105), algorithm 1; lr 0.7 and momentum 0.9 are theirs. With several fragments, the
// tensors are divided into fragments of about equal size, which take turns within the period
// (Streaming DiLoCo, 2025, arXiv:2501.18512, section 2.2; here each exchange is waited for).
//
// Sends: the changes, once each period, through the codec if there is one. Fragments send the same
// in total, and a part of it at a time.
// Limits: the paper's periods are of 500 steps on language models, with hundreds of exchanges. The
// momentum takes about 1 / (1 - momentum) exchanges to build up, and as many to wear off. It
// multiplies the step by that number. With few exchanges, a momentum of 0.5 is better: then the
// last steps, where the learning rate has fallen, are not those of changes from long before.
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "weft/strategy/internal/flat_rule.h"
#include "weft/strategy/internal/mean.h"

namespace weft::strategy::internal {
namespace {

// Tensors that are exchanged together.
struct Fragment {
  Fragment(const Group& workers, const Strategy& strategy, std::vector<at::Tensor> tensors,
           std::uint32_t id)
      : weights(std::move(tensors)),
        mean(workers, strategy.codec, weights, id),
        anchor(weights.zeros()),
        momentum(weights.zeros()) {}

  Flat weights;
  Mean mean;
  at::Tensor anchor, momentum;
};

// Cuts where the sum of the sizes passes a multiple of a fragment's share. There are as many
// fragments as asked for, unless there are fewer tensors.
std::vector<std::vector<at::Tensor>> divide(const std::vector<at::Tensor>& tensors, int fragments) {
  std::int64_t all = 0, before = 0;
  for (const at::Tensor& tensor : tensors) all += tensor.numel();
  std::vector<std::vector<at::Tensor>> parts(static_cast<std::size_t>(fragments));
  for (const at::Tensor& tensor : tensors) {
    const std::int64_t middle = before + tensor.numel() / 2;
    const auto part =
        std::min<std::int64_t>(fragments - 1, middle * fragments / std::max<std::int64_t>(1, all));
    parts[static_cast<std::size_t>(part)].push_back(tensor);
    before += tensor.numel();
  }
  std::erase_if(parts, [](const auto& part) { return part.empty(); });
  return parts;
}

class DiLoCo final : public FlatRule {
 public:
  DiLoCo(const Strategy& strategy, Part part)
      : FlatRule(strategy, std::move(part)),
        lr_(strategy.lr < 0 ? 0.7 : strategy.lr),
        momentum_(strategy.momentum < 0 ? 0.9 : strategy.momentum),
        sync_steps_(strategy.sync_steps) {
    for (auto& tensors : divide(this->part().weights, strategy.fragments)) {
      const auto id = static_cast<std::uint32_t>(fragments_.size());
      fragments_.push_back(
          std::make_unique<Fragment>(this->part().workers, strategy, std::move(tensors), id));
    }
  }

  State state() override {
    State state = FlatRule::state();
    for (const auto& fragment : fragments_) {
      const auto add = [&](const char* name, const at::Tensor& flat) {
        for (const at::Tensor& view : fragment->weights.views(flat))
          state.arrays[name].push_back(view);
      };
      add("anchor", fragment->anchor);
      add("momentum", fragment->momentum);
      for (const at::Tensor& memory : fragment->mean.state()) state.own.push_back(memory);
    }
    return state;
  }

 private:
  bool exchanges_together() const override { return true; }
  // The fragments' exchanges are spread evenly over the period; the last one's ends it.
  bool is_due(const Step& step, std::size_t fragment) const {
    if (step.number <= sync_steps_) return true;
    const auto count = static_cast<std::int64_t>(fragments_.size());
    const std::int64_t offset = (static_cast<std::int64_t>(fragment) + 1) * period() / count;
    return (step.number - sync_steps_) % period() == offset % period();
  }
  bool is_due(const Step& step) override {
    for (std::size_t i = 0; i < fragments_.size(); ++i) {
      if (is_due(step, i)) return true;
    }
    return false;
  }

  void exchange(const Step& step) override {
    for (std::size_t i = 0; i < fragments_.size(); ++i) {
      if (is_due(step, i)) exchange(*fragments_[i], step);
    }
  }
  void exchange(Fragment& of, const Step& step) const {
    at::Tensor gradient = of.anchor - of.weights.read();
    of.mean(gradient, {.step = step.number - 1, .exchange = round_of(step) - 1});
    of.momentum.mul_(momentum_).add_(gradient);
    of.anchor.sub_(gradient, lr_).sub_(of.momentum, lr_ * momentum_);
    of.weights.write(of.anchor);
  }
  void start() override {
    for (const auto& fragment : fragments_) {
      fragment->anchor.copy_(fragment->weights.read());
      fragment->momentum.zero_();
      fragment->mean.restart();
    }
  }

  const double lr_, momentum_;
  const std::int64_t sync_steps_;
  std::vector<std::unique_ptr<Fragment>> fragments_;
};

}  // namespace

std::unique_ptr<Rule> diloco(const Strategy& strategy, Part part) {
  return std::make_unique<DiLoCo>(strategy, std::move(part));
}

}  // namespace weft::strategy::internal
