#include "weft/comm/internal/view_endpoint.h"

#include <algorithm>

namespace weft::comm::internal {
namespace {

using Ranks = std::vector<int>;

int base_rank(const Ranks& ranks, int peer) {
  WEFT_REQUIRE(
      peer >= 0 && peer < static_cast<int>(ranks.size()),
      "rank " + std::to_string(peer) + " is not in the group of " + std::to_string(ranks.size()));
  return ranks[static_cast<std::size_t>(peer)];
}

// Converts a transfer of the view into one of the base endpoint.
template <class Transfer>
Transfer of_base(const Ranks& ranks, Transfer transfer) {
  transfer.peer = base_rank(ranks, transfer.peer);
  return transfer;
}

class ViewFlow final : public net::Flow {
 public:
  ViewFlow(std::unique_ptr<net::Flow> base, const Ranks& ranks)
      : base_(std::move(base)), ranks_(ranks) {}
  void send(const net::Send& send, std::uint32_t id) override {
    base_->send(of_base(ranks_, send), id);
  }
  void recv(const net::Recv& recv, std::uint32_t id) override {
    base_->recv(of_base(ranks_, recv), id);
  }
  void wait(std::vector<std::uint32_t>& done, Deadline deadline) override {
    base_->wait(done, deadline);
  }
  void poll(std::vector<std::uint32_t>& done) override { base_->poll(done); }

 private:
  const std::unique_ptr<net::Flow> base_;
  const Ranks& ranks_;  // owned by the endpoint, which outlives the flow
};

class ViewEndpoint final : public net::Endpoint {
 public:
  ViewEndpoint(std::shared_ptr<net::Endpoint> base, Ranks ranks, net::Channel shift)
      : base_(std::move(base)),
        ranks_(std::move(ranks)),
        shift_(shift),
        rank_(place_of(base_->rank())) {
    WEFT_REQUIRE(rank_ >= 0, "rank " + std::to_string(base_->rank()) +
                                 " is not among the ranks that it requests");
  }

  int rank() const override { return rank_; }
  int world() const override { return static_cast<int>(ranks_.size()); }
  const char* name() const override { return base_->name(); }
  std::uint32_t epoch() const override { return base_->epoch(); }

  void exchange(net::Channel channel, std::span<const net::Send> sends,
                std::span<const net::Recv> recvs, Deadline deadline) override {
    std::vector<net::Send> out;
    std::vector<net::Recv> in;
    for (const auto& send : sends) out.push_back(of_base(ranks_, send));
    for (const auto& recv : recvs) in.push_back(of_base(ranks_, recv));
    base_->exchange(channel + shift_, out, in, deadline);
  }

  std::unique_ptr<net::Flow> flow(net::Channel channel) override {
    auto base = base_->flow(channel + shift_);
    return base ? std::make_unique<ViewFlow>(std::move(base), ranks_) : nullptr;
  }

  int await_any(net::Channel channel, Deadline deadline) override {
    return place_of(base_->await_any(channel + shift_, deadline));
  }

  int recv_any(net::Channel channel, std::span<std::byte> bytes, Deadline deadline,
               const std::function<bool(int peer)>& may) override {
    return place_of(base_->recv_any(channel + shift_, bytes, deadline, [&](int base_rank) {
      const int peer = place_of(base_rank);
      return peer >= 0 && may(peer);
    }));
  }

  void wait_for(int peer, bool begin) override {
    base_->wait_for(peer < 0 ? peer : base_rank(ranks_, peer), begin);
  }

  void fail(const Error& why) noexcept override { base_->fail(in_base_ranks(why)); }
  void abort(const Error& why) noexcept override { base_->abort(in_base_ranks(why)); }
  std::optional<Error> failure() const override { return base_->failure(); }

 private:
  int place_of(int base_rank) const {
    const auto found = std::find(ranks_.begin(), ranks_.end(), base_rank);
    return found == ranks_.end() ? -1 : static_cast<int>(found - ranks_.begin());
  }

  Error in_base_ranks(const Error& error) const {
    const auto& context = error.context();
    const bool known = context.peer >= 0 && context.peer < world();
    return Error(error.code(), error.message(),
                 {context.operation, base_->rank(), known ? base_rank(ranks_, context.peer) : -1});
  }

  const std::shared_ptr<net::Endpoint> base_;
  const Ranks ranks_;
  const net::Channel shift_;
  const int rank_;
};

}  // namespace

std::unique_ptr<net::Endpoint> make_view(std::shared_ptr<net::Endpoint> base,
                                         std::vector<int> ranks, net::Channel shift) {
  return std::make_unique<ViewEndpoint>(std::move(base), std::move(ranks), shift);
}

}  // namespace weft::comm::internal
