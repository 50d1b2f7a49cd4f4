#include "weft/net/mpi/mpi.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "weft/kernels/reduce.h"
#include "weft/net/execute/executor.h"
#include "weft/net/internal/overlap.h"
#include "weft/net/mpi/internal/messages.h"

namespace weft::net::mpi {
namespace {

using internal::Call;
using internal::Messages;
using internal::Request;
using internal::Runtime;
using schedule::Collective;

constexpr Channel kReserved = Channel{1} << 63;  // above the channels that comm uses
constexpr Channel kSignatures = kReserved, kCollectives = kReserved + 1, kTexts = kReserved + 2;

// Collectives whose input and output have `count` elements on each rank, so that they can run in
// pieces.
bool is_flat(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kBroadcast;
}

// FNV-1a.
std::int64_t hash_of(const void* data, std::size_t size) {
  std::uint64_t value = 14695981039346656037ull;
  for (std::size_t i = 0; i < size; ++i)
    value = (value ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211ull;
  return static_cast<std::int64_t>(value);
}

class Communicator final : public MpiEndpoint {
 public:
  Communicator(internal::Comm comm, int rank, int world, const MpiOptions& options)
      : runtime_(Runtime::get()),
        rank_(rank),
        world_(world),
        epoch_(options.epoch),
        native_bytes_(static_cast<std::int64_t>(options.native_bytes)),
        messages_(std::make_shared<Messages>(runtime_, comm, rank, world)) {
    runtime_.add(messages_);
  }
  ~Communicator() override { messages_->leave(); }

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  const char* name() const override { return "mpi"; }
  std::uint32_t epoch() const override { return epoch_; }
  const char* implementation() const override { return runtime_.table().name; }
  void exchange(Channel channel, std::span<const Send> sends, std::span<const Recv> recvs,
                Deadline deadline) override {
    {
      const std::lock_guard lock(counting_);
      count_sent(sends);
    }
    messages_->exchange(channel, sends, recvs, deadline);
  }
  int await_any(Channel channel, Deadline deadline) override {
    return messages_->await_any(channel, deadline);
  }
  int recv_any(Channel channel, std::span<std::byte> bytes, Deadline deadline,
               const std::function<bool(int peer)>& may) override {
    return messages_->recv_any(channel, bytes, deadline, may);
  }
  void fail(const Error& why) noexcept override { messages_->fail(why); }
  void abort(const Error& why) noexcept override { messages_->abort(why); }
  std::optional<Error> failure() const override { return messages_->failure(); }
  Deadline::Clock::time_point failed_at() const override { return messages_->failed_at(); }

  void run(Collective collective, const DirectArgs& args) override;

 private:
  // Sizes of the input and output of a collective, in bytes.
  struct Extent {
    std::size_t input, output;
  };
  Extent extent(Collective collective, const DirectArgs& args) const;
  void agree(const Signature& mine, Deadline deadline);
  [[noreturn]] void mismatch(const Signature& mine, Deadline deadline);
  Call call_of(Collective collective, const DirectArgs& args);
  void native(const Call& call, std::size_t bytes, Deadline deadline);
  void by_messages(Collective collective, const DirectArgs& args, Deadline deadline);

  Runtime& runtime_;
  std::mutex counting_;  // guards count_sent()
  const int rank_, world_;
  const std::uint32_t epoch_;
  const std::int64_t native_bytes_;
  const std::shared_ptr<Messages> messages_;
  Executor executor_;
  std::vector<std::byte> aside_;  // copy of the input, if the output overlaps it
};

void Communicator::run(Collective collective, const DirectArgs& args) {
  const auto deadline = Deadline::in(args.timeout);
  WEFT_REQUIRE(!reduces(collective) || kernels::has_operation(args.dtype, args.op),
               kernels::no_operation(args.dtype, args.op));
  agree(signature_of(collective, args), deadline);
  // The agreement was a barrier already.
  if (collective == Collective::kBarrier || args.count == 0) return;
  const auto size = static_cast<std::int64_t>(size_of(args.dtype));
  const std::int64_t total = is_flat(collective) ? args.count : args.count * world_;
  if (total * size > native_bytes_ && !is_flat(collective))
    return by_messages(collective, args, deadline);

  Call call = call_of(collective, args);
  const auto most = std::max<std::int64_t>(1, native_bytes_ / size);
  for (std::int64_t done = 0; done < args.count;) {
    const std::int64_t count = is_flat(collective) ? std::min(most, args.count - done) : args.count;
    call.count = static_cast<std::int32_t>(count);
    native(call, static_cast<std::size_t>(count * size), deadline);
    done += count;
    if (call.input != nullptr)
      call.input = static_cast<const std::byte*>(call.input) + count * size;
    if (call.output != nullptr) call.output = static_cast<std::byte*>(call.output) + count * size;
  }
  if (args.op == ReduceOp::kAvg && reduces(collective) &&
      (collective != Collective::kReduce || rank_ == args.root)) {
    const void* from = args.output;
    void* to = args.output;
    kernels::reduce(
        &to, 1, &from, 1,
        {.dtype = args.dtype, .op = ReduceOp::kAvg, .count = args.count, .divisor = world_});
  }
}

// Reduces each rank's hash and its complement by minimum. The two results match only if all hashes
// are equal.
void Communicator::agree(const Signature& mine, Deadline deadline) {
  const Signature compared = mine.compared();
  const std::int64_t hash = hash_of(&compared, sizeof compared);
  std::int64_t least[2] = {hash, ~hash};
  const Call call{.collective = static_cast<std::int32_t>(Collective::kAllReduce),
                  .dtype = static_cast<std::int32_t>(DType::kI64),
                  .op = static_cast<std::int32_t>(ReduceOp::kMin),
                  .count = 2,
                  .input = nullptr,
                  .output = least};
  native(call, sizeof least, deadline);
  if (least[0] != ~least[1]) mismatch(mine, deadline);
}

// All ranks run this together, and each gets the signatures of all.
void Communicator::mismatch(const Signature& mine, Deadline deadline) {
  std::vector<Signature> all(static_cast<std::size_t>(world_));
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  for (int peer = 0; peer < world_; ++peer) {
    sends.push_back({peer, std::as_bytes(std::span(&mine, 1))});
    recvs.push_back(
        {peer, std::as_writable_bytes(std::span(&all[static_cast<std::size_t>(peer)], 1))});
  }
  messages_->exchange(kSignatures, sends, recvs, deadline);
  for (int peer = 0; peer < world_; ++peer) {
    if (all[static_cast<std::size_t>(peer)] == mine) continue;
    const Error error = mismatch_error(rank_, mine, peer, all[static_cast<std::size_t>(peer)]);
    messages_->fail(error);  // every rank detects it itself
    throw error;
  }
  throw Error(Errc::kInternal, "ranks disagree about a call that is the same on all of them",
              {"mpi", rank_, -1});
}

Communicator::Extent Communicator::extent(Collective collective, const DirectArgs& args) const {
  const std::size_t one = static_cast<std::size_t>(args.count) * size_of(args.dtype),
                    all = one * static_cast<std::size_t>(world_);
  switch (collective) {
    case Collective::kReduceScatter:
    case Collective::kScatter: return {all, one};
    case Collective::kAllGather:
    case Collective::kGather: return {one, all};
    case Collective::kAllToAll: return {all, all};
    default: return {one, one};
  }
}

// MPI forbids overlapping input and output, except for "in place", whose meaning depends on the
// collective.
Call Communicator::call_of(Collective collective, const DirectArgs& args) {
  const ReduceOp op = args.op == ReduceOp::kAvg ? ReduceOp::kSum : args.op;
  Call call{.collective = static_cast<std::int32_t>(collective),
            .dtype = static_cast<std::int32_t>(args.dtype),
            .op = static_cast<std::int32_t>(op),
            .root = args.root,
            .input = args.input,
            .output = args.output};
  if (collective == Collective::kBroadcast) {
    if (rank_ == args.root && args.input != nullptr && args.input != args.output) {
      std::memcpy(args.output, args.input, extent(collective, args).output);
    }
    return call;
  }
  if (args.input == nullptr || args.output == nullptr) return call;
  const auto [input, output] = extent(collective, args);
  const auto* in = static_cast<const std::byte*>(args.input);
  if (!net::internal::overlap({in, input}, {static_cast<const std::byte*>(args.output), output}))
    return call;
  if (is_flat(collective) && args.input == args.output) {
    call.input = nullptr;
  } else {
    aside_.assign(in, in + input);
    call.input = aside_.data();
  }
  return call;
}

void Communicator::native(const Call& call, std::size_t bytes, Deadline deadline) {
  Request request{};
  bool started = false, ended = false;
  const auto step = [&] {
    if (!started)
      runtime_.check(runtime_.table().start(messages_->comm(), &call, &request), "MPI collective");
    started = true;
    std::int32_t done = 0;
    runtime_.check(runtime_.table().test(&request, &done, nullptr), "MPI collective");
    return ended = done != 0;
  };
  const auto in_flight = [&] { return started && !ended; };
  const auto* name = schedule::to_string(static_cast<Collective>(call.collective));
  messages_->run({name, std::ref(step), std::ref(in_flight), bytes}, deadline);
}

// Used if the counts of all ranks together could exceed MPI's range of int.
void Communicator::by_messages(Collective collective, const DirectArgs& args, Deadline deadline) {
  const schedule::Request request{.collective = collective,
                                  .algorithm = schedule::Algorithm::kSharded,
                                  .rank = rank_,
                                  .world = world_,
                                  .root = args.root,
                                  .count = args.count};
  executor_.run(schedule::make(request), *this,
                {.input = args.input,
                 .output = args.output,
                 .dtype = args.dtype,
                 .op = args.op,
                 .channel = kCollectives,
                 .deadline = deadline});
}

}  // namespace

std::unique_ptr<MpiEndpoint> connect_mpi(const MpiOptions& options) {
  Runtime& runtime = Runtime::get(Deadline::in(options.timeout));
  std::vector<std::int32_t> ranks(options.ranks.begin(), options.ranks.end());
  if (ranks.empty()) {
    ranks.resize(static_cast<std::size_t>(runtime.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  auto sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  WEFT_REQUIRE(sorted.front() >= 0 && sorted.back() < runtime.size() &&
                   std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
               "the group's ranks must be distinct ranks of the " + std::to_string(runtime.size()) +
                   " that the launcher started");
  const auto mine = std::find(ranks.begin(), ranks.end(), runtime.rank());
  WEFT_REQUIRE(mine != ranks.end(), "rank " + std::to_string(runtime.rank()) +
                                        " must be a member of the group that it makes");
  // Several groups may form at once; the tag distinguishes them.
  const auto tag = static_cast<std::int32_t>(
      (hash_of(ranks.data(), ranks.size() * sizeof(std::int32_t)) + options.epoch) & 0x7fff);
  const auto comm = std::make_shared<internal::Comm>();
  runtime.block(
      [&runtime, ranks, tag, comm] {
        runtime.check(runtime.table().form(ranks.data(), static_cast<std::int32_t>(ranks.size()),
                                           tag, comm.get()),
                      "MPI_Comm_create_group");
      },
      "connect_mpi", Deadline::in(options.timeout));
  return std::make_unique<Communicator>(*comm, static_cast<int>(mine - ranks.begin()),
                                        static_cast<int>(ranks.size()), options);
}

int world_rank() { return Runtime::get().rank(); }

std::vector<std::string> exchange(MpiEndpoint& endpoint, const std::string& mine,
                                  Deadline deadline) {
  const auto world = static_cast<std::size_t>(endpoint.world());
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(world);
  std::vector<std::string> all(world);
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  for (std::size_t peer = 0; peer < world; ++peer) {
    sends.push_back({static_cast<int>(peer), std::as_bytes(std::span(&length, 1))});
    recvs.push_back({static_cast<int>(peer), std::as_writable_bytes(std::span(&lengths[peer], 1))});
  }
  endpoint.exchange(kTexts, sends, recvs, deadline);
  for (std::size_t peer = 0; peer < world; ++peer) {
    all[peer].resize(lengths[peer]);
    sends[peer].bytes = std::as_bytes(std::span(mine));
    recvs[peer].bytes = std::as_writable_bytes(std::span(all[peer]));
  }
  endpoint.exchange(kTexts, sends, recvs, deadline);
  return all;
}

}  // namespace weft::net::mpi
