#include "bench/suite/internal/collective_rank.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>

#include "weft/base/deadline.h"
#include "weft/net/memory/direct.h"
#include "weft/net/shm/shm.h"

namespace weft::cli::bench_internal {
namespace {

using namespace std::chrono_literals;

// Initial value of an element on this rank: never zero, and sums over fewer than 10,000 ranks are
// exact in float32.
float element(int rank, std::int64_t index) { return static_cast<float>(1 + index % 509 + rank); }

float element_sum(int ranks, std::int64_t index) {
  return static_cast<float>(ranks) * element(0, index) +
         static_cast<float>(ranks * (ranks - 1) / 2);
}

class Collectives {
 public:
  Collectives(const comm::Group& group, Way way) : group_(group), way_(way) {
    if (way != Way::kNet) return;
    if (group.host() == nullptr) throw Error(Errc::kUnavailable, "the ranks have no shared memory");
    direct_ = std::make_unique<net::Direct>(*group.host(), 60s);
    const std::size_t bytes = net::shm_region_bytes(group.size());
    rings_ = net::make_shm({.rank = group.rank(),
                            .world = group.size(),
                            .region = {group.host()->share(bytes, 60s), bytes}});
  }

  std::string carry_out(const Message& command) {
    prepare(command.text("op"), static_cast<std::int64_t>(command.number("bytes")));
    if (!verify()) return R"("verified":false,"error":"the operation left a wrong result")";
    fill();  // Later sums grow to infinity; the time of an addition does not depend on the values.
    const int warmup = static_cast<int>(command.number("warmup")),
              block = static_cast<int>(command.number("block", 1));
    const bool rewrite = command.number("rewrite") != 0;
    std::vector<double> us;
    for (int sample = -warmup; sample < command.number("iterations", 1); ++sample) {
      const double time = rewrite ? time_fresh(block) : time_block(block);
      if (sample >= 0) us.push_back(time);
    }
    return "\"verified\":true,\"us\":" + json_array(slowest(us));
  }

 private:
  void prepare(const std::string& op, std::int64_t bytes) {
    op_ = op;
    const std::int64_t unit = 4 * group_.size();
    WEFT_REQUIRE(op == "barrier" || (bytes > 0 && bytes % unit == 0),
                 "bytes must be a positive multiple of 4 x ranks");
    WEFT_REQUIRE(op != "ping_pong" || group_.size() >= 2, "ping_pong needs two ranks");
    WEFT_REQUIRE(way_ != Way::kPrepared || op == "all_reduce",
                 "a prepared call is measured for all_reduce only");
    if (data_.defined() && data_.numel() * 4 == bytes && (op != "all_to_all" || other_.defined()))
      return;
    for (at::Tensor* tensor : {&data_, &share_, &other_}) tensor->reset();
    data_ = way_ == Way::kOrdinary ? ordinary(bytes / 4) : at::empty({bytes / 4}, at::kFloat);
    if (way_ == Way::kPrepared) prepared_.emplace(group_.prepare_all_reduce(data_));
    if (op == "all_to_all") other_ = at::empty_like(data_);
    share_ = data_.narrow(0, group_.rank() * (data_.numel() / group_.size()),
                          data_.numel() / group_.size());
  }

  static at::Tensor ordinary(std::int64_t count) {
    constexpr std::size_t kPage = 4096;
    void* memory = std::aligned_alloc(
        kPage, (static_cast<std::size_t>(count) * 4 + kPage - 1) / kPage * kPage);
    if (memory == nullptr)
      throw Error(Errc::kUnavailable, "no memory for " + std::to_string(count) + " floats");
    return at::from_blob(
        memory, {count}, [](void* data) { std::free(data); }, at::kFloat);
  }

  void fill() {
    float* data = data_.data_ptr<float>();
    for (std::int64_t i = 0; i < data_.numel(); ++i) {
      const bool theirs = (op_ == "all_gather" && i / share_.numel() != group_.rank()) ||
                          ((op_ == "broadcast" || op_ == "ping_pong") && group_.rank() != 0);
      data[i] = theirs ? -1.0F : element(group_.rank(), i);
    }
  }

  bool right(std::int64_t i, float value) const {
    if (op_ == "all_reduce") return value == element_sum(group_.size(), i);
    if (op_ == "all_gather") return value == element(static_cast<int>(i / share_.numel()), i);
    if (op_ == "broadcast") return value == element(0, i);
    if (op_ == "ping_pong") return group_.rank() > 1 || value == element(0, i);
    if (op_ == "reduce") return group_.rank() > 0 || value == element_sum(group_.size(), i);
    const std::int64_t part = share_.numel();
    if (op_ == "all_to_all")
      return value == element(static_cast<int>(i / part), i % part + group_.rank() * part);
    return op_ == "barrier" || i / share_.numel() != group_.rank() ||
           value == element_sum(group_.size(), i);
  }

  // Runs and checks the operation. Returns the same on all ranks.
  bool verify() {
    fill();
    run();
    const float* result = (op_ == "all_to_all" ? other_ : data_).data_ptr<float>();
    float good = 1;
    for (std::int64_t i = 0; i < data_.numel(); ++i) good = right(i, result[i]) ? good : 0;
    at::Tensor all = at::full({1}, good);
    group_.all_reduce(all, ReduceOp::kMin);
    return all.item<float>() == 1;
  }

  double time_block(int calls) {
    meet(group_);
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call) run();
    const double us =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count() /
        calls;
    return op_ == "ping_pong" ? us / 2 : us;
  }

  // Like time_block(), but each rank writes its vector before each call.
  double time_fresh(int calls) {
    std::chrono::steady_clock::duration sum{};
    for (int call = 0; call < calls; ++call) {
      rewrite();
      group_.barrier();
      const auto start = std::chrono::steady_clock::now();
      run();
      sum += std::chrono::steady_clock::now() - start;
    }
    const double us = std::chrono::duration<double, std::micro>(sum).count() / calls;
    return op_ == "ping_pong" ? us / 2 : us;
  }

  void rewrite() {
    if ((op_ == "broadcast" || op_ == "ping_pong") && group_.rank() != 0) return;
    (op_ == "all_gather" ? share_ : data_).fill_(1 + group_.rank());
  }

  std::vector<double> slowest(const std::vector<double>& us) const {
    at::Tensor all = at::tensor(us, at::kDouble);
    group_.all_reduce(all, ReduceOp::kMax);
    return {all.data_ptr<double>(), all.data_ptr<double>() + all.numel()};
  }

  void run() {
    if (way_ == Way::kNet) return run_net();
    if (way_ == Way::kPrepared) return prepared_->run();
    if (op_ == "all_reduce") {
      group_.all_reduce(data_);
    } else if (op_ == "all_gather") {
      group_.all_gather(data_, share_);
    } else if (op_ == "reduce_scatter") {
      group_.reduce_scatter(share_, data_);
    } else if (op_ == "broadcast") {
      group_.broadcast(data_);
    } else if (op_ == "reduce") {
      group_.reduce(data_);
    } else if (op_ == "all_to_all") {
      group_.all_to_all(other_, data_);
    } else if (op_ == "ping_pong") {
      ping_pong([&] { group_.send(data_, 1 - group_.rank()); },
                [&] { group_.recv(data_, 1 - group_.rank()); });
    } else {
      group_.barrier();
    }
  }

  template <class Send, class Recv>
  void ping_pong(Send send, Recv recv) const {
    if (group_.rank() == 0) send();
    if (group_.rank() < 2) recv();
    if (group_.rank() == 1) send();
  }

  void run_net() {
    net::DirectArgs args{.input = data_.data_ptr(),
                         .output = data_.data_ptr(),
                         .count = data_.numel(),
                         .timeout = 60s};
    if (op_ == "all_reduce") return direct_->all_reduce(args);
    if (op_ == "broadcast") return direct_->broadcast(args);
    if (op_ == "barrier") return direct_->barrier(args);
    if (op_ == "reduce") return direct_->reduce(args);
    if (op_ == "ping_pong") {
      const auto bytes = std::as_writable_bytes(
          std::span(data_.data_ptr<float>(), static_cast<std::size_t>(data_.numel())));
      const auto deadline = Deadline::in(60s);
      return ping_pong([&] { rings_->send(1 - group_.rank(), 0, bytes, deadline); },
                       [&] { rings_->recv(1 - group_.rank(), 0, bytes, deadline); });
    }
    args.count = share_.numel();
    if (op_ == "all_to_all") {
      args.output = other_.data_ptr();
      return direct_->all_to_all(args);
    }
    if (op_ == "all_gather") {
      args.input = share_.data_ptr();
      return direct_->all_gather(args);
    }
    args.output = share_.data_ptr();
    direct_->reduce_scatter(args);
  }

  comm::Group group_;
  Way way_;
  std::unique_ptr<net::Direct> direct_;   // kNet
  std::unique_ptr<net::Endpoint> rings_;  // kNet
  std::string op_;
  std::optional<comm::PreparedAllReduce> prepared_;  // kPrepared: of data_
  at::Tensor data_;   // reused until a command requests another length
  at::Tensor share_;  // this rank's block of data_
  at::Tensor other_;  // all_to_all: the output
};

}  // namespace

CarryOut make_collectives(const comm::Group& group, Way way) {
  const auto collectives = std::make_shared<Collectives>(group, way);
  return [collectives](const Message& command) { return collectives->carry_out(command); };
}

}  // namespace weft::cli::bench_internal
