#include "bench/suite/internal/schedule_rank.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <thread>

#include "bench/suite/internal/answer.h"
#include "bench/suite/internal/ranks.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/kernels/reduce.h"
#include "weft/net/execute/executor.h"
#include "weft/net/memory/direct.h"
#include "weft/net/shm/shm.h"
#include "weft/net/tcp/tcp.h"

namespace weft::cli::bench_internal {
namespace {

using namespace std::chrono_literals;
using plan::Transport;
using schedule::Algorithm;
using schedule::Collective;

constexpr net::Channel kData = 1, kOrder = 2;

struct Place {
  Transport transport;
  int rank, ranks;
  std::string folder;
  std::span<std::byte> region;  // shm only: the zeroed memory shared by all ranks
};

std::unique_ptr<net::Endpoint> make_endpoint(const Place& place) {
  if (place.transport == Transport::kShm)
    return net::make_shm({.rank = place.rank, .world = place.ranks, .region = place.region});
  net::TcpOptions options;
  options.rank = place.rank;
  options.world = place.ranks;
  options.job = "weft bench";
  options.exchange = exchange_by_files(place.folder, place.rank, place.ranks);
  // comm does the same.
  if (place.ranks > static_cast<int>(std::thread::hardware_concurrency())) options.spin = 0us;
  return net::connect_tcp(options);
}

// Runs collectives over messages, or in shared memory (direct).
class Runner {
 public:
  explicit Runner(const Place& place) : rank_(place.rank), ranks_(place.ranks) {
    if (place.transport == Transport::kDirect) {
      host_ = net::Host::connect({.rank = rank_,
                                  .world = ranks_,
                                  .exchange = exchange_by_files(place.folder, rank_, ranks_)});
      direct_ = std::make_unique<net::Direct>(*host_, 60s);
    } else {
      endpoint_ = make_endpoint(place);
    }
  }
  ~Runner() {
    release(input_);
    release(output_);
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  std::string carry_out(const Message& command) {
    prepare(command);
    const int block = static_cast<int>(command.number("block", 1));
    std::vector<double> us;
    for (int sample = 0; sample < command.number("iterations", 1); ++sample) {
      barrier();
      const auto start = std::chrono::steady_clock::now();
      for (int call = 0; call < block; ++call) work();
      us.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
              .count() /
          block);
    }
    if (do_ == "ping_pong" && endpoint_) {
      for (double& time : us) time /= 2;
    }
    run({.collective = Collective::kAllReduce,
         .algorithm = Algorithm::kRecursiveDoubling,
         .count = static_cast<std::int64_t>(us.size())},
        {us.data(), us.data(), DType::kF64, ReduceOp::kMax});
    return "\"us\":" + json_array(us);
  }

 private:
  struct Arrays {
    const void* input;
    void* output;
    DType dtype = DType::kF32;
    ReduceOp op = ReduceOp::kSum;
  };

  void prepare(const Message& command) {
    do_ = command.text("do");
    bytes_ = static_cast<std::size_t>(command.number("bytes"));
    messages_ = static_cast<int>(command.number("messages", 1));
    std::size_t in = bytes_, out = bytes_;
    if (do_ == "collective") {
      asked_ = {.collective = schedule::parse_collective(command.text("op")),
                .algorithm = schedule::parse_algorithm(command.text("algorithm")),
                .rank = rank_,
                .world = ranks_,
                .count = static_cast<std::int64_t>(command.number("count")),
                .chunk = static_cast<std::int64_t>(command.number("chunk"))};
      const bool can =
          asked_.collective == Collective::kAllReduce || asked_.collective == Collective::kBarrier;
      WEFT_REQUIRE(!host_ || can, std::string("direct ranks measure no ") +
                                      schedule::to_string(asked_.collective));
      in = static_cast<std::size_t>(schedule::input_count(asked_)) * 4;
      out = static_cast<std::size_t>(schedule::output_count(asked_)) * 4;
    }
    hold(input_, in);
    hold(output_, std::max(out, bytes_));
    if (host_ && do_ == "ping_pong") show();
  }

  struct Memory {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  void release(Memory& memory) {
    if (memory.data == nullptr) return;
    if (host_) host_->deallocate(memory.data);
    if (!host_) ::operator delete[](memory.data, std::align_val_t(4096));
    memory = {};
  }
  // Grows the memory to at least `bytes`, filled with ones. Sums of zeros or NaNs can take less or
  // more time than others.
  void hold(Memory& memory, std::size_t bytes) {
    if (bytes <= memory.bytes) return;
    release(memory);
    memory = {host_ ? host_->allocate(bytes)
                    : static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(4096))),
              bytes};
    std::fill_n(reinterpret_cast<float*>(memory.data), bytes / 4, 1.0F);
  }
  // Direct only: finds the input of the next rank.
  void show() {
    std::vector<std::uint64_t> tokens(static_cast<std::size_t>(ranks_));
    const std::uint64_t mine = host_->token(input_.data);
    direct_->all_gather(
        {.input = &mine, .output = tokens.data(), .count = 1, .dtype = DType::kI64});
    const int next = (rank_ + 1) % ranks_;
    theirs_ = host_->at(next, tokens[static_cast<std::size_t>(next)]);
  }

  void barrier() {
    run({.collective = Collective::kBarrier, .algorithm = Algorithm::kRecursiveDoubling},
        {nullptr, nullptr});
  }

  void run(schedule::Request request, const Arrays& arrays) {
    if (host_) {
      const net::DirectArgs args{.input = arrays.input,
                                 .output = arrays.output,
                                 .count = request.count,
                                 .dtype = arrays.dtype,
                                 .op = arrays.op};
      if (request.collective == Collective::kBarrier) return direct_->barrier(args);
      return direct_->all_reduce(args);
    }
    request.rank = rank_;
    request.world = ranks_;
    executor_.run(schedule::make(request), *endpoint_,
                  {.input = arrays.input,
                   .output = arrays.output,
                   .dtype = arrays.dtype,
                   .op = arrays.op,
                   .channel = kOrder,
                   .deadline = Deadline::in(60s)});
  }

  void work() {
    if (do_ == "collective") return run(asked_, {input_.data, output_.data});
    if (do_ == "copy") return void(std::memcpy(output_.data, input_.data, bytes_));
    if (do_ == "reduce") {
      void* to = output_.data;
      const void* from[] = {output_.data, input_.data};
      return kernels::reduce(
          &to, 1, from, 2, {.op = ReduceOp::kMax, .count = static_cast<std::int64_t>(bytes_ / 4)});
    }
    if (host_) return void(std::memcpy(output_.data, theirs_, bytes_));
    if (rank_ < 2) talk();
  }

  void talk() {
    const auto deadline = Deadline::in(60s);
    const int peer = 1 - rank_;
    const std::span<std::byte> out(input_.data, bytes_), in(output_.data, bytes_);
    if (do_ == "swap") {
      const net::Send send{peer, out};
      const net::Recv recv{peer, in};
      return endpoint_->exchange(kData, {&send, 1}, {&recv, 1}, deadline);
    }
    const std::vector<net::Send> sends(static_cast<std::size_t>(messages_), {peer, out});
    const std::vector<net::Recv> recvs(static_cast<std::size_t>(messages_), {peer, in});
    const std::size_t back = do_ == "burst" ? 1 : bytes_;
    if (rank_ == 0) {
      endpoint_->exchange(kData, sends, {}, deadline);
      endpoint_->recv(peer, kData, in.first(back), deadline);
    } else {
      endpoint_->exchange(kData, {}, recvs, deadline);
      endpoint_->send(peer, kData, out.first(back), deadline);
    }
  }

  const int rank_, ranks_;
  std::unique_ptr<net::Host> host_;  // direct only
  std::unique_ptr<net::Direct> direct_;
  std::unique_ptr<net::Endpoint> endpoint_;  // messages only
  net::Executor executor_;
  Memory input_, output_;
  const std::byte* theirs_ = nullptr;
  std::string do_;
  std::size_t bytes_ = 0;
  int messages_ = 1;
  schedule::Request asked_;
};

int serve(const Place& place) {
  const std::string name = plan::to_string(place.transport);
  const auto answer = [&](const std::string& fields) {
    if (place.rank == 0)
      std::cout << "{\"impl\":" << json_quote(name) << "," << fields << "}" << std::endl;
  };
  try {
    set_rank(place.rank, place.ranks);
    Runner runner(place);
    bind_to_core(place.rank, place.ranks);
    for (std::string line; std::getline(std::cin, line);)
      answer(runner.carry_out(parse_message(line)));
    return 0;
  } catch (const std::exception& error) {
    log_error(name + ": " + error.what());
    answer("\"error\":" + json_quote(error.what()));
    return 1;
  }
}

}  // namespace

std::shared_ptr<Participant> start_schedule_ranks(Transport transport, int ranks,
                                                  const std::string& folder,
                                                  const Signals& signals) {
  Place place{
      transport, 0, ranks, folder + "/" + plan::to_string(transport) + std::to_string(ranks), {}};
  make_directories(place.folder);
  if (transport == Transport::kShm) {
    const std::size_t bytes = net::shm_region_bytes(ranks);
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw Error(Errc::kUnavailable,
                  "no shared memory for the messages of " + std::to_string(ranks) + " ranks");
    place.region = {static_cast<std::byte*>(memory), bytes};
  }
  const auto serve_as = [&](int rank) {
    Place own = place;
    own.rank = rank;
    return serve(own);
  };
  auto participant =
      std::make_shared<Participant>(plan::to_string(transport), ranks, serve_as, signals);
  // The ranks keep their own mappings.
  if (!place.region.empty()) ::munmap(place.region.data(), place.region.size());
  return participant;
}

}  // namespace weft::cli::bench_internal
