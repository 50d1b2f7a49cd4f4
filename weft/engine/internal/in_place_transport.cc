// No gradient is sent. A rank publishes where its gradients are (ledger.h). Once all ranks have
// published a unit, any rank may process a chunk of it: it reads the chunk's gradients of all ranks
// and writes the sum, or updates the weights by it. Sums run in rank order, so their bits do not
// depend on the rank that computes them.
//
//   backward()   shows each gradient; publishes a unit with its last one
//                without an optimizer or with update_in_backward: processes what is published
//   step()       publishes the rest ─► processes its own chunks ─► chunks of late ranks ─► meets
//
// A step has one or two phases. Each ends with a meeting, and its results are complete after it:
//
//   finish()                          0: sums, and updates by them
//   reduce(), finish()                0: sums take the place of a gradient; 1: updates by them
//   reduce(), drop()                  0: as above; 1: meeting only
//   reduce(), finish_updated()        0: as above; 1: meeting only
//   discard()                         1: meeting only
//
// Each chunk is processed once in a phase, by the rank that claims it (chunk_claims.h). With
// private weights, each rank updates all of its own weights, so it processes all chunks, and none
// is claimed. Sums that are kept are still computed once.
//
// Rules:
// - Shared weights change only after all ranks have published all gradients. No rank computes with
//   the weights then. update_in_backward gives this up.
// - Memory of a peer is used only within a Touch, and processing stops once a rank has left.
// - drain() returns when each chunk is claimed, not when it is done. The meeting waits for the
//   rest.
//
// Threads: one at a time calls it, that of backward() or of step(). Ranks are ordered by the
// ledger's release stores and acquire loads alone (ledger.cc).
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "weft/base/fault/failpoint.h"
#include "weft/base/text/words.h"
#include "weft/engine/internal/chunk_claims.h"
#include "weft/engine/internal/chunk_sums.h"
#include "weft/engine/internal/stopwatch.h"
#include "weft/engine/internal/transport.h"
#include "weft/engine/internal/unit_publisher.h"

namespace weft::engine::internal {
namespace {

std::vector<DType> types_of(const std::vector<at::Tensor>& params) {
  std::vector<DType> types;
  for (const at::Tensor& param : params) types.push_back(dtype_of(param.scalar_type()));
  return types;
}

// Enough for any order of the parameters, which changes after the first step.
Ledger::Sizes ledger_sizes(const TransportContext& context) {
  const int params = static_cast<int>(context.params.size());
  return {.params = params + ShownBuffers::entries(context.buffers),
          .units = params + 1,
          .chunks = ChunkClaims::most_chunks(context.sizes())};
}

class InPlaceTransport final : public Transport {
 public:
  explicit InPlaceTransport(TransportContext context)
      : context_(std::move(context)),
        host_(*context_.group.host()),
        types_(types_of(context_.params)),
        crossing_(host_, context_.name, context_.group.timeout()),
        ledger_(host_, ledger_sizes(context_), context_.group.timeout(), &crossing_),
        claims_(ledger_, context_.sizes()),
        units_(ledger_, context_, claims_.plan()),
        sums_(ledger_, context_, claims_, types_),
        used_(context_.params.size(), false),
        firsts_(context_.params.size(), -1) {}

  // An error may end this rank's step while peers use its gradients.
  ~InPlaceTransport() override {
    if (state_ != State::kIdle) ledger_.leave();
  }

  void ready(int param) override {
    begin();
    if (!units_.ready(param)) return;
    // Otherwise the chunks wait for step(), since weights must not change yet.
    if (context_.updates == nullptr || context_.options.update_in_backward) work(0, false);
  }

  void reduce() override {
    WEFT_REQUIRE(!context_.options.update_in_backward,
                 "data_parallel: update_in_backward keeps no sums of gradients, so the gradient "
                 "norm is not available and clipping is not supported");
    const Crossing::Inside here = enter(0);
    combine_all(true);
  }

  void finish(double scale) override {
    const Crossing::Inside here = enter(is_reduced() ? 1 : 0);
    sums_.set_scale(scale);
    if (!is_reduced()) {
      combine_all(false);
    } else {
      drain(1);
      meet(1);
    }
    end(false);
  }

  void drop() override {
    if (!is_reduced()) return;
    const Crossing::Inside here = enter(1);
    meet_alone(1);  // after this, no peer reads this rank's gradients
    end(true);
  }

  // No rank reads gradients before its step().
  void discard() override {
    const Crossing::Inside here = enter(0, Section::kDrop);
    ledger_.mark_dropped();
    await_published();
    if (const int other = ledger_.first_not_dropped(); other >= 0) {
      throw Error(Errc::kInvalidArgument,
                  "zero_grad() has dropped the gradients of a batch on this rank, and not on "
                  "rank " +
                      std::to_string(other) +
                      "; drop them on all ranks, or wrap that backward() in no_sync()",
                  {"step", host_.rank(), other});
    }
    meet_alone(1);
    end(true);
  }
  bool can_discard() const override {
    return context_.updates != nullptr && !context_.options.update_in_backward;
  }

  void finish_updated(double scale) override {
    const Crossing::Inside here = enter(1);
    sums_.set_scale(scale);
    meet_alone(1);
    end(false);
  }

  void check_written() override { sums_.check_written(); }
  void note_written() override { sums_.note_written(); }

  const std::vector<bool>& used() const override { return used_; }

  bool owns_sums() const override { return false; }
  void each_sum(const std::function<void(int, const at::Tensor&)>& visit) override {
    for (int param = 0; param < params(); ++param) {
      if (!used_[index(param)]) continue;
      ledger_.read_peers([&] {
        const int first = firsts_[index(param)];
        std::byte* const sum = host_.at(first, ledger_.token(first, param));
        visit(param, at::from_blob(sum, context_.params[index(param)].sizes(),
                                   context_.params[index(param)].options().requires_grad(false)));
      });
    }
  }

  // No weight is updated before all gradients of all ranks are known.
  bool all_finite() override {
    await_peers();
    return ledger_.all_finite();
  }
  void await_peers() override {
    const Crossing::Inside here = enter(0);
    await_published();
    compare_ranks();
  }
  bool knows_all() const override { return true; }
  double norm() override { return sums_.norm(); }

  at::Tensor sum_of(int param) override {
    const at::Tensor& grad = units_.gradient(param);
    const int first = firsts_[index(param)], rank = host_.rank();
    // A sum that was kept is in the gradient of rank `first`. Otherwise each rank adds its own
    // part.
    const double weight = first >= 0 ? (first == rank ? 1.0 : 0.0) : sums_.weight_of(rank);
    at::Tensor sum = grad.defined() && weight != 0
                         ? grad.mul(is_reduced() ? weight : weight * sums_.scale())
                         : at::zeros_like(context_.params[index(param)]).detach();
    context_.group.all_reduce(sum);
    return sum;
  }

  std::string describe() const override {
    const char* how = context_.updates == nullptr ? "gradients averaged in shared memory"
                      : context_.private_weights
                          ? "gradients reduced in shared memory, private weights,"
                          : "weights shared";
    return std::string(how) + " by " + counted(host_.world(), "rank") + " of this host, " +
           counted(params(), "parameter") + " in " + counted(claims_.units(), "bucket");
  }

 private:
  // idle ──► backward ──► published ─────────────► idle
  //                           └──► reduced ──────► idle
  enum class State {
    kIdle,       // No gradient of the next step is ready.
    kBackward,   // Gradients become ready.
    kPublished,  // All gradients are published.
    kReduced,    // The sums of this step are computed, or being computed, and kept.
  };
  bool is_reduced() const { return state_ == State::kReduced; }
  int params() const { return static_cast<int>(context_.params.size()); }

  void begin() {
    if (state_ != State::kIdle) return;
    state_ = State::kBackward;
    host_.check("step");
    ledger_.begin(context_.samples->value(), context_.digest(), context_.company_value());
    sums_.begin();
    std::fill(firsts_.begin(), firsts_.end(), -1);
    units_.begin();
  }

  void publish_rest() {
    if (state_ != State::kBackward) return;
    state_ = State::kPublished;
    units_.publish_rest();
  }

  // All gradients of all ranks.
  void await_published() {
    publish_rest();
    const Stopwatch watch(context_.times->wait, "wait", "peers");
    ledger_.await_published(params());
  }

  // This rank meets the others in this step until the result ends.
  Crossing::Inside enter(int number, Section section = Section::kStep) {
    begin();
    if (context_.updates == nullptr) section = Section::kAverage;
    return {crossing_, section, 2 * ledger_.step() + static_cast<std::uint32_t>(number)};
  }

  // Phase 0 computes the sums. With `keep` it stores them in place of the first gradient; otherwise
  // it updates weights or averages all gradients.
  void combine_all(bool keep) {
    publish_rest();
    // Sums take the place of gradients, which each rank checks before its last unit. Weights that
    // all ranks have are updated when none of them goes forward any more.
    if (keep || updates_shared_weights()) await_peers();
    if (keep) state_ = State::kReduced;
    drain(0);
    sums_.weigh_ranks();  // a rank whose chunks were all taken by others has not done it yet
    units_.take_buffers(context_.times->wait);
    for (int param = 0; param < params(); ++param) {
      // All chunks are claimed. So all units are published, and their tokens can be seen here too.
      const int first = first_with_gradient(ledger_, param);
      used_[index(param)] = first >= 0;
      if (keep) firsts_[index(param)] = first;
    }
    meet(0);
    // Peers may have begun the next step by now. The ledger keeps the digests of both.
    compare_ranks();
  }

  void compare_ranks() {
    alike_ = ledger_.alike();
    apart_ = first_apart(ledger_.companies());
  }

  void end(bool dropped) {
    units_.end(!dropped && (context_.updates == nullptr || is_reduced()), used_);
    if (!dropped) context_.samples->reset();
    state_ = State::kIdle;
    if (claims_.is_agreed()) return;
    claims_.agree(agree_on_order(context_.group, units_.order(), params()));
    // The chunks are other ones from now on, so their checksums begin anew.
    note_written();
    // A rank may look at all of them from now on.
    if (sums_.checks_written()) context_.group.barrier();
  }

  // Each rank updates all of its private weights. Sums that are kept are computed once, by one
  // rank.
  ChunkClaims::Phase phase(int number) const {
    return {number, context_.private_weights && (number == 1 || !is_reduced())};
  }

  // Processes all chunks that are ready: this rank's own, and with `all` also chunks that their
  // owners have not begun. Never waits.
  void work(int number, bool all) {
    const Stopwatch watch(context_.times->work, "update", "reduce and update");
    const net::Host::Touch touch(host_, "step");
    // Within the Touch: a rank that leaves first says so and then waits for it (Ledger::leave()).
    if (ledger_.first_left() >= 0) return;
    std::int64_t done = 0;
    for (int unit = 0; unit < claims_.units(); ++unit) {
      if (number == 0 && !ledger_.published(unit)) continue;
      for (int chunk = claims_.first_chunk(unit); chunk < claims_.first_chunk(unit + 1); ++chunk) {
        if (!claims_.take(chunk, phase(number), all)) continue;
        if (number == 0) {
          sums_.combine(chunk, is_reduced());
        } else {
          sums_.update_by_sum(chunk);
        }
        ++done;
      }
    }
    ledger_.complete(done);
  }

  // Works until every chunk has been claimed by a rank. Waits for units that are not published yet.
  void drain(int number) {
    const auto first_open = [&](int unit) { return claims_.first_open(phase(number), unit); };
    for (;;) {
      work(number, false);
      work(number, true);
      ledger_.check_left();
      int open = first_open(0);
      if (open < 0) return;
      const Stopwatch watch(context_.times->wait, "wait", "peers");
      // Ready with a unit that has chunks to claim, or when no chunk is left to claim.
      ledger_.wait(
          [&] {
            open = first_open(open);
            for (int unit = open; unit >= 0; unit = first_open(unit + 1))
              if (ledger_.published(unit)) return true;
            return open < 0;
          },
          [&] { return open < 0 ? -1 : ledger_.missing(open); });
      if (open < 0) return;
    }
  }

  void meet(int number) {
    // Also fails a rank whose chunks were all taken by others.
    if (context_.updates != nullptr && (number == 1 || !is_reduced())) failpoint("update.middle");
    const Stopwatch watch(context_.times->wait, "wait", "peers");
    // Each rank that updates weights of its own completes every chunk, and all of these are
    // awaited.
    const std::int64_t ranks = phase(number).each_rank ? host_.world() : 1;
    ledger_.meet(claims_.chunks() * ranks, number);
  }
  void meet_alone(int number) {
    const Stopwatch watch(context_.times->wait, "wait", "peers");
    ledger_.meet(0, number);
  }

  bool updates_shared_weights() const {
    return context_.updates != nullptr && !context_.private_weights &&
           !context_.options.update_in_backward;
  }

  TransportContext context_;
  net::Host& host_;
  const std::vector<DType> types_;  // by parameter
  Crossing crossing_;
  Ledger ledger_;
  ChunkClaims claims_;
  UnitPublisher units_;
  ChunkSums sums_;
  std::vector<bool> used_;
  // By parameter: the rank whose gradient holds the sum; -1: the sum was not kept.
  std::vector<int> firsts_;
  State state_ = State::kIdle;
};

}  // namespace

std::unique_ptr<Transport> make_in_place_transport(TransportContext context) {
  return std::make_unique<InPlaceTransport>(std::move(context));
}

}  // namespace weft::engine::internal
