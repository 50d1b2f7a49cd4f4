// A step over messages:
//
//   backward   sends each full bucket, in an order on which all ranks have agreed
//   step()     sends the rest; waits for one bucket after the other and updates its weights while
//              the next ones are in transfer
//   forward    with overlap_forward: waits for a bucket and updates it at the first use of one of
//              its weights, instead of in step()
//
// The first order is that of backward. After some timed steps, front layers overtake others if the
// link is the bottleneck (launch_order.h).
//
// Collectives of a step, in this order on all ranks: a gather of samples and digests, the broadcast
// of buffers, the buckets in their order (sending_order.h). The first gradient starts them, or
// step() on a rank without one. The weight of a gradient depends on the samples of all ranks. So
// the first launch waits for the gather, which mostly has arrived by then.
//
// Plans: the first step takes the parameters in reverse order. At its end, the ranks agree on the
// order of rank 0's backward and plan the buckets again. Codecs begin after that, since their
// memory belongs to buckets. An assignment or a codec may change only while nothing is pending.
//
// Delayed updates: with overlap_forward, step() leaves buckets in transfer (kPending). settled_
// counts those that have arrived and are updated, in the order of sending. Until the last one,
// sums, used_ and scale_ belong to the ended step. So begin() settles before it starts the next
// one. An error of an update within forward cannot be thrown there (weight_guard.h). It stays in
// failed_ for the next call that can throw. A write that weight_guard.h does not see would come
// before the update, and so be lost in part. So left_ has marks of the weights as step() left them.
//
// Sums that do not count: begin() makes the codec's memory of earlier steps final, and drop() goes
// back to it. Without an updater, averages_used() and averages_dropped() do so. There is no lock:
// the thread of backward(), of step() or of forward calls it, one at a time.
#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "weft/base/log.h"
#include "weft/base/text/words.h"
#include "weft/engine/internal/buckets.h"
#include "weft/engine/internal/buffer_broadcast.h"
#include "weft/engine/internal/change_marks.h"
#include "weft/engine/internal/codec_trial.h"
#include "weft/engine/internal/sending_order.h"
#include "weft/engine/internal/step_facts.h"
#include "weft/engine/internal/stopwatch.h"
#include "weft/engine/internal/transport.h"
#include "weft/engine/internal/tuner.h"
#include "weft/engine/internal/weight_guard.h"

namespace weft::engine::internal {
namespace {

constexpr std::size_t kDefaultBucket = std::size_t{25} << 20;

class MessageTransport final : public Transport {
 public:
  explicit MessageTransport(TransportContext context)
      : context_(std::move(context)),
        codec_(compress::parse(context_.options.codec)),
        buckets_({context_.group, context_.params, &times_, context_.check, context_.devices}),
        buffers_(context_.buffers),
        facts_(context_),
        order_(context_.sizes(),
               {context_.options.bucket_bytes > 0 ? context_.options.bucket_bytes : kDefaultBucket,
                context_.options.first_bucket_bytes}),
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
    buckets_.reset(order_.buckets());
  }

  void ready(int param) override {
    begin();
    order_.note_ready(param);
    if (timing_) tuner_->gradient(param);
    while (const auto bucket = order_.next_full()) launch(*bucket);
  }

  void reduce() override {
    launch_rest();
    for (int bucket : order_.launches()) buckets_.collect(bucket);
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
    phase_ = Phase::kPending;
    if (!defers()) settle();
    end(true);
    context_.samples->reset();
  }

  // The codec's memory of unsent gradients goes back to how it was.
  void drop() override {
    if (!is_under_way()) return;
    buckets_.rollback();
    end_reduced(false);
  }

  void averages_used() override { commit(); }
  void averages_dropped() override {
    buckets_.rollback();
    step_ = final_step_;
  }

  void finish_updated(double scale) override {
    scale_ = scale;
    check_range();
    if (is_under_way()) end_reduced(true);
    context_.samples->reset();
  }

  void settle() override {
    if (guard_) guard_->disarm();
    if (failed_) std::rethrow_exception(failed_);
    if (!pending()) return;
    while (settled_ < order_.launches().size()) settle_next();
    phase_ = Phase::kIdle;
    left_.clear();
  }
  bool pending() const override { return phase_ == Phase::kPending; }

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
    buckets_.each_sum(order_.bucket_of(param), [&](int other, const at::Tensor& sum) {
      if (other == param) found = is_under_way() ? sum.clone() : sum.mul(scale_);
    });
    return found;
  }

  std::string describe() const override {
    return "gradients averaged by messages over " + counted(context_.group.size(), "rank") + ", " +
           counted(params(), "parameter") + " in " + counted(buckets(), "bucket") +
           (context_.options.codec == "none" ? "" : ", compressed by " + context_.options.codec);
  }

  checkpoint::Slices codec_slices() override {
    if (!order_.is_agreed() || context_.options.codec == "none" || (trial_ && !trial_->done()))
      return {};
    settle();
    const std::vector<int>& order = order_.params();
    return engine::codec_slices(context_.group, {codec_, step_, {order.begin(), order.end()}},
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
  // idle ──► backward ──► sent ──► pending ──► idle
  //                         └── reduce(), drop() or finish_updated() ──► idle
  enum class Phase {
    kIdle,      // No gradient of the next step is ready.
    kBackward,  // Gradients become ready.
    kSent,      // All buckets are sent.
    kPending,   // The step has ended, and not all weights are updated.
  };
  bool is_under_way() const { return phase_ == Phase::kBackward || phase_ == Phase::kSent; }
  int params() const { return static_cast<int>(context_.params.size()); }
  int buckets() const { return static_cast<int>(order_.buckets().size()); }

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
  // After the first step, the buckets are planned again.
  bool defers() const {
    return guard_ && order_.is_agreed() && !tuner_ && !buckets_.collects_by_collectives();
  }

  // Publishes the times of waiting and working so far.
  void book() {
    context_.times->wait += times_.wait;
    context_.times->work += times_.work;
    exposed_ += times_.wait;
    times_ = {};
  }

  void begin() {
    if (is_under_way()) return;
    settle();
    if (context_.updates != nullptr) commit();
    phase_ = Phase::kBackward;
    order_.begin();
    settled_ = 0;
    std::fill(used_.begin(), used_.end(), false);
    timing_ = tuner_ && order_.is_agreed();
    if (timing_) tuner_->step_began();
    facts_.send();
    buffers_.start(context_.group);
  }

  // The codec's memory of now is final.
  void commit() {
    buckets_.commit();
    final_step_ = step_;
  }

  void launch(int bucket) {
    const double factor = facts_.factor(times_.wait);
    alike_ = facts_.alike();
    apart_ = facts_.apart();
    buckets_.launch(bucket, step_, factor);
  }

  // Sends all buckets that backward() has not sent.
  void launch_rest() {
    begin();
    if (timing_ && phase_ == Phase::kBackward) tuner_->backward_ended();
    phase_ = Phase::kSent;
    while (const auto bucket = order_.next()) launch(*bucket);
  }

  void end_reduced(bool counts) {
    buffers_.finish(context_.group);
    // The sums have been collected and used, or do not count.
    settled_ = order_.launches().size();
    end(counts);
  }

  // `counts`: else the step is as if it had not been.
  void end(bool counts) {
    if (!pending()) phase_ = Phase::kIdle;
    if (counts) ++step_;
    book();
    const double exposed = std::exchange(exposed_, 0);
    if (!order_.is_agreed()) {
      order_.agree(context_.group);
      use_buckets();
    } else if (tuner_) {
      if (timing_ && tuner_->step_ended()) tune_buckets();
    } else if (trial_ && !trial_->done()) {
      try_codec(exposed);
    }
    // Timing needs the first uses by forward too, although nothing is pending then.
    if (guard_ && (pending() || timing_)) guard_->arm();
    if (pending()) note_left();
  }

  void note_left() {
    left_.clear();
    for (const at::Tensor& param : context_.params)
      left_.push_back({version_of(param), sample_lines(param, turn())});
  }
  std::uint64_t turn() const { return static_cast<std::uint64_t>(step_); }

  // The update would change what the program has written. Values in other memory stay as they are.
  void check_left(int param) const {
    if (left_.empty() || (context_.watch != nullptr && context_.watch->is_moved(index(param))))
      return;
    const at::Tensor& weight = context_.params[index(param)];
    const Left& left = left_[index(param)];
    if (version_of(weight) == left.version && sample_lines(weight, turn()) == left.lines) return;
    const std::string name =
        context_.watch != nullptr ? "'" + context_.watch->name(param) + "'" : "a weight";
    throw Error(Errc::kInvalidArgument,
                name +
                    " was changed between step() and its update, which overlap_forward delays; "
                    "call wait_for_weights() before you write through data() or a view",
                {"step", context_.group.rank()});
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
    buckets_.commit();
  }

  // The first step is not compressed: the memory of codecs belongs to buckets, and these change
  // after it.
  void use_buckets() {
    buckets_.reset(order_.buckets());
    if (order_.is_agreed()) use_codec();
  }

  void tune_buckets() {
    LinkCost link = measure_link(context_.group, buckets_.numbers());
    // The link was measured without the codec.
    link.element *= buckets_.share_sent();
    StepTimes times = tuner_->agreed();
    if (!guard_ || buckets_.collects_by_collectives()) times.needed.clear();
    Tuned tuned =
        tune(order_.sizes(), order_.params(), times, link, {order_.fill(), !tunes_size()});
    tuner_.reset();
    timing_ = false;
    if (tuned.fill.bucket != order_.fill().bucket) {
      order_.refill(tuned.fill);
      use_buckets();
    }
    order_.send_in(std::move(tuned.launches.order));
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
    step_ = final_step_ = progress->step;
    trial_.reset();
    order_.agree({progress->layout.begin(), progress->layout.end()});
    use_buckets();
    return restore_codec_memory(context_.group, saved, buckets_.memory());
  }

  // Called when an operation is about to use a parameter.
  void on_use(int param) {
    if (tuner_ && timing_) tuner_->used(param);
    if (!pending() || failed_) return;
    try {
      const std::size_t place = order_.place_of(param);
      // Buckets before it in the order of launches arrive first, and are updated first.
      while (settled_ <= place) settle_next();
    } catch (...) {
      failed_ = std::current_exception();  // thrown by the next backward, step or settle
    }
    book();
  }

  void settle_next() {
    const at::NoGradGuard guard;
    const int bucket = order_.launches()[settled_];
    for (const int param : order_.buckets()[index(bucket)]) check_left(param);
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
    for (const auto& [param, sum] : sums) put_average(context_.params[index(param)], sum);
  }

  // A step that is checked first was skipped.
  void check_range() const {
    if (codec_.kind != compress::Kind::kF16 || buckets_.is_in_range()) return;
    throw Error(Errc::kInvalidArgument,
                "a sum of gradients is not finite in the codec f16, whose largest number is 65504; "
                "use the codec bf16, or make gradients smaller",
                {"step", context_.group.rank()});
  }

  struct Left {
    std::int64_t version;
    LineSums lines;
  };

  TransportContext context_;
  compress::Spec codec_;             // in use now
  std::optional<CodecTrial> trial_;  // with "auto"
  std::unique_ptr<WeightGuard> guard_;
  std::unique_ptr<Tuner> tuner_;   // null after tuning
  DataParallelBase::Times times_;  // since book()
  Buckets buckets_;
  BufferBroadcast buffers_;
  StepFacts facts_;
  SendingOrder order_;
  std::vector<bool> used_;
  Phase phase_ = Phase::kIdle;
  std::size_t settled_ = 0;        // buckets received and updated so far, as they were sent
  bool timing_ = false;            // the tuner times this step
  bool momentum_travels_ = false;  // the codec applies the momentum
  std::exception_ptr failed_;
  std::vector<Left> left_;                  // by parameter, while kPending: as step() has left it
  std::int64_t step_ = 0, final_step_ = 0;  // of the codec; at the last commit()
  double scale_ = 1;
  double exposed_ = 0;  // seconds waited since the end of the last step
};

}  // namespace

std::unique_ptr<Transport> make_message_transport(TransportContext context) {
  return std::make_unique<MessageTransport>(std::move(context));
}

}  // namespace weft::engine::internal
