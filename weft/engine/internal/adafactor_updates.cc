// Adafactor over ranks: the sums over rows and columns are joined, and every rank then updates all
// moments.
#include <ATen/ATen.h>

#include <cmath>
#include <type_traits>
#include <variant>

#include "weft/base/fault/failpoint.h"
#include "weft/engine/internal/whole_updates.h"
#include "weft/optim/adafactor.h"

namespace weft::engine::internal {
namespace {

class AdafactorUpdates final : public WholeUpdates {
 public:
  explicit AdafactorUpdates(Context context) : WholeUpdates(std::move(context)) {
    WEFT_REQUIRE(!is_split(),
                 "optimizer: adafactor does not support tensors that are divided over tp or ep");
    for (int param = 0; param < params(); ++param) {
      shapes_.push_back(optim::factored_shape(shape(param)));
      firsts_.push_back(firsts_.back() + shapes_.back().sums());
      moments_.push_back(at::zeros({static_cast<std::int64_t>(shapes_.back().sums())},
                                   at::TensorOptions(updates().type(param))));
      pairs_.push_back(pairs_.back() + 2);
    }
  }

  std::vector<std::pair<std::string, at::Tensor>> state(int param) const override {
    std::vector<std::pair<std::string, at::Tensor>> all;
    std::int64_t begin = 0;
    for (const auto& one : optim::tensor_states(spec().rule, shape(param))) {
      const std::int64_t count = c10::multiply_integers(one.sizes);
      all.emplace_back(one.name, moments_[index(param)].narrow(0, begin, count).view(one.sizes));
      begin += count;
    }
    return all;
  }

 protected:
  void apply(const WholeStep& now) override {
    optim::TensorSums squares(firsts_.back(), exact()), means(pairs_.back(), exact());
    each(now, Look::kNone, [&](const auto& step, int param, std::int64_t begin, const auto&) {
      optim::add_gradient(step, begin, shapes_[index(param)], squares, firsts_[index(param)]);
    });
    join(squares, firsts_);
    update_moments(now, squares);
    each(now, Look::kBefore,
         [&](const auto& step, int param, std::int64_t begin, const auto& factors) {
           optim::add_update(step, begin, shapes_[index(param)], factors, means,
                             pairs_[index(param)]);
         });
    join(means, pairs_);
    each(now, Look::kAfter,
         [&](const auto& step, int param, std::int64_t begin, const auto& factors) {
           const FactoredShape& shape = shapes_[index(param)];
           const auto root_mean = [&](std::size_t sum) {
             return std::sqrt(means.value(pairs_[index(param)] + sum) / shape.elements());
           };
           optim::end_step(std::get<optim::Adafactor>(updates().rule(param)), step, begin, shape,
                           factors, {.weight = root_mean(0), .update = root_mean(1)});
           failpoint("update.middle");
         });
    factors_.clear();
  }

 private:
  using FactoredShape = optim::FactoredShape;
  using Factors = std::variant<std::vector<float>, std::vector<double>>;

  // Of all parameters that are used, so that each rank has the moments of all.
  void update_moments(const WholeStep& now, const optim::TensorSums& squares) {
    factors_.resize(shapes_.size());
    for (int param = 0; param < params(); ++param) {
      if (!now.used[index(param)]) continue;
      const auto rule = std::get<optim::Adafactor>(updates().rule(param));
      at::Tensor& moments = moments_[index(param)];
      const auto update = [&]<class Number>(Number* into) {
        factors_[index(param)] =
            optim::update_moments(rule, updates().step(param), shapes_[index(param)], squares,
                                  firsts_[index(param)], into);
      };
      if (moments.scalar_type() == at::kDouble) {
        update(moments.data_ptr<double>());
      } else {
        update(moments.data_ptr<float>());
      }
    }
  }

  template <class Fn>
  void each(const WholeStep& now, Look look, const Fn& fn) {
    for (const WholePiece& at : now.pieces) {
      in_blocks(at, look, [&](const auto& step, std::int64_t begin) {
        using Number = std::remove_pointer_t<decltype(step.weight)>;
        static const std::vector<Number> kNone;
        fn(step, at.param, begin,
           factors_.empty() ? kNone : std::get<std::vector<Number>>(factors_[index(at.param)]));
      });
    }
  }

  std::vector<FactoredShape> shapes_;              // by parameter, like the next ones
  std::vector<std::size_t> firsts_{0}, pairs_{0};  // first sum of a parameter, and the end
  std::vector<at::Tensor> moments_;
  std::vector<Factors> factors_;  // of this step
};

}  // namespace

std::unique_ptr<WholeUpdates> make_adafactor_updates(WholeUpdates::Context context) {
  return std::make_unique<AdafactorUpdates>(std::move(context));
}

}  // namespace weft::engine::internal
