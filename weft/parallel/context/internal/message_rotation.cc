// Keys and values go from rank to rank, each message behind the computation of a step. Gradients
// follow one step later.
#include <ATen/ATen.h>

#include "weft/parallel/context/internal/block.h"
#include "weft/parallel/context/internal/messages.h"
#include "weft/parallel/context/internal/ring_rotation.h"

namespace weft::parallel::internal {
namespace {

class MessageRotation final : public RingRotation {
 public:
  MessageRotation(const Ring& ring, const KeysAndValues& mine, Pass pass)
      : ring_(ring), pass_(pass), messages_(ring.cp.group()) {
    const auto& [k, v] = mine;
    here_ = Pack::like(k, k.size(2), k.scalar_type());
    here_.k().copy_(k);
    here_.v().copy_(v);
    move_on(0);
  }

  KeysAndValues next(int step) override {
    messages_.wait(coming_work_);
    here_ = std::move(coming_);
    move_on(step);
    if (pass_ == Pass::kBackward) expect(step);
    return {here_.k(), here_.v()};
  }

  // Rank 0, the last to use late chunks, returns their gradients to their owners.
  void hand_on(int step, const Pack& found, const Pack& /*own*/) override {
    if (begun_.both.defined()) {
      messages_.wait(begun_work_);
      found.both.add_(begun_.both);
    }
    if (!ring_.options.causal || ring_.rank != 0)
      return messages_.send(found.both, ring_.down(), Kind::kGradients);
    const int home = ring_.owner(ring_.rank, step);
    const std::int64_t low = ring_.layout.low(home).size;
    messages_.send(found.both.narrow(0, 0, low), ring_.down(), Kind::kGradients);
    messages_.send(found.both.narrow(0, low, found.both.size(0) - low), home, Kind::kLateGradients);
  }

  void collect(const Pack& own) override {
    const std::int64_t all = own.both.size(0),
                       low = ring_.options.causal ? ring_.layout.low(ring_.rank).size : all;
    const at::Tensor found = at::empty_like(own.both);
    const auto early = messages_.receive(found.narrow(0, 0, low), ring_.up(), Kind::kGradients);
    const std::int64_t late = ring_.rank == 0 ? 0 : all - low;
    const auto last = messages_.receive(found.narrow(0, low, late), 0, Kind::kLateGradients);
    messages_.wait(early);
    messages_.wait(last);
    own.both.narrow(0, 0, low + late).add_(found.narrow(0, 0, low + late));
  }

  void finish() override { messages_.finish(); }

 private:
  // Starts the transfer of the keys of the next step.
  void move_on(int step) {
    if (step + 1 >= ring_.ranks) return;
    // First the receive: what comes before it is copied once more.
    coming_ = Pack::like(here_.k(), ring_.keys(ring_.rank, step + 1), here_.both.scalar_type());
    coming_work_ = messages_.receive(coming_.both, ring_.up(), Kind::kKeys);
    messages_.send(here_.both.narrow(0, 0, ring_.keys(ring_.down(), step + 1)), ring_.down(),
                   Kind::kKeys);
  }

  // Starts to receive the gradients that other ranks have begun.
  void expect(int step) {
    begun_ = {};
    if (step < 2) return;
    begun_ = Pack::like(here_.k(), ring_.keys(ring_.rank, step), sum_type(here_.both));
    begun_work_ = messages_.receive(begun_.both, ring_.up(), Kind::kGradients);
  }

  const Ring& ring_;
  const Pass pass_;
  Messages messages_;
  Pack here_, coming_, begun_;
  Group::Work coming_work_, begun_work_;
};

}  // namespace

std::unique_ptr<RingRotation> rotate_by_messages(const Ring& ring, const KeysAndValues& mine,
                                                 Pass pass) {
  return std::make_unique<MessageRotation>(ring, mine, pass);
}

}  // namespace weft::parallel::internal
