// A step over messages:
//
//   backward   sends each full bucket, in an order on which all ranks have agreed
//   step()     sends the rest; waits for one bucket after the other and updates its weights while
//              the next ones are in transfer
//   forward    with overlap_forward: waits for a bucket and updates it at the first use of one of
//              its weights, instead of in step()
//
// The first order is that of backward. After some timed steps, front layers overtake others if the
// link is the bottleneck (wire_plan.h).
//
// Collectives of a step, in this order on all ranks: a gather of samples and digests, the broadcast
// of buffers, the buckets in the order of launches_. The first gradient starts them, or step() on a
// rank without one. The weight of a gradient depends on the samples of all ranks. So the first
// launch waits for the gather, which mostly has arrived by then.
//
// Plans: the first step takes the parameters in reverse order. At its end, the ranks agree on the
// order of rank 0's backward and plan the buckets again. Codecs begin after that, since their
// memory belongs to buckets. A plan or a codec may change only while nothing is pending.
//
// Delayed updates: with overlap_forward, step() leaves buckets in transfer (pending_). settled_
// counts those that have arrived and are updated, in the order of launches_. Until the last one,
// sums, used_ and scale_ belong to the ended step. So begin() settles before it starts the next
// one. An error of an update within forward cannot be thrown there (weight_guard.h). It stays in
// failed_ for the next call that can throw.
//
// Sums that do not count: begin() makes the codec's memory of earlier steps final, and drop() goes
// back to it. There is no lock: one thread at a time calls it, that of backward(), of step() or of
// forward.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "weft/base/log.h"
#include "weft/base/text/words.h"
#include "weft/engine/internal/buckets.h"
#include "weft/engine/internal/buffer_broadcast.h"
#include "weft/engine/internal/codec_trial.h"
#include "weft/engine/internal/plan.h"
#include "weft/engine/internal/stopwatch.h"
#include "weft/engine/internal/transport.h"
#include "weft/engine/internal/tuner.h"
#include "weft/engine/internal/weight_guard.h"
#include "weft/engine/squares.h"

namespace weft::engine::internal {
namespace {

constexpr std::size_t kDefaultBucket = std::size_t{25} << 20;
// What ranks tell each other at the start of a step: samples, the digest of changes, the models
// that backward() has reached together, and the number of this one.
constexpr std::size_t kFacts = 4;

class MessageTransport final : public Transport {
 public:
  explicit MessageTransport(TransportContext context)
      : context_(std::move(context)),
        codec_(compress::parse(context_.options.codec)),
        buckets_({context_.group, context_.params, &times_, context_.check, context_.devices}),
        buffers_(context_.buffers),
        fill_{context_.options.bucket_bytes > 0 ? context_.options.bucket_bytes : kDefaultBucket,
              context_.options.first_bucket_bytes},
        used_(context_.params.size(), false) {
    if (codec_.kind == compress::Kind::kAuto) {
      trial_.emplace(context_.group);
      codec_ = {};
    }
    if (context_.options.overlap_forward && context_.updates != nullptr) {
      guard_ = std::make_unique<WeightGuard>(context_.params, [this](int param) { on_use(param); });
    }
    if (context_.group.size() > 1 && (guard_ || tunes_size())) {
      tuner_ = std::make_unique<Tuner>(context_.group, context_.params.size(), guard_ != nullptr);
    }
    for (const auto& param : context_.params) sizes_.push_back(param.numel());
    for (int param = params() - 1; param >= 0; --param) order_.push_back(param);
    replan();
  }

  void ready(int param) override {
    begin();
    if (!replanned_) ready_order_.push_back(param);
    if (timing_) tuner_->gradient(param);
    --unready_[index(plan_.bucket_of[index(param)])];
    // Buckets are sent in the same order on all ranks, whatever the order in which they fill.
    while (next_ < buckets() && unready_[index(launches_[index(next_)])] == 0)
      buckets_.launch(launches_[index(next_++)], step_, factor());
  }

  void reduce() override {
    launch_rest();
    for (int bucket : launches_) buckets_.collect(bucket);
    each_sum([&](int param, const at::Tensor&) { used_[index(param)] = true; });
    book();
  }

  void finish(double scale) override {
    WEFT_REQUIRE(scale == 1 || !momentum_travels_,
                 "step: scale is not supported if the codec applies the momentum");
    launch_rest();
    scale_ = scale;
    {
      const Stopwatch watch(times_.wait, "wait", "peers");
      buffers_.finish(context_.group);
    }
    pending_ = true;
    if (!defers()) settle();
    end(true);
    context_.samples->reset();
  }

  // The codec's memory of unsent gradients goes back to how it was.
  void drop() override {
    if (!begun_) return;
    buckets_.undo();
    end_reduced(false);
  }

  void finish_updated(double scale) override {
    scale_ = scale;
    check_range();
    if (begun_) end_reduced(true);
    context_.samples->reset();
  }

  void settle() override {
    if (guard_) guard_->disarm();
    if (failed_) std::rethrow_exception(failed_);
    if (!pending_) return;
    while (settled_ < launches_.size()) settle_next();
    pending_ = false;
  }
  bool pending() const override { return pending_; }

  const std::vector<bool>& used() const override { return used_; }

  void each_sum(const std::function<void(int, const at::Tensor&)>& visit) override {
    for (int bucket = 0; bucket < buckets(); ++bucket) buckets_.each_sum(bucket, visit);
  }

  // Sums in a narrow type may leave its range, so they are awaited.
  bool all_finite() override {
    const bool narrows = codec_.kind == compress::Kind::kF16;
    narrows ? reduce() : launch_rest();
    return (context_.check == nullptr || context_.check->first() < 0) &&
           (!narrows || buckets_.is_in_range());
  }
  bool knows_all() const override { return false; }

  at::Tensor sum_of(int param) override {
    settle();
    at::Tensor found;
    buckets_.each_sum(plan_.bucket_of[index(param)], [&](int other, const at::Tensor& sum) {
      if (other == param) found = begun_ ? sum.clone() : sum.mul(scale_);
    });
    return found;
  }

  std::string describe() const override {
    return "gradients averaged by messages over " + counted(context_.group.size(), "rank") + ", " +
           counted(params(), "parameter") + " in " + counted(buckets(), "bucket") +
           (context_.options.codec == "none" ? "" : ", compressed by " + context_.options.codec);
  }

  checkpoint::Slices codec_slices() override {
    if (!replanned_ || context_.options.codec == "none" || (trial_ && !trial_->done())) return {};
    settle();
    return engine::codec_slices(context_.group, {codec_, step_, {order_.begin(), order_.end()}},
                                buckets_.memory());
  }

  bool load_codec(const checkpoint::Reader& saved) override {
    if (context_.options.codec == "none" || restore(saved) || trial_) return true;
    if (context_.group.rank() == 0) {
      log_warn("the codec starts with empty memory: the checkpoint has no memory of " +
               compress::to_string(codec_) + " for this model, these buckets and " +
               counted(context_.group.size(), "rank"));
    }
    return false;
  }

 private:
  int params() const { return static_cast<int>(context_.params.size()); }
  int buckets() const { return static_cast<int>(launches_.size()); }

  // Tuned sizes depend on measured times. So they are used only where the sizes change no bit of
  // the result: for sums of two terms.
  bool tunes_size() const {
    const comm::HostSplit* const split = context_.group.split();
    const std::size_t terms = split != nullptr ? split->hosts.size() : index(context_.group.size());
    // The times of a host say nothing about its device.
    return context_.options.bucket_bytes == 0 && context_.options.codec == "none" && terms == 2 &&
           !context_.devices;
  }
  // Not while steps are timed. Not if updates need collectives, since forward may reach weights in
  // another order on each rank.
  bool defers() const { return guard_ && !tuner_ && !buckets_.collects_by_collectives(); }

  // Publishes the times of waiting and working so far.
  void book() {
    context_.times->wait += times_.wait;
    context_.times->work += times_.work;
    exposed_ += times_.wait;
    times_ = {};
  }

  void begin() {
    if (begun_) return;
    settle();
    buckets_.keep();
    begun_ = true;
    next_ = 0;
    settled_ = 0;
    weighted_ = backward_ended_ = false;
    std::fill(used_.begin(), used_.end(), false);
    timing_ = tuner_ && replanned_;
    if (timing_) tuner_->step_began();
    for (std::size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket)
      unready_[bucket] = static_cast<int>(plan_.buckets[bucket].size());
    own_samples_ = at::tensor(
        {context_.samples->value(), static_cast<double>(context_.digest()),
         static_cast<double>(context_.company_value()), static_cast<double>(context_.name.number)},
        at::kDouble);
    samples_ = at::empty({context_.group.size(), static_cast<std::int64_t>(kFacts)}, at::kDouble);
    samples_work_ = context_.group.all_gather_async(samples_, own_samples_);
    buffers_.start(context_.group);
  }

  // Sends all buckets that backward() has not sent.
  void launch_rest() {
    begin();
    if (timing_ && !std::exchange(backward_ended_, true)) tuner_->backward_ended();
    while (next_ < buckets()) buckets_.launch(launches_[index(next_++)], step_, factor());
  }

  void end_reduced(bool counts) {
    buffers_.finish(context_.group);
    // The sums have been collected and used, or do not count.
    settled_ = launches_.size();
    end(counts);
  }

  // `counts`: else the step is as if it had not been.
  void end(bool counts) {
    begun_ = false;
    if (counts) ++step_;
    book();
    const double exposed = std::exchange(exposed_, 0);
    if (!replanned_) {
      replanned_ = true;
      order_ = agree_on_order(context_.group, std::move(ready_order_), params());
      replan();
    } else if (tuner_) {
      if (timing_ && tuner_->step_ended()) tune_buckets();
    } else if (trial_ && !trial_->done()) {
      try_codec(exposed);
    }
    // Timing needs the first uses by forward too, although nothing is pending then.
    if (guard_ && (pending_ || timing_)) guard_->arm();
  }

  void try_codec(double exposed) {
    const auto spec = trial_->step_ended(exposed, buckets_.numbers(), buckets_.units());
    if (!spec) return;
    settle();
    codec_ = *spec;
    use_codec();
  }

  void use_codec() {
    const bool before = codec_.momentum_before && context_.updates != nullptr &&
                        context_.updates->spec().max_grad_norm <= 0;
    const auto momentum = before ? context_.updates->hand_over_momentum() : compress::Momentum{};
    if (codec_.momentum_before && momentum.factor == 0 && context_.group.rank() == 0) {
      log_info("codec " + compress::to_string(codec_) +
               ": momentum is applied after the codec. Only SGD of optimizer() applies it before, "
               "without dampening, max_grad_norm or parameter groups with their own rules");
    }
    momentum_travels_ = momentum.factor != 0;
    buckets_.use_codec(codec_, momentum);
  }

  void replan() {
    plan_ = plan_buckets(sizes_, order_, fill_);
    unready_.assign(plan_.buckets.size(), 0);
    launches_.resize(plan_.buckets.size());
    std::iota(launches_.begin(), launches_.end(), 0);
    buckets_.reset(plan_.buckets);
    // The first step is not compressed: the memory of codecs belongs to buckets, and the buckets
    // are planned again after this step.
    if (replanned_) use_codec();
  }

  void tune_buckets() {
    LinkCost link = measure_link(context_.group, buckets_.numbers());
    // The link was measured without the codec.
    link.element *= buckets_.share_sent();
    StepTimes times = tuner_->agreed();
    if (!guard_ || buckets_.collects_by_collectives()) times.needed.clear();
    Tuned tuned = tune(sizes_, order_, times, link, {fill_, !tunes_size()});
    tuner_.reset();
    timing_ = false;
    if (tuned.fill.bucket != fill_.bucket) {
      fill_ = tuned.fill;
      replan();
    }
    launches_ = std::move(tuned.launches.order);
    if (context_.group.rank() == 0) log_info("gradients are sent in " + tuned.why);
  }

  // Of this model's parameters.
  bool is_order(std::vector<std::int64_t> numbers) const {
    std::sort(numbers.begin(), numbers.end());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] != static_cast<std::int64_t>(i)) return false;
    }
    return numbers.size() == context_.params.size();
  }

  // The codec of the checkpoint must be that of the options; for "auto", it is the one that was
  // chosen then.
  bool restore(const checkpoint::Reader& saved) {
    const auto progress =
        agree_on_codec_progress(context_.group, saved, [this](const CodecProgress& of) {
          return is_order(of.layout) && (trial_ || of.spec == codec_);
        });
    if (!progress) return false;
    codec_ = progress->spec;
    step_ = progress->step;
    trial_.reset();
    replanned_ = true;
    order_.assign(progress->layout.begin(), progress->layout.end());
    replan();
    return restore_codec_memory(context_.group, saved, buckets_.memory());
  }

  double factor() {
    if (weighted_) return factor_;
    weighted_ = true;
    const Stopwatch watch(times_.wait, "wait", "peers");
    samples_work_->wait();
    const auto* const values = samples_.const_data_ptr<double>();
    std::vector<double> samples;
    std::vector<std::uint64_t> companies;
    alike_ = true;
    for (std::size_t rank = 0; rank < index(context_.group.size()); ++rank) {
      const double* const of_rank = values + kFacts * rank;
      if (of_rank[3] != static_cast<double>(context_.name.number))
        refuse_other_model(static_cast<int>(rank));
      samples.push_back(of_rank[0]);
      alike_ = alike_ && of_rank[1] == values[1];
      companies.push_back(static_cast<std::uint64_t>(of_rank[2]));
    }
    apart_ = first_apart(companies);
    const Weighting weighting = weigh(context_.options.average, samples);
    factor_ = weighting.weights.empty() ? weighting.scale
                                        : weighting.weights[index(context_.group.rank())];
    return factor_;
  }

  // Models of a group exchange gradients in one order on all ranks.
  [[noreturn]] void refuse_other_model(int peer) const {
    throw Error(
        Errc::kInvalidArgument,
        "rank " + std::to_string(context_.group.rank()) + " exchanges gradients of model " +
            std::to_string(context_.name.number) + " with '" + context_.name.parameter +
            "', and rank " + std::to_string(peer) +
            " those of another model; let backward() reach the same models on all "
            "ranks, and step their optimizers in the same order: a rank without a batch runs "
            "forward() on any sample, calls set_samples(0), and goes backward from zero "
            "times the output",
        {"step", context_.group.rank(), peer});
  }

  // Called when an operation is about to use a parameter.
  void on_use(int param) {
    if (tuner_ && timing_) tuner_->used(param);
    if (!pending_ || failed_) return;
    try {
      const int bucket = plan_.bucket_of[index(param)];
      const auto place = std::find(launches_.begin(), launches_.end(), bucket) - launches_.begin();
      // Buckets before it in the order of launches arrive first, and are updated first.
      while (settled_ <= static_cast<std::size_t>(place)) settle_next();
    } catch (...) {
      failed_ = std::current_exception();  // thrown by the next backward, step or settle
    }
    book();
  }

  void settle_next() {
    const at::NoGradGuard guard;
    const int bucket = launches_[settled_];
    buckets_.collect(bucket);
    check_range();
    ++settled_;
    const Stopwatch watch(times_.work, "update", "update weights");
    std::vector<std::pair<int, at::Tensor>> sums;
    buckets_.each_sum(bucket, [&](int param, const at::Tensor& sum) {
      used_[index(param)] = true;
      sums.emplace_back(param, scale_ != 1.0 ? sum.mul(scale_) : sum);
    });
    if (context_.updates != nullptr) return context_.updates->update_all(sums);
    for (const auto& [param, sum] : sums) put_average(param, sum);
  }

  // A step that is checked first was skipped.
  void check_range() const {
    if (codec_.kind != compress::Kind::kF16 || buckets_.is_in_range()) return;
    throw Error(Errc::kInvalidArgument,
                "a sum of gradients is not finite in the codec f16, whose largest number is 65504; "
                "use the codec bf16, or make gradients smaller",
                {"step", context_.group.rank()});
  }

  void put_average(int param, const at::Tensor& gradient) {
    at::Tensor& grad = context_.params[index(param)].mutable_grad();
    if (grad.is_same(gradient)) return;
    if (!grad.defined() || grad.is_sparse()) {
      grad = gradient.clone();
    } else {
      grad.copy_(gradient);
    }
  }

  TransportContext context_;
  compress::Spec codec_;             // in use now
  std::optional<CodecTrial> trial_;  // with "auto"
  std::unique_ptr<WeightGuard> guard_;
  std::unique_ptr<Tuner> tuner_;   // null after tuning
  DataParallelBase::Times times_;  // since book()
  Buckets buckets_;
  BufferBroadcast buffers_;
  Fill fill_;
  Plan plan_;
  std::vector<std::int64_t> sizes_;  // of the parameters
  std::vector<int> order_;           // of parameters in the plan
  std::vector<int> launches_;        // buckets in the order of sending and waiting
  Group::Work samples_work_;
  at::Tensor own_samples_, samples_;  // kFacts of each rank
  std::vector<bool> used_;
  std::vector<int> unready_;  // by bucket: number of parameters that are not ready
  std::vector<int> ready_order_;
  int next_ = 0;             // index in launches_: the next bucket to send
  std::size_t settled_ = 0;  // index in launches_: buckets received and updated so far
  bool begun_ = false, backward_ended_ = false, weighted_ = false, replanned_ = false,
       timing_ = false;
  bool momentum_travels_ = false;  // the codec applies the momentum
  bool pending_ = false;           // some buckets of the finished step have not arrived
  std::exception_ptr failed_;
  std::int64_t step_ = 0;
  double factor_ = 1, scale_ = 1;
  double exposed_ = 0;  // seconds waited since the end of the last step
};

}  // namespace

std::unique_ptr<Transport> make_message_transport(TransportContext context) {
  return std::make_unique<MessageTransport>(std::move(context));
}

}  // namespace weft::engine::internal
