#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "weft/engine/internal/ledger.h"
#include "weft/engine/internal/plan.h"
#include "weft/engine/internal/staging.h"
#include "weft/engine/internal/stopwatch.h"
#include "weft/engine/internal/sync.h"
#include "weft/kernels/reduce.h"
#include "weft/net/memory/host.h"

namespace weft::parallel::internal {
namespace {

using Token = Ledger::Token;

// Parameters become visible to peers in groups of about 64 KiB, and are worked on in chunks of 128 KiB: a chunk's gradients, weight and
// state fit a processor's own cache, and one claim costs nothing against it.
constexpr std::int64_t kBucketElements = 16 << 10;
constexpr std::int64_t kChunkElements = 32 << 10;
// What is reduced before it is used for the update: stays in the first-level cache.
constexpr std::int64_t kBlockElements = 4 << 10;
// A gradient that exists only so that peers find one: zeros of a rank that did not use the parameter.
constexpr Token kUnused = Token{1} << 63;

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::kF32;
    case at::kDouble: return DType::kF64;
    case at::kHalf: return DType::kF16;
    case at::kBFloat16: return DType::kBF16;
    default:
      throw Error(Errc::kInvalidArgument, std::string("parameters of type ") + c10::toString(type) + " cannot be trained in data parallel");
  }
}

class HostSync final : public Sync {
 public:
  explicit HostSync(Subject subject)
      : subject_(std::move(subject)),
        host_(*subject_.group.host()),
        rank_(host_.rank()),
        world_(host_.world()),
        ready_(subject_.params.size(), false),
        used_(subject_.params.size(), false),
        staging_(host_, subject_.params),
        buffers_(host_, subject_.buffers) {
    for (const auto& param : subject_.params) {
      sizes_.push_back(param.numel());
      dtypes_.push_back(dtype_of(param.scalar_type()));
    }
    std::vector<int> order;
    for (int param = params() - 1; param >= 0; --param) order.push_back(param);
    replan(order);
    std::int64_t chunks = params();
    for (const auto size : sizes_) chunks += size / (kChunkElements / 2) + 1;
    ledger_ = std::make_unique<Ledger>(host_, params() + static_cast<int>(subject_.buffers.size()), params() + 1, static_cast<int>(chunks),
                                       subject_.group.timeout());
  }

  void ready(int param) override {
    begin();
    ready_[at(param)] = true;
    if (!replanned_) ready_order_.push_back(param);
    show(param);
    const int bucket = plan_.bucket_of[at(param)];
    if (--unready_[at(bucket)] > 0) return;
    ledger_->publish(bucket);
    if (subject_.updater == nullptr || (subject_.options.update_in_backward && subject_.max_grad_norm <= 0)) work(0, false);
  }

  void finish() override {
    begin();
    publish_rest();
    drain(0);
    take_buffers();
    for (int param = 0; param < params(); ++param) used_[at(param)] = is_used(param);
    meet(0);
    norm_ = 0;
    if (subject_.max_grad_norm > 0) {
      double squares = 0;
      for (std::size_t chunk = 0; chunk < plan_.chunks.size(); ++chunk) squares += ledger_->chunk_norms()[chunk];
      norm_ = std::sqrt(squares);
      drain(1);
      meet(1);
    }
    end();
  }

  const std::vector<bool>& used() const override { return used_; }
  double norm() const override { return norm_; }

  std::string describe() const override {
    const char* how = subject_.updater == nullptr ? "gradients averaged in shared memory"
                      : subject_.whole            ? "gradients reduced whole, private weights,"
                                                  : "weights shared";
    return std::string(how) + " by " + std::to_string(world_) + " ranks of this host, " + std::to_string(params()) + " parameters in " +
           std::to_string(plan_.buckets.size()) + " buckets";
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  int params() const { return static_cast<int>(sizes_.size()); }

  void begin() {
    if (begun_) return;
    begun_ = true;
    host_.check("step");
    ledger_->begin(*subject_.samples);
    weighted_ = false;
    for (std::size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket) unready_[bucket] = static_cast<int>(plan_.buckets[bucket].size());
  }

  void end() {
    // What lay in staging goes back to where the caller looks for it.
    staging_.put_back(used_, subject_.updater == nullptr);
    std::fill(ready_.begin(), ready_.end(), false);
    *subject_.samples = 0;
    begun_ = false;
    if (!replanned_) {
      replanned_ = true;
      replan(agree_on_order(subject_.group, std::move(ready_order_), params()));
    }
  }

  void replan(const std::vector<int>& order) {
    plan_ = make_plan(sizes_, order,
                      {.bucket_elements = kBucketElements, .first_bucket_elements = kBucketElements, .chunk_elements = kChunkElements});
    unready_.assign(plan_.buckets.size(), 0);
    own_done_.assign(plan_.chunks.size(), 0);
    first_chunk_.assign(plan_.buckets.size() + 1, 0);
    for (const auto& chunk : plan_.chunks) ++first_chunk_[at(chunk.bucket) + 1];
    for (std::size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket) first_chunk_[bucket + 1] += first_chunk_[bucket];
  }

  // Puts the place of this rank's gradient into the ledger: where autograd left it if peers can read it there, else a copy's.
  void show(int param) {
    const at::Tensor& grad = subject_.params[at(param)].grad();
    const bool plain =
        grad.layout() == at::kStrided && grad.is_contiguous() && grad.scalar_type() == subject_.params[at(param)].scalar_type();
    Token token = plain ? host_.token(grad.data_ptr()) : net::Host::kNoToken;
    if (token == net::Host::kNoToken) token = staging_.copy(param, grad);
    ledger_->put(param, token);
  }

  // Buckets that backward() did not fill: of parameters that were not used, or whose gradients were accumulated before.
  void publish_rest() {
    for (int bucket = 0; bucket < static_cast<int>(plan_.buckets.size()); ++bucket) {
      if (unready_[at(bucket)] == 0) continue;
      for (int param : plan_.buckets[at(bucket)]) {
        if (!ready_[at(param)]) show_unready(param);
      }
      unready_[at(bucket)] = 0;
      ledger_->publish(bucket);
    }
    if (rank_ == 0) buffers_.show(*ledger_, params());
    ledger_->publish(params());
  }

  void show_unready(int param) {
    if (subject_.params[at(param)].grad().defined()) return show(param);
    if (subject_.updater != nullptr) return ledger_->put(param, net::Host::kNoToken);
    ledger_->put(param, staging_.zeros(param) | kUnused);
  }

  static bool has_gradient(Token token) { return token != net::Host::kNoToken && (token & kUnused) == 0; }
  bool is_used(int param) const {
    for (int peer = 0; peer < world_; ++peer) {
      if (has_gradient(ledger_->token(peer, param))) return true;
    }
    return false;
  }

  // Chunks of a bucket are dealt in runs to the ranks; a bucket of one chunk to the next rank each time.
  int owner(int chunk) const {
    const int bucket = plan_.chunks[at(chunk)].bucket;
    const int first = first_chunk_[at(bucket)], count = first_chunk_[at(bucket) + 1] - first;
    return count == 1 ? bucket % world_ : (chunk - first) * world_ / count;
  }

  bool take(int chunk, int phase, bool all) {
    if (!subject_.whole) return (all || owner(chunk) == rank_) && ledger_->claim(chunk, phase);
    if (own_done_[at(chunk)] == ledger_->step()) return false;
    own_done_[at(chunk)] = ledger_->step();
    return true;
  }
  bool taken(int chunk, int phase) const {
    return subject_.whole ? own_done_[at(chunk)] == ledger_->step() : ledger_->claimed(chunk, phase);
  }

  // Does what can be done now: this rank's own chunks, or with `all` also those that their owners have not begun. Never waits.
  void work(int phase, bool all) {
    const Stopwatch watch(subject_.times->work, "update", "reduce and update");
    std::int64_t done = 0;
    for (int bucket = 0; bucket < static_cast<int>(plan_.buckets.size()); ++bucket) {
      if (phase == 0 && !ledger_->published(bucket)) continue;
      for (int chunk = first_chunk_[at(bucket)]; chunk < first_chunk_[at(bucket) + 1]; ++chunk) {
        if (!take(chunk, phase, all)) continue;
        if (phase == 0) {
          combine(chunk);
        } else {
          update_clipped(chunk);
        }
        ++done;
      }
    }
    ledger_->complete(done);
  }

  // Works until every chunk has been claimed by somebody, waiting for buckets that are still to come.
  void drain(int phase) {
    for (;;) {
      work(phase, false);
      work(phase, true);
      int open = first_open(phase, 0);
      if (open < 0) return;
      const Stopwatch watch(subject_.times->wait, "wait", "peers");
      host_.wait(
          [&] {
            open = first_open(phase, open);
            for (int bucket = open; bucket >= 0; bucket = first_open(phase, bucket + 1)) {
              if (ledger_->published(bucket)) return true;
            }
            return open < 0;
          },
          [&] { return open < 0 ? -1 : ledger_->missing(open); }, "step", ledger_->timeout());
      if (open < 0) return;
    }
  }

  // The first bucket from `bucket` on with a chunk that nobody has claimed; -1 where there is none.
  int first_open(int phase, int bucket) const {
    for (int b = bucket; b < static_cast<int>(plan_.buckets.size()); ++b) {
      for (int chunk = first_chunk_[at(b)]; chunk < first_chunk_[at(b) + 1]; ++chunk) {
        if (!taken(chunk, phase)) return b;
      }
    }
    return -1;
  }

  // Rank 0's buffers become this rank's; the meeting that follows keeps rank 0 from changing them meanwhile.
  void take_buffers() {
    if (buffers_.empty() || rank_ == 0) return;
    {
      const Stopwatch watch(subject_.times->wait, "wait", "peers");
      host_.wait([&] { return ledger_->missing(params()) != 0; }, [] { return 0; }, "step", ledger_->timeout());
    }
    buffers_.take(*ledger_, params());
  }

  void meet(int phase) {
    const Stopwatch watch(subject_.times->wait, "wait", "peers");
    ledger_->meet(static_cast<std::int64_t>(plan_.chunks.size()) * (subject_.whole ? world_ : 1), phase, "step");
  }

  // The gradients of all ranks that have one, at element `begin`, and how to add them.
  struct Sources {
    const void* data[256];
    double weights[256];
    int count = 0;
    int first = -1;  // the first rank that has one
    kernels::ReduceArgs args;
  };

  void gather(const Stretch& piece, Sources& sources) {
    const std::size_t element = size_of(dtypes_[at(piece.param)]);
    sources.count = 0;
    sources.first = -1;
    for (int peer = 0; peer < world_; ++peer) {
      const Token token = ledger_->token(peer, piece.param);
      if (!has_gradient(token)) continue;
      if (sources.first < 0) sources.first = peer;
      sources.data[sources.count] = host_.at(peer, token) + static_cast<std::size_t>(piece.begin) * element;
      if (!weighting_.weights.empty()) sources.weights[sources.count] = weighting_.weights[at(peer)];
      ++sources.count;
    }
    sources.args = {.dtype = dtypes_[at(piece.param)], .op = ReduceOp::kSum, .count = piece.end - piece.begin, .scale = weighting_.scale};
    if (!weighting_.weights.empty()) sources.args.weights = sources.weights;
  }

  void combine(int chunk) {
    if (!weighted_) {
      std::vector<double> samples;
      for (int peer = 0; peer < world_; ++peer) samples.push_back(ledger_->samples(peer));
      weighting_ = weigh(subject_.options.average, samples);
      weighted_ = true;
    }
    double squares = 0;
    for (const Stretch& piece : plan_.chunks[at(chunk)].pieces) {
      Sources sources;
      gather(piece, sources);
      if (sources.count == 0) continue;
      if (subject_.updater == nullptr) {
        average(piece, sources);
      } else if (subject_.max_grad_norm > 0) {
        // The sum goes over the first gradient; nobody else reads this piece of it.
        void* sum = const_cast<void*>(sources.data[0]);
        kernels::reduce(&sum, 1, sources.data, sources.count, sources.args);
        squares += kernels::sum_of_squares(static_cast<const float*>(sum), sources.args.count);
      } else {
        update(piece, sources);
      }
    }
    if (subject_.max_grad_norm > 0) ledger_->chunk_norms()[chunk] = squares;
  }

  // Every rank's gradient becomes the average; that of a rank that did not use the parameter, too.
  void average(const Stretch& piece, const Sources& sources) {
    void* destinations[256];
    for (int peer = 0; peer < world_; ++peer) {
      const Token token = ledger_->token(peer, piece.param) & ~kUnused;
      destinations[peer] = host_.at(peer, token) + static_cast<std::size_t>(piece.begin) * size_of(dtypes_[at(piece.param)]);
    }
    kernels::reduce(destinations, world_, sources.data, sources.count, sources.args);
  }

  // Sum and update, block by block, so that the summed gradient never leaves the cache.
  void update(const Stretch& piece, Sources& sources) {
    alignas(64) float block[kBlockElements];
    const bool as_it_is = sources.count == 1 && sources.args.scale == 1.0 && sources.args.weights == nullptr;
    for (std::int64_t begin = piece.begin; begin < piece.end; begin += kBlockElements) {
      const std::int64_t end = std::min(piece.end, begin + kBlockElements);
      const float* gradient = block;
      if (as_it_is) {
        gradient = static_cast<const float*>(sources.data[0]);
      } else {
        void* destination = block;
        sources.args.count = end - begin;
        kernels::reduce(&destination, 1, sources.data, sources.count, sources.args);
      }
      subject_.updater->update(piece.param, begin, end, gradient);
      for (int i = 0; i < sources.count; ++i) sources.data[i] = static_cast<const float*>(sources.data[i]) + (end - begin);
    }
  }

  void update_clipped(int chunk) {
    const double factor = std::min(1.0, subject_.max_grad_norm / (norm_ + 1e-6));
    for (const Stretch& piece : plan_.chunks[at(chunk)].pieces) {
      Sources sources;
      gather(piece, sources);
      if (sources.count == 0) continue;
      sources.count = 1;
      sources.args.scale = factor;
      sources.args.weights = nullptr;
      update(piece, sources);
    }
  }

  Subject subject_;
  net::Host& host_;
  const int rank_, world_;
  std::vector<std::int64_t> sizes_;
  std::vector<DType> dtypes_;
  Plan plan_;
  std::vector<int> first_chunk_;         // by bucket, and one past the end
  std::vector<std::uint32_t> own_done_;  // by chunk, where each rank does all: the step in which this one did
  std::unique_ptr<Ledger> ledger_;

  std::vector<bool> ready_, used_;
  std::vector<int> unready_;  // by bucket: parameters that are still to come
  Staging staging_;
  SharedBuffers buffers_;
  std::vector<int> ready_order_;
  Weighting weighting_;
  bool begun_ = false, weighted_ = false, replanned_ = false;
  double norm_ = 0;
};

}  // namespace

std::unique_ptr<Sync> make_host_sync(Subject subject) { return std::make_unique<HostSync>(std::move(subject)); }

}  // namespace weft::parallel::internal
