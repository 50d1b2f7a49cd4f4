#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "weft/kernels/reduce.h"
#include "weft/parallel/data/internal/plan.h"
#include "weft/parallel/data/internal/stopwatch.h"
#include "weft/parallel/data/internal/sync.h"

namespace weft::parallel::internal {
namespace {

at::ScalarType wire_type(const std::string& codec, at::ScalarType own) {
  if (own != at::kFloat || codec == "none") return own;
  return codec == "bf16" ? at::kBFloat16 : at::kHalf;
}

class MessageSync final : public Sync {
 public:
  explicit MessageSync(Subject subject)
      : subject_(std::move(subject)), ready_(subject_.params.size(), false), used_(subject_.params.size(), false) {
    std::vector<int> order;
    for (int param = params() - 1; param >= 0; --param) order.push_back(param);
    replan(order);
  }

  void ready(int param) override {
    begin();
    ready_[at(param)] = true;
    if (!replanned_) ready_order_.push_back(param);
    --unready_[at(plan_.bucket_of[at(param)])];
    // Buckets leave in one order on all ranks, whatever the order in which they fill.
    while (next_ < static_cast<int>(plan_.buckets.size()) && unready_[at(next_)] == 0) launch(next_++);
  }

  void finish() override {
    begin();
    while (next_ < static_cast<int>(plan_.buckets.size())) launch(next_++);
    {
      const Stopwatch watch(subject_.times->wait);
      for (auto& work : works_) work->wait();  // first, so that the first failure is the one that is thrown
    }
    agree_on_used();
    {
      const Stopwatch watch(subject_.times->work);
      take_results();
    }
    for (auto& buffer : subject_.buffers) subject_.group.broadcast(buffer, 0);
    end();
  }

  const std::vector<bool>& used() const override { return used_; }
  double norm() const override { return norm_; }

  std::string describe() const override {
    return "gradients averaged by messages over " + std::to_string(subject_.group.size()) + " ranks, " + std::to_string(params()) +
           " parameters in " + std::to_string(plan_.buckets.size()) + " buckets" +
           (subject_.options.codec == "none" ? "" : ", sent as " + subject_.options.codec);
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  int params() const { return static_cast<int>(subject_.params.size()); }

  // A bucket on its way: one flat tensor for each element type in it.
  struct Flat {
    at::ScalarType type;
    at::Tensor wire;
    std::vector<std::pair<int, std::int64_t>> places;  // parameter, first element
  };

  void begin() {
    if (begun_) return;
    begun_ = true;
    next_ = 0;
    weighted_ = false;
    works_.clear();
    for (std::size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket) unready_[bucket] = static_cast<int>(plan_.buckets[bucket].size());
    if (subject_.options.average != DataParallelOptions::Average::kBySamples) return;
    own_samples_ = at::full({1}, *subject_.samples, at::kDouble);
    samples_ = at::empty({subject_.group.size()}, at::kDouble);
    samples_work_ = subject_.group.all_gather_async(samples_, own_samples_);
  }

  void end() {
    std::fill(ready_.begin(), ready_.end(), false);
    *subject_.samples = 0;
    begun_ = false;
    if (replanned_) return;
    replanned_ = true;
    replan(agree_on_order(subject_.group, std::move(ready_order_), params()));
  }

  void replan(const std::vector<int>& order) {
    std::vector<std::int64_t> sizes;
    for (const auto& param : subject_.params) sizes.push_back(param.numel());
    const auto elements = [](std::size_t bytes) { return static_cast<std::int64_t>(bytes / sizeof(float)); };
    plan_ = make_plan(sizes, order,
                      {.bucket_elements = elements(subject_.options.bucket_bytes),
                       .first_bucket_elements = elements(subject_.options.first_bucket_bytes)});
    unready_.assign(plan_.buckets.size(), 0);
    flats_.clear();
    for (const auto& bucket : plan_.buckets) flats_.push_back(flats_of(bucket));
  }

  std::vector<Flat> flats_of(const std::vector<int>& bucket) const {
    std::vector<Flat> flats;
    std::vector<std::int64_t> lengths;
    for (int param : bucket) {
      const auto type = wire_type(subject_.options.codec, subject_.params[at(param)].scalar_type());
      auto found = std::find_if(flats.begin(), flats.end(), [&](const Flat& flat) { return flat.type == type; });
      if (found == flats.end()) {
        found = flats.insert(flats.end(), {type, {}, {}});
        lengths.push_back(0);
      }
      auto& length = lengths[static_cast<std::size_t>(found - flats.begin())];
      found->places.emplace_back(param, length);
      length += subject_.params[at(param)].numel();
    }
    for (std::size_t i = 0; i < flats.size(); ++i) flats[i].wire = at::zeros({lengths[i]}, flats[i].type);
    return flats;
  }

  double factor() {
    if (weighted_) return factor_;
    weighted_ = true;
    std::vector<double> samples(at(subject_.group.size()), 1.0);
    if (samples_work_) {
      samples_work_->wait();
      const auto* values = samples_.const_data_ptr<double>();
      samples.assign(values, values + samples_.numel());
      samples_work_.reset();
    }
    const Weighting weighting = weigh(subject_.options.average, samples);
    factor_ = weighting.weights.empty() ? weighting.scale : weighting.weights[at(subject_.group.rank())];
    return factor_;
  }

  void launch(int bucket) {
    at::NoGradGuard guard;
    const Stopwatch watch(subject_.times->work);
    const double weight = factor();
    for (Flat& flat : flats_[at(bucket)]) {
      for (const auto& [param, first] : flat.places) {
        at::Tensor slot = flat.wire.narrow(0, first, subject_.params[at(param)].numel());
        const at::Tensor& grad = subject_.params[at(param)].grad();
        if (!grad.defined()) {
          slot.zero_();
        } else {
          const at::Tensor dense = grad.is_sparse() ? grad.to_dense() : grad;
          // Scaled before it is narrowed, so that a sum over ranks cannot overflow float16 where the average would not.
          slot.copy_(weight == 1.0 ? dense.reshape({-1}) : dense.reshape({-1}).mul(weight));
        }
      }
      works_.push_back(subject_.group.all_reduce_async(flat.wire, ReduceOp::kSum));
    }
  }

  void agree_on_used() {
    at::Tensor flags = at::zeros({params() + 1}, at::kByte);
    auto* values = flags.data_ptr<std::uint8_t>();
    for (int param = 0; param < params(); ++param) values[param] = subject_.params[at(param)].grad().defined() ? 1 : 0;
    const Stopwatch watch(subject_.times->wait);
    subject_.group.all_reduce(flags, ReduceOp::kMax);
    for (int param = 0; param < params(); ++param) used_[at(param)] = values[param] != 0;
  }

  void take_results() {
    at::NoGradGuard guard;
    std::vector<at::Tensor> results(subject_.params.size());
    double squares = 0;
    for (const auto& flats : flats_) {
      for (const Flat& flat : flats) {
        for (const auto& [param, first] : flat.places) {
          if (!used_[at(param)]) continue;
          const at::Tensor& like = subject_.params[at(param)];
          results[at(param)] = flat.wire.narrow(0, first, like.numel()).to(like.scalar_type()).view(like.sizes());
          if (subject_.max_grad_norm > 0) squares += kernels::sum_of_squares(results[at(param)].const_data_ptr<float>(), like.numel());
        }
      }
    }
    norm_ = subject_.max_grad_norm > 0 ? std::sqrt(squares) : 0;
    const double clip = subject_.max_grad_norm > 0 ? std::min(1.0, subject_.max_grad_norm / (norm_ + 1e-6)) : 1.0;
    for (int param = 0; param < params(); ++param) {
      if (used_[at(param)]) apply(param, clip < 1.0 ? results[at(param)].mul(clip) : results[at(param)]);
    }
  }

  void apply(int param, const at::Tensor& gradient) {
    if (subject_.updater != nullptr) return subject_.updater->update(param, 0, gradient.numel(), gradient.const_data_ptr<float>());
    at::Tensor& grad = subject_.params[at(param)].mutable_grad();
    if (!grad.defined() || grad.is_sparse()) {
      grad = gradient.clone();
    } else {
      grad.copy_(gradient);
    }
  }

  Subject subject_;
  Plan plan_;
  std::vector<std::vector<Flat>> flats_;  // by bucket
  std::vector<Group::Work> works_;
  Group::Work samples_work_;
  at::Tensor own_samples_, samples_;
  std::vector<bool> ready_, used_;
  std::vector<int> unready_;  // by bucket: parameters that are still to come
  std::vector<int> ready_order_;
  int next_ = 0;  // the next bucket to leave
  bool begun_ = false, weighted_ = false, replanned_ = false;
  double factor_ = 1, norm_ = 0;
};

}  // namespace

std::unique_ptr<Sync> make_message_sync(Subject subject) { return std::make_unique<MessageSync>(std::move(subject)); }

}  // namespace weft::parallel::internal
