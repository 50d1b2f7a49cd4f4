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
// Each chunk is processed once in a phase, by the rank that claims it in the ledger. Owners come
// first; others take what an owner has not begun. With private weights, each rank updates all of
// its own weights, so it processes all chunks, and own_done_ takes the place of claims. Sums that
// are kept are still computed once.
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
#include <cmath>

#include "weft/base/fault/failpoint.h"
#include "weft/base/text/words.h"
#include "weft/engine/internal/in_place.h"
#include "weft/engine/internal/plan.h"
#include "weft/engine/internal/stopwatch.h"
#include "weft/engine/internal/transport.h"
#include "weft/engine/squares.h"

namespace weft::engine::internal {
namespace {

// Parameters become visible to peers in units of about 64 KiB, and are processed in chunks of 128
// KiB. The gradients, weights and state of a chunk fit into a core's own cache, and one claim is
// cheap compared with a chunk.
constexpr std::int64_t kUnitElements = 16 << 10;
constexpr std::int64_t kChunkElements = 32 << 10;

class InPlaceTransport final : public Transport {
 public:
  explicit InPlaceTransport(TransportContext context)
      : context_(std::move(context)),
        host_(*context_.group.host()),
        rank_(host_.rank()),
        world_(host_.world()),
        ready_(context_.params.size(), false),
        used_(context_.params.size(), false),
        firsts_(context_.params.size(), -1) {
    for (const auto& param : context_.params) {
      sizes_.push_back(param.numel());
      dtypes_.push_back(dtype_of(param.scalar_type()));
    }
    std::vector<int> order;
    for (int param = params() - 1; param >= 0; --param) order.push_back(param);
    replan(order);
    std::int64_t chunks = params();
    // The order of parameters changes after the first step, and the chunks with it. This is enough
    // for any order.
    for (const auto size : sizes_) chunks += size / (kChunkElements / 2) + 1;
    const Ledger::Sizes sizes{.params = params() + ShownBuffers::entries(context_.buffers),
                              .units = params() + 1,
                              .chunks = static_cast<int>(chunks)};
    crossing_ = std::make_unique<Crossing>(host_, context_.name, context_.group.timeout());
    ledger_ = std::make_unique<Ledger>(host_, sizes, context_.group.timeout(), crossing_.get());
    shown_ = std::make_unique<ShownGradients>(*ledger_, context_.params, context_.check);
    shown_buffers_ = std::make_unique<ShownBuffers>(*ledger_, params(), context_.buffers);
  }

  // An error may end this rank's step while peers use its gradients.
  ~InPlaceTransport() override {
    if (begun_) ledger_->leave();
  }

  void ready(int param) override {
    begin();
    ready_[index(param)] = true;
    if (!replanned_) ready_order_.push_back(param);
    shown_->show(param);
    const int unit = plan_.bucket_of[index(param)];
    if (--unready_[index(unit)] > 0) return;
    ledger_->publish(unit);
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
    const Crossing::Inside here = enter(reduced_ ? 1 : 0);
    scale_ = scale;
    if (!reduced_) {
      combine_all(false);
    } else {
      drain(1);
      meet(1);
    }
    end(false);
  }

  void drop() override {
    if (!reduced_) return;
    const Crossing::Inside here = enter(1);
    meet_alone(1);  // after this, no peer reads this rank's gradients
    end(true);
  }

  // No rank reads gradients before its step().
  void discard() override {
    const Crossing::Inside here = enter(0, Section::kDrop);
    ledger_->mark_dropped();
    publish_rest();
    {
      const Stopwatch watch(context_.times->wait, "wait", "peers");
      ledger_->await_published(params());
    }
    if (const int other = ledger_->first_not_dropped(); other >= 0) {
      throw Error(Errc::kInvalidArgument,
                  "zero_grad() has dropped the gradients of a batch on this rank, and not on "
                  "rank " +
                      std::to_string(other) +
                      "; drop them on all ranks, or wrap that backward() in no_sync()",
                  {"step", rank_, other});
    }
    meet_alone(1);
    end(true);
  }
  bool can_discard() const override {
    return context_.updates != nullptr && !context_.options.update_in_backward;
  }

  void finish_updated(double scale) override {
    const Crossing::Inside here = enter(1);
    scale_ = scale;
    meet_alone(1);
    end(false);
  }

  void check_written() override {
    if (!new_check().on()) return;
    for (int chunk = 0; chunk < static_cast<int>(plan_.chunks.size()); ++chunk) {
      Written last = ledger_->written(chunk);
      end_written(kept(chunk), chunk, last);
    }
  }

  // Each rank takes some chunks.
  void note_written() override {
    if (!new_check().on()) return;
    for (int chunk = rank_; chunk < static_cast<int>(plan_.chunks.size()); chunk += world_) {
      Written& written = ledger_->written(chunk);
      written = {};
      end_written(kept(chunk), chunk, written);
    }
  }

  const std::vector<bool>& used() const override { return used_; }

  bool owns_sums() const override { return false; }
  void each_sum(const std::function<void(int, const at::Tensor&)>& visit) override {
    for (int param = 0; param < params(); ++param) {
      if (!used_[index(param)]) continue;
      ledger_->read_peers([&] {
        const int first = firsts_[index(param)];
        std::byte* const sum = host_.at(first, ledger_->token(first, param));
        visit(param, at::from_blob(sum, context_.params[index(param)].sizes(),
                                   context_.params[index(param)].options().requires_grad(false)));
      });
    }
  }

  // No weight is updated before all gradients of all ranks are known.
  bool all_finite() override {
    await_peers();
    return ledger_->all_finite();
  }
  void await_peers() override {
    const Crossing::Inside here = enter(0);
    publish_rest();
    const Stopwatch watch(context_.times->wait, "wait", "peers");
    ledger_->await_published(params());
    compare_ranks();
  }
  bool knows_all() const override { return true; }
  double norm() override {
    double squares = 0;
    for (std::size_t chunk = 0; chunk < plan_.chunks.size(); ++chunk)
      squares += ledger_->chunk_squares()[chunk];
    return std::sqrt(squares);
  }

  at::Tensor sum_of(int param) override {
    const at::Tensor& grad = shown_->of(param);
    const int first = firsts_[index(param)];
    // A sum that was kept is in the gradient of rank `first`. Otherwise each rank adds its own
    // part.
    const double weight = first >= 0 ? (first == rank_ ? 1.0 : 0.0) : weighting_.of(rank_);
    at::Tensor sum = grad.defined() && weight != 0
                         ? grad.mul(reduced_ ? weight : weight * scale_)
                         : at::zeros_like(context_.params[index(param)]).detach();
    context_.group.all_reduce(sum);
    return sum;
  }

  std::string describe() const override {
    const char* how = context_.updates == nullptr ? "gradients averaged in shared memory"
                      : context_.private_weights
                          ? "gradients reduced in shared memory, private weights,"
                          : "weights shared";
    return std::string(how) + " by " + counted(world_, "rank") + " of this host, " +
           counted(params(), "parameter") + " in " + counted(plan_.buckets.size(), "bucket");
  }

 private:
  int params() const { return static_cast<int>(sizes_.size()); }

  void begin() {
    if (begun_) return;
    begun_ = true;
    all_published_ = false;
    host_.check("step");
    ledger_->begin(context_.samples->value(), context_.digest(), context_.company_value());
    weighted_ = false;
    scale_ = 1;
    std::fill(firsts_.begin(), firsts_.end(), -1);
    for (std::size_t unit = 0; unit < plan_.buckets.size(); ++unit)
      unready_[unit] = static_cast<int>(plan_.buckets[unit].size());
  }

  // This rank meets the others in this step until the result ends.
  Crossing::Inside enter(int phase, Section section = Section::kStep) {
    begin();
    if (context_.updates == nullptr) section = Section::kAverage;
    return {*crossing_, section, 2 * ledger_->step() + static_cast<std::uint32_t>(phase)};
  }

  // Phase 0 computes the sums. With `keep` it stores them in place of the first gradient; otherwise
  // it updates weights or averages all gradients.
  void combine_all(bool keep) {
    begin();
    reduced_ = keep;
    // Sums take the place of gradients, which each rank checks before its last unit. Weights that
    // all ranks have are updated when none of them goes forward any more.
    keep || updates_shared_weights() ? await_peers() : publish_rest();
    drain(0);
    weigh_ranks();  // a rank whose chunks were all taken by others has not done it yet
    if (rank_ != 0) shown_buffers_->take(params(), context_.times->wait);
    for (int param = 0; param < params(); ++param) {
      // All chunks are claimed. So all units are published, and their tokens can be seen here too.
      const int first = first_with_gradient(*ledger_, param);
      used_[index(param)] = first >= 0;
      if (keep) firsts_[index(param)] = first;
    }
    meet(0);
    // Peers may have begun the next step by now. The ledger keeps the digests of both.
    compare_ranks();
  }

  void compare_ranks() {
    alike_ = ledger_->alike();
    apart_ = first_apart(ledger_->companies());
  }

  void end(bool dropped) {
    shown_->end(!dropped && (context_.updates == nullptr || reduced_), used_);
    std::fill(ready_.begin(), ready_.end(), false);
    if (!dropped) context_.samples->reset();
    begun_ = reduced_ = false;
    if (!replanned_) {
      replanned_ = true;
      replan(agree_on_order(context_.group, std::move(ready_order_), params()));
      // The chunks are other ones from now on, so their checksums begin anew.
      note_written();
      if (new_check().on()) context_.group.barrier();  // a rank may look at all of them from now on
    }
  }

  void replan(const std::vector<int>& order) {
    plan_ = make_plan(sizes_, order,
                      {.bucket_elements = kUnitElements,
                       .first_bucket_elements = kUnitElements,
                       .chunk_elements = kChunkElements});
    unready_.assign(plan_.buckets.size(), 0);
    own_done_.assign(plan_.chunks.size(), 0);
    first_chunk_.assign(plan_.buckets.size() + 1, 0);
    for (const auto& chunk : plan_.chunks) ++first_chunk_[index(chunk.bucket) + 1];
    for (std::size_t unit = 0; unit < plan_.buckets.size(); ++unit)
      first_chunk_[unit + 1] += first_chunk_[unit];
  }

  // Publishes units that backward() did not complete: parameters that were not used, or whose
  // gradients were accumulated earlier.
  void publish_rest() {
    if (std::exchange(all_published_, true)) return;
    for (int unit = 0; unit < static_cast<int>(plan_.buckets.size()); ++unit) {
      if (unready_[index(unit)] == 0) continue;
      for (int param : plan_.buckets[index(unit)]) {
        if (!ready_[index(param)]) show_unready(param);
      }
      unready_[index(unit)] = 0;
      ledger_->publish(unit);
    }
    if (rank_ == 0) shown_buffers_->show();
    ledger_->publish(params());
  }

  void show_unready(int param) {
    if (context_.params[index(param)].grad().defined()) return shown_->show(param);
    if (context_.updates != nullptr) return ledger_->put(param, net::Host::kNoToken);
    shown_->show_zeros(param);
  }

  // Each rank owns a run of consecutive chunks of a unit. Units with a single chunk are assigned
  // round-robin.
  int owner(int chunk) const {
    const int unit = plan_.chunks[index(chunk)].bucket;
    const int first = first_chunk_[index(unit)], count = first_chunk_[index(unit) + 1] - first;
    return count == 1 ? unit % world_ : (chunk - first) * world_ / count;
  }

  // Each rank updates all of its private weights. Sums that are kept are computed once, by one
  // rank.
  bool each_does_all(int phase) const {
    return context_.private_weights && (phase == 1 || !reduced_);
  }

  bool take(int chunk, int phase, bool all) {
    if (!each_does_all(phase))
      return (all || owner(chunk) == rank_) && ledger_->claim(chunk, phase);
    return std::exchange(own_done_[index(chunk)], ledger_->step()) != ledger_->step();
  }
  bool taken(int chunk, int phase) const {
    return each_does_all(phase) ? own_done_[index(chunk)] == ledger_->step()
                                : ledger_->claimed(chunk, phase);
  }

  // Processes all chunks that are ready: this rank's own, and with `all` also chunks that their
  // owners have not begun. Never waits.
  void work(int phase, bool all) {
    const Stopwatch watch(context_.times->work, "update", "reduce and update");
    const net::Host::Touch touch(host_, "step");
    // Within the Touch: a rank that leaves first says so and then waits for it (Ledger::leave()).
    if (ledger_->first_left() >= 0) return;
    std::int64_t done = 0;
    for (int unit = 0; unit < static_cast<int>(plan_.buckets.size()); ++unit) {
      if (phase == 0 && !ledger_->published(unit)) continue;
      for (int chunk = first_chunk_[index(unit)]; chunk < first_chunk_[index(unit) + 1]; ++chunk) {
        if (!take(chunk, phase, all)) continue;
        if (phase == 0) {
          combine(chunk);
        } else {
          update_from_sums(chunk);
        }
        ++done;
      }
    }
    ledger_->complete(done);
  }

  // Works until every chunk has been claimed by a rank. Waits for units that are not published yet.
  void drain(int phase) {
    for (;;) {
      work(phase, false);
      work(phase, true);
      ledger_->check_left();
      int open = first_open(phase, 0);
      if (open < 0) return;
      const Stopwatch watch(context_.times->wait, "wait", "peers");
      // Ready with a unit that has chunks to claim, or when no chunk is left to claim.
      ledger_->wait(
          [&] {
            open = first_open(phase, open);
            for (int unit = open; unit >= 0; unit = first_open(phase, unit + 1))
              if (ledger_->published(unit)) return true;
            return open < 0;
          },
          [&] { return open < 0 ? -1 : ledger_->missing(open); });
      if (open < 0) return;
    }
  }

  // Returns the first unit from `unit` on with an unclaimed chunk, or -1.
  int first_open(int phase, int unit) const {
    for (int u = unit; u < static_cast<int>(plan_.buckets.size()); ++u)
      for (int chunk = first_chunk_[index(u)]; chunk < first_chunk_[index(u) + 1]; ++chunk)
        if (!taken(chunk, phase)) return u;
    return -1;
  }

  void meet(int phase) {
    // Also fails a rank whose chunks were all taken by others.
    if (context_.updates != nullptr && (phase == 1 || !reduced_)) failpoint("update.middle");
    const Stopwatch watch(context_.times->wait, "wait", "peers");
    // Each rank that updates weights of its own completes every chunk, and all of these are
    // awaited.
    ledger_->meet(
        static_cast<std::int64_t>(plan_.chunks.size()) * (each_does_all(phase) ? world_ : 1),
        phase);
  }
  void meet_alone(int phase) {
    const Stopwatch watch(context_.times->wait, "wait", "peers");
    ledger_->meet(0, phase);
  }

  // Called once all ranks have published a unit.
  void weigh_ranks() {
    if (std::exchange(weighted_, true)) return;
    std::vector<double> samples;
    for (int peer = 0; peer < world_; ++peer) samples.push_back(ledger_->weight(peer));
    weighting_ = weigh(context_.options.average, samples);
  }

  bool updates_shared_weights() const {
    return context_.updates != nullptr && !context_.private_weights &&
           !context_.options.update_in_backward;
  }

  // Weights that exist once for all ranks, which a program must not change. Rules that need whole
  // tensors look themselves.
  WrittenCheck new_check() const {
    return WrittenCheck(context_.updates != nullptr && !context_.private_weights &&
                        context_.watch != nullptr && world_ > 1 &&
                        !optim::needs_whole_tensors(context_.updates->spec().rule));
  }
  void end_written(const WrittenCheck& check, int chunk, Written& written) {
    if (!check.on()) return;
    // In the order of backward: parameters that the first step did not use come after all others.
    int first = params(), last = 0;
    std::uint64_t generation = replanned_ ? 1 : 0;
    for (const Stretch& at : plan_.chunks[index(chunk)].pieces) {
      first = std::min(first, at.param);
      last = std::max(last, at.param);
      generation += 2 * context_.watch->generation(at.param);
    }
    if (!check.end(written, generation)) context_.watch->refuse_written(first, last);
  }
  // Looks at a stretch that stays as it is.
  void keep(const Stretch& at, WrittenCheck& check) const {
    if (!check.on()) return;
    const auto look = [&](std::int64_t begin, std::int64_t, std::span<const std::byte> weights) {
      check.stays(weights.data(), weights.size(), begin);
    };
    context_.updates->each_block(at.param, at.begin, at.end, true, look);
  }
  WrittenCheck kept(int chunk) const {
    WrittenCheck check = new_check();
    for (const Stretch& at : plan_.chunks[index(chunk)].pieces) keep(at, check);
    return check;
  }

  void combine(int chunk) {
    weigh_ranks();
    double squares = 0;
    WrittenCheck check = new_check();
    for (const Stretch& at : plan_.chunks[index(chunk)].pieces) {
      Sources sources(*ledger_, at, dtypes_[index(at.param)],
                      weighting_.weights.empty() ? nullptr : weighting_.weights.data());
      if (sources.count == 0) {
        keep(at, check);
        continue;
      }
      sources.args.scale = weighting_.scale;
      host_.count_moved(sources.peer_bytes());
      if (context_.updates == nullptr) {
        sources.reduce_to_all(*ledger_, at);
      } else if (reduced_) {
        // The sum overwrites the first gradient; no other rank reads this piece of it.
        void* const sum = const_cast<void*>(sources.data[0]);
        sources.reduce(sum);
        squares += squares_of(sum, sources.args.count, sources.args.dtype);
      } else {
        sources.args.scale *= scale_;
        update(at, sources, check);
      }
    }
    if (reduced_) {
      ledger_->chunk_squares()[chunk] = squares;
    } else {
      end_written(check, chunk, ledger_->written(chunk));
    }
  }

  // Sums and updates block by block, so that the summed gradient stays in the cache.
  void update(const Stretch& at, Sources& sources, WrittenCheck& check) {
    alignas(64) std::byte block[Updates::kBlockBytes];
    const bool as_it_is =
        sources.count == 1 && sources.args.scale == 1.0 && sources.args.weights == nullptr;
    const auto in_block = [&](std::int64_t begin, std::int64_t end,
                              std::span<const std::byte> weights) {
      sources.args.count = end - begin;
      if (!as_it_is) sources.reduce(block);
      check.before(weights.data(), weights.size(), begin);
      context_.updates->update(at.param, begin, end, as_it_is ? sources.data[0] : block);
      check.after(weights.data(), weights.size(), begin);
      for (int i = 0; i < sources.count; ++i)
        sources.data[i] = static_cast<const std::byte*>(sources.data[i]) + weights.size();
    };
    context_.updates->each_block(at.param, at.begin, at.end, true, in_block);
  }

  void update_from_sums(int chunk) {
    WrittenCheck check = new_check();
    for (const Stretch& at : plan_.chunks[index(chunk)].pieces) {
      Sources sources(*ledger_, at, dtypes_[index(at.param)], nullptr);
      if (sources.count == 0) {
        keep(at, check);
        continue;
      }
      sources.count = 1;
      sources.args.scale = scale_;
      update(at, sources, check);
    }
    end_written(check, chunk, ledger_->written(chunk));
  }

  TransportContext context_;
  net::Host& host_;
  const int rank_, world_;
  std::vector<std::int64_t> sizes_;
  std::vector<DType> dtypes_;
  Plan plan_;
  std::vector<int> first_chunk_;  // by unit, and one past the end
  // By chunk, if each rank processes all chunks: the last step in which this rank processed it.
  std::vector<std::uint32_t> own_done_;
  std::unique_ptr<Crossing> crossing_;
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<ShownGradients> shown_;
  std::unique_ptr<ShownBuffers> shown_buffers_;
  std::vector<bool> ready_, used_;
  std::vector<int> unready_;  // by unit: number of parameters that are not ready
  std::vector<int> ready_order_;
  // By parameter: the rank whose gradient holds the sum; -1: the sum was not kept.
  std::vector<int> firsts_;
  Weighting weighting_;
  double scale_ = 1;
  bool begun_ = false, all_published_ = false, weighted_ = false, replanned_ = false;
  bool reduced_ = false;  // the sums of this step are computed, or being computed, and kept
};

}  // namespace

std::unique_ptr<Transport> make_in_place_transport(TransportContext context) {
  return std::make_unique<InPlaceTransport>(std::move(context));
}

}  // namespace weft::engine::internal
