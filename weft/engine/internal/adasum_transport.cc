// Combines gradients by Adasum after backward, by messages. Every rank has all weights.
#include <ATen/ATen.h>

#include <algorithm>

#include "weft/base/text/words.h"
#include "weft/engine/internal/adasum.h"
#include "weft/engine/internal/buffer_broadcast.h"
#include "weft/engine/internal/stopwatch.h"
#include "weft/engine/internal/transport.h"
#include "weft/engine/internal/unit.h"

namespace weft::engine::internal {
namespace {

class AdasumTransport final : public Transport {
 public:
  explicit AdasumTransport(TransportContext context)
      : context_(std::move(context)),
        buffers_(context_.buffers),
        places_(context_.params.size()),
        used_(context_.params.size(), false) {
    const int ranks = context_.group.size();
    WEFT_REQUIRE((ranks & (ranks - 1)) == 0,
                 "adasum needs a power of two of ranks, not " + std::to_string(ranks));
    WEFT_REQUIRE(context_.options.codec == "none" && !context_.options.overlap_forward &&
                     !context_.options.update_in_backward,
                 "adasum does not support a codec, overlap_forward or update_in_backward");
    for (std::size_t i = 0; i < context_.params.size(); ++i) add(i);
    for (Flat& flat : flats_)
      flat.values = at::zeros({flat.bounds.back()}, at::TensorOptions(flat.type));
  }

  void ready(int) override { begin(); }

  void reduce() override {
    pack();
    if (std::exchange(reduced_, true)) return;
    const Stopwatch watch(context_.times->wait, "wait", "peers");
    const auto params = static_cast<std::int64_t>(used_.size());
    at::Tensor used = at::empty({params + 2}, at::kInt);
    for (std::size_t i = 0; i < used_.size(); ++i)
      used[static_cast<std::int64_t>(i)] = used_[i] ? 1 : 0;
    // The largest and the smallest digest.
    used[params] = digest_;
    used[params + 1] = -digest_;
    context_.group.all_reduce(used, ReduceOp::kMax);
    alike_ = used[params].item<int>() == -used[params + 1].item<int>();
    for (std::size_t i = 0; i < used_.size(); ++i) used_[i] = used.const_data_ptr<int>()[i] > 0;
    for (Flat& flat : flats_) adasum(context_.group, flat.values, flat.bounds);
  }

  void finish(double scale) override {
    reduce();
    scale_ = scale;
    const Stopwatch watch(context_.times->work, "update", "update weights");
    each_sum([&](int param, const at::Tensor& sum) {
      const at::Tensor gradient = scale == 1 ? sum : sum.mul(scale);
      if (context_.updates != nullptr) {
        context_.updates->update(param, 0, gradient.numel(), gradient.const_data_ptr());
      } else {
        context_.params[index(param)].mutable_grad() = gradient.clone();
      }
    });
    end();
    context_.samples->reset();
  }

  void drop() override {
    if (begun_) end();
  }
  void finish_updated(double scale) override {
    scale_ = scale;
    end();
    context_.samples->reset();
  }

  const std::vector<bool>& used() const override { return used_; }

  void each_sum(const std::function<void(int, const at::Tensor&)>& visit) override {
    for (std::size_t i = 0; i < used_.size(); ++i) {
      if (used_[i]) visit(static_cast<int>(i), value_of(i));
    }
  }

  bool all_finite() override {
    pack();
    return context_.check == nullptr || context_.check->first() < 0;
  }
  bool knows_all() const override { return false; }

  at::Tensor sum_of(int param) override {
    const at::Tensor value = value_of(index(param));
    return begun_ ? value.clone() : value.mul(scale_);
  }

  std::string describe() const override {
    return "gradients combined by Adasum over " + counted(context_.group.size(), "rank") + ", " +
           counted(context_.params.size(), "parameter");
  }

 private:
  // The gradients of the parameters of one type.
  struct Flat {
    at::ScalarType type;
    std::vector<std::int64_t> bounds{0};
    at::Tensor values;
  };
  struct Place {
    std::size_t flat = 0;
    std::int64_t begin = 0;
  };

  void add(std::size_t param) {
    const at::ScalarType type = context_.params[param].scalar_type();
    WEFT_REQUIRE(type == at::kFloat || type == at::kDouble,
                 "adasum needs float32 or float64 parameters");
    auto found = std::find_if(flats_.begin(), flats_.end(),
                              [&](const Flat& flat) { return flat.type == type; });
    if (found == flats_.end()) {
      flats_.push_back({type, {0}, {}});
      found = flats_.end() - 1;
    }
    places_[param] = {static_cast<std::size_t>(found - flats_.begin()), found->bounds.back()};
    found->bounds.push_back(found->bounds.back() + context_.params[param].numel());
  }

  at::Tensor value_of(std::size_t param) const {
    const at::Tensor& like = context_.params[param];
    return flats_[places_[param].flat]
        .values.narrow(0, places_[param].begin, like.numel())
        .view(like.sizes());
  }

  void begin() {
    if (std::exchange(begun_, true)) return;
    digest_ = static_cast<int>(context_.digest());
    scale_ = 1;
    buffers_.start(context_.group);
  }

  // Copies this rank's gradients. A parameter that it did not use counts as zero.
  void pack() {
    begin();
    if (std::exchange(packed_, true)) return;
    const at::NoGradGuard guard;
    for (std::size_t i = 0; i < used_.size(); ++i) {
      const at::Tensor& grad = context_.params[i].grad();
      used_[i] = grad.defined();
      at::Tensor part = value_of(i).view({-1});
      put_gradient(part, static_cast<int>(i), grad, 1, context_.check);
    }
  }

  void end() {
    buffers_.finish(context_.group);
    begun_ = packed_ = reduced_ = false;
  }

  TransportContext context_;
  BufferBroadcast buffers_;
  std::vector<Flat> flats_;
  std::vector<Place> places_;  // by parameter
  std::vector<bool> used_;
  int digest_ = 0;
  double scale_ = 1;
  bool begun_ = false, packed_ = false, reduced_ = false;
};

}  // namespace

std::unique_ptr<Transport> make_adasum_transport(TransportContext context) {
  return std::make_unique<AdasumTransport>(std::move(context));
}

}  // namespace weft::engine::internal
