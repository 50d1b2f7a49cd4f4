#include "weft/engine/internal/unit_publisher.h"

#include <algorithm>

namespace weft::engine::internal {

UnitPublisher::UnitPublisher(Ledger& ledger, const TransportContext& context,
                             const BucketAssignment& plan)
    : ledger_(ledger),
      context_(context),
      assignment_(plan),
      gradients_(ledger, context.params, context.check),
      buffers_(ledger, last_unit(), context.buffers),
      ready_(context.params.size(), false) {}

void UnitPublisher::begin() {
  order_.clear();
  unready_.clear();
  for (const std::vector<int>& unit : assignment_.buckets)
    unready_.push_back(static_cast<int>(unit.size()));
}

bool UnitPublisher::ready(int param) {
  ready_[index(param)] = true;
  order_.push_back(param);
  gradients_.show(param);
  const int unit = assignment_.bucket_of[index(param)];
  if (--unready_[index(unit)] > 0) return false;
  ledger_.publish(unit);
  return true;
}

void UnitPublisher::publish_rest() {
  for (int unit = 0; unit < static_cast<int>(assignment_.buckets.size()); ++unit) {
    if (unready_[index(unit)] == 0) continue;
    for (int param : assignment_.buckets[index(unit)]) {
      if (!ready_[index(param)]) show_unready(param);
    }
    unready_[index(unit)] = 0;
    ledger_.publish(unit);
  }
  if (ledger_.host().rank() == 0) buffers_.show();
  ledger_.publish(last_unit());
}

void UnitPublisher::show_unready(int param) {
  if (context_.params[index(param)].grad().defined()) return gradients_.show(param);
  if (context_.updates != nullptr) return ledger_.put(param, net::Host::kNoToken);
  gradients_.show_zeros(param);
}

void UnitPublisher::take_buffers(double& waited) {
  if (ledger_.host().rank() != 0) buffers_.take(last_unit(), waited);
}

void UnitPublisher::end(bool results, const std::vector<bool>& used) {
  gradients_.end(results, used);
  std::fill(ready_.begin(), ready_.end(), false);
}

}  // namespace weft::engine::internal
