#include "weft/comm/internal/view_endpoint.h"

#include <algorithm>

namespace weft::comm::internal {
namespace {

class ViewEndpoint final : public net::Endpoint {
 public:
  ViewEndpoint(std::shared_ptr<net::Endpoint> base, std::vector<int> ranks, net::Channel shift)
      : base_(std::move(base)), ranks_(std::move(ranks)), shift_(shift), rank_(place_of(base_->rank())) {
    WEFT_REQUIRE(rank_ >= 0, "rank " + std::to_string(base_->rank()) + " is not in the part of the group that it asks for");
  }

  int rank() const override { return rank_; }
  int world() const override { return static_cast<int>(ranks_.size()); }
  const char* name() const override { return base_->name(); }
  std::uint32_t epoch() const override { return base_->epoch(); }

  void exchange(net::Channel channel, std::span<const net::Send> sends, std::span<const net::Recv> recvs, Deadline deadline) override {
    std::vector<net::Send> out(sends.begin(), sends.end());
    std::vector<net::Recv> in(recvs.begin(), recvs.end());
    for (auto& send : out) send.peer = base_rank(send.peer);
    for (auto& recv : in) recv.peer = base_rank(recv.peer);
    base_->exchange(channel + shift_, out, in, deadline);
  }

  int await_any(net::Channel channel, Deadline deadline) override { return place_of(base_->await_any(channel + shift_, deadline)); }

  void fail(const Error& why) noexcept override {
    const auto& context = why.context();
    const bool known = context.peer >= 0 && context.peer < world();
    base_->fail(Error(why.code(), why.message(), {context.operation, base_->rank(), known ? base_rank(context.peer) : -1}));
  }
  std::optional<Error> failure() const override { return base_->failure(); }

 private:
  int base_rank(int peer) const {
    WEFT_REQUIRE(peer >= 0 && peer < world(), "rank " + std::to_string(peer) + " is not in the group of " + std::to_string(world()));
    return ranks_[static_cast<std::size_t>(peer)];
  }
  int place_of(int base_rank) const {
    const auto found = std::find(ranks_.begin(), ranks_.end(), base_rank);
    return found == ranks_.end() ? -1 : static_cast<int>(found - ranks_.begin());
  }

  const std::shared_ptr<net::Endpoint> base_;
  const std::vector<int> ranks_;
  const net::Channel shift_;
  const int rank_;
};

}  // namespace

std::unique_ptr<net::Endpoint> make_view(std::shared_ptr<net::Endpoint> base, std::vector<int> ranks, net::Channel shift) {
  return std::make_unique<ViewEndpoint>(std::move(base), std::move(ranks), shift);
}

}  // namespace weft::comm::internal
