#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "weft/base/log.h"
#include "weft/kernels/reduce.h"
#include "weft/parallel/data/internal/codec_exchange.h"
#include "weft/parallel/data/internal/codec_trial.h"
#include "weft/parallel/data/internal/plan.h"
#include "weft/parallel/data/internal/stopwatch.h"
#include "weft/parallel/data/internal/sync.h"

namespace weft::parallel::internal {
namespace {

class MessageSync final : public Sync {
 public:
  explicit MessageSync(Subject subject)
      : subject_(std::move(subject)),
        codec_(compress::parse(subject_.options.codec)),
        ready_(subject_.params.size(), false),
        used_(subject_.params.size(), false) {
    if (codec_.kind == compress::Kind::kAuto) {
      trial_.emplace(subject_.group);
      codec_ = {};
    }
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
    double exposed = 0;
    {
      const Stopwatch watch(exposed);
      for (auto& work : works_) work->wait();  // first, so that the first failure is the one that is thrown
      finish_exchanges();
    }
    subject_.times->wait += exposed;
    agree_on_used();
    {
      const Stopwatch watch(subject_.times->work);
      take_results();
    }
    for (auto& buffer : subject_.buffers) subject_.group.broadcast(buffer, 0);
    end(exposed);
  }

  const std::vector<bool>& used() const override { return used_; }
  double norm() const override { return norm_; }

  std::string describe() const override {
    return "gradients averaged by messages over " + std::to_string(subject_.group.size()) + " ranks, " + std::to_string(params()) +
           " parameters in " + std::to_string(plan_.buckets.size()) + " buckets" +
           (subject_.options.codec == "none" ? "" : ", compressed by " + subject_.options.codec);
  }

  NamedTensors codec_state() override {
    if (!replanned_ || subject_.options.codec == "none" || (trial_ && !trial_->done())) return {};
    return gather_codec_state(subject_.group, {codec_, step_, order_}, memory());
  }

  void load_codec_state(const NamedTensors& state) override {
    if (subject_.options.codec == "none" && state.empty()) return;
    const bool restored = !state.empty() && restore(state);
    if (restored || trial_ || subject_.group.rank() != 0) return;
    log_warn("the codec begins without memory: the checkpoint has none of " + compress::to_string(codec_) +
             " for this model, these buckets and " + std::to_string(subject_.group.size()) + " ranks");
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  int params() const { return static_cast<int>(subject_.params.size()); }

  // A bucket on its way: one flat tensor for each element type in it.
  struct Flat {
    at::ScalarType type;
    at::Tensor wire;
    std::vector<std::pair<int, std::int64_t>> places;  // parameter, first element
    std::unique_ptr<CodecExchange> exchange;           // null: summed as it is
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

  void end(double exposed) {
    std::fill(ready_.begin(), ready_.end(), false);
    *subject_.samples = 0;
    begun_ = false;
    ++step_;
    if (!replanned_) {
      replanned_ = true;
      replan(agree_on_order(subject_.group, std::move(ready_order_), params()));
    } else if (trial_ && !trial_->done()) {
      if (const auto spec = trial_->step_ended(exposed, numbers(), trial_buffers())) {
        codec_ = *spec;
        make_exchanges();
      }
    }
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
    order_ = order;
    make_exchanges();
  }

  // Each flat tensor that a codec takes, with its number.
  template <class Visit>
  void each_float(const Visit& visit) {
    std::uint32_t id = 0;
    for (auto& flats : flats_) {
      for (Flat& flat : flats) {
        if (flat.type == at::kFloat) visit(flat, id);
        ++id;
      }
    }
  }
  // Each exchange of the step, in one order on all ranks.
  template <class Visit>
  void each_exchange(const Visit& visit) {
    each_float([&](Flat& flat, std::uint32_t) {
      if (flat.exchange) visit(*flat.exchange);
    });
  }

  // The first step is not compressed: what codecs remember belongs to buckets, and these are planned anew after it.
  void make_exchanges() {
    const bool any = replanned_ && codec_.kind != compress::Kind::kNone;
    each_float([&](Flat& flat, std::uint32_t id) {
      flat.exchange = any ? std::make_unique<CodecExchange>(subject_.group, flat.wire, codec_, unit_of(flat, id)) : nullptr;
    });
  }

  compress::Unit unit_of(const Flat& flat, std::uint32_t id) const {
    compress::Unit unit{.count = flat.wire.numel(), .matrices = {}, .id = id};
    for (const auto& [param, first] : flat.places) {
      const at::Tensor& like = subject_.params[at(param)];
      const std::int64_t rows = like.dim() >= 2 ? like.size(0) : like.numel();
      if (like.numel() > 0) unit.matrices.push_back({first, rows, like.numel() / rows});
    }
    return unit;
  }

  void finish_exchanges() {
    for (bool more = true; more;) {
      more = false;
      each_exchange([&](CodecExchange& exchange) { more = exchange.advance() || more; });
    }
    each_exchange([](CodecExchange& exchange) { exchange.finish(); });
  }

  std::vector<std::span<float>> memory() {
    std::vector<std::span<float>> all;
    each_exchange([&](CodecExchange& exchange) {
      for (const auto& part : exchange.state()) all.push_back(part);
    });
    return all;
  }

  // The codec of the checkpoint is that of the options or, for "auto", the one that was chosen then.
  bool restore(const NamedTensors& state) {
    const auto progress = read_codec_progress(subject_.group, state, subject_.params.size());
    if (!progress || (!trial_ && !(progress->spec == codec_))) return false;
    codec_ = progress->spec;
    step_ = progress->step;
    trial_.reset();
    replanned_ = true;
    replan(progress->order);
    return restore_codec_memory(subject_.group, state, memory());
  }

  std::int64_t numbers() {
    std::int64_t sum = 0;
    each_float([&](Flat& flat, std::uint32_t) { sum += flat.wire.numel(); });
    return sum;
  }

  // What this rank would send encoded.
  std::vector<compress::Unit> trial_buffers() {
    std::vector<compress::Unit> units;
    each_float([&](Flat& flat, std::uint32_t id) { units.push_back(CodecExchange::unit_for(subject_.group, unit_of(flat, id))); });
    return units;
  }

  std::vector<Flat> flats_of(const std::vector<int>& bucket) const {
    std::vector<Flat> flats;
    std::vector<std::int64_t> lengths;
    for (int param : bucket) {
      const auto type = subject_.params[at(param)].scalar_type();
      auto found = std::find_if(flats.begin(), flats.end(), [&](const Flat& flat) { return flat.type == type; });
      if (found == flats.end()) {
        found = flats.insert(flats.end(), Flat{type, {}, {}, nullptr});
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
          // Scaled before the sum, so that it cannot overflow 16-bit floats where the average would not.
          slot.copy_(weight == 1.0 ? dense.reshape({-1}) : dense.reshape({-1}).mul(weight));
        }
      }
      if (flat.exchange) {
        flat.exchange->start(step_);
      } else {
        works_.push_back(subject_.group.all_reduce_async(flat.wire, ReduceOp::kSum));
      }
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
  compress::Spec codec_;             // in use now
  std::optional<CodecTrial> trial_;  // with "auto"
  Plan plan_;
  std::vector<int> order_;                // of the plan
  std::vector<std::vector<Flat>> flats_;  // by bucket
  std::vector<Group::Work> works_;
  Group::Work samples_work_;
  at::Tensor own_samples_, samples_;
  std::vector<bool> ready_, used_;
  std::vector<int> unready_;  // by bucket: parameters that are still to come
  std::vector<int> ready_order_;
  int next_ = 0;  // the next bucket to leave
  bool begun_ = false, weighted_ = false, replanned_ = false;
  std::int64_t step_ = 0;
  double factor_ = 1, norm_ = 0;
};

}  // namespace

std::unique_ptr<Sync> make_message_sync(Subject subject) { return std::make_unique<MessageSync>(std::move(subject)); }

}  // namespace weft::parallel::internal
