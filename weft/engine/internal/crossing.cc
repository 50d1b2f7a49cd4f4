#include "weft/engine/internal/crossing.h"

#include <map>
#include <mutex>
#include <vector>

namespace weft::engine::internal {
namespace {

// Words of ranks lie in cache lines of their own.
constexpr std::size_t kStride = 128;
// A word has the number of a model, the section and the stamp; 0: the rank is in no section of
// another model.
constexpr int kStampBits = 32, kSectionBits = 2;

std::uint64_t word_of(std::int64_t model, Section section, std::uint32_t stamp) {
  return static_cast<std::uint64_t>(model) << (kStampBits + kSectionBits) |
         static_cast<std::uint64_t>(section) << kStampBits | stamp;
}
std::int64_t model_in(std::uint64_t word) {
  return static_cast<std::int64_t>(word >> (kStampBits + kSectionBits));
}
Section section_in(std::uint64_t word) {
  return static_cast<Section>(word >> kStampBits & ((1U << kSectionBits) - 1));
}
std::uint32_t stamp_in(std::uint64_t word) { return static_cast<std::uint32_t>(word); }

// The crossings of each host object, which is one rank's.
class Crossings {
 public:
  static Crossings& get() {
    static Crossings& one = *new Crossings;  // models may outlive static variables
    return one;
  }
  void add(const net::Host* host, Crossing* crossing) {
    const std::lock_guard lock(mutex_);
    all_[host].push_back(crossing);
  }
  void remove(const net::Host* host, Crossing* crossing) {
    const std::lock_guard lock(mutex_);
    std::erase(all_[host], crossing);
    if (all_[host].empty()) all_.erase(host);
  }
  std::vector<Crossing*> of(const net::Host* host) {
    const std::lock_guard lock(mutex_);
    return all_[host];
  }

 private:
  std::mutex mutex_;  // guards the map
  std::map<const net::Host*, std::vector<Crossing*>> all_;
};

// "steps model 2 with 'fc.weight'". Models of a program often have the same names.
std::string does(Section section, const ModelName& of) {
  std::string model = "model " + std::to_string(of.number);
  if (!of.parameter.empty()) model += " with '" + of.parameter + "'";
  switch (section) {
    case Section::kAverage: return "averages gradients of " + model + " at the end of backward()";
    case Section::kDrop: return "goes backward after zero_grad() has dropped gradients of " + model;
    default: return "steps " + model;
  }
}

}  // namespace

Crossing::Crossing(net::Host& host, ModelName model, std::chrono::nanoseconds timeout)
    : host_(host),
      model_(std::move(model)),
      words_(host.share(static_cast<std::size_t>(host.world()) * kStride, timeout)) {
  Crossings::get().add(&host_, this);
}

Crossing::~Crossing() { Crossings::get().remove(&host_, this); }

std::atomic<std::uint64_t>& Crossing::word(int rank) const {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(words_ +
                                                        static_cast<std::size_t>(rank) * kStride);
}

void Crossing::tell_others() const {
  for (const Crossing* const other : Crossings::get().of(&host_)) {
    if (other != this) other->word(host_.rank()).store(now_, std::memory_order_release);
  }
}

Crossing::Inside::Inside(Crossing& crossing, Section section, std::uint32_t stamp)
    : crossing_(crossing), outer_(crossing.now_) {
  crossing.now_ = word_of(crossing.model_.number, section, stamp);
  crossing.entered_ = stamp;
  crossing.tell_others();
}

Crossing::Inside::~Inside() {
  crossing_.now_ = outer_;
  crossing_.tell_others();
}

void Crossing::check(int peer, const std::function<bool()>& still_waits) const {
  if (peer < 0 || now_ == 0) return;
  const std::uint64_t seen = word(peer).load(std::memory_order_acquire);
  if (seen == 0) return;
  const Crossing* other = nullptr;
  for (const Crossing* const one : Crossings::get().of(&host_)) {
    if (one->model_.number == model_in(seen)) other = one;
  }
  if (other == this) return;
  if (other != nullptr && static_cast<std::int32_t>(other->entered_ - stamp_in(seen)) >= 0) return;
  // The peer may have done its part here before it entered the other section.
  if (!still_waits() || word(peer).load(std::memory_order_acquire) != seen) return;
  refuse(peer, seen, other);
}

void Crossing::refuse(int peer, std::uint64_t seen, const Crossing* other) const {
  const auto rank = [](int number) { return "rank " + std::to_string(number); };
  const Section mine = section_in(now_), theirs = section_in(seen);
  const auto is_any = [&](Section section) { return mine == section || theirs == section; };
  const std::string advice =
      is_any(Section::kDrop) ? "drop gradients on all ranks, or wrap that backward() in no_sync()"
      : is_any(Section::kAverage)
          ? "let backward() reach the same models on all ranks: a rank without a batch runs "
            "forward() on any sample, calls set_samples(0), and goes backward from zero times the "
            "output"
          : "step the optimizers in the same order on all ranks";
  const Error error(
      Errc::kInvalidArgument,
      rank(host_.rank()) + " " + does(mine, model_) + ", and " + rank(peer) + " " +
          does(theirs, other != nullptr ? other->model_ : ModelName{model_in(seen), ""}) +
          ", so they wait for each other; " + advice,
      {"step", host_.rank(), peer});
  host_.fail_by(error);
}

}  // namespace weft::engine::internal
