// Collectives by a schedule over messages.
#include <bit>
#include <optional>
#include <string_view>
#include <vector>

#include "weft/comm/internal/engine.h"
#include "weft/net/execute/executor.h"

namespace weft::comm::internal {
namespace {

using schedule::Collective;

constexpr net::Channel kSignatures = net::Channel{1} << 62;
constexpr net::Channel kCollectives = kSignatures + 1;

plan::Transport transport_of(const net::Endpoint& endpoint) {
  return std::string_view(endpoint.name()) == "tcp" ? plan::Transport::kTcp : plan::Transport::kShm;
}

class MessageEngine final : public Engine {
 public:
  MessageEngine(std::unique_ptr<net::Endpoint> endpoint, const Tuning& tuning)
      : endpoint_(std::move(endpoint)),
        chooser_(tuning, transport_of(*endpoint_), endpoint_->world()) {}

  net::Endpoint& endpoint() override { return *endpoint_; }
  net::Host* host() override { return nullptr; }
  std::string describe() const override { return endpoint_->name(); }
  bool has_ordered_sums() const override { return chooser_.has_ordered_sums(); }
  void fail(const Error& why) noexcept override { endpoint_->abort(why); }
  void stop(const Error& why) noexcept override { endpoint_->fail(why); }

 private:
  void perform(Collective collective, const net::DirectArgs& args) override {
    const auto deadline = Deadline::in(args.timeout);
    const Call call{net::signature_of(collective, args), calls_++};
    const net::Label label{std::bit_cast<net::Label::Bytes>(call), &mismatch};
    if (!endpoint_->begin_call(kCollectives, call.number, label)) agree(call.signature, deadline);
    const schedule::Request asked{.collective = collective,
                                  .rank = endpoint_->rank(),
                                  .world = endpoint_->world(),
                                  .root = args.root,
                                  .count = args.count};
    executor_.run(schedule::make(chooser_.decide(asked, size_of(args.dtype))), *endpoint_,
                  {.input = args.input,
                   .output = args.output,
                   .dtype = args.dtype,
                   .op = args.op,
                   .channel = kCollectives,
                   .deadline = deadline,
                   .label = &label});
  }

  // Signature that every message of a call carries. A message that arrives in a different call is
  // then an error on every rank instead of an endless wait.
  struct Call {
    net::Signature signature;
    std::uint64_t number;
  };

  static std::optional<Error> mismatch(int rank, const net::Label::Bytes& mine, int peer,
                                       const net::Label::Bytes& theirs) {
    const auto one = std::bit_cast<Call>(mine), other = std::bit_cast<Call>(theirs);
    if (one.number == other.number && one.signature == other.signature) return std::nullopt;
    return net::mismatch_error(rank, one.signature, peer, other.signature);
  }

  // The same by separate messages, for a transport that cannot carry signatures: each rank sends
  // its signature to all others.
  void agree(const net::Signature& mine, Deadline deadline) {
    const int rank = endpoint_->rank(), world = endpoint_->world();
    std::vector<net::Signature> all(static_cast<std::size_t>(world));
    std::vector<net::Send> sends;
    std::vector<net::Recv> recvs;
    for (int peer = 0; peer < world; ++peer) {
      if (peer == rank) continue;
      sends.push_back({peer, std::as_bytes(std::span(&mine, 1))});
      recvs.push_back(
          {peer, std::as_writable_bytes(std::span(&all[static_cast<std::size_t>(peer)], 1))});
    }
    endpoint_->exchange(kSignatures, sends, recvs, deadline);
    for (int peer = 0; peer < world; ++peer) {
      if (peer == rank || all[static_cast<std::size_t>(peer)] == mine) continue;
      const Error error =
          net::mismatch_error(rank, mine, peer, all[static_cast<std::size_t>(peer)]);
      endpoint_->fail(error);
      throw error;
    }
  }

  std::unique_ptr<net::Endpoint> endpoint_;
  const Chooser chooser_;
  net::Executor executor_;
  std::uint64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<Engine> make_message_engine(std::unique_ptr<net::Endpoint> endpoint,
                                            const Tuning& tuning) {
  return std::make_unique<MessageEngine>(std::move(endpoint), tuning);
}

}  // namespace weft::comm::internal
