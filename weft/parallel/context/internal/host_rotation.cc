// Ring attention within a host: each rank reads the keys, values and gradients of the others where
// they are. A rank publishes the address of its tensors in a slot, and waits at the end until all
// readers have counted themselves.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "weft/comm/allocator.h"
#include "weft/net/memory/host.h"
#include "weft/observe/trace.h"
#include "weft/parallel/context/internal/block.h"
#include "weft/parallel/context/internal/ring_rotation.h"

namespace weft::parallel::internal {
namespace {

constexpr const char* kOperation = "context parallelism";
constexpr std::size_t kDimensions = 4;

// A tensor of another rank.
struct Place {
  net::Host::Token token = net::Host::kNoToken;
  std::array<std::int64_t, kDimensions> sizes, strides;
};

struct Slot {
  std::atomic<std::uint64_t> sent;   // number of what was published last
  std::atomic<std::uint32_t> taken;  // readers that are done with it
  std::array<Place, 2> places;
};

// Slots of a rank: one for keys, and two for gradients, so that their owner may be a step behind.
constexpr std::size_t kGradientSlots = 2, kSlots = 1 + kGradientSlots;

}  // namespace

class HostRing {
 public:
  explicit HostRing(const Group& group)
      : group_(group), host_(*group_.host()), timeout_(group_.timeout()) {
    const auto ranks = static_cast<std::size_t>(host_.world());
    slots_ = reinterpret_cast<Slot*>(host_.share(ranks * kSlots * sizeof(Slot), timeout_));
    host_.meet(kOperation, timeout_);  // from which it knows how to wait
  }

  // Numbers are the same on all ranks, since all do the same passes.
  std::uint64_t next_keys() { return ++keys_; }
  std::uint64_t next_gradients(int steps) {
    const std::uint64_t first = gradients_ + 1;
    gradients_ += static_cast<std::uint64_t>(steps);
    return first;
  }

  Slot& keys(int rank) const { return slots_[static_cast<std::size_t>(rank) * kSlots]; }
  Slot& gradients(int rank, std::uint64_t number) const {
    return slots_[static_cast<std::size_t>(rank) * kSlots + 1 + number % kGradientSlots];
  }

  // Returns the tensors that the others read, for the caller to keep.
  std::vector<at::Tensor> publish(Slot& slot, std::uint64_t number,
                                  const std::vector<at::Tensor>& tensors) {
    host_.check(kOperation);
    std::vector<at::Tensor> kept;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const bool is_here = host_.token(tensors[i].data_ptr()) != net::Host::kNoToken;
      kept.push_back(is_here ? tensors[i] : comm::readable(host_, tensors[i]));
      Place& place = slot.places[i];
      place.token = host_.token(kept.back().data_ptr());
      std::copy_n(kept.back().sizes().begin(), kDimensions, place.sizes.begin());
      std::copy_n(kept.back().strides().begin(), kDimensions, place.strides.begin());
    }
    slot.taken.store(0, std::memory_order_relaxed);
    slot.sent.store(number, std::memory_order_release);
    host_.notify();
    return kept;
  }

  void await_published(const Slot& slot, int peer, std::uint64_t number) {
    await([&] { return slot.sent.load(std::memory_order_acquire) == number; }, peer, number);
  }
  net::Host& host() { return host_; }
  // The i-th tensor of a published slot, for use within a Touch.
  at::Tensor tensor(const Slot& slot, std::size_t i, int peer,
                    const at::TensorOptions& options) const {
    const Place& place = slot.places[i];
    return at::from_blob(host_.at(peer, place.token), place.sizes, place.strides,
                         options.requires_grad(false));
  }

  void count(Slot& slot) noexcept {
    slot.taken.fetch_add(1, std::memory_order_release);
    host_.notify();
  }

  // Until `readers` are done with a slot of this rank. It waits for `peer`, if that one is known.
  void await_readers(const Slot& slot, int readers, int peer, std::uint64_t number) {
    await(
        [&] {
          return slot.taken.load(std::memory_order_acquire) >= static_cast<std::uint32_t>(readers);
        },
        peer, number);
  }

  void count_moved(const at::Tensor& tensor) noexcept {
    host_.count_moved(static_cast<std::uint64_t>(tensor.nbytes()));
  }

 private:
  template <class Ready>
  void await(const Ready& ready, int peer, std::uint64_t number) {
    host_.wait_for(peer, ready, kOperation, number, timeout_);
  }

  const Group group_;
  net::Host& host_;
  const std::chrono::nanoseconds timeout_;
  Slot* slots_ = nullptr;
  std::uint64_t keys_ = 0, gradients_ = 0;
};

namespace {

class HostRotation final : public RingRotation {
 public:
  HostRotation(HostRing& host, const Ring& ring, const KeysAndValues& mine, Pass pass)
      : host_(host), ring_(ring), number_(host.next_keys()) {
    if (pass == Pass::kBackward) first_gradients_ = host.next_gradients(ring.ranks - 1);
    keys_ = host_.publish(host_.keys(ring.rank), number_, {mine.first, mine.second});
  }

  KeysAndValues next(int step) override {
    const observe::TraceScope scope("comm", "context:keys");
    release();
    reads_ = ring_.owner(ring_.rank, step);
    Slot& slot = host_.keys(reads_);
    host_.await_published(slot, reads_, number_);
    in_use_.emplace(host_.host(), kOperation);
    const auto part = [&](std::size_t i) {
      const at::Tensor whole = host_.tensor(slot, i, reads_, keys_[i].options());
      const at::Tensor seen = whole.narrow(2, 0, ring_.keys(ring_.rank, step));
      host_.count_moved(seen);
      return seen;
    };
    return {part(0), part(1)};
  }

  void hand_on(int step, const Pack& found, const Pack& own) override {
    release();
    const std::uint64_t number = number_of(step);
    Slot& slot = host_.gradients(ring_.rank, number);
    at::Tensor& given = given_[number % kGradientSlots];
    if (given.defined())
      host_.await_readers(slot, 1, ring_.owner(ring_.rank, step - 2), number - kGradientSlots);
    given = host_.publish(slot, number, {found.both.flatten(2, 3)})[0];
    if (step > 1) add(step - 1, own);
  }

  void collect(const Pack& own) override {
    release();
    add(ring_.ranks - 1, own);
  }

  void finish() override {
    release();
    const observe::TraceScope scope("comm", "context:finish");
    constexpr int kUnknown = -1;
    host_.await_readers(host_.keys(ring_.rank), ring_.ranks - 1, kUnknown, number_);
    for (int step = std::max(1, ring_.ranks - static_cast<int>(kGradientSlots));
         step < ring_.ranks && first_gradients_ > 0; ++step) {
      host_.await_readers(host_.gradients(ring_.rank, number_of(step)), 1,
                          ring_.owner(ring_.rank, step), number_of(step));
    }
  }

 private:
  std::uint64_t number_of(int step) const {
    return first_gradients_ + static_cast<std::uint64_t>(step - 1);
  }

  // The keys of the step before are not read any more.
  void release() noexcept {
    in_use_.reset();
    if (reads_ >= 0) host_.count(host_.keys(reads_));
    reads_ = -1;
  }

  // Adds what another rank has found for this rank's keys in a step.
  void add(int step, const Pack& own) {
    const observe::TraceScope scope("comm", "context:gradients");
    const int from = (ring_.rank + ring_.ranks - step) % ring_.ranks;
    Slot& slot = host_.gradients(from, number_of(step));
    host_.await_published(slot, from, number_of(step));
    {
      const net::Host::Touch touch(host_.host(), kOperation);
      const at::Tensor found = host_.tensor(slot, 0, from, own.both.options());
      host_.count_moved(found);
      const at::Tensor mine = own.both.narrow(0, 0, found.size(0));
      mine.view(found.sizes()).add_(found);
    }
    host_.count(slot);
  }

  HostRing& host_;
  const Ring& ring_;
  const std::uint64_t number_;
  std::uint64_t first_gradients_ = 0;  // number of those of the first step; 0: forward
  std::vector<at::Tensor> keys_;
  std::array<at::Tensor, kGradientSlots> given_;
  int reads_ = -1;  // the rank whose keys are in use
  std::optional<net::Host::Touch> in_use_;
};

}  // namespace

std::shared_ptr<HostRing> make_host_ring(const Group& group) {
  return std::make_shared<HostRing>(group);
}

std::unique_ptr<RingRotation> rotate_in_place(HostRing& host, const Ring& ring,
                                              const KeysAndValues& mine, Pass pass) {
  return std::make_unique<HostRotation>(host, ring, mine, pass);
}

}  // namespace weft::parallel::internal
