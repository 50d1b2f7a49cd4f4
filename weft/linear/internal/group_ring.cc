#include "weft/linear/internal/group_ring.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/net/memory/host.h"

namespace weft::linear::internal {
namespace {

constexpr int kTag = 0x6c696e;  // "lin": its messages must not meet those of others

}  // namespace

GroupRing::GroupRing(Group group, const std::vector<int>& hosts, std::size_t weights)
    : group_(std::move(group)), weights_(static_cast<std::int64_t>(weights)) {
  const auto at = std::find(hosts.begin(), hosts.end(), group_.rank()) - hosts.begin();
  const auto count = static_cast<std::ptrdiff_t>(hosts.size());
  next_ = hosts[static_cast<std::size_t>((at + 1) % count)];
  previous_ = hosts[static_cast<std::size_t>((at + count - 1) % count)];
}

std::int64_t GroupRing::size_of(Kind kind) const {
  return kind == kToken ? 1 : kind == kChange ? weights_ + 1 : weights_;
}

void GroupRing::send(Kind kind, std::span<const float> values) {
  while (!sends_.empty() && sends_.front()->isCompleted()) {
    group_.wait(sends_.front(), "send");
    sends_.pop_front();
  }
  std::vector<at::Tensor> one{at::empty({size_of(kind)}, at::kFloat)};
  std::memcpy(one[0].mutable_data_ptr<float>(), values.data(), values.size_bytes());
  sends_.push_back(group_.backend().send(one, kind == kAnswer ? previous_ : next_,
                                         kTag + static_cast<int>(kind)));
}

std::optional<std::span<const float>> GroupRing::receive(Kind kind) {
  Posted& posted = posted_[kind];
  if (!posted.work) {
    posted.tensor = at::empty({size_of(kind)}, at::kFloat);
    std::vector<at::Tensor> one{posted.tensor};
    posted.work = group_.backend().recv(one, kind == kAnswer ? next_ : previous_,
                                        kTag + static_cast<int>(kind));
  }
  if (!posted.work->isCompleted()) return std::nullopt;
  group_.wait(posted.work, "recv");
  posted.work.reset();
  patience_.reset();
  arrived_[kind] = std::move(posted.tensor);
  return std::span(arrived_[kind].const_data_ptr<float>(),
                   static_cast<std::size_t>(arrived_[kind].numel()));
}

void GroupRing::wait() {
  constexpr std::chrono::microseconds kPause{50};
  if (!patience_) patience_ = Deadline::in(group_.timeout());
  if (patience_->passed())
    throw Error(Errc::kTimeout, "Hogwild!: no message from the neighboring hosts in time");
  std::this_thread::sleep_for(kPause);
}

GroupPlace::GroupPlace(const Group& group, Ranks& ranks, std::size_t weights,
                       const HogwildOptions& options) {
  const auto here = group.host_ranks();
  const std::vector<int> mine = here.ranks.empty() ? std::vector{group.rank()} : here.ranks;
  const auto me = std::find(mine.begin(), mine.end(), group.rank()) - mine.begin();
  place_.first_worker = static_cast<int>(me) * options.threads;
  place_.workers = static_cast<int>(mine.size()) * options.threads;
  if (mine.size() > 1) {
    bytes_ = hogwild_memory(weights, place_.workers, options);
    place_.memory = here.host->share(bytes_, group.timeout());
  }
  std::vector<int> hosts;  // first rank of each
  for (const std::string& first : ranks.gather(std::to_string(mine[0]))) {
    const int rank = std::stoi(first);
    if (std::find(hosts.begin(), hosts.end(), rank) == hosts.end()) hosts.push_back(rank);
  }
  place_.hosts = static_cast<int>(hosts.size());
  place_.host = static_cast<int>(std::find(hosts.begin(), hosts.end(), mine[0]) - hosts.begin());
  if (place_.hosts > 1 && me == 0) {
    ring_.emplace(group, hosts, weights);
    place_.messages = &*ring_;
  }
}

void GroupPlace::reset(Ranks& ranks) {
  double nothing = 0;
  ranks.sum({&nothing, 1});
  if (place_.memory != nullptr && place_.first_worker == 0) std::memset(place_.memory, 0, bytes_);
  ranks.sum({&nothing, 1});
}

}  // namespace weft::linear::internal
