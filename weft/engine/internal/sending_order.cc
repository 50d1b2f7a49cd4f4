#include "weft/engine/internal/sending_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/engine/internal/index.h"
#include "weft/engine/internal/transport.h"

namespace weft::engine::internal {

SendingOrder::SendingOrder(std::vector<std::int64_t> sizes, Fill fill)
    : sizes_(std::move(sizes)), fill_(fill), params_(sizes_.size()) {
  std::iota(params_.rbegin(), params_.rend(), 0);
  reassign();
}

void SendingOrder::agree(const Group& group) {
  agree(agree_on_order(group, std::move(ready_), static_cast<int>(sizes_.size())));
}

void SendingOrder::agree(std::vector<int> order) {
  agreed_ = true;
  params_ = std::move(order);
  reassign();
}

void SendingOrder::refill(Fill fill) {
  fill_ = fill;
  reassign();
}

void SendingOrder::reassign() {
  assignment_ = fill_buckets(sizes_, params_, fill_);
  unready_.assign(assignment_.buckets.size(), 0);
  launches_.resize(assignment_.buckets.size());
  std::iota(launches_.begin(), launches_.end(), 0);
}

int SendingOrder::bucket_of(int param) const { return assignment_.bucket_of[index(param)]; }

std::size_t SendingOrder::place_of(int param) const {
  const auto place = std::find(launches_.begin(), launches_.end(), bucket_of(param));
  return static_cast<std::size_t>(place - launches_.begin());
}

void SendingOrder::begin() {
  next_ = 0;
  for (std::size_t bucket = 0; bucket < assignment_.buckets.size(); ++bucket)
    unready_[bucket] = static_cast<int>(assignment_.buckets[bucket].size());
}

void SendingOrder::note_ready(int param) {
  if (!agreed_) ready_.push_back(param);
  --unready_[index(bucket_of(param))];
}

std::optional<int> SendingOrder::next_full() {
  if (next_ == launches_.size() || unready_[index(launches_[next_])] > 0) return std::nullopt;
  return launches_[next_++];
}

std::optional<int> SendingOrder::next() {
  return next_ < launches_.size() ? std::optional(launches_[next_++]) : std::nullopt;
}

}  // namespace weft::engine::internal
